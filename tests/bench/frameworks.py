"""What a framework's user asks: memory for each object, events, a start with ten watches, and what an API server that
goes away costs. Every program in turn, through one proxy that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from yarl import URL

from kubeloop.api import registry
from kubeloop.api.registry import Resource
from kubeloop.client.client import Client
from kubeloop.client.loading import load_config
from lab.scale.removal import in_parallel
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCES
from tests.bench.objects import create_vms, remove_namespaces
from tests.bench.peers.programs import Program, Programs, Running, running, say
from tests.bench.row import Comparison, Result, figure
from tests.bench.watch import write

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


class Proxy:
    """TCP to the API server, TLS and all. Cut: every connection is reset, and none is taken."""

    def __init__(self, server: URL) -> None:
        self._server = server
        self._listener: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def join(self) -> None:
        """Take connections (again)."""
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def cut(self) -> None:
        assert self._listener is not None
        self._listener.close()
        for writer in list(self._open):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            there = await asyncio.open_connection(self._server.host, self._server.port)
            self._open |= {writer, there[1]}
            await asyncio.gather(self._copy(reader, there[1]), self._copy(there[0], writer))
        self._open -= {writer}

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()
        self._open -= {writer}


async def frameworks(kubeconfig: Path, programs: Programs, seconds: float) -> list[Result]:
    """One table. The Go programs that are not the typed one are left out."""
    chosen = [p for p in programs.found if p.kind in ("vmis", "typed-vmis") or (p.pods and not p.go and not p.ours)]
    found: dict[Program, list[str]] = {program: [] for program in chosen}
    async with Client(load_config(str(kubeconfig))) as client, _through_proxy(kubeconfig) as (proxy, path):
        await client.resource(registry.NAMESPACES).create({"metadata": {"name": NAMESPACE}})
        names = await create_vms(client, NAMESPACE, range(FEW))
        few = {program: await _tried(partial(_peak, program, kubeconfig)) for program in chosen}
        for program in chosen:
            both = await _tried(partial(_watches, client, program, kubeconfig, names, seconds)) or (None, None)
            found[program] += [figure(value) if value else "–" for value in both]
        for program in chosen:
            found[program] += await _tried(partial(_away, client, program, path, proxy)) or ["it ended", "–"]
        await create_vms(client, NAMESPACE, range(FEW, MANY))
        for program in chosen:
            many, before = await _tried(partial(_peak, program, kubeconfig)), few[program]
            each = 1000 * (many[0] - before[0]) / (many[1] - before[1]) if many and before else None
            found[program].insert(0, figure(each) if each else "–")
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
    lines = tuple((program.name, program.version, *values) for program, values in found.items())
    return [Comparison("Beside other frameworks", columns, lines, note)]


async def _tried(measurement: Any) -> Any:
    try:
        return await measurement()
    except RuntimeError as error:
        say(f"left out: {error}")
        return None


@contextlib.asynccontextmanager
async def _through_proxy(kubeconfig: Path) -> AsyncIterator[tuple[Proxy, Path]]:
    """The proxy, and a kubeconfig that leads through it."""
    content = _content(kubeconfig)
    server = URL(content["clusters"][0]["cluster"]["server"])
    proxy = Proxy(server)
    await proxy.join()
    content["clusters"][0]["cluster"]["server"] = str(server.with_port(proxy.port))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kubeconfig"
        path.write_text(json.dumps(content))
        yield proxy, path
    await proxy.cut()


def _content(kubeconfig: Path) -> Any:
    return json.loads(kubeconfig.read_text())


async def _peak(program: Program, kubeconfig: Path) -> tuple[float, int]:
    """MB, with so many objects."""
    say(f"memory: {program.name}")
    async with running(program, kubeconfig) as it:
        return it.peak, it.objects


async def _watches(
    client: Client, program: Program, kubeconfig: Path, names: list[str], seconds: float
) -> tuple[float | None, float | None]:
    """Events handled in each second of CPU time, and the start; with ten watches, where a program can have them."""
    say(f"start and events: {program.name}")
    async with running(program, kubeconfig, WATCHES if program.watches else 1) as it, _writing(client, program, names):
        await asyncio.sleep(1.0)
        before, cpu = await it.events(), it.cpu_so_far
        await asyncio.sleep(seconds)
        events, used = await it.events() - before, it.cpu_so_far - cpu
        return events / used if used else None, it.seconds if program.watches else None


@contextlib.asynccontextmanager
async def _writing(client: Client, program: Program, names: list[str]) -> AsyncIterator[None]:
    task = asyncio.create_task(write(client, program.pods, NAMESPACE, names))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _away(client: Client, program: Program, kubeconfig: Path, proxy: Proxy) -> list[str]:
    """Seconds from the server's return to the first event; deleted objects that are still held."""
    say(f"a server that goes away: {program.name}")
    kind: Resource[Any] = registry.PODS if program.pods else VIRTUAL_MACHINE_INSTANCES
    objects = client.resource(kind)
    names = [obj.name for obj in await objects.list(NAMESPACE)]
    deleted, left = names[:DELETED], names[DELETED:]
    async with running(program, kubeconfig) as it:
        await proxy.cut()
        await in_parallel(
            partial(objects.delete, name=name, namespace=NAMESPACE, grace_period_seconds=0) for name in deleted
        )
        await asyncio.sleep(AWAY)
        before, _ = await it.asked()
        await proxy.join()
        began = time.perf_counter()
        async with _writing(client, program, left):
            took = await _first_event(it, before, began)
        await asyncio.sleep(10.0)
        _, held = await it.asked()
    return [figure(took) if took is not None else "–", str(held - len(left))]


async def _first_event(it: Running, before: int, began: float) -> float | None:
    while (passed := time.perf_counter() - began) < PATIENCE:
        events, _ = await it.asked()
        if events > before:
            return passed
        await asyncio.sleep(0.01)
    return None
