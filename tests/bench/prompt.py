"""How long migrations wait for quota: many of them, through Rancher's reverts, while quota admission lags.

`python -m tests.bench.prompt [migrations] [seconds of lag]`: 300 and 0.1 unless said otherwise. KubeVirt's queue is
drained: what quota has refused is tried again at a quota's events alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from pkg.api import registry
from pkg.api.core import ResourceQuota
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VirtualMachineInstanceMigration
from pkg.testcluster import processes
from pkg.testcluster.cluster import Cluster, EmbeddedCluster
from pkg.util.kubevirt.migration import is_refused
from pkg.util.resource_list import ResourceList, parse_resource_list, total
from pkg.util.resourcequota.journal import Journal
from tests.e2e.conftest import started_with
from tests.e2e.webhook.processes import headroom
from tests.e2e.webhook.world import World, world

BASE = {"limitsCpu": "2575m", "limitsMemory": "20Gi"}
"""Five VMs of 515m, and nothing else."""
MACHINES = 5
NAMESPACES = 3
LONGEST = 1800.0
"""Seconds for all of them."""
RESTART = 2.0
"""Seconds between restarts of Rancher's agent."""
DONE = ("Succeeded", "Failed")


@dataclass
class Figures:
    """What was seen in the watches, by the key of the migration; moments are seconds of the loop's clock."""

    began: dict[str, float] = field(default_factory=dict)
    refused: dict[str, float] = field(default_factory=dict)
    moved: dict[str, float] = field(default_factory=dict)
    room_was_there: set[str] = field(default_factory=set)
    """Refused although the quota had already been raised for all that has an entry."""
    ended: Counter[str] = field(default_factory=Counter)
    reverts: int = 0
    quotas: dict[str, ResourceQuota] = field(default_factory=dict)

    def see_migration(self, migration: VirtualMachineInstanceMigration) -> None:
        key, now = f"{migration.key}/{migration.uid}", time.monotonic()
        self.began.setdefault(key, now)
        if is_refused(migration) and key not in self.refused:
            self.refused[key] = now
            if self._is_raised_for(migration):
                self.room_was_there.add(key)
        if migration.phase not in ("", "Pending") and key not in self.moved:
            self.moved[key] = now

    def see_quota(self, quota: ResourceQuota) -> None:
        before = self.quotas.get(quota.key)
        if before and _raised(before) and not _raised(quota):
            self.reverts += 1
        self.quotas[quota.key] = quota

    def _is_raised_for(self, migration: VirtualMachineInstanceMigration) -> bool:
        quotas = [quota for quota in self.quotas.values() if quota.namespace == migration.namespace]
        return bool(quotas) and all(
            _raised(quota) and Journal(quota.annotations).keys_of(migration.spec.vmi_name, "")
            for quota in quotas
        )

    def waits(self) -> list[float]:
        """Seconds from the refusal to the target pod; 0 without a refusal."""
        return sorted(
            self.moved[key] - self.refused[key] if key in self.refused else 0.0 for key in self.moved
        )


def _raised(quota: ResourceQuota) -> bool:
    """Whether spec.hard holds the base and every entry."""
    entries = [parse_resource_list(json.loads(text)) for _, text in _entries(quota)]
    base: ResourceList = parse_resource_list({"limits.cpu": BASE["limitsCpu"]})
    hard = parse_resource_list(quota.hard)
    return bool(entries) and hard["limits.cpu"] >= total([base, *entries])["limits.cpu"]


def _entries(quota: ResourceQuota) -> Iterable[tuple[str, str]]:
    prefix = "harvesterhci.io/migrating"
    return ((key, text) for key, text in quota.annotations.items() if key.startswith(prefix))


async def follow(there: World, figures: Figures, resource: registry.Resource[Any], see: Any) -> None:
    client = there.client.resource(resource)
    while True:
        found = await client.list()
        for obj in found:
            see(obj)
        async with client.watch(resource_version=found.resource_version) as events:
            async for event in events:
                if event.type in ("ADDED", "MODIFIED"):
                    see(event.object)


async def migrate_for_ever(there: World, namespace: str, vm: str, figures: Figures, goal: int) -> None:
    while figures.ended.total() < goal:
        migration = await there.migrate(namespace, vm, running=0.2, phase=0.02, linger=0.3)
        await there.until_phase(namespace, migration, *DONE, seconds=120)
        figures.ended[await there.phase(namespace, migration)] += 1


async def revert_for_ever(cluster: Cluster) -> None:
    agent = processes.find(cluster.directory, "rancher").pid
    while True:
        await asyncio.sleep(RESTART)
        os.kill(agent, signal.SIGHUP)


async def _all(machines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Until every migration is done, or time is up: what was seen until then is reported."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LONGEST):
            await asyncio.gather(*machines)


async def run(cluster: Cluster, goal: int) -> tuple[Figures, dict[str, Any]]:
    figures = Figures()
    async with world(cluster) as there:
        names = [await there.namespace(BASE) for _ in range(NAMESPACES)]
        machines = [(name, f"vm{number}") for name in names for number in range(MACHINES)]
        for name, vm in machines:
            await there.machine(name, vm, cpu="500m", memory="64Mi")
        with headroom(cluster, "controller") as controller:
            background = [
                asyncio.create_task(each)
                for each in (
                    follow(there, figures, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, figures.see_migration),
                    follow(there, figures, registry.RESOURCE_QUOTAS, figures.see_quota),
                    revert_for_ever(cluster),
                )
            ]
            try:
                await _all(migrate_for_ever(there, *each, figures, goal) for each in machines)
            finally:
                for task in background:
                    task.cancel()
                await asyncio.wait(background)
            return figures, counted(await asyncio.to_thread(controller.metrics))


def counted(metrics: str) -> dict[str, Any]:
    """The controller's patches by code, and its touches."""
    codes: Counter[str] = Counter()
    touches = 0.0
    for line in metrics.splitlines():
        if line.startswith("rest_client_requests_total") and 'method="PATCH"' in line:
            code = re.search(r'code="(\w+)"', line)
            codes[code[1] if code else ""] += int(float(line.split()[-1]))
        elif line.startswith("headroom_resourcequota_touches_total"):
            touches = float(line.split()[-1])
    conflicts = codes["409"] + codes["422"]
    share = 100 * conflicts / max(1, codes.total())
    return {"patches": dict(codes), "conflicts_percent": round(share, 1), "touches": int(touches)}


def main(arguments: list[str]) -> int:
    goal = int(arguments[0]) if arguments else 300
    lag = arguments[1] if len(arguments) > 1 else "0.1"
    teeth = ("--quota-lag", lag, "--drained-bucket", "--finished-linger", "5")
    limits = ("--parallel-migrations", "50", "--parallel-outbound", "50")
    began = time.monotonic()
    with EmbeddedCluster() as cluster, started_with(cluster, "kubevirt", *teeth, *limits):
        figures, own = asyncio.run(run(cluster, goal))
    waits = figures.waits()
    report = {
        "migrations": dict(figures.ended),
        "reverts": figures.reverts,
        "refused": len(figures.refused),
        "refused_although_room_was_there": len(figures.room_was_there),
        "seconds_waited": {
            name: round(waits[min(len(waits) - 1, int(part * len(waits)))], 3)
            for name, part in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
        },
        "waited_over_half_a_second": sum(wait > 0.5 for wait in waits),
        **own,
        "seconds": round(time.monotonic() - began),
    }
    print(json.dumps(report, indent=2))
    return 0 if set(figures.ended) == {"Succeeded"} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
