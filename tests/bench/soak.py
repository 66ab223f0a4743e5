"""`make soak`: migrations of both strategies without a pause, while the webhook is killed and started all the time.

`python -m tests.bench.soak [migrations]`: 1,000 unless said otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kubeloop.api import registry
from kubeloop.api.registry import Resource
from kubeloop.client.errors import ApiError, Forbidden
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import until
from lab.cluster import EmbeddedCluster
from pkg.api.kubevirt import KUBEVIRTS, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS
from pkg.util.managedtenantquota.constants import LOCK_SELECTOR
from tests.e2e.admin import Admin, admin_of
from tests.e2e.mtq_namespace import BUDGETS, Namespace, made
from tests.program import ROOT, Program, program

BASE = {"limitsCpu": "3075m", "limitsMemory": "20Gi"}
"""Five VMs of 515m, and half a CPU for a tenant."""
HARD = {"limits.cpu": "3075m", "limits.memory": "20Gi"}
MACHINES = 5
NAMESPACES = 3
LOGS = ROOT / "build" / "soak"
UP, DOWN = 3.0, 0.5
"""Seconds that the webhook serves, and is away before it is started again."""


@dataclass
class Soak:
    """What happened. `refused` are honest pods with room that got a 403; `retried` are calls that failed otherwise
    (a webhook that is away, a quota that is busy) and succeeded on retry."""

    migrations: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    pods: int = 0
    refused: list[str] = field(default_factory=list)
    retried: Counter[str] = field(default_factory=Counter)
    stuck: list[str] = field(default_factory=list)
    left_locked: list[str] = field(default_factory=list)
    wrong_quotas: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        failed = sum(count for phase, count in self.migrations.items() if phase != "Succeeded")
        return not (failed or self.stuck or self.refused or self.left_locked or self.wrong_quotas)


async def kill_for_ever(webhook: Program, soak: Soak) -> None:
    while True:
        await asyncio.sleep(UP)
        await asyncio.to_thread(webhook.kill)
        await asyncio.sleep(DOWN)
        # Killed before it serves, it would never be there at all.
        await asyncio.to_thread(webhook.start)
        soak.kills += 1


async def migrate_for_ever(admin: Admin, namespace: str, vm: str, soak: Soak, goal: int) -> None:
    while soak.migrations.total() < goal:
        migration = await admin.migrate(namespace, vm, running=0.1, phase=0.02, linger=0.1)
        try:
            await admin.until_phase(namespace, migration, "Succeeded", "Failed", seconds=120)
        except AssertionError:
            soak.stuck.append(await _state(admin, namespace, migration))
            return
        soak.migrations[await admin.phase(namespace, migration)] += 1


async def _state(admin: Admin, namespace: str, migration: str) -> str:
    """Why a migration hangs, as its objects show it, in JSON."""
    state: dict[str, Any] = {"at": time.time()}
    kinds: tuple[Resource[Any], ...] = (
        VIRTUAL_MACHINE_INSTANCE_MIGRATIONS,
        registry.RESOURCE_QUOTAS,
        BUDGETS,
    )
    for resource in kinds:
        found = await admin.client.resource(resource).list(namespace)
        unfinished = [
            each for each in found if getattr(each.status, "phase", None) not in ("Succeeded", "Failed")
        ]
        state[resource.kind] = msgspec.to_builtins(unfinished)
    return f"{namespace}/{migration}: {json.dumps(state)}"


async def honest_pods(admin: Admin, namespace: str, soak: Soak) -> None:
    """One small pod at a time, that the base always has room for."""
    tenant = admin.by("tenant")
    pods = tenant.resource(registry.PODS)
    while True:
        for attempt in itertools.count():
            try:
                pod = await admin.pod(namespace, tenant, cpu="100m", memory="1Mi")
            except Forbidden as exc:
                soak.refused.append(exc.message)
            except ApiError as exc:
                soak.retried[type(exc).__name__] += 1
            else:
                soak.pods += 1
                break
            await asyncio.sleep(min(1.0, 0.05 * 2**attempt))
        with contextlib.suppress(ApiError):
            await pods.delete(name=pod.name, namespace=namespace, grace_period_seconds=0)
        await asyncio.sleep(0.1)


async def run(cluster: Cluster, goal: int) -> Soak:
    soak = Soak()
    controller, webhook = program(cluster, "controller"), program(cluster, "webhook")
    async with admin_of(cluster) as admin:
        await asyncio.to_thread(controller.start)
        await asyncio.to_thread(webhook.start)
        try:
            await _migrate_all(admin, soak, goal, webhook)
        finally:
            await asyncio.to_thread(webhook.stop)
            await asyncio.to_thread(controller.stop)
    return soak


async def _migrate_all(admin: Admin, soak: Soak, goal: int, webhook: Program) -> None:
    names = [await admin.namespace(BASE) for _ in range(NAMESPACES)]
    # KubeVirt's own limit of five at once would be used up all the time, and no window is opened then.
    limits = {"parallelMigrationsPerCluster": 50, "parallelOutboundMigrationsPerNode": 50}
    body = {
        "apiVersion": KUBEVIRTS.api_version,
        "kind": KUBEVIRTS.kind,
        "metadata": {"name": "kubevirt"},
        "spec": {"configuration": {"migrations": limits}},
    }
    await admin.client.resource(KUBEVIRTS).create(body, namespace="default")
    windowed = await made(admin)
    await windowed.quota({"limits.cpu": "8", "pods": "20"})
    machines = [(name, f"vm{number}") for name in names for number in range(MACHINES)]
    machines += [(windowed.name, f"vm{number}") for number in range(2)]
    for name, vm in machines:
        await admin.machine(name, vm, cpu="500m", memory="64Mi")
    full = await windowed.fill()
    await windowed.budget({"limits.cpu": "2", "pods": "4"})
    work: list[Coroutine[Any, Any, None]] = [kill_for_ever(webhook, soak)]
    work += [honest_pods(admin, name, soak) for name in names]
    background = [asyncio.create_task(each) for each in work]
    try:
        await asyncio.gather(*(migrate_for_ever(admin, *each, soak, goal) for each in machines))
    finally:
        for task in background:
            task.cancel()
        await asyncio.wait(background)
    await asyncio.to_thread(webhook.kill)
    await asyncio.to_thread(webhook.start)
    await _check(admin, soak, names, windowed, full)


async def _check(
    admin: Admin, soak: Soak, names: list[str], windowed: Namespace, full: dict[str, str]
) -> None:
    with contextlib.suppress(AssertionError):
        await windowed.at_rest({"quota": full}, seconds=30.0)
    locks = await admin.client.resource(registry.VALIDATING_WEBHOOK_CONFIGURATIONS).list(
        label_selector=LOCK_SELECTOR
    )
    soak.left_locked = [lock.name for lock in locks]
    wanted = {**dict.fromkeys(names, HARD), windowed.name: full}
    for name, hard in wanted.items():
        try:
            await until(lambda name=name, hard=hard: _is(admin, name, hard), f"{name} to be at its base")  # type: ignore[misc]
        except AssertionError as exc:
            soak.wrong_quotas.append(str(exc))


async def _is(admin: Admin, namespace: str, hard: dict[str, str]) -> bool:
    quotas = await admin.client.resource(registry.RESOURCE_QUOTAS).list(namespace)
    return all(quota.hard.get(name) == value for quota in quotas for name, value in hard.items())


def main(arguments: list[str]) -> int:
    goal = int(arguments[0]) if arguments else 1000
    began = time.monotonic()
    with EmbeddedCluster(directory=LOGS) as cluster:
        soak = asyncio.run(run(cluster, goal))
    report = {**vars(soak), "refused": soak.refused[:10], "seconds": round(time.monotonic() - began)}
    print(json.dumps(report, indent=2))
    print(f"The programs' logs are in {LOGS}.", file=sys.stderr)
    return 0 if soak.good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
