"""`make soak`: migrations of both strategies without a pause, while something goes wrong.

`python -m tests.bench.soak [migrations] [part...]`: 1,000, and all of PARTS one after the other, unless said otherwise.
"""

import asyncio
import contextlib
import itertools
import json
import re
import signal
import ssl
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import msgspec

from kubeloop.api import registry
from kubeloop.api.registry import Resource
from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError, Forbidden
from kubeloop.client.loading import load_config
from kubeloop.testing.cluster import processes
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.cluster.paths import free_ports
from lab import bodies
from lab.cluster import EmbeddedCluster
from lab.namespace import Namespace, by_value
from pkg.api.kubevirt import KUBEVIRTS, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS
from pkg.util.constants import LOCK_LABELS
from tests.bench.objects import api_server
from tests.e2e.admin import Admin, admin_of
from tests.e2e.mtq_namespace import BUDGETS, Budgeted, make_budgeted
from tests.program import ROOT, Program, program
from tests.relay import Relay

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
    (a webhook that is away, a quota that is busy or counts late) and succeeded on retry."""

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
    """The objects and processes that a part may disturb."""

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
        await _kwok_again(stage)


async def _kwok_again(stage: Stage) -> None:
    """It gives up a pod whose second patch fails, too; kubelets do not."""
    await asyncio.to_thread(stage.cluster.restart, "kwok")


async def counting(stage: Stage, soak: Soak) -> None:
    """The controller manager, and with it the quota controller, is away for two minutes."""
    await _stopped(stage, soak, "kube-controller-manager", 120.0)


async def full(stage: Stage, soak: Soak) -> None:
    """etcd has no space left for a minute: everything is read and deleted, nothing else is written."""
    await asyncio.sleep(10.0)
    with soak.fault():
        await _no_space(stage.cluster, "ACTIVATE")
        try:
            await asyncio.sleep(60.0)
        finally:
            await _no_space(stage.cluster, "DEACTIVATE")
    await _kwok_again(stage)


async def _no_space(cluster: Cluster, action: str) -> None:
    """etcd's alarm when its disk or its quota is used up (https://etcd.io/docs/v3.6/op-guide/maintenance/)."""
    _, flags = api_server(cluster.directory)
    tls = ssl.create_default_context(cafile=flags["--etcd-cafile"])
    tls.load_cert_chain(flags["--etcd-certfile"], flags["--etcd-keyfile"])
    url = f"{flags['--etcd-servers']}/v3/maintenance/alarm"
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        await session.post(url, json={"action": action, "alarm": "NOSPACE"}, ssl=tls)


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
        await asyncio.to_thread(stage.webhook.start)
        soak.faults += 1
        await asyncio.sleep(20.0 if skew else 0.0)


async def _stopped(stage: Stage, soak: Soak, name: str, seconds: float) -> None:
    """Stops one of the cluster's processes, after migrations have run for a while."""
    await asyncio.sleep(10.0)
    process = processes.find(stage.cluster.directory, name)
    with soak.fault():
        process.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            process.signal(signal.SIGCONT)


async def servers(stage: Stage, soak: Soak) -> None:
    """Makes one of two API servers behind one address late (`behind_one_address`): a minute of that."""
    await asyncio.sleep(60.0)
    soak.faults += 1


@contextlib.asynccontextmanager
async def behind_one_address(cluster: Cluster) -> AsyncIterator[Cluster]:
    """The cluster with a second API server, which hears of etcd LATE seconds later. Connections go to both in turn."""
    binary, flags = api_server(cluster.directory)
    (port,) = free_ports(1)
    etcd = Relay(flags["--etcd-servers"].removeprefix("https://"), delay=LATE)
    flags |= {"--secure-port": str(port), "--etcd-servers": f"https://{etcd.address}"}
    argv = [binary, *(f"{flag}={value}" for flag, value in flags.items())]
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
PARTS: dict[str, Part] = {each.__name__: each for each in (kills, etcd, full, counting, stopped, clock, servers)}


async def persistent(attempt: Callable[[], Awaitable[T]]) -> T:
    """The API server may be away for a while."""
    while True:
        try:
            return await attempt()
        except ApiError:
            await asyncio.sleep(0.5)


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
        label_selector=",".join(f"{key}={value}" for key, value in LOCK_LABELS.items())
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
