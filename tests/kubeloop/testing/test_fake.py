"""The fake cluster: reactors that answer, what objects that do not decode cost the others, readers that are slow."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from kubeloop.api.core import ConfigMap
from kubeloop.api.meta import ObjectMeta
from kubeloop.api.registry import CONFIG_MAPS, NAMESPACES, SUBJECT_ACCESS_REVIEWS
from kubeloop.api.workloads import SubjectAccessReview, SubjectAccessReviewStatus
from kubeloop.client.errors import NotFound, ServerError
from kubeloop.testing.fake.objects import Request
from kubeloop.testing.fake.server import FakeCluster

pytestmark = pytest.mark.virtual_time

ANSWER = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "status": {"allowed": True}}


async def later(request: Request) -> dict[str, Any]:
    await asyncio.sleep(0)
    return ANSWER


ANSWERS: dict[str, tuple[Callable[[Request], Any], bool]] = {
    "a mapping": (lambda request: ANSWER, True),
    "an awaitable": (later, True),
    "a typed object": (
        lambda request: SubjectAccessReview(kind="SubjectAccessReview", status=SubjectAccessReviewStatus(allowed=True)),
        True,
    ),
    "nothing": (lambda request: None, False),
}


@pytest.mark.parametrize(("reactor", "allowed"), ANSWERS.values(), ids=ANSWERS)
async def test_a_reactor_answers_with(reactor: Callable[[Request], Any], allowed: bool) -> None:
    cluster = FakeCluster(SUBJECT_ACCESS_REVIEWS)
    cluster.reactors.append(lambda request: None)
    cluster.reactors.append(reactor)
    reviews = cluster.client().resource(SUBJECT_ACCESS_REVIEWS)
    assert (await reviews.create({"spec": {"user": "bob"}})).status.allowed is allowed
    assert cluster.asked("create") == [
        {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {"user": "bob"}}
    ]
    assert cluster.raw(SUBJECT_ACCESS_REVIEWS) == {}


async def test_an_answer_without_a_name_is_of_no_named_object() -> None:
    cluster = FakeCluster(CONFIG_MAPS)
    cluster.reactors.append(lambda request: ConfigMap(kind="ConfigMap"))
    with pytest.raises(ServerError, match="has no name"):
        await cluster.client().resource(CONFIG_MAPS).create({"metadata": {"name": "a", "namespace": "ns"}})


async def test_an_answer_of_no_kind_is_none_for_a_review() -> None:
    cluster = FakeCluster(SUBJECT_ACCESS_REVIEWS)
    cluster.reactors.append(lambda request: {})
    with pytest.raises(ServerError, match="has no name"):
        await cluster.client().resource(SUBJECT_ACCESS_REVIEWS).create({"spec": {}})


async def test_a_reactor_answers_reads() -> None:
    cluster = FakeCluster(CONFIG_MAPS)
    config_map = ConfigMap(metadata=ObjectMeta(name="a", namespace="ns"), data={"k": "v"})
    cluster.reactors.append(lambda request: config_map if request.verb == "get" else None)
    maps = cluster.client().resource(CONFIG_MAPS)
    assert (await maps.get(name="a", namespace="ns")).data == {"k": "v"}
    assert (await maps.get_subresource("scale", ConfigMap, name="a", namespace="ns")).data == {"k": "v"}
    with pytest.raises(NotFound, match="could not find the requested resource"):
        await maps.create_subresource("token", {}, ConfigMap, name="a", namespace="ns")


async def test_an_undecodable_object_costs_no_create_of_others() -> None:
    cluster = FakeCluster(CONFIG_MAPS)
    maps = cluster.client().resource(CONFIG_MAPS)
    with pytest.raises(ServerError):
        cluster.put(CONFIG_MAPS, {"metadata": {"name": "bad", "namespace": "ns"}, "data": {"k": 1}})
    assert "ns/bad" in cluster.raw(CONFIG_MAPS)
    assert (await maps.create({"metadata": {"name": "good", "namespace": "ns"}})).name == "good"


async def test_a_create_costs_no_more_among_many() -> None:
    maps = FakeCluster(CONFIG_MAPS).client().resource(CONFIG_MAPS)

    async def created(begin: int, end: int) -> float:
        started = time.process_time()
        for number in range(begin, end):
            await maps.create({"metadata": {"name": f"o{number}", "namespace": "ns"}, "data": {"k": "v" * 100}})
        return time.process_time() - started

    first_seconds = await created(0, 300)
    await created(300, 2000)
    assert await created(2000, 2300) < 4 * first_seconds


async def started_watch(cluster: FakeCluster) -> Any:
    """A watch that has brought its first object."""
    namespace = cluster.put(NAMESPACES, {"metadata": {"name": "there"}})
    since = namespace.metadata.resource_version
    events = cluster.events(NAMESPACES, lambda _: True, {"watch": "true", "resourceVersion": since})
    coming = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    cluster.put(NAMESPACES, {"metadata": {"name": "new"}})
    assert (await coming)["object"]["metadata"]["name"] == "new"
    return events


async def test_a_slow_reader_gets_every_write() -> None:
    cluster = FakeCluster()
    events = await started_watch(cluster)
    cluster.remove(NAMESPACES, "new")
    async with asyncio.timeout(1.0):
        assert (await anext(events))["type"] == "DELETED"


async def test_a_reader_whose_next_change_is_compacted_is_told_so() -> None:
    cluster = FakeCluster()
    events = await started_watch(cluster)
    cluster.remove(NAMESPACES, "new")
    cluster.compact()
    cluster.put(NAMESPACES, {"metadata": {"name": "later"}})
    async with asyncio.timeout(1.0):
        expired = await anext(events)
    assert (expired["type"], expired["object"]["code"]) == ("ERROR", 410)
