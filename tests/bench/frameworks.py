"""What a framework's user asks: memory for each object, events, a start with ten watches, and what an API server that
goes away costs. Every program in turn, through one relay that can be closed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kubeloop.api import registry
from kubeloop.api.registry import Resource
from kubeloop.client.client import Client
from kubeloop.client.loading import load_config
from lab.scale.removal import in_parallel
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCES
from tests.bench.objects import create_vms, remove_namespaces
from tests.bench.peers.programs import MeasuredProgram, MeasuredPrograms, Running, running, say
from tests.bench.row import Comparison, Result, figure
from tests.bench.watch import between_two_looks, writing
from tests.relay import Relay

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
