"""`make soak`: migrations of both strategies without a pause, while something goes wrong.

`python -m tests.bench.soak [migrations] [part...]`: 1,000, and all of PARTS one after the other, unless said otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kubeloop.api import registry
from kubeloop.api.registry import Resource
from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError, Forbidden
from kubeloop.client.loading import load_config
from kubeloop.testing.cluster import processes
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.cluster.paths import free_ports
from kubeloop.testing.polling import until
from lab.cluster import EmbeddedCluster
from pkg.api.kubevirt import KUBEVIRTS, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS
from pkg.util.constants import LOCK_SELECTOR
from tests.e2e.admin import Admin, admin_of
from tests.e2e.mtq_namespace import BUDGETS, Namespace, made
from tests.e2e.relay import Relay
from tests.program import ROOT, Program, program

BASE = {"limitsCpu": "3075m", "limitsMemory": "20Gi"}
"""Five VMs of 515m, and half a CPU for a tenant."""
HARD = {"limits.cpu": "3075m", "limits.memory": "20Gi"}
MACHINES = 5
NAMESPACES = 3
LOGS = ROOT / "build" / "soak"
LATE = 0.2
"""Seconds by which the second API server is behind."""
UP, DOWN = 3.0, 0.5
"""Seconds that the webhook serves, and is away before it is started again."""
RECOVERY = 30.0
"""Seconds after the end of a fault in which it may still show."""
T = TypeVar("T")


@dataclass
class Soak:
    """What happened. `refused` are honest pods with room that got a 403; `retried` are calls that failed otherwise
    (a webhook that is away, a quota that is busy) and succeeded on retry."""

    migrations: Counter[str] = field(default_factory=Counter)
    faults: int = 0
    meanwhile: int = 0
    """Pods that were refused while a fault lasted, or shortly after."""
    pods: int = 0
    refused: list[str] = field(default_factory=list)
    retried: Counter[str] = field(default_factory=Counter)
    stuck: list[str] = field(default_factory=list)
    left_locked: list[str] = field(default_factory=list)
    wrong_quotas: list[str] = field(default_factory=list)
    disturbing: bool = False
    """The part has not come to its end."""
    over_at: float = 0.0
    """When what the last fault did is over, by time.monotonic."""

    @contextlib.contextmanager
    def fault(self) -> Iterator[None]:
        """Something is wrong, by which a pod that has room may be refused."""
        self.over_at = float("inf")
        try:
            yield
        finally:
            self.faults += 1
            self.over_at = time.monotonic() + RECOVERY

    @property
    def good(self) -> bool:
        failed = sum(count for phase, count in self.migrations.items() if phase != "Succeeded")
        return not (failed or self.stuck or self.refused or self.left_locked or self.wrong_quotas)


@dataclass(frozen=True)
class Stage:
    """What a part may disturb."""

    cluster: Cluster
    controller: Program
    webhook: Program


async def kills(stage: Stage, soak: Soak) -> None:
    """The webhook is killed and started again, as long as migrations go on."""
    while True:
        await asyncio.sleep(UP)
        await asyncio.to_thread(stage.webhook.kill)
        await asyncio.sleep(DOWN)
        # Killed before it serves, it would never be there at all.
        await asyncio.to_thread(stage.webhook.start)
        soak.faults += 1


async def etcd(stage: Stage, soak: Soak) -> None:
    """etcd stands still for a moment, for longer than a review may take, and for longer than a lease lasts."""
    for seconds in (5.0, 14.0, 40.0):
        await _stopped(stage, soak, "etcd", seconds)


async def counting(stage: Stage, soak: Soak) -> None:
    """The controller manager, and with it the quota controller, is away for two minutes."""
    await _stopped(stage, soak, "kube-controller-manager", 120.0)


async def stopped(stage: Stage, soak: Soak) -> None:
    """The controller stands still for a minute, and goes on with what it had in its hands."""
    await asyncio.sleep(UP)
    with soak.fault():
        stage.controller.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(60.0)
        stage.controller.process.send_signal(signal.SIGCONT)


async def clock(stage: Stage, soak: Soak) -> None:
    """The webhook's clock is 200 s ahead, then 200 s behind: nothing may show of it."""
    for skew in (200.0, -200.0, 0.0):
        await asyncio.to_thread(stage.webhook.stop)
        stage.webhook.skew = skew
        await asyncio.to_thread(lambda: stage.webhook.start(ready=False).wait_ready(120.0))
        soak.faults += 1
        await asyncio.sleep(20.0 if skew else 0.0)


async def _stopped(stage: Stage, soak: Soak, name: str, seconds: float) -> None:
    """One of the cluster's processes, after migrations have run for a while."""
    await asyncio.sleep(10.0)
    process = processes.find(stage.cluster.directory, name)
    with soak.fault():
        process.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            process.signal(signal.SIGCONT)


async def servers(stage: Stage, soak: Soak) -> None:
    """Of two API servers behind one address one is late (`behind_one_address`): a minute of that."""
    await asyncio.sleep(60.0)
    soak.faults += 1


@contextlib.asynccontextmanager
async def behind_one_address(cluster: Cluster) -> AsyncIterator[Cluster]:
    """The cluster with a second API server, which hears of etcd LATE seconds later. Connections go to both in turn."""
    spec = json.loads((cluster.directory / "processes" / "kube-apiserver.json").read_text("utf-8"))
    flags = dict(word.partition("=")[::2] for word in spec["argv"][1:] if not word.startswith("--audit-"))
    (port,) = free_ports(1)
    etcd = Relay(flags["--etcd-servers"].removeprefix("https://"), late=LATE)
    flags |= {"--secure-port": str(port), "--etcd-servers": f"https://{etcd.address}"}
    argv = [spec["argv"][0], *(f"{flag}={value}" for flag, value in flags.items())]
    processes.spawn("kube-apiserver-2", argv, cluster.directory)
    async with Client(load_config(str(_kubeconfig(cluster, f"127.0.0.1:{port}")))) as client:
        await persistent(lambda: client.transport.request("GET", "/readyz"))
    both = Relay(cluster.url.removeprefix("https://"), f"127.0.0.1:{port}")
    try:
        yield replace(cluster, kubeconfig=_kubeconfig(cluster, both.address))
    finally:
        both.close()
        etcd.close()


def _kubeconfig(cluster: Cluster, address: str) -> Path:
    """The cluster's, for an API server at another address."""
    path = cluster.directory / f"{address.rpartition(':')[2]}.kubeconfig"
    path.write_text(cluster.kubeconfig.read_text("utf-8").replace(cluster.url, f"https://{address}"), "utf-8")
    return path


Part = Callable[[Stage, Soak], Coroutine[Any, Any, None]]
PARTS: dict[str, Part] = {each.__name__: each for each in (kills, etcd, counting, stopped, clock, servers)}


async def disturb(part: Part, stage: Stage, soak: Soak) -> None:
    """Migrations go on until it is done, but for the one that never is."""
    soak.disturbing = part is not kills
    try:
        await part(stage, soak)
    finally:
        soak.disturbing = False


async def persistent(attempt: Callable[[], Awaitable[T]]) -> T:
    """The API server may be away for a while."""
    while True:
        try:
            return await attempt()
        except ApiError:
            await asyncio.sleep(0.5)


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
