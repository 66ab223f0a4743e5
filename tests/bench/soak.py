"""`make soak`: migrations of both strategies without a pause, while something goes wrong.

`python -m tests.bench.soak [migrations] [part...]`: 1,000, and all of PARTS one after the other, unless said otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
import time
from collections.abc import Coroutine
from typing import Any

import msgspec

from kubeloop.api import registry
from kubeloop.api.registry import Resource
from kubeloop.client.errors import ApiError, Forbidden
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import until
from lab.cluster import EmbeddedCluster
from pkg.api.kubevirt import KUBEVIRTS, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS
from pkg.util.constants import LOCK_SELECTOR
from tests.bench.soak_parts import PARTS, Part, Soak, Stage, behind_one_address, kills, persistent, servers
from tests.e2e.admin import Admin, admin_of
from tests.e2e.mtq_namespace import BUDGETS, Namespace, made
from tests.program import ROOT, program

BASE = {"limitsCpu": "3075m", "limitsMemory": "20Gi"}
"""Five VMs of 515m, and half a CPU for a tenant."""
HARD = {"limits.cpu": "3075m", "limits.memory": "20Gi"}
MACHINES = 5
NAMESPACES = 3
LOGS = ROOT / "build" / "soak"


async def disturb(part: Part, stage: Stage, soak: Soak) -> None:
    """Migrations go on until it is done, but for the one that never is."""
    soak.disturbing = part is not kills
    try:
        await part(stage, soak)
    finally:
        soak.disturbing = False


async def migrate_for_ever(admin: Admin, namespace: str, vm: str, soak: Soak, goal: int) -> None:
    while soak.migrations.total() < goal or soak.disturbing:
        migration = await persistent(
            lambda: admin.migrate(namespace, vm, running=0.1, phase=0.02, linger=0.1)
        )
        try:
            await persistent(
                lambda migration=migration: admin.until_phase(  # type: ignore[misc]
                    namespace, migration, "Succeeded", "Failed", seconds=300
                )
            )
        except AssertionError:
            soak.stuck.append(await _state(admin, namespace, migration))
            return
        soak.migrations[await persistent(lambda: admin.phase(namespace, migration))] += 1  # noqa: B023


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
                if time.monotonic() < soak.over_at:
                    soak.meanwhile += 1
                else:
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


async def run(cluster: Cluster, goal: int, part: str) -> Soak:
    if part != servers.__name__:
        return await _run(cluster, goal, part)
    async with behind_one_address(cluster) as both:
        return await _run(both, goal, part)


async def _run(cluster: Cluster, goal: int, part: str) -> Soak:
    soak = Soak()
    controller, webhook = program(cluster, "controller"), program(cluster, "webhook")
    async with admin_of(cluster) as admin:
        await asyncio.to_thread(controller.start)
        await asyncio.to_thread(webhook.start)
        try:
            await _migrate_all(admin, soak, goal, part, Stage(cluster, controller, webhook))
        finally:
            await asyncio.to_thread(webhook.stop)
            await asyncio.to_thread(controller.stop)
    return soak


async def _migrate_all(admin: Admin, soak: Soak, goal: int, part: str, stage: Stage) -> None:
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
    work: list[Coroutine[Any, Any, None]] = [disturb(PARTS[part], stage, soak)]
    work += [honest_pods(admin, name, soak) for name in names]
    background = [asyncio.create_task(each) for each in work]
    try:
        await asyncio.gather(*(migrate_for_ever(admin, *each, soak, goal) for each in machines))
    finally:
        for task in background:
            task.cancel()
        await asyncio.wait(background)
    await asyncio.to_thread(stage.webhook.kill)
    await asyncio.to_thread(stage.webhook.start)
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
    good = True
    for part in arguments[1:] or PARTS:
        began = time.monotonic()
        with EmbeddedCluster(directory=LOGS / part) as cluster:
            soak = asyncio.run(run(cluster, goal, part))
        seconds = round(time.monotonic() - began)
        report = {"part": part, **vars(soak), "refused": soak.refused[:10], "seconds": seconds}
        print(json.dumps(report, indent=2))
        good = good and soak.good
    print(f"The programs' logs are in {LOGS}.", file=sys.stderr)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
