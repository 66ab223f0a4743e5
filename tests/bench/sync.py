"""Measures how long a first sync takes and what it leaves in memory, every program in turn, round after round, and
of 50,000 VMIs of 4 kB in one informer, beside the time that the API server takes to send them to a client that
throws them away; and how many keys a second go through a work queue: add, get, done."""

import asyncio
import base64
import json
import sys
import time
from pathlib import Path
from statistics import median

import aiohttp

from kubeloop.client.client import Client
from kubeloop.client.config import ClientConfig
from kubeloop.client.loading import load_config
from kubeloop.client.tls import TLSSettings
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCES
from tests.bench.document import Comparison, Result, Row, spread
from tests.bench.objects import SIZE, api_server, create_vms, vmi
from tests.bench.ours import as_in_a_pod
from tests.bench.peers.programs import ROOT, MeasuredProgram, MeasuredPrograms, running, say

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


# ---- how many keys a second go through a work queue ----------------------------------------------------------

KINDS = {"plain": "add, get, done", "delayed": "add after 1 ms", "priority": "two priorities"}
KEYS = (1, 10_000, 100_000)
TO_REACH = 400_000


async def cycles(kubeconfig: Path, programs: MeasuredPrograms, rounds: int) -> list[Result]:
    """Ours and client-go's (for priorities controller-runtime's) in turn, round after round."""
    measured: dict[tuple[str, str, int], list[float]] = {}
    argvs: dict[str, tuple[str, ...]] = {"headroom": (sys.executable, "-m", "tests.bench.ours")}
    if programs.go is not None:
        argvs["client-go"] = (str(programs.go),)
    for _ in range(rounds):
        for kind in KINDS:
            for keys in KEYS:
                for name, argv in argvs.items():
                    cycles_a_second = await _in_a_process(argv, kind, keys)
                    measured.setdefault((kind, name, keys), []).append(cycles_a_second)
    lines = tuple(
        (KINDS[kind], name, *(spread(measured[kind, name, keys]) for keys in KEYS)) for kind in KINDS for name in argvs
    )
    columns = ("", "", *(f"{keys:,} key{'s' if keys > 1 else ''}" for keys in KEYS))
    note = "Cycles a second: all keys in, all keys out, by one worker. Priorities: controller-runtime's queue."
    plain = [median(measured["plain", "headroom", keys]) for keys in KEYS]
    bars = tuple((name, median(measured["plain", name, 10_000])) for name in argvs)
    return [
        Comparison("Work queue", columns, lines, note, bars, "cycles a second, 10,000 keys"),
        *(
            Row(f"queue cycles, {keys:,} key{'s' if keys > 1 else ''}", rate, "/s", TO_REACH, at_least=True)
            for keys, rate in zip(KEYS, plain, strict=True)
        ),
    ]


async def _in_a_process(argv: tuple[str, ...], kind: str, keys: int) -> float:
    process = await asyncio.create_subprocess_exec(
        *(*argv, "queue", kind, str(keys)), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    output, _ = await process.communicate()
    cycles_a_second: float = json.loads(output)["cycles"]
    return cycles_a_second


OBJECTS = 50_000
MANY_NAMESPACE = "default"
KIND = VIRTUAL_MACHINE_INSTANCES
AT_ONCE = 100
"""In one of etcd's transactions, which take 128."""
END = b'"k8s.io/initial-events-end":"true"'
"""In the bookmark with which a WatchList says that every object was sent."""


async def many(kubeconfig: Path, programs: MeasuredPrograms, rounds: int) -> list[Row]:
    """The objects stay: this is measured last. Sending and syncing alternate."""
    headroom = next(program for program in programs.programs if program.is_headroom and not program.pods)
    config = as_in_a_pod(kubeconfig)
    say(f"storing {OBJECTS:,} VMIs")
    await _store(kubeconfig.parent)
    await _sent(config)  # until the API server's cache has them
    sent, synced, peaks = [], [], []
    for number in range(rounds):
        say(f"{OBJECTS:,} VMIs, round {number + 1}")
        sent.append(await _sent(config))
        async with running(headroom, kubeconfig) as handle:
            if handle.objects != OBJECTS:
                raise RuntimeError(f"it holds {handle.objects} of {OBJECTS}")
            synced.append(handle.seconds)
            peaks.append(handle.peak)
    ratios = [headroom / server for headroom, server in zip(synced, sent, strict=True)]
    title = f"{OBJECTS:,} VMIs of 4 kB"
    return [
        Row(f"{title}: sent by the API server", median(sent), "s", values=tuple(sent)),
        Row("… first sync", median(synced), "s", values=tuple(synced)),
        Row("… first sync ÷ sent", median(ratios), "×", 1.5, values=tuple(ratios)),
        Row("… peak memory", median(peaks), "MB", 500, values=tuple(peaks)),
    ]


async def _store(directory: Path) -> None:
    """Into etcd, as the API server stores custom resources: through it that would take minutes."""
    _, flags = api_server(directory)
    ca, certificate, key = (Path(flags[f"--etcd-{name}file"]) for name in ("ca", "cert", "key"))
    tls = aiohttp.TCPConnector(ssl=TLSSettings(ca, certificate, key).context())
    async with aiohttp.ClientSession(flags["--etcd-servers"], connector=tls, raise_for_status=True) as etcd:
        for start in range(0, OBJECTS, AT_ONCE):
            puts = [{"requestPut": _stored(number)} for number in range(start, start + AT_ONCE)]
            async with etcd.post("/v3/kv/txn", json={"success": puts}) as answer:
                await answer.read()


def _stored(number: int) -> dict[str, str]:
    name = f"many-{number:05}"
    body = {"apiVersion": KIND.api_version, "kind": KIND.kind, **vmi(MANY_NAMESPACE, name, SIZE)}
    uid = f"00000000-0000-4000-8000-{number:012}"
    body["metadata"] |= {"uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1}
    key = f"/registry/{KIND.group}/{KIND.plural}/{NAMESPACE}/{name}"
    return {"key": _base64(key), "value": _base64(json.dumps(body, separators=(",", ":")))}


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


async def _sent(config: ClientConfig) -> float:
    """Seconds until the last of a WatchList has come, of which nothing is read but the end."""
    params = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    url = f"{config.host}{KIND.path()}?{params}"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=config.tls.context())) as session:
        began, tail = time.perf_counter(), b""
        async with session.get(url, timeout=aiohttp.ClientTimeout(None)) as answer:
            answer.raise_for_status()
            async for chunk in answer.content.iter_any():
                if END in tail + chunk:
                    return time.perf_counter() - began
                tail = chunk[-len(END) :]
    raise RuntimeError("the server ended its WatchList early")
