"""Watches of single namespaces, from the first question until the last question is IDLE seconds old."""

from __future__ import annotations

import asyncio

import pytest

from kubeloop.api.core import Pod
from kubeloop.api.meta import rfc3339
from kubeloop.api.registry import PODS
from kubeloop.testing.polling import until
from pkg.config.slim import CacheTransforms
from pkg.util.resourcequota.room import Pods
from pkg.webhook import namespace_pods as module
from pkg.webhook.namespace_pods import ENDED, IDLE, NamespacePods
from tests.kinds import Clock, Kind
from tests.objects import ended, pod

pytestmark = pytest.mark.virtual_time


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
    pods = NamespacePods(kind.client, Clock())
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
    pods = NamespacePods(kind.client, Clock())
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
    pods = NamespacePods(kind.client, Clock())
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
    pods = NamespacePods(kind.client, clock)
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
    pods = NamespacePods(kind.client, Clock())
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
    pods = NamespacePods(kind.client, Clock())
    for name in ("a", "b", "c", "a", "d"):
        pods.list_watched(name)
    assert set(pods._watches) == {"a", "c", "d"}
    await pods.close()
