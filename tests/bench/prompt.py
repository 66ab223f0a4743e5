"""How long migrations wait for quota: many of them, through Rancher's reverts, while quota admission lags.

`python -m tests.bench.prompt [migrations] [lag] [--restart S] [--namespaces N] [--machines N] [--pause S] [--trace F]`:
300 and 0.1 s unless said otherwise. KubeVirt's queue is drained: what quota has refused is tried again at a quota's
events alone. `seconds_of_machine_late` says how far the machine was behind: where that is not far below the other
figures they are the machine's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Coroutine, Iterable
from pathlib import Path
from typing import Any

from kubeloop.api import registry
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import until
from lab.cluster import EmbeddedCluster
from lab.counters import counts, samples
from lab.namespace import Namespace
from lab.rancher.agent import Agent
from lab.watching import Watching
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS
from pkg.util.quantity import Quantity
from tests.bench.sightings import Sightings, report, spread
from tests.e2e.admin import Admin, admin_of
from tests.e2e.conftest import started_with
from tests.program import headroom

ONE_VM = 515
"""Thousandths of a CPU that quota counts of one launcher: the base is for one a VM and nothing else."""
LONGEST = 1800.0
"""Seconds for all of them."""
LINGER = 0.3
DONE = ("Succeeded", "Failed")
FOLLOWED = (VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, registry.RESOURCE_QUOTAS)
KEPT = 5
"""Finished migrations of a VM, as KubeVirt has it (finalizedMigrationGarbageCollectionBuffer)."""


class Run:
    """The migrations of one run, and how they ended."""

    def __init__(self, cluster: Cluster, admin: Admin, options: argparse.Namespace) -> None:
        self.cluster = cluster
        self.admin = admin
        self.options = options
        self.base = f"{ONE_VM * options.machines}m"
        self.seen: dict[str, Sightings] = {}
        self.ended: Counter[str] = Counter()
        self.late: list[float] = []

    async def machines(self) -> list[tuple[Namespace, str]]:
        """(namespace, VM) of each, running."""
        limits = {"limits.cpu": self.base, "limits.memory": "20Gi"}
        namespaces = [await self.admin.namespace(limits) for _ in range(self.options.namespaces)]
        base = Quantity.parse(self.base)
        self.seen = {each.name: Sightings(base, self.options.lag) for each in namespaces}
        made = [(each, f"vm{number}") for each in namespaces for number in range(self.options.machines)]
        for namespace, vm in made:
            await namespace.machine(vm, cpu="500m", memory="64Mi")
        return made

    async def migrate_for_ever(self, namespace: Namespace, vm: str) -> None:
        """One after the other; as many finished ones stay as KubeVirt keeps of a VM."""
        kept: deque[str] = deque()
        while self.ended.total() < self.options.migrations:
            await asyncio.sleep(random.uniform(0.5, 1.5) * self.options.pause)
            name = await namespace.migrate(vm, running=0.2, phase=0.02, linger=LINGER)

            async def ended(name: str = name) -> str:
                seen = self.seen[namespace.name].record.migrations.get(name)
                return seen.phase if seen and seen.phase in DONE else ""

            self.ended[await until(ended, f"{namespace}/{name} to end", seconds=120)] += 1
            kept.append(name)
            if len(kept) > KEPT:
                await namespace.delete(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, kept.popleft())

    async def revert_for_ever(self) -> None:
        """Rancher's agent starts again and again: every quota is back at its base."""
        agent = Agent(self.cluster.directory)
        while True:
            await asyncio.sleep(self.options.restart)
            agent.restart()

    async def watch_the_machine(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.02)
            self.late.append(time.monotonic() - before - 0.02)

    @contextlib.asynccontextmanager
    async def background(self) -> AsyncIterator[None]:
        tasks = [
            asyncio.create_task(each)
            for each in (
                self.revert_for_ever(),
                self.watch_the_machine(),
            )
        ]
        records = {name: seen.record for name, seen in self.seen.items()}
        try:
            async with Watching(self.admin.client, records, *FOLLOWED):
                yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def report(self) -> dict[str, Any]:
        late = spread(self.late)
        return {
            "migrations": dict(self.ended),
            **report(list(self.seen.values())),
            "seconds_of_machine_late": late,
        }


async def _all(machines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Until every migration is done, or time is up: what was seen until then is reported."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LONGEST):
            await asyncio.gather(*machines)


async def run(cluster: Cluster, options: argparse.Namespace) -> tuple[Run, dict[str, Any]]:
    async with admin_of(cluster) as admin:
        made = Run(cluster, admin, options)
        machines = await made.machines()
        with headroom(cluster, "controller") as controller:
            async with made.background():
                await _all(made.migrate_for_ever(*each) for each in machines)
            return made, counted((await asyncio.to_thread(controller.get, "/metrics"))[1])


def counted(metrics: str) -> dict[str, Any]:
    """The controller's patches by code, and its touches."""
    patches = counts(
        metrics,
        "rest_client_requests_total",
        lambda labels: labels.get("code", "") if labels.get("method") == "PATCH" else "",
    )
    codes = Counter({code: int(count) for code, count in patches.items()})
    touches = sum(value for _labels, value in samples(metrics, "headroom_resourcequota_touches_total"))
    conflicts = codes["409"] + codes["422"]
    share = 100 * conflicts / max(1, codes.total())
    return {"patches": dict(codes), "conflicts_percent": round(share, 1), "touches": int(touches)}


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.prompt")
    parser.add_argument("migrations", nargs="?", type=int, default=300)
    parser.add_argument("lag", nargs="?", type=float, default=0.1)
    parser.add_argument(
        "--restart", type=float, default=10.0, help="seconds between restarts of Rancher's agent"
    )
    parser.add_argument("--namespaces", type=int, default=2)
    parser.add_argument("--machines", type=int, default=3, help="VMs in each namespace")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between a VM's migrations")
    parser.add_argument("--trace", type=Path, help="what was seen, a line each, in its order")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    lag = ("--quota-lag", str(options.lag), "--drained-bucket", "--finished-linger", "5")
    limits = ("--parallel-migrations", "50", "--parallel-outbound", "50")
    began = time.monotonic()
    with EmbeddedCluster() as cluster, started_with(cluster, "kubevirt", *lag, *limits):
        made, own = asyncio.run(run(cluster, options))
    print(json.dumps({**made.report(), **own, "seconds": round(time.monotonic() - began)}, indent=2))
    if options.trace:
        seen = sorted((at, name, what) for name, each in made.seen.items() for at, what in each.trace())
        lines = (f"{at - began:9.3f} {namespace} {what}\n" for at, namespace, what in seen)
        options.trace.write_text("".join(lines))
    return 0 if set(made.ended) == {"Succeeded"} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
