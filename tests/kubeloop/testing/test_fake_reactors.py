"""Reactors that answer, and what objects that do not decode cost the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from kubeloop.api.core import ConfigMap
from kubeloop.api.meta import Object, ObjectMeta, Struct
from kubeloop.api.registry import CONFIG_MAPS, Resource
from kubeloop.client.errors import ServerError
from kubeloop.testing.fake.objects import Request
from kubeloop.testing.fake.server import FakeCluster


class AccessStatus(Struct):
    allowed: bool = False


class AccessReview(Object):
    status: AccessStatus = AccessStatus()


ACCESS_REVIEWS = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", AccessReview, namespaced=False
)
ANSWER = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "status": {"allowed": True}}


async def later(request: Request) -> dict[str, Any]:
    await asyncio.sleep(0)
    return ANSWER


ANSWERS: dict[str, tuple[Callable[[Request], Any], bool]] = {
    "a mapping": (lambda request: ANSWER, True),
    "an awaitable": (later, True),
    "a typed object": (
        lambda request: AccessReview(kind="SubjectAccessReview", status=AccessStatus(allowed=True)),
        True,
    ),
    "nothing": (lambda request: None, False),
}


@pytest.mark.parametrize(("reactor", "allowed"), ANSWERS.values(), ids=ANSWERS)
async def test_a_reactor_answers_with(reactor: Callable[[Request], Any], allowed: bool) -> None:
    cluster = FakeCluster(ACCESS_REVIEWS)
    cluster.reactors.append(lambda request: None)
    cluster.reactors.append(reactor)
    reviews = cluster.client().resource(ACCESS_REVIEWS)
    assert (await reviews.create({"spec": {"user": "bob"}})).status.allowed is allowed
    assert cluster.asked("create") == [
        {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {"user": "bob"}}
    ]
    assert cluster.raw(ACCESS_REVIEWS) == {}


async def test_an_answer_without_a_name_is_of_no_named_object() -> None:
    cluster = FakeCluster(CONFIG_MAPS)
    cluster.reactors.append(lambda request: ConfigMap(kind="ConfigMap"))
    with pytest.raises(ServerError, match="has no name"):
        await cluster.client().resource(CONFIG_MAPS).create({"metadata": {"name": "a", "namespace": "ns"}})


async def test_an_answer_of_no_kind_is_none_for_a_review() -> None:
    cluster = FakeCluster(ACCESS_REVIEWS)
    cluster.reactors.append(lambda request: {})
    with pytest.raises(ServerError, match="has no name"):
        await cluster.client().resource(ACCESS_REVIEWS).create({"spec": {}})


async def test_a_reactor_answers_reads() -> None:
    cluster = FakeCluster(CONFIG_MAPS)
    config_map = ConfigMap(metadata=ObjectMeta(name="a", namespace="ns"), data={"k": "v"})
    cluster.reactors.append(lambda request: config_map if request.verb == "get" else None)
    assert (await cluster.client().resource(CONFIG_MAPS).get(name="a", namespace="ns")).data == {"k": "v"}


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
