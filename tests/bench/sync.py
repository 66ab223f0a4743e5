"""Measures how long a first sync takes and what it leaves in memory: every program in turn, round after round."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from kubeloop.client.client import Client
from kubeloop.client.loading import load_config
from tests.bench.objects import create_vms
from tests.bench.peers.programs import MeasuredProgram, MeasuredPrograms, running, say
from tests.bench.row import Comparison, Result, Row, spread

NAMESPACE = "default"
Figures = dict[MeasuredProgram, list[tuple[float, float, float]]]
"""Seconds, CPU seconds and MB of each round."""


async def sync(kubeconfig: Path, programs: MeasuredPrograms, sizes: list[int], rounds: int) -> list[Result]:
    """The objects are made first and removed afterwards. At the smallest size every program, at others ours and
    client-go's."""
    results: list[Result] = []
    async with Client(load_config(str(kubeconfig))) as client:
        created = 0
        for size in sorted(sizes):
            await create_vms(client, NAMESPACE, range(created, size))
            created = size
            selection = [p for p in programs.programs if p.is_headroom or p.go or size == min(sizes)]
            results += _results(size, await _rounds(kubeconfig, selection, size, rounds))
        for path in ("/api/v1/namespaces/{}/pods", "/apis/kubevirt.io/v1/namespaces/{}/virtualmachineinstances"):
            # The API server gives up after a minute.
            await client.transport.request("DELETE", path.format(NAMESPACE), timeout=None, repeatable=True)
    return results


async def _rounds(kubeconfig: Path, selection: list[MeasuredProgram], size: int, rounds: int) -> Figures:
    figures: Figures = {program: [] for program in selection}
    for number in range(rounds):
        for program in selection:
            say(f"sync of {size:,}, round {number + 1}: {program.name}")
            try:
                async with running(program, kubeconfig) as handle:
                    if handle.objects != size:
                        raise RuntimeError(f"it holds {handle.objects} of {size}")
                    figures[program].append((handle.seconds, handle.cpu, handle.peak))
            except RuntimeError as error:
                if program.is_headroom:
                    raise
                say(f"{program.name} is left out: {error}")
    return figures


def _results(size: int, figures: Figures) -> list[Result]:
    results: list[Result] = []
    for pods, kinds in ((False, "VMIs"), (True, "pods")):
        group = {program: runs for program, runs in figures.items() if program.pods == pods}
        lines = tuple(
            (program.name, program.version, *(spread([run[n] for run in runs]) if runs else "–" for n in range(3)))
            for program, runs in group.items()
        )
        group = {program: runs for program, runs in group.items() if runs}
        bars = tuple((program.name, _median(runs, 1)) for program, runs in group.items())
        title = f"First sync of {size:,} {kinds} of 4 kB"
        note = "The whole process's peak memory. lightkube and kr8s have no cache: a dict is filled. –: failed."
        columns = ("", "version", "seconds", "CPU s", "peak MB")
        results.append(Comparison(title, columns, lines, "" if pods else note, bars, "CPU s"))
        if group:
            results += _targets(f"{size:,} {kinds}", group)
    return results


def _targets(kinds: str, group: Figures) -> list[Result]:
    """Ratios to client-go and to the Python packages with a cache."""
    results: list[Result] = []
    own_runs = next(runs for program, runs in group.items() if program.is_headroom)
    peers = {program.kind: runs for program, runs in group.items() if program.go}
    for kind, runs in peers.items():
        if kind == "dynamic-vmis" or kind == "typed-pods":
            continue
        pods = kind == "protobuf-pods"
        title = f"{kinds}, ÷ client-go {kind.split('-')[0]}"
        results.append(Row(f"{title}: seconds", _ratio(own_runs, runs, 0), "×", 1.0 if pods else 0.7))
        results.append(Row("… CPU", _ratio(own_runs, runs, 1), "×", None if pods else 0.7))
        results.append(Row("… memory", _ratio(own_runs, runs, 2), "×", 0.6))
    for program, runs in group.items():
        if program.caches and not program.is_headroom and not program.go:
            ratio = 1 / _ratio(own_runs, runs, 1)
            results.append(Row(f"{kinds}, CPU of {program.name} ÷ ours", ratio, "×", 10, at_least=True))
    return results


def _ratio(own_runs: list[tuple[float, float, float]], theirs: list[tuple[float, float, float]], n: int) -> float:
    return _median(own_runs, n) / _median(theirs, n)


def _median(runs: list[tuple[float, float, float]], n: int) -> float:
    return median(run[n] for run in runs)
