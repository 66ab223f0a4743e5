"""Live looks: what they ask, and what happens without an answer; watches of single namespaces, from the first
question until the last question is IDLE seconds old."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kubeloop.api import registry
from kubeloop.api.core import Pod
from kubeloop.api.meta import rfc3339
from kubeloop.api.registry import PODS
from kubeloop.client.errors import NotServed, ServerError
from kubeloop.testing.fake.objects import Request
from kubeloop.testing.polling import until
from kubeloop.testing.virtual_time import now
from kubeloop.webhook.admission import deadline
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from pkg.config.slim import CacheTransforms
from pkg.util.kubevirt.evidence import vm_of
from pkg.util.resourcequota.observe import Listed, Source
from pkg.util.resourcequota.rancher import annotation_of
from pkg.util.resourcequota.room import Pods
from pkg.webhook import view as module
from pkg.webhook.view import ENDED, IDLE, NamespacePods, NoAnswer, View, defaults
from tests import kinds
from tests.decisions import sentences
from tests.kinds import Clock, Kind
from tests.objects import annotated_namespace, ended, launcher, pod, quota, vmi, vmim

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
    return View(server.client(), source, server.clock, CacheTransforms())


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
    assert call["labelSelector"] == "kubevirt.io in (hotplug-disk,virt-launcher)"
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


# ---- watches of single namespaces ----------------------------------------------------------------------------


def as_it_is(pod: Pod) -> Pod:
    return pod


def names(read: Pods | None) -> list[str]:
    return [pod.name for pod in read.present] if read else []


async def watched(pods: NamespacePods) -> Pods:
    """Returns the pods of the watch once its first list has come."""
    await until(lambda: pods.list_watched("ns1") is not None)
    read = pods.list_watched("ns1")
    assert read is not None
    return read


async def ended_of(pods: NamespacePods) -> list[Pod]:
    """The same by what a watch has brought and by a live list."""
    read, live = await watched(pods), await pods.live("ns1")
    assert read.ended == live.ended
    return list(read.ended.values())


async def test_the_first_question_begins_a_watch_which_brings_the_pods() -> None:
    kind = Kind(PODS)
    kind.put("a", "ns1")
    pods = NamespacePods(kind.client, Clock(), as_it_is)
    assert pods.list_watched("ns1", begin=False) is None
    assert not kind.calls
    assert pods.list_watched("ns1") is None, "a review does not wait for its first list"
    assert names(await watched(pods)) == ["a"]
    calls = kind.calls
    assert {namespace for _, namespace, _ in calls} == {"ns1"}
    kind.put("a", "ns1")
    kind.put("b", "ns1")
    for _ in range(200):
        if len(names(pods.list_watched("ns1"))) == 2:
            break
        await asyncio.sleep(0.01)
    assert names(pods.list_watched("ns1")) == names(pods.list_watched("ns1", begin=False)) == ["a", "b"]
    assert kind.calls == calls, "one watch, however many questions"
    assert not await ended_of(pods), "what changes has not ended"
    await pods.close()
    assert kind.server.watches == 0


async def test_what_a_tenant_notes_on_its_pods_is_not_held() -> None:
    kind, slim = Kind(PODS), CacheTransforms()
    for number in range(250):
        kind.put(f"p-{number}", "ns1", metadata={"annotations": {"note": "x" * 1000}}, spec={"nodeName": "n"})
    pods = NamespacePods(kind.client.transformed(slim.pod), Clock(), slim.pod)
    for read in (await pods.live("ns1"), await watched(pods)):
        assert len(read.present) == 250
        assert {one_pod.metadata.annotations for one_pod in read.present} == {None}
        assert {one_pod.spec.node_name for one_pod in read.present} == {"n"}
    await pods.close()


async def test_a_pod_that_ended_is_remembered_for_a_moment() -> None:
    """A pod that came and went between two questions is remembered, too."""
    kind, finished = Kind(PODS), pod("2", name="over")
    kind.given(finished)
    pods = NamespacePods(kind.client, Clock(), as_it_is)
    await watched(pods)
    kind.put("came", "ns1")
    kind.gone("ns1/came")
    kind.given(ended(finished))
    await until(lambda: len(pods._watches["ns1"].finished) == 2)
    assert len(await ended_of(pods)) == 2
    read = await watched(pods)
    assert read.versions() == {"uid-came": "", finished.uid: read.present[0].metadata.resource_version}
    assert [(one_pod.name, one_pod.status.phase) for one_pod in read.ended.values()] == [
        ("came", None),
        ("over", "Running"),
    ]
    await asyncio.sleep(ENDED / 2)
    kind.gone("ns1/over")
    await asyncio.sleep(ENDED / 2)
    assert not await ended_of(pods)
    await pods.close()


async def test_what_ends_after_a_live_list_has_not_ended_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list decides about the pod, and nothing takes it off again."""
    kind = Kind(PODS)
    kind.put("over", "ns1")
    pods = NamespacePods(kind.client, Clock(), as_it_is)
    await watched(pods)
    listed = await kind.client.list("ns1")
    kind.gone("ns1/over")
    await until(lambda: pods._watches["ns1"].finished)

    async def late(_: str) -> list[Pod]:
        return listed

    monkeypatch.setattr(kind.client, "list", late)
    assert await pods.live("ns1") == Pods(listed)
    await pods.close()


DATE = 1_800_000_000.0


@pytest.mark.parametrize(
    ("seconds", "remembered"),
    [(0.0, True), (ENDED - 1, True), (ENDED + 1, False), (3600.0, False), (-3600.0, False), (None, False)],
)
async def test_at_the_first_look_the_kubelet_says_when_a_pod_ended(seconds: float | None, remembered: bool) -> None:
    since = {} if seconds is None else {"lastTransitionTime": rfc3339(DATE - seconds)}
    ready = {"type": "Ready", "status": "False", "reason": "PodCompleted", **since}
    kind = Kind(PODS)
    kind.given(pod("2", phase="Succeeded", conditions=[ready]))
    kind.given(pod("1", conditions=[ready]))  # it has just become unready
    clock = Clock(DATE)
    pods = NamespacePods(kind.client, clock, as_it_is)
    first_read = await pods.live("ns1")
    assert pods.list_watched("ns1") is None, "a live look does not need the watch"
    for read in (first_read, await watched(pods)):
        assert [one_pod.status.phase for one_pod in read.ended.values()] == [None] * remembered
    await asyncio.sleep(ENDED)
    clock.now += ENDED
    assert not await ended_of(pods)
    await pods.close()


async def test_a_watch_ends_also_when_nothing_is_asked_any_more() -> None:
    """The namespace was deleted, and no review comes from any other."""
    kind = Kind(PODS)
    pods = NamespacePods(kind.client, Clock(), as_it_is)
    pods.list_watched("ns1")
    await until(lambda: kind.server.watches == 1)
    await asyncio.sleep(IDLE / 2)
    pods.list_watched("ns1")
    await asyncio.sleep(IDLE - 1.0)
    assert kind.server.watches == 1
    await asyncio.sleep(2.0)
    assert kind.server.watches == 0
    pods.list_watched("ns1")
    await until(lambda: kind.server.watches == 1)
    await pods.close()


async def test_of_too_many_the_least_recently_asked_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 3)
    kind = Kind(PODS)
    pods = NamespacePods(kind.client, Clock(), as_it_is)
    for name in ("a", "b", "c", "a", "d"):
        pods.list_watched(name)
    assert set(pods._watches) == {"a", "c", "d"}
    await pods.close()
