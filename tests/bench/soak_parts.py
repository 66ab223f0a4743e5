"""Parts of a soak that go wrong, and what is counted meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError
from kubeloop.client.loading import load_config
from kubeloop.testing.cluster import processes
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.cluster.paths import free_ports
from tests.bench.objects import api_server
from tests.program import Program
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
