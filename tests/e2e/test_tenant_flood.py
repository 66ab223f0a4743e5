"""One tenant's annotation, as large as annotations may be and rewritten all the time, beside two replicas: quotas of
others are raised as before, and nobody takes what was added for a migration."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from kubeloop.client.errors import ApiError
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.cluster.paths import free_ports
from lab import bodies
from lab.namespace import LASTING, PODS, QUOTAS, VMIMS, VMIS, Namespace
from lab.questions import first_version, most_taken
from lab.record import Amounts, Record
from lab.watching import Watching
from tests.e2e.admin import HARD, Admin
from tests.program import headroom, program
from tests.relay import Relay

pytestmark = pytest.mark.cluster

SIDECARS = 85_000
MIGRATIONS = 6
LATEST = 0.5
"""Seconds by which another tenant's quota may be raised later than without the flood."""
SLOWEST = 4.0
"""Seconds within which a pod of the tenant is answered: the API server gives up after five."""
BASE = Amounts.within(HARD)


@pytest.fixture(scope="module", autouse=True)
def replicas(cluster: Cluster) -> Iterator[None]:
    """A controller and two replicas of the webhooks, which the API server asks in turn."""
    ports = free_ports(2)
    relay = Relay(*(f"127.0.0.1:{port}" for port in ports))
    shared = ("--webhook-url", f"https://{relay.address}", "--secret-name", "e2e-flood")
    with contextlib.ExitStack() as stack:
        stack.callback(relay.close)
        stack.enter_context(headroom(cluster, "controller"))
        started = [program(cluster, "webhook", "--bind-address", f"127.0.0.1:{port}", *shared) for port in ports]
        for replica in started:
            stack.callback(replica.stop)
            replica.start(ready=False)
        for replica in started:
            replica.wait_ready()
        yield


async def rewrite_for_ever(tenant: Namespace) -> None:
    for number in range(1_000_000):
        sidecars = f"[{','.join(['{}'] * (SIDECARS - number % 7))}]"
        await tenant.patch(VMIS, "vm1", {"metadata": {"annotations": {"hooks.kubevirt.io/hookSidecars": sidecars}}})
        await asyncio.sleep(0.2)


async def create_for_ever(tenant: Namespace, answers: list[float]) -> None:
    while True:
        began = time.monotonic()
        with contextlib.suppress(ApiError):
            await tenant.create(PODS, bodies.pod(cpu="400m", memory="1Mi"))
        answers.append(time.monotonic() - began)
        await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def flood(tenant: Namespace, answers: list[float]) -> AsyncIterator[None]:
    """The tenant rewrites its VM's annotation, and takes whatever room for pods there is."""
    tasks = [asyncio.create_task(rewrite_for_ever(tenant))]
    tasks += [asyncio.create_task(create_for_ever(tenant, answers)) for _ in range(4)]
    try:
        yield
        assert not [task for task in tasks if task.done()]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def test_an_annotation_of_85000_elements_costs_others_nothing(admin: Admin) -> None:
    alice, carol = await admin.namespace(HARD), await admin.namespace(HARD)
    await asyncio.gather(alice.machine(cpu="1"), carol.machine(cpu="2"))
    migration = await alice.migrate(running=LASTING)
    await alice.until_phase(migration, "Running")
    answers: list[float] = []
    records = {alice.name: Record(), carol.name: Record()}
    async with Watching(admin.client, records, QUOTAS, VMIMS, PODS):
        quiet = await raises(carol, records[carol.name])
        async with flood(alice.by(admin.by("alice")), answers):
            seconds = await raises(carol, records[carol.name])
    launcher = next(pod.usage for pod in records[alice.name].pods.values() if pod.vm)
    most = most_taken(records[alice.name], lambda pod: not pod.vm)
    print(
        f"raised after {seconds} s, before {quiet}, {len(answers)} pods answered in {max(answers):.2f} s, took {most}"
    )
    assert seconds[-1] <= LATEST + 2 * quiet[-1], (seconds, quiet)
    assert max(answers) <= SLOWEST, max(answers)
    assert BASE.covers(launcher + most), most
    await alice.hurry(migration)
    await alice.succeed(migration)
    await alice.until_hard(HARD)
    assert (await alice.used())["limits.cpu"] <= BASE.cpu


async def raises(tenant: Namespace, record: Record) -> list[float]:
    """Seconds until the quota was raised, of some migrations one after the other, in order."""
    names = []
    for _ in range(MIGRATIONS):
        names.append(await tenant.migrate(running=0.2))
        await tenant.succeed(names[-1])
        await tenant.settle(HARD)
    return sorted(raised_after(record, name) for name in names)


def raised_after(record: Record, migration: str) -> float:
    """Seconds from the migration's creation to the quota's first version with its headroom."""
    began = record.migrations[migration].began.at
    version = first_version(record, began, lambda quota: bool(quota.entries) and quota.hard.cpu > BASE.cpu)
    assert version is not None
    return version.at - began
