"""Measures what an event of a watch costs: CPU at a steady rate, and how many a second are handled when more come."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

from kubeloop.api import registry
from kubeloop.api.registry import Resource
from kubeloop.client.client import Client
from kubeloop.client.loading import load_config
from kubeloop.client.resource_client import ResourceClient
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCES
from tests.bench.objects import create_vms, remove_namespaces
from tests.bench.peers.programs import MeasuredProgram, MeasuredPrograms, Running, running, say
from tests.bench.row import Comparison, Result, Row, spread

OBJECTS = 200
NAMESPACE = "bench-watch"
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
        await client.resource(registry.NAMESPACES).create({"metadata": {"name": NAMESPACE}})
        names = await create_vms(client, NAMESPACE, range(OBJECTS))
        for number in range(rounds):
            for program in programs.programs:
                for watches in _watches(program):
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
        await remove_namespaces(client, [NAMESPACE])
    return _results(programs, cpu, handled)


def _watches(program: MeasuredProgram) -> tuple[int, ...]:
    """The Python packages are saturated long before."""
    if not program.watches:
        return STEADY[:1]
    return (*STEADY, SATURATING) if program.is_headroom or program.go else STEADY


async def _measured(
    client: Client, kubeconfig: Path, program: MeasuredProgram, watches: int, names: list[str], seconds: float
) -> tuple[float, int, float]:
    """Returns what `between_two_looks` says while writes go on."""
    async with running(program, kubeconfig, watches) as handle, writing(client, program, NAMESPACE, names):
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


def _results(
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
