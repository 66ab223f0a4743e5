"""headroom behind a proxy that fails in every way: no quota changes wrongly, no kind stays deaf."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from kubeloop.client.errors import NotFound
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import until
from lab.namespace import LASTING, VMS, Namespace
from tests.e2e.api import Api
from tests.e2e.conftest import StartController
from tests.e2e.fault_proxy import FAULTS, MUTE_WATCHES, FaultProxy
from tests.e2e.headroom.amounts import Amounts, minus, plus, watched
from tests.e2e.headroom.environment import Environment, environment, grant_what_is_used, meter
from tests.e2e.headroom.shapes import LIMITS, start
from tests.program import Program
from tests.program import headroom as run_headroom

pytestmark = pytest.mark.cluster

LASTS = 0.8
"""Seconds of each fault before the migration ends, and after."""
DEEP = 1000


@pytest.fixture
async def on(cluster: Cluster, controller: StartController) -> AsyncIterator[Environment]:
    async with environment(cluster, controller) as env:
        yield env


@pytest.fixture
def proxy(api: Api, tmp_path: Path) -> Iterator[FaultProxy]:
    with FaultProxy(api, tmp_path) as fault_proxy:
        yield fault_proxy


@pytest.fixture
def headroom(proxy: FaultProxy, tmp_path: Path) -> Iterator[Program]:
    flags = ["--kubeconfig", str(proxy.kubeconfig), "--estimate", "exact"]
    program = Program(tmp_path / "controller.log", "controller", *flags).start()
    yield program
    program.kill()


async def test_faults_change_no_quota_wrongly_and_leave_no_kind_deaf(
    on: Environment, proxy: FaultProxy, headroom: Program
) -> None:
    namespace = await on.admin.namespace()
    await meter(namespace, *LIMITS)
    await start(namespace, "vm1", "vm2")
    base = await grant_what_is_used(namespace, *LIMITS)
    async with deep_vm(namespace), watched(namespace) as (versions,):
        await namespace.succeed(await namespace.migrate("vm1"))
        await namespace.settle(base)
        room = minus((await versions.hards())[1], base)
        kinds = proxy.watched()
        for name in FAULTS:
            await migrate_under(name, namespace, proxy, amounts=plus(base, room))
            await namespace.settle(base)
        await until(lambda: proxy.watched() >= kinds, "every kind to be watched")
        most = plus(plus(base, room), room)
        assert [hard for hard in await versions.hards() if not within(base, hard, most)] == []
    assert headroom.get("/readyz")[0] == 200
    assert f"VirtualMachine {namespace.name}/deep is nested deeper" in headroom.text()
    assert headroom.stop() == 0
    assert "Traceback" not in headroom.text()


async def test_silent_watches_are_told_and_lists_take_their_place(
    on: Environment, proxy: FaultProxy, headroom: Program
) -> None:
    namespace = await on.admin.namespace()
    await meter(namespace, *LIMITS)
    await start(namespace, "vm1")
    base = await grant_what_is_used(namespace, *LIMITS)
    proxy.begin(MUTE_WATCHES)
    migration = await namespace.migrate("vm1")

    async def is_raised() -> bool:
        hard = await namespace.hard()
        return all(hard[name] > amount for name, amount in base.items())

    await until(is_raised, "the raise")
    status, text = headroom.get("/readyz")
    assert (status, "virtualmachineinstancemigrations: watches bring nothing for " in text) == (503, True), text
    assert 'reflector_silent_watches{name="virtualmachineinstancemigrations"} 1.0' in headroom.get("/metrics")[1]
    proxy.end()
    await namespace.succeed(migration)
    await namespace.settle(base)
    await until(lambda: headroom.get("/readyz")[0] == 200, "all to be well")


async def test_what_is_no_longer_served_is_not_gone(on: Environment, headroom: Program, api: Api) -> None:
    """The kinds vanish in mid-migration, also for a process that starts meanwhile; when they are served again the
    migration goes on."""
    namespace = await on.admin.namespace()
    await meter(namespace, *LIMITS)
    await start(namespace, "vm1")
    base = await grant_what_is_used(namespace, *LIMITS)
    migration = await namespace.migrate("vm1", running=LASTING)
    await namespace.until_phase(migration, "Running")
    raised = await namespace.hard()
    assert raised != base
    hidden = ("virtualmachineinstancemigrations", "virtualmachineinstances")
    served(api, hidden, False)
    try:
        await until(
            lambda: all(f"{kind}: no longer served, " in headroom.get("/readyz")[1] for kind in hidden), "it to be told"
        )
        await asyncio.sleep(3)
        assert await namespace.hard() == raised
        assert headroom.stop() == 0
        headroom.start(ready=False)  # it has seen nothing of the migration
        await until(
            lambda: "not synced: virtualmachineinstances (not served)" in headroom.get("/readyz")[1], "the same"
        )
        await asyncio.sleep(3)
        assert await namespace.hard() == raised
    finally:
        served(api, hidden, True)
    await until(lambda: headroom.get("/readyz")[0] == 200, "all to be well")
    assert await namespace.hard() == raised
    await namespace.hurry(migration)
    await namespace.succeed(migration)
    await namespace.settle(base)


async def test_a_client_that_prunes_the_reserves_label_is_reported(cluster: Cluster, on: Environment, api: Api) -> None:
    """GitOps tools prune it; a migration under way is not disturbed."""
    namespace = await on.admin.namespace()
    await meter(namespace, *LIMITS)
    await start(namespace, "vm1")
    base = await grant_what_is_used(namespace, *LIMITS)
    fields = {"involvedObject.name": namespace.name, "reason": "ReserveLabelRemoved"}
    selector = ",".join(f"{name}={value}" for name, value in fields.items())
    with run_headroom(cluster, "controller", "--webhook", "--estimate", "exact"):
        migration = await namespace.migrate("vm1", running=LASTING)
        await namespace.until_phase(migration, "Running")

        async def is_reported() -> bool:
            await namespace.mark(labels={"headroom.harvesterhci.io/holding": None})
            return bool(api.items("/api/v1/events", fieldSelector=selector))

        await until(is_reported, "the report")
        await namespace.hurry(migration)
        await namespace.succeed(migration)
        await namespace.settle(base)


def served(api: Api, kinds: Sequence[str], is_served: bool) -> None:
    """Serves kubevirt.io/v1 of these kinds, or does not."""
    for kind in kinds:
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{kind}.kubevirt.io"
        versions = api.get(path)["spec"]["versions"]
        changed = [{**version, "served": is_served or version["name"] != "v1"} for version in versions]
        api.patch(path, {"spec": {"versions": changed}})


async def migrate_under(fault: str, namespace: Namespace, proxy: FaultProxy, amounts: Amounts) -> None:
    """Starts one migration before the fault, which ends meanwhile, and another while the fault lasts."""
    first_vmim = await namespace.migrate("vm1", running=LASTING)
    await namespace.until_phase(first_vmim, "Running")
    proxy.begin(FAULTS[fault])
    second = await namespace.migrate("vm2")
    await asyncio.sleep(LASTS)
    hard = await namespace.hard()
    assert within(amounts, hard), f"{fault}: {hard} is less than {amounts}"
    await namespace.hurry(first_vmim)
    await asyncio.sleep(LASTS)
    proxy.end()
    await namespace.succeed(first_vmim, second)


def within(least: Amounts, hard: Amounts, most: Amounts | None = None) -> bool:
    """Compares each resource."""
    return all(amount <= hard[name] for name, amount in least.items()) and (
        most is None or all(hard[name] <= amount for name, amount in most.items())
    )


@contextlib.asynccontextmanager
async def deep_vm(namespace: Namespace) -> AsyncIterator[None]:
    """A tenant's VM that is nested deeper than Python's parsers follow, so it is written and removed as bytes."""
    request, path = namespace.client.transport.request, VMS.path(namespace.name)
    deep = b'{"a":' * DEEP + b"1" + b"}" * DEEP
    head = b'{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachine","metadata":{"name":"deep"},'
    body = head + b'"spec":{"runStrategy":"Halted","template":{"metadata":{"a":' + deep + b"}}}}"
    assert (await request("POST", path, body=body)).count(b'"a":') == DEEP + 1
    try:
        yield
    finally:
        await request("DELETE", f"{path}/deep")

        async def gone() -> bool:
            try:
                await request("GET", f"{path}/deep")
            except NotFound:
                return True
            return False

        await until(gone, "the deep VM to go")
