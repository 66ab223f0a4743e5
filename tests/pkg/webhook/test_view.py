"""Live looks: what they ask, and what happens without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kubeloop.api import registry
from kubeloop.api.registry import Resource
from kubeloop.client.errors import NotServed, ServerError
from kubeloop.testing.fake.objects import Request
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from pkg.util.kubevirt.evidence import vm_of
from pkg.util.resourcequota.managed import annotation_of
from pkg.util.resourcequota.observe import Listed, Observer, Source
from pkg.webhook.deadline import NoAnswer, deadline
from pkg.webhook.view import View, defaults
from tests import kinds
from tests.objects import annotated_namespace, launcher, quota, vmi, vmim

pytestmark = pytest.mark.virtual_time


class Server(kinds.Server):
    """`slow` makes every answer too late."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = False
        self.reactors.append(self._wait)

    async def _wait(self, _: Request) -> None:
        if self.slow:
            await asyncio.sleep(10)


def made(server: Server) -> View:
    source = Source(
        namespaces=Listed([annotated_namespace("cached")]),
        migrations=Listed([vmim("Running")]),
        instances=Listed([vmi("vm1")]),
        quotas=server.kind(registry.RESOURCE_QUOTAS).cache,
    )
    return View(server.client(), Observer(source), server.clock)


@pytest.fixture
def server() -> Server:
    made = Server()
    made.kind(registry.NAMESPACES).given(annotated_namespace("live"))
    made.kind(registry.RESOURCE_QUOTAS).given(quota())
    made.kind(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS).given(vmim("Pending", "vm2"))
    made.kind(VIRTUAL_MACHINE_INSTANCES).given(vmi("vm2"))
    return made


async def test_a_live_look_has_everything_from_the_api_server(server: Server) -> None:
    found = await made(server).observe_live(quota())
    assert found is not None
    assert found.limits == "live"
    (asked,) = server.kind(registry.PODS).asked("list")
    assert asked["labelSelector"] == "kubevirt.io"
    assert [migration.spec.vmi_name for migration in found.migrations] == ["vm2"]
    assert set(found.instances) == {"vm2"}


@pytest.mark.parametrize("moment", range(1, 5))
async def test_a_target_that_is_made_during_a_look_is_not_taken_for_a_tenants(server: Server, moment: int) -> None:
    """1,000 migrations with the webhook restarted all the time: 3 of 1,506 pods were refused because of it."""
    made_now: list[Request] = []

    async def migrate(request: Request) -> None:
        made_now.append(request)
        if len(made_now) == moment:
            server.kind(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS).given(vmim("Running", "vm9"))
            server.kind(registry.PODS).given(launcher(vmi("vm9"), migration=vmim("Running", "vm9")))

    server.reactors.append(migrate)
    found = await made(server).observe_live(quota())
    assert found is not None
    assert {vm_of(pod) for pod in found.pods} <= {each.spec.vmi_name for each in found.migrations}
    assert len(made_now) == 4


async def test_without_kubevirt_nothing_migrates(server: Server) -> None:
    server.install(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, installed=False)
    found = await made(server).observe_live(quota())
    assert found is not None
    assert list(found.migrations) == []


async def test_a_proxys_404_does_not_say_that_nothing_migrates(server: Server) -> None:
    page = NotServed("the server answered 404: <html>no such backend</html>", status=404)
    server.kind(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS).errors["list"] = [page]
    with pytest.raises(NoAnswer):
        await made(server).observe_live(quota())


async def test_a_namespace_that_is_gone_is_nothing_to_look_at(server: Server) -> None:
    server.kind(registry.NAMESPACES).gone("ns1")
    view = made(server)
    assert await view.observe_live(quota()) is None
    assert await view.namespace_live("ns1") is None


@pytest.mark.parametrize("how", ["it fails", "it is too slow"])
async def test_no_answer_is_not_nothing(server: Server, how: str) -> None:
    view = made(server)
    looks: list[Callable[[], Awaitable[object]]] = [
        lambda: view.observe_live(quota()),
        lambda: view.quotas_live("ns1"),
        lambda: view.namespace_live("ns1"),
    ]
    for look in looks:
        if how == "it is too slow":
            server.slow = True
        kinds: tuple[Resource[Any], ...] = (
            registry.NAMESPACES,
            registry.RESOURCE_QUOTAS,
            VIRTUAL_MACHINE_INSTANCE_MIGRATIONS,
            VIRTUAL_MACHINE_INSTANCES,
        )
        for resource in kinds:
            server.kind(resource).errors = {verb: [ServerError("broken", status=500)] * 4 for verb in ("get", "list")}
        with pytest.raises(NoAnswer), deadline(0.05):
            await look()


async def test_without_any_time_nothing_is_asked(server: Server) -> None:
    view = made(server)
    with deadline(0.0):
        with pytest.raises(NoAnswer):
            await view.namespace_live("ns1")
        with pytest.raises(NoAnswer):
            await view.quota_live(quota())
    assert not server.kind(registry.NAMESPACES).calls
    assert not server.kind(registry.RESOURCE_QUOTAS).calls


async def test_all_looks_of_a_review_have_one_deadline(server: Server) -> None:
    server.slow = True
    view = made(server)
    began = asyncio.get_running_loop().time()
    with deadline(0.1):
        for _ in range(5):
            with pytest.raises(NoAnswer):
                await view.namespace_live("ns1")
    assert asyncio.get_running_loop().time() - began < 0.4


async def test_a_quota_is_fetched_by_name_and_only_that_very_one(server: Server) -> None:
    view = made(server)
    server.kind(registry.RESOURCE_QUOTAS).edited("ns1/default-abc", {"spec": {"hard": {"limits.cpu": "9"}}})
    assert (await view.quota_live(quota())).hard["limits.cpu"] == "9"
    server.kind(registry.RESOURCE_QUOTAS).edited("ns1/default-abc", {"metadata": {"uid": "another"}})
    assert (await view.quota_live(quota())) == quota()
    server.kind(registry.RESOURCE_QUOTAS).gone("ns1/default-abc")
    assert (await view.quota_live(quota())) == quota()


async def test_default_quotas_are_told_from_others(server: Server) -> None:
    other = server.kind(registry.RESOURCE_QUOTAS).given(
        {"metadata": {"name": "other", "namespace": "ns1", "uid": "u"}, "spec": {}}
    )
    view = made(server)
    assert [found.name for found in defaults(view.quotas("ns1"))] == ["default-abc"]
    assert [found.name for found in defaults(await view.quotas_live("ns1"))] == ["default-abc"]
    assert other in view.quotas("ns1")
    assert annotation_of(view.namespace("ns1")) == "cached"
    assert annotation_of(view.namespace("nowhere")) == ""
