"""`--render-default-quota`: a namespace's default quota where no Rancher makes it; and never a second one."""

from __future__ import annotations

import json

import pytest

from kubeloop.api.registry import NAMESPACES, RESOURCE_QUOTAS
from kubeloop.client.errors import Forbidden
from pkg.config.settings import Settings
from pkg.controller.namespace.register import register
from pkg.util.resourcequota.policy import Mode, Policy
from tests.decisions import sentences
from tests.kinds import Events, Server
from tests.objects import BASE
from tests.pkg.controller.wired import Wired

ANNOTATION = "field.cattle.io/resourceQuota"
DEFAULT = "resourcequota.management.cattle.io/default-resource-quota"


class NamespaceCluster:
    """A namespace and its quotas."""

    def __init__(self) -> None:
        self.events, server = Events(), Server()
        self._management = Wired(server)
        register(self._management, self.events.recorder, Settings(Policy(Mode.TAKEOVER, render=True)))
        self.namespaces, self.quotas = server.kind(NAMESPACES), server.kind(RESOURCE_QUOTAS)

    def namespace(self, annotation: str | None, **metadata: str) -> None:
        annotations = {} if annotation is None else {ANNOTATION: annotation}
        self.namespaces.given({"metadata": {"name": "ns1", "uid": "u", "annotations": annotations, **metadata}})

    def quota(self, name: str, labels: dict[str, str]) -> None:
        metadata = {"name": name, "namespace": "ns1", "uid": f"uid-{name}", "labels": labels}
        self.quotas.given({"metadata": metadata, "spec": {"hard": {"pods": "1"}}})

    async def look(self) -> None:
        await self._management.handle(NAMESPACES, "ns1")

    def created(self) -> list[dict[str, str]]:
        return [body["spec"]["hard"] for body in self.quotas.asked("create")]


@pytest.fixture
def cluster() -> NamespaceCluster:
    return NamespaceCluster()


CREATED = {
    "the two limits": (BASE, {"limits.cpu": "3", "limits.memory": "5000Mi"}),
    "every limit that Rancher knows": (
        json.dumps({"limit": {"pods": "10", "requestsCpu": "1500m", "servicesLoadBalancers": "2"}}),
        {"pods": "10", "requests.cpu": "1500m", "services.loadbalancers": "2"},
    ),
    "extended resources": ('{"limit":{"extended":{"requests.nvidia.com/gpu":"2"}}}', {"requests.nvidia.com/gpu": "2"}),
    "a limit of zero forbids": ('{"limit":{"limitsCpu":"0"}}', {"limits.cpu": "0"}),
}


@sentences(CREATED)
async def test_a_default_quota_is_made_as_rancher_makes_it(
    case: tuple[str, dict[str, str]], cluster: NamespaceCluster
) -> None:
    annotation, hard = case
    cluster.namespace(annotation)
    await cluster.look()
    (body,) = cluster.quotas.asked("create")
    assert body["spec"] == {"hard": hard}
    assert body["metadata"] == {
        "generateName": "default-",
        "labels": {DEFAULT: "true"},
        "annotations": {ANNOTATION: annotation},
    }


async def test_looking_again_makes_no_second_one(cluster: NamespaceCluster) -> None:
    cluster.namespace(BASE)
    for _ in range(3):
        await cluster.look()
    assert len(cluster.created()) == 1


async def test_before_the_watch_has_caught_up_the_server_is_asked(cluster: NamespaceCluster) -> None:
    """The name is generated: a second create would not collide."""
    cluster.namespace(BASE)
    cluster.quotas.lagging = True
    for _ in range(3):
        await cluster.look()
    assert len(cluster.created()) == 1
    assert {call["labelSelector"] for call in cluster.quotas.asked("list")} == {f"{DEFAULT}=true"}


async def test_a_quota_that_stands_is_never_written(cluster: NamespaceCluster) -> None:
    cluster.namespace(BASE)
    cluster.quota("default-abc", {DEFAULT: "true"})
    await cluster.look()
    assert cluster.quotas.calls == []


@pytest.mark.parametrize("labels", [{}, {DEFAULT: "false"}])
async def test_another_quota_is_not_the_default(cluster: NamespaceCluster, labels: dict[str, str]) -> None:
    cluster.namespace(BASE)
    cluster.quota("mine", labels)
    await cluster.look()
    assert len(cluster.created()) == 1


NOTHING = {
    "no annotation": None,
    "an empty annotation": "",
    "no limits": "{}",
    "empty limits": '{"limit":{"limitsCpu":""}}',
    "limits that Rancher does not know": '{"limit":{"foo":"3"}}',
}


@sentences(NOTHING)
async def test_nothing_to_render(case: str | None, cluster: NamespaceCluster) -> None:
    cluster.namespace(case)
    await cluster.look()
    assert not cluster.quotas.calls
    assert not cluster.events.recorded


GARBAGE = {
    "not JSON": "{nope",
    "a number for a limit": '{"limit":{"limitsCpu":3}}',
    "a limit that is no quantity": '{"limit":{"limitsMemory":"5 GB"}}',
}


@sentences(GARBAGE)
async def test_garbage_is_a_warning_event_on_the_namespace(case: str, cluster: NamespaceCluster) -> None:
    cluster.namespace(case)
    await cluster.look()
    assert not cluster.quotas.calls
    ((key, kind, reason, message),) = cluster.events.recorded
    assert (key, kind, reason) == ("ns1", "Warning", "InvalidResourceQuotaAnnotation")
    assert message.startswith("field.cattle.io/resourceQuota")


async def test_a_namespace_on_its_way_out_or_gone_gets_none(cluster: NamespaceCluster) -> None:
    await cluster.look()
    cluster.namespace(BASE, deletionTimestamp="2026-01-01T00:00:00Z")
    await cluster.look()
    assert not cluster.quotas.calls


async def test_a_server_that_refuses_is_the_queues_affair(cluster: NamespaceCluster) -> None:
    cluster.namespace(BASE)
    cluster.quotas.errors["create"] = [Forbidden("no", status=403)]
    with pytest.raises(Forbidden):
        await cluster.look()
    await cluster.look()
    assert len(cluster.quotas.objects) == 1
