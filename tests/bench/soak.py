"""`make soak`: migrations of both strategies without a pause, while something goes wrong.

`python -m tests.bench.soak [migrations] [part...]`: 1,000, and all of PARTS one after the other, unless said otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
import sys
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from kubeloop.api import registry
from kubeloop.api.registry import Resource
from kubeloop.client.errors import ApiError, Forbidden
from kubeloop.testing.cluster.cluster import Cluster
from lab import bodies
from lab.cluster import EmbeddedCluster
from lab.namespace import Namespace, by_value
from pkg.api.kubevirt import KUBEVIRTS, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS
from pkg.util.constants import LOCK_LABEL
from tests.bench.soak_parts import PARTS, Part, Soak, Stage, behind_one_address, kills, persistent, servers
from tests.e2e.admin import Admin, admin_of
from tests.e2e.mtq_namespace import BUDGETS, Budgeted, make_budgeted
from tests.program import ROOT, program

HARD = {"limits.cpu": "3075m", "limits.memory": "20Gi"}
"""Five VMs of 515m, and half a CPU for a tenant."""
MACHINES = 5
NAMESPACES = 3
LOGS = ROOT / "build" / "soak"
LATE_COUNTS = 5
"""Times that one pod may be refused because quota counts late; 1.5 seconds."""
_BY_QUOTA = re.compile(r"exceeded quota: .*, used: (\S+), limited: (\S+)$")


async def disturb(part: Part, stage: Stage, soak: Soak) -> None:
    """Migrations go on until it is done, but for the one that never is."""
    soak.disturbing = part is not kills
    try:
        await part(stage, soak)
    finally:
        soak.disturbing = False


async def migrate_for_ever(namespace: Namespace, vm: str, soak: Soak, goal: int) -> None:
    while soak.migrations.total() < goal or soak.disturbing:
        migration = await persistent(lambda: namespace.migrate(vm, running=0.1, phase=0.02, linger=0.1))
        try:
            phase = await persistent(
                lambda migration=migration: namespace.until_phase(  # type: ignore[misc]
                    migration, "Succeeded", "Failed", seconds=300
                )
            )
        except AssertionError:
            soak.stuck.append(await _state(namespace, migration))
            return
        soak.migrations[phase] += 1


async def _state(namespace: Namespace, migration: str) -> str:
    """Returns in JSON why a migration hangs, as its objects show it."""
    state: dict[str, Any] = {"at": time.time()}
    kinds: tuple[Resource[Any], ...] = (VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, registry.RESOURCE_QUOTAS, BUDGETS)
    for resource in kinds:
        items = await namespace.items(resource)
        unfinished = [item for item in items if getattr(item.status, "phase", None) not in ("Succeeded", "Failed")]
        state[resource.kind] = msgspec.to_builtins(unfinished)
    return f"{namespace}/{migration}: {json.dumps(state)}"


def is_late_count(refusal: str) -> bool:
    """Whether quota admission itself refused because more is used than the limit: the quota controller counted again
    when the limit was lowered, and its cache still had what is gone."""
    if (match := _BY_QUOTA.search(refusal)) is None:
        return False
    used, limited = (by_value(dict(pair.split("=") for pair in part.split(","))) for part in match.groups())
    return any(amount > limited[name] for name, amount in used.items())


async def honest_pods(namespace: Namespace, soak: Soak) -> None:
    """Creates one small pod at a time, that the base always has room for."""
    pods = namespace.client.resource(registry.PODS)
    while True:
        for attempt in itertools.count():
            try:
                pod = await namespace.create(registry.PODS, bodies.pod(memory="1Mi"))
            except Forbidden as exc:
                if time.monotonic() < soak.over_at:
                    soak.meanwhile += 1
                elif attempt < LATE_COUNTS and is_late_count(exc.message):
                    soak.retried["LateCount"] += 1
                else:
                    soak.refused.append(exc.message)
            except ApiError as exc:
                soak.retried[type(exc).__name__] += 1
            else:
                soak.pods += 1
                break
            await asyncio.sleep(min(1.0, 0.05 * 2**attempt))
        with contextlib.suppress(ApiError):
            await pods.delete(name=pod.name, namespace=namespace.name, grace_period_seconds=0)
        await asyncio.sleep(0.1)


async def run(cluster: Cluster, goal: int, part: str) -> Soak:
    if part != servers.__name__:
        return await _run(cluster, goal, part)
    async with behind_one_address(cluster) as both:
        return await _run(both, goal, part)


async def _run(cluster: Cluster, goal: int, part: str) -> Soak:
    soak = Soak()
    # A thread outlives the task that waits for it: what a part has begun ends before the next stop or start.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=1))
    controller, webhook = program(cluster, "controller"), program(cluster, "webhook")
    async with admin_of(cluster, clear=False) as admin:
        await asyncio.to_thread(controller.start)
        await asyncio.to_thread(webhook.start)
        try:
            await _migrate_all(admin, soak, goal, part, Stage(cluster, controller, webhook))
        finally:
            await asyncio.to_thread(webhook.stop)
            await asyncio.to_thread(controller.stop)
    return soak


async def _migrate_all(admin: Admin, soak: Soak, goal: int, part: str, stage: Stage) -> None:
    managed = [await admin.namespace(HARD) for _ in range(NAMESPACES)]
    # KubeVirt's own limit of five at once would be used up all the time, and no window is opened then.
    limits = {"parallelMigrationsPerCluster": 50, "parallelOutboundMigrationsPerNode": 50}
    body = {
        "apiVersion": KUBEVIRTS.api_version,
        "kind": KUBEVIRTS.kind,
        "metadata": {"name": "kubevirt"},
        "spec": {"configuration": {"migrations": limits}},
    }
    await admin.client.resource(KUBEVIRTS).create(body, namespace="default")
    windowed = await make_budgeted(admin)
    await windowed.make_quota("quota", {"limits.cpu": "8", "pods": "20"})
    machines: list[tuple[Namespace, str]] = [
        (namespace, f"vm{number}") for namespace in managed for number in range(MACHINES)
    ]
    machines += [(windowed, f"vm{number}") for number in range(2)]
    for namespace, vm in machines:
        await namespace.machine(vm, cpu="500m", memory="64Mi")
    full = await windowed.fill()
    await windowed.budget({"limits.cpu": "2", "pods": "4"})
    work: list[Coroutine[Any, Any, None]] = [disturb(PARTS[part], stage, soak)]
    work += [honest_pods(owner.by(admin.by("tenant")), soak) for owner in managed]
    background = [asyncio.create_task(tenant_namespace) for tenant_namespace in work]
    try:
        await asyncio.gather(*(migrate_for_ever(*tenant_namespace, soak, goal) for tenant_namespace in machines))
    finally:
        for task in background:
            task.cancel()
        await asyncio.wait(background)
    await asyncio.to_thread(stage.webhook.kill)
    await asyncio.to_thread(stage.webhook.start)
    await _check(admin, soak, managed, windowed, full)


async def _check(admin: Admin, soak: Soak, managed: list[Namespace], windowed: Budgeted, full: dict[str, str]) -> None:
    with contextlib.suppress(AssertionError):
        await windowed.at_rest(full, seconds=30.0)
    locks = await admin.client.resource(registry.VALIDATING_WEBHOOK_CONFIGURATIONS).list(
        label_selector=f"{LOCK_LABEL}={LOCK_LABEL}"
    )
    soak.left_locked = [lock.name for lock in locks]
    for namespace, quota, hard in [
        *((tenant_namespace, "", HARD) for tenant_namespace in managed),
        (windowed, "quota", full),
    ]:
        try:
            await namespace.until_hard(hard, quota)
        except AssertionError as exc:
            soak.wrong_quotas.append(f"{namespace}: {exc}")


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
