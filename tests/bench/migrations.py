"""Measures how soon quotas follow migrations, and how many writes it takes; the controller is a process of its own."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from kubeloop.api import registry
from kubeloop.api.quantity import Quantity
from kubeloop.client.client import Client
from kubeloop.client.loading import load_config
from lab.cluster import EmbeddedCluster, Options
from lab.headroom import Headroom
from lab.namespace import Namespace
from lab.questions import writes
from lab.rancher.releases import NEWEST
from lab.record import QuotaVersion, Record
from lab.scale.measurements import percentile
from lab.scale.removal import in_parallel
from lab.watching import Watching
from pkg.util import constants
from tests.bench.document import Row, combined
from tests.bench.objects import create_vms, migration, namespace_in_project, namespace_with_quota, remove_namespaces

SEQUENCE = 50
BESIDE = "bench-beside"
BASE = Quantity.parse("5000Mi")
HARVESTER_DELTA = Quantity.of(4737464313)
"""What Harvester's formula adds for one of these VMs (ratio 1.5)."""


TIMEOUT = 60.0


class QuotaWatch(Watching):
    """The quotas of some namespaces, with what is requested of Rancher for them, and nothing else."""

    def __init__(self, client: Client, namespaces: Collection[str]) -> None:
        records = {name: Record(time.perf_counter) for name in namespaces}
        super().__init__(client, records, registry.NAMESPACES, registry.RESOURCE_QUOTAS)

    @property
    def updates(self) -> int:
        """Returns how often they were written, status apart."""
        return sum(len(writes(record)) for record in self.records.values())

    def changed_at(self, namespace: str) -> float:
        """Returns when limits.memory was last seen to change."""
        runs = groupby(self.records[namespace].quotas, lambda version: version.hard.memory)
        return [next(versions).at for _, versions in runs][-1]

    async def wait_for(self, namespace: str, limit: Quantity) -> None:
        """Until the namespace's limits.memory is `limit`. Raises TimeoutError."""
        await self._wait_for(namespace, lambda version: version.hard.memory == limit)

    async def wait_until_taken_over(self, namespace: str) -> None:
        """Until the controller has marked the namespace's quota. Raises TimeoutError."""
        await self._wait_for(namespace, lambda version: constants.ANNOTATION_OWNER in version.quota.annotations)

    async def _wait_for(self, namespace: str, condition: Callable[[QuotaVersion], bool]) -> None:
        async with asyncio.timeout(TIMEOUT):
            while (quota := self.records[namespace].quota) is None or not condition(quota):
                await self.changed(TIMEOUT)


class Times(NamedTuple):
    """Seconds of each migration: Pending to requested of Rancher and to raised, Succeeded to restored."""

    requested: list[float]
    raised: list[float]
    restored: list[float]


async def _in_sequence(client: Client, quotas: QuotaWatch, name: str) -> Times:
    """SEQUENCE migrations in one namespace, each waited for."""
    namespace, record, times = Namespace(client, name), quotas.records[name], Times([], [], [])
    for number in range(SEQUENCE):
        vm = f"vm-{number:03}"
        await migration(namespace, vm)
        started = time.perf_counter()
        await namespace.enter(vm, "Pending")
        await quotas.wait_for(name, BASE + HARVESTER_DELTA)
        times.requested.append(next(v.at for v in record.quotas if v.at > started and v.entries) - started)
        times.raised.append(quotas.changed_at(name) - started)
        await namespace.enter(vm, "Running")
        started = time.perf_counter()
        await namespace.enter(vm, "Succeeded")
        await quotas.wait_for(name, BASE)
        times.restored.append(quotas.changed_at(name) - started)
    return times


async def one_after_another(kubeconfig: Path) -> list[Row]:
    """50 migrations in one namespace, each waited for: Pending to raised, Succeeded to restored."""
    async with _measuring(kubeconfig, ["sequence"]) as (client, quotas):
        times = await _in_sequence(client, quotas, "sequence")
    return [
        Row("Pending → raised, median of 50", 1000 * percentile(times.raised, 0.5), "ms", 8, "31 ms"),
        Row("… 99th percentile", 1000 * percentile(times.raised, 0.99), "ms", 20, "2,000 ms"),
        Row("Succeeded → restored, median", 1000 * percentile(times.restored, 0.5), "ms", None, "40 ms"),
        Row("… 99th percentile", 1000 * percentile(times.restored, 0.99), "ms", 150, "1,300 ms"),
    ]


async def through_rancher(_kubeconfig: Path) -> list[Row]:
    """The same beside a Rancher that lets nobody else write its quotas, by the namespace's annotation."""
    with EmbeddedCluster(options=Options(kubevirt=False, kwok=False, rancher_version=NEWEST)) as cluster:
        flags = ("--rancher-quotas", "annotation")
        async with _measuring(cluster.kubeconfig, ["sequence"], namespace_in_project, flags) as (client, quotas):
            times = await _in_sequence(client, quotas, "sequence")
    titles = (
        "through Rancher's annotation: Pending → requested, median of 50",
        "… Pending → raised, by the stand-in of Rancher, median",
        "… Succeeded → restored, median",
    )
    return [
        row
        for title, limit, seconds in zip(titles, (20, None, None), times, strict=True)
        for row in (
            Row(title, 1000 * percentile(seconds, 0.5), "ms", limit),
            Row("… 99th percentile", 1000 * percentile(seconds, 0.99), "ms"),
        )
    ]


async def beside_vms(kubeconfig: Path, *, vms: int, rounds: int) -> list[Row]:
    """The same with so many VMs in the caches, in a namespace of their own."""
    async with Client(load_config(str(kubeconfig))) as client:
        await client.resource(registry.NAMESPACES).create({"metadata": {"name": BESIDE}})
        await create_vms(client, BESIDE, range(vms))
        rows = combined([await one_after_another(kubeconfig) for _ in range(rounds)])
        await remove_namespaces(client, [BESIDE])
    title = f"with {vms:,} VMs in the caches: {rows[0].what}"
    return [replace(rows[0], what=title), *rows[1:]]


async def burst(kubeconfig: Path, *, namespaces: int, migrations: int) -> list[Row]:
    """All migrations turn Pending at once; until every quota holds the room for all of them."""
    names = [f"burst-{number}" for number in range(namespaces)]
    expected = BASE
    for _ in range(migrations):
        expected += HARVESTER_DELTA
    async with _measuring(kubeconfig, names) as (client, quotas):
        vms = [(Namespace(client, name), f"vm-{number:03}") for number in range(migrations) for name in names]
        await in_parallel(partial(migration, *vm) for vm in vms)
        await asyncio.sleep(1)
        updates_at_start = quotas.updates
        started = time.perf_counter()
        await in_parallel(partial(namespace.enter, vm, "Pending") for namespace, vm in vms)
        written = time.perf_counter()
        for name in names:
            await quotas.wait_for(name, expected)
        until = max(quotas.changed_at(name) for name in names)
        updates = quotas.updates - updates_at_start
    title = f"{namespaces} × {migrations} migrations Pending at once"
    upstream = {10: ("9.7 s", "2.04"), 1: ("351 s", "2.01")}.get(namespaces, ("", ""))
    return [
        Row(f"{title}: written in", written - started, "s"),
        Row("… last write → all raised", max(0.0, until - written), "s", 1.0, upstream[0]),
        Row("… RQ updates per migration", updates / len(vms), "", 0.3, upstream[1]),
    ]


@asynccontextmanager
async def _measuring(
    kubeconfig: Path,
    namespaces: list[str],
    create: Callable[[Client, str], Awaitable[None]] = namespace_with_quota,
    flags: Sequence[str] = (),
) -> AsyncIterator[tuple[Client, QuotaWatch]]:
    """The namespaces with their quotas, the controller running, a watch on all ResourceQuotas."""
    arguments = ("--kubeconfig", str(kubeconfig), "--estimate", "harvester", *flags)
    program = Headroom(kubeconfig.with_name("controller.log"), "controller", *arguments).start()
    try:
        async with Client(load_config(str(kubeconfig))) as client, QuotaWatch(client, namespaces) as quotas:
            await in_parallel(partial(create, client, name) for name in namespaces)
            for name in namespaces if create is namespace_with_quota else ():
                await quotas.wait_until_taken_over(name)
            yield client, quotas
            await remove_namespaces(client, namespaces)
    finally:
        program.stop()
