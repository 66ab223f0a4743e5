"""Live looks: what they ask, and what happens without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kubeloop.api import registry
from kubeloop.client.errors import NotServed, ServerError
from kubeloop.testing.fake.objects import Request
from kubeloop.testing.virtual_time import now
from kubeloop.webhook.admission import deadline
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from pkg.util.kubevirt.evidence import vm_of
from pkg.util.resourcequota.observe import Listed, Observer, Source
from pkg.util.resourcequota.rancher import annotation_of
from pkg.webhook.view import NoAnswer, View, defaults
from tests import kinds
from tests.decisions import sentences
from tests.objects import annotated_namespace, launcher, quota, vmi, vmim

pytestmark = pytest.mark.virtual_time


class ViewServer(kinds.Server):
    """`slow` makes every answer too late, `failing` an error."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = self.failing = False
        self.asked_for: list[Request] = []
        self.reactors.append(self._wait)

    async def _wait(self, request: Request) -> None:
        self.asked_for.append(request)
        if self.slow:
            await asyncio.sleep(10)
        if self.failing:
            raise ServerError("broken", status=500)


def made(server: ViewServer) -> View:
    source = Source(
        namespaces=Listed([annotated_namespace("cached")]),
        migrations=Listed([vmim("Running")]),
        instances=Listed([vmi("vm1")]),
        quotas=server.kind(registry.RESOURCE_QUOTAS).cache,
    )
    return View(server.client(), Observer(source), server.clock)


@pytest.fixture
def server() -> ViewServer:
    view_of = ViewServer()
    view_of.kind(registry.NAMESPACES).given(annotated_namespace("live"))
    view_of.kind(registry.RESOURCE_QUOTAS).given(quota())
    view_of.kind(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS).given(vmim("Pending", "vm2"))
    view_of.kind(VIRTUAL_MACHINE_INSTANCES).given(vmi("vm2"))
    return view_of


async def test_a_live_look_has_everything_from_the_api_server(server: ViewServer) -> None:
    result = await made(server).observe_live(quota())
    assert result is not None
    assert result.limits == "live"
    (call,) = server.kind(registry.PODS).asked("list")
    assert call["labelSelector"] == "kubevirt.io"
    assert [migration.spec.vmi_name for migration in result.migrations] == ["vm2"]
    assert set(result.instances) == {"vm2"}


@pytest.mark.parametrize("moment", range(1, 5))
async def test_a_target_made_during_a_look_is_no_tenants_pod(server: ViewServer, moment: int) -> None:
    """1,000 migrations with the webhook restarted all the time: 3 of 1,506 pods were refused because of it."""

    async def migrate(_: Request) -> None:
        if len(server.asked_for) == moment:
            server.kind(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS).given(vmim("Running", "vm9"))
            server.kind(registry.PODS).given(launcher(vmi("vm9"), migration=vmim("Running", "vm9")))

    server.reactors.append(migrate)
    result = await made(server).observe_live(quota())
    assert result is not None
    assert {vm_of(pod) for pod in result.pods} <= {migration.spec.vmi_name for migration in result.migrations}
    assert len(server.asked_for) == 4


async def test_without_kubevirt_nothing_migrates(server: ViewServer) -> None:
    server.install(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, installed=False)
    result = await made(server).observe_live(quota())
    assert result is not None
    assert list(result.migrations) == []


async def test_a_proxys_404_does_not_say_that_nothing_migrates(server: ViewServer) -> None:
    page = NotServed("the server answered 404: <html>no such backend</html>", status=404)
    server.kind(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS).errors["list"] = [page]
    with pytest.raises(NoAnswer):
        await made(server).observe_live(quota())


async def test_a_namespace_that_is_gone_is_nothing_to_look_at(server: ViewServer) -> None:
    server.kind(registry.NAMESPACES).gone("ns1")
    view = made(server)
    assert await view.observe_live(quota()) is None
    assert await view.namespace_live("ns1") is None


LOOKS: dict[str, Callable[[View], Awaitable[object]]] = {
    "everything": lambda view: view.observe_live(quota()),
    "a quota": lambda view: view.quota_live(quota()),
    "quotas": lambda view: view.quotas_live("ns1"),
    "pods": lambda view: view.pods_live("ns1"),
    "the namespace": lambda view: view.namespace_live("ns1"),
}


@pytest.mark.parametrize(("slow", "seconds"), [(False, 0.1), (True, 0.1), (True, 0.0)], ids=["fails", "slow", "late"])
@sentences(LOOKS)
async def test_no_answer_is_not_nothing(
    case: Callable[[View], Awaitable[object]], slow: bool, seconds: float, server: ViewServer
) -> None:
    """All looks of a review have one deadline, and without any time nothing is asked."""
    server.slow, server.failing = slow, True
    with deadline(seconds):
        for _ in range(5):
            with pytest.raises(NoAnswer):
                await case(made(server))
    assert now() <= seconds
    assert bool(server.asked_for) is (seconds > 0)


async def test_a_quota_is_fetched_by_name_and_only_that_very_one(server: ViewServer) -> None:
    view = made(server)
    server.kind(registry.RESOURCE_QUOTAS).edited("ns1/default-abc", {"spec": {"hard": {"limits.cpu": "9"}}})
    assert (await view.quota_live(quota())).hard["limits.cpu"] == "9"
    server.kind(registry.RESOURCE_QUOTAS).edited("ns1/default-abc", {"metadata": {"uid": "another"}})
    assert (await view.quota_live(quota())) == quota()
    server.kind(registry.RESOURCE_QUOTAS).gone("ns1/default-abc")
    assert (await view.quota_live(quota())) == quota()


async def test_default_quotas_are_told_from_others(server: ViewServer) -> None:
    other_quota = server.kind(registry.RESOURCE_QUOTAS).given(
        {"metadata": {"name": "other", "namespace": "ns1", "uid": "u"}, "spec": {}}
    )
    view = made(server)
    assert [result.name for result in defaults(view.quotas("ns1"))] == ["default-abc"]
    assert [result.name for result in defaults(await view.quotas_live("ns1"))] == ["default-abc"]
    assert other_quota in view.quotas("ns1")
    assert annotation_of(view.namespace("ns1")) == "cached"
    assert annotation_of(view.namespace("nowhere")) == ""
