"""Measures what a framework's user asks: memory for each object, events, a start with ten watches, and what an API
server that goes away costs, every program in turn, through one relay that can be closed; and what an event of a
watch costs: CPU at a steady rate, and how many a second are handled when more come."""

import asyncio
import contextlib
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from kubeloop.api import registry
from kubeloop.api.registry import Resource
from kubeloop.client.client import Client
from kubeloop.client.loading import load_config
from kubeloop.client.resource_client import ResourceClient
from lab.scale.removal import in_parallel
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCES
from tests.bench.document import Comparison, Result, Row, figure, spread
from tests.bench.objects import create_vms, remove_namespaces
from tests.bench.peers.programs import MeasuredProgram, MeasuredPrograms, Running, running, say
from tests.relay import Relay

OBJECTS = 200
WATCHED_NAMESPACE = "bench-watch"
WRITES = 125
"""A second. More events come by watching more than once: writes would take the API server's CPU, not the program's."""
STEADY = (1, 8)
SATURATING = 60
SETTLE = 1.0
FEWEST = 0.1
"""Of the events: what a program needs for each is no figure where it is still busy with its start."""


async def watch(kubeconfig: Path, programs: MeasuredPrograms, rounds: int, seconds: float) -> list[Result]:
    """Every program in turn, round after round."""
    cpu: dict[tuple[MeasuredProgram, int], list[float]] = defaultdict(list)
    handled: dict[MeasuredProgram, list[float]] = defaultdict(list)
    async with Client(load_config(str(kubeconfig))) as client:
        await client.resource(registry.NAMESPACES).create({"metadata": {"name": WATCHED_NAMESPACE}})
        names = await create_vms(client, WATCHED_NAMESPACE, range(OBJECTS))
        for number in range(rounds):
            for program in programs.programs:
                for watches in _watch_counts(program):
                    say(f"watch, round {number + 1}: {program.name}, {watches} times")
                    try:
                        took, events, used = await _measured(client, kubeconfig, program, watches, names, seconds)
                    except RuntimeError as error:
                        if program.is_headroom:
                            raise
                        say(f"{program.name} is left out: {error}")
                        continue
                    if watches == SATURATING:
                        handled[program].append(events / took)
                    elif events > FEWEST * watches * WRITES * took:
                        cpu[program, watches].append(1000 * used / events)
        await remove_namespaces(client, [WATCHED_NAMESPACE])
    return _comparisons(programs, cpu, handled)


def _watch_counts(program: MeasuredProgram) -> tuple[int, ...]:
    """The Python packages are saturated long before."""
    if not program.watches:
        return STEADY[:1]
    return (*STEADY, SATURATING) if program.is_headroom or program.go else STEADY


async def _measured(
    client: Client, kubeconfig: Path, program: MeasuredProgram, watches: int, names: list[str], seconds: float
) -> tuple[float, int, float]:
    """Returns what `between_two_looks` says while writes go on."""
    async with running(program, kubeconfig, watches) as handle, writing(client, program, WATCHED_NAMESPACE, names):
        return await between_two_looks(handle, seconds)


async def between_two_looks(handle: Running, seconds: float) -> tuple[float, int, float]:
    """Seconds, events handled and CPU seconds."""
    await asyncio.sleep(SETTLE)
    began, events_at_start, cpu = time.perf_counter(), await handle.events(), handle.cpu_so_far
    await asyncio.sleep(seconds)
    events, used = await handle.events() - events_at_start, handle.cpu_so_far - cpu
    return time.perf_counter() - began, events, used


@asynccontextmanager
async def writing(client: Client, program: MeasuredProgram, namespace: str, names: list[str]) -> AsyncIterator[None]:
    """WRITES a second meanwhile, one object of the program's kind after the other."""
    resource: Resource[Any] = registry.PODS if program.pods else VIRTUAL_MACHINE_INSTANCES
    task = asyncio.create_task(_write(client.resource(resource), namespace, names))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _write(calls: ResourceClient[Any], namespace: str, names: list[str]) -> None:
    began, number = time.perf_counter(), 0
    async with asyncio.TaskGroup() as group:
        while True:
            await asyncio.sleep(max(0.0, began + number / WRITES - time.perf_counter()))
            # Different from what an earlier run wrote, which would be no event.
            body = {"metadata": {"annotations": {"bench": f"{began:.3f}-{number}"}}}
            name = names[number % len(names)]
            group.create_task(calls.merge_patch(body, name=name, namespace=namespace))
            number += 1


def _comparisons(
    programs: MeasuredPrograms,
    cpu: dict[tuple[MeasuredProgram, int], list[float]],
    handled: dict[MeasuredProgram, list[float]],
) -> list[Result]:
    results: list[Result] = []
    for pods, kinds in ((False, "VMIs"), (True, "pods")):
        group = [program for program in programs.programs if program.pods == pods]
        lines = tuple(
            (
                program.name,
                program.version,
                *(spread(cpu[program, n]) if (program, n) in cpu else "–" for n in STEADY),
                spread(handled[program]) if program in handled else "–",
            )
            for program in group
        )
        rates = [f"{n * WRITES:,}/s" for n in STEADY]
        columns = ("", "version", *(f"CPU ms per event at {rate}" for rate in rates), "events/s, saturated")
        note = (
            f"{WRITES} writes a second; more events by watching {STEADY[-1]} times, {SATURATING} times where "
            "saturated. client-go uses both cores there, Python one. kopf watches a kind once. –: not measured, or "
            "less than a tenth of the events were handled."
        )
        most = STEADY[-1]
        bars = tuple((program.name, median(cpu[program, most])) for program in group if (program, most) in cpu)
        plotted = f"CPU ms per event at {rates[-1]}"
        results.append(Comparison(f"Watching {kinds} of 4 kB", columns, lines, note, bars, plotted))
        headroom = next(program for program in group if program.is_headroom)
        for kind in ("typed-vmis", "protobuf-pods"):
            for program in group:
                if program.kind == kind and (program, most) in cpu:
                    title = f"{kinds}: CPU per event at {rates[-1]} ÷ client-go {kind.split('-')[0]}"
                    ratio = median(cpu[headroom, most]) / median(cpu[program, most])
                    results.append(Row(title, ratio, "×", 0.25 if not pods else None))
    return results


NAMESPACE = "bench-frameworks"
FEW, MANY = 500, 3000
"""Objects; what the difference takes, divided by it, is what one takes."""
WATCHES = 10
AWAY = 5.0
"""Seconds for which the API server cannot be reached."""
DELETED = 50
"""Objects that are deleted meanwhile."""
PATIENCE = 60.0
"""Seconds after which a program counts as one that does not notice."""


async def frameworks(kubeconfig: Path, programs: MeasuredPrograms, seconds: float) -> list[Result]:
    """Makes one table. The Go programs that are not the typed one are left out."""
    selection = [
        p for p in programs.programs if p.kind in ("vmis", "typed-vmis") or (p.pods and not p.go and not p.is_headroom)
    ]
    cells: dict[MeasuredProgram, list[str]] = {program: [] for program in selection}
    async with Client(load_config(str(kubeconfig))) as client:
        await client.resource(registry.NAMESPACES).create({"metadata": {"name": NAMESPACE}})
        names = await create_vms(client, NAMESPACE, range(FEW))
        few = {program: await _tried(partial(_peak, program, kubeconfig)) for program in selection}
        for program in selection:
            both = await _tried(partial(_watches, client, program, kubeconfig, names, seconds)) or (None, None)
            cells[program] += [figure(value) if value else "–" for value in both]
        with _relayed(kubeconfig) as (relay, path):
            for program in selection:
                cells[program] += await _tried(partial(_away, client, program, path, relay)) or ["it ended", "–"]
        await create_vms(client, NAMESPACE, range(FEW, MANY))
        for program in selection:
            many, fewer = await _tried(partial(_peak, program, kubeconfig)), few[program]
            per_object = 1000 * (many[0] - fewer[0]) / (many[1] - fewer[1]) if many and fewer else None
            cells[program].insert(0, figure(per_object) if per_object else "–")
        await remove_namespaces(client, [NAMESPACE])
    columns = (
        "", "version", "kB per object", "events per CPU second", f"start of {WATCHES} watches, s",
        "s until events come again", f"of {DELETED} deletions missed",
    )  # fmt: skip
    note = (
        f"VMIs of 4 kB; the official package: pods. kB: peak memory with {MANY:,} objects less that with {FEW}. The "
        f"API server cannot be reached for {AWAY:g} s, in which {DELETED} objects are deleted: seconds from its return "
        "to the first event, and how many of the deleted objects the program holds ten seconds later. kopf watches a "
        "kind once. It ended: list or watch raised, which is left to its user. –: not measured, or not within a minute."
    )
    lines = tuple((program.name, program.version, *values) for program, values in cells.items())
    return [Comparison("Beside other frameworks", columns, lines, note)]


async def _tried(measurement: Any) -> Any:
    try:
        return await measurement()
    except RuntimeError as error:
        say(f"left out: {error}")
        return None


@contextlib.contextmanager
def _relayed(kubeconfig: Path) -> Iterator[tuple[Relay, Path]]:
    """A relay to the API server, and a kubeconfig that leads through it."""
    content = json.loads(kubeconfig.read_text())
    cluster = content["clusters"][0]["cluster"]
    relay = Relay(cluster["server"].removeprefix("https://"))
    cluster["server"] = f"https://{relay.address}"
    with TemporaryDirectory() as folder, contextlib.closing(relay):
        path = Path(folder) / "kubeconfig"
        path.write_text(json.dumps(content))
        yield relay, path


async def _peak(program: MeasuredProgram, kubeconfig: Path) -> tuple[float, int]:
    """MB, with so many objects."""
    say(f"memory: {program.name}")
    async with running(program, kubeconfig) as handle:
        return handle.peak, handle.objects


async def _watches(
    client: Client, program: MeasuredProgram, kubeconfig: Path, names: list[str], seconds: float
) -> tuple[float | None, float | None]:
    """Events handled in each second of CPU time, and the start; with ten watches, where a program can have them."""
    say(f"start and events: {program.name}")
    watches = WATCHES if program.watches else 1
    async with running(program, kubeconfig, watches) as handle, writing(client, program, NAMESPACE, names):
        _, events, used = await between_two_looks(handle, seconds)
        return events / used if used else None, handle.seconds if program.watches else None


async def _away(client: Client, program: MeasuredProgram, kubeconfig: Path, relay: Relay) -> list[str]:
    """Seconds from the server's return to the first event; deleted objects that are still held."""
    say(f"a server that goes away: {program.name}")
    kind: Resource[Any] = registry.PODS if program.pods else VIRTUAL_MACHINE_INSTANCES
    objects = client.resource(kind)
    names = [obj.name for obj in await objects.list(NAMESPACE)]
    deleted, remaining = names[:DELETED], names[DELETED:]
    async with running(program, kubeconfig) as handle:
        relay.close()
        await in_parallel(
            partial(objects.delete, name=name, namespace=NAMESPACE, grace_period_seconds=0) for name in deleted
        )
        await asyncio.sleep(AWAY)
        events, _ = await handle.counts()
        relay.listen()
        began = time.perf_counter()
        async with writing(client, program, NAMESPACE, remaining):
            took = await _first_event(handle, events, began)
        await asyncio.sleep(10.0)
        _, objects_left = await handle.counts()
    return [figure(took) if took is not None else "–", str(objects_left - len(remaining))]


async def _first_event(handle: Running, events_at_start: int, began: float) -> float | None:
    while (passed := time.perf_counter() - began) < PATIENCE:
        events, _ = await handle.counts()
        if events > events_at_start:
            return passed
        await asyncio.sleep(0.01)
    return None
