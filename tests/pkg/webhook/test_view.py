"""Live looks: what they ask, and what happens without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from pkg.api import registry
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from pkg.api.registry import Resource
from pkg.client.client import Client
from pkg.client.decode import ObjectList
from pkg.client.errors import NotServed, ServerError
from pkg.util.resourcequota.observe import Listed, Observer, Source
from pkg.webhook.deadline import NoAnswer, deadline
from pkg.webhook.namespace_pods import NamespacePods
from pkg.webhook.view import View
from tests.pkg.controller.fakes import Kind
from tests.pkg.util.resourcequota.world import quota, vmi, vmim
from tests.pkg.webhook.paper import namespace


class Pods(Kind[Any]):
    """Takes a set-based selector as given."""

    async def list(
        self, namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> ObjectList[Any]:
        return await super().list(namespace)


class Server:
    """Kinds by resource; `slow` makes every answer too late."""

    def __init__(self) -> None:
        self.kinds: dict[str, Kind[Any]] = {}
        self.slow = False

    def kind(self, resource: Resource[Any]) -> Kind[Any]:
        make = Pods if resource is registry.PODS else Kind
        return self.kinds.setdefault(resource.plural, make(resource))

    def resource(self, resource: Resource[Any]) -> Any:
        return _Slow(self, self.kind(resource))


class _Slow:
    def __init__(self, server: Server, kind: Kind[Any]) -> None:
        self._server = server
        self._kind = kind

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        async def ask(*args: Any, **more: Any) -> Any:
            if self._server.slow:
                await asyncio.sleep(10)
            return await getattr(self._kind, verb)(*args, **more)

        return ask


def made(server: Server) -> View:
    source = Source(
        namespaces=Listed([namespace("cached")]),
        migrations=Listed([vmim("Running")]),
        instances=Listed([vmi("vm1")]),
    )
    return View(
        cast("Client", server),
        Observer(source),
        server.kind(registry.RESOURCE_QUOTAS).cache,
        cast("NamespacePods", None),
    )


@pytest.fixture
def server() -> Server:
    made = Server()
    made.kind(registry.NAMESPACES).given(namespace("live"))
    made.kind(registry.RESOURCE_QUOTAS).given(quota())
    made.kind(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS).given(vmim("Pending", "vm2"))
    made.kind(VIRTUAL_MACHINE_INSTANCES).given(vmi("vm2"))
    return made


async def test_a_live_look_has_everything_from_the_api_server(server: Server) -> None:
    found = await made(server).observe_live(quota())
    assert found is not None
    assert found.limits == "live"
    assert [migration.spec.vmi_name for migration in found.migrations] == ["vm2"]
    assert set(found.instances) == {"vm1", "vm2"}, "what the cache has never seen is fetched"


async def test_a_vmi_that_is_gone_is_left_out(server: Server) -> None:
    server.kind(VIRTUAL_MACHINE_INSTANCES).gone("ns1/vm2")
    found = await made(server).observe_live(quota())
    assert found is not None
    assert set(found.instances) == {"vm1"}


async def test_without_kubevirt_nothing_migrates(server: Server) -> None:
    server.kind(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS).installed = False
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
    assert await view.annotation_live("ns1") is None


@pytest.mark.parametrize("how", ["it fails", "it is too slow"])
async def test_no_answer_is_not_nothing(server: Server, how: str) -> None:
    view = made(server)
    looks: list[Callable[[], Awaitable[object]]] = [
        lambda: view.observe_live(quota()),
        lambda: view.default_quotas_live("ns1"),
        lambda: view.annotation_live("ns1"),
        lambda: view.migrations_live("ns1"),
    ]
    for look in looks:
        if how == "it is too slow":
            server.slow = True
        for kind in server.kinds.values():
            kind.errors = {verb: [ServerError("broken", status=500)] * 4 for verb in ("get", "list")}
        with pytest.raises(NoAnswer), deadline(0.05):
            await look()


async def test_all_looks_of_a_review_have_one_deadline(server: Server) -> None:
    server.slow = True
    view = made(server)
    began = asyncio.get_running_loop().time()
    with deadline(0.1):
        for _ in range(5):
            with pytest.raises(NoAnswer):
                await view.annotation_live("ns1")
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
    assert [found.name for found in view.default_quotas("ns1")] == ["default-abc"]
    assert [found.name for found in await view.default_quotas_live("ns1") or ()] == ["default-abc"]
    assert other in view.quotas("ns1")
    assert view.annotation("ns1") == "cached"
    assert view.annotation("nowhere") == ""
