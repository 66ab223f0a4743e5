"""Cached objects that are changed in place are noticed in tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kubeloop.api.core import LimitRange, Pod
from kubeloop.api.registry import LIMIT_RANGES
from kubeloop.cache.store import ChangedInPlace, CheckedIndexer
from kubeloop.client.config import ClientConfig
from kubeloop.client.transport import Transport
from kubeloop.controllers.factory import ControllerFactory
from kubeloop.testing.fake.server import FakeCluster
from kubeloop.testing.virtual_time import settle
from tests.kubeloop.cache.informing import pod

pytestmark = pytest.mark.virtual_time

BODY: dict[str, Any] = {
    "metadata": {"name": "a", "namespace": "ns", "labels": {"k": "v"}, "finalizers": ["f"]},
    "spec": {"limits": [{"type": "Pod", "max": {"cpu": "1"}}]},
}
CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "a list grows": (lambda obj: obj.spec.limits.append(obj.spec.limits[0]), "spec.limits"),
    "a dict in a list": (lambda obj: obj.spec.limits[0].max.update(cpu="2"), "spec.limits"),
    "a label": (lambda obj: obj.metadata.labels.update(k="w"), "metadata.labels.k"),
    "a label that goes": (lambda obj: obj.metadata.labels.clear(), "metadata.labels.k"),
    "a finalizer that goes": (lambda obj: obj.metadata.finalizers.remove("f"), "metadata.finalizers"),
}


@pytest.mark.parametrize("case", CHANGES)
async def test_a_handler_that_changes_its_object_fails(case: str, caplog: pytest.LogCaptureFixture) -> None:
    change, path = CHANGES[case]
    cluster = FakeCluster()
    cluster.put(LIMIT_RANGES, BODY)
    factory = ControllerFactory(cluster.client())

    async def handler(key: str, obj: LimitRange | None) -> None:
        change(obj)

    factory.controller(LIMIT_RANGES).on_change("careless", handler)
    await factory.start()
    await settle()
    message = f"LimitRange ns/a was changed in place: {path}"
    assert f"careless: ns/a failed, will be retried: ChangedInPlace: {message}" in caplog.messages
    with pytest.raises(ChangedInPlace, match=message):
        await factory.stop()


async def test_a_change_in_place_is_found_at_the_stop_at_the_latest() -> None:
    cluster = FakeCluster()
    for name in "abc":
        cluster.put(LIMIT_RANGES, {**BODY, "metadata": {**BODY["metadata"], "name": name}})
    factory = ControllerFactory(cluster.client())
    cache = factory.controller(LIMIT_RANGES).cache()
    await factory.start()
    await settle()
    for cached in cache.list():
        cached.spec.limits.clear()
    cluster.remove(LIMIT_RANGES, "ns/b")
    cluster.put(LIMIT_RANGES, {**BODY, "metadata": {**BODY["metadata"], "name": "c"}})
    await settle()
    with pytest.raises(ChangedInPlace, match=r"ns/b .*; .* ns/c .*; .* ns/a"):
        await factory.stop()


async def test_what_is_left_alone_is_no_finding() -> None:
    cluster = FakeCluster()
    cluster.put(LIMIT_RANGES, BODY)
    factory = ControllerFactory(cluster.client())
    calls: list[str] = []

    async def handler(key: str, obj: LimitRange | None) -> None:
        cluster.put(LIMIT_RANGES, {**BODY, "spec": {"limits": []}})
        await asyncio.sleep(1)
        calls.append(key)

    factory.controller(LIMIT_RANGES).on_change("careful", handler)
    await factory.start()
    await asyncio.sleep(5)
    cluster.remove(LIMIT_RANGES, "ns/a")
    await factory.stop()
    assert set(calls) == {"ns/a"}


def test_a_store_that_is_replaced_begins_anew() -> None:
    indexer: CheckedIndexer[Pod] = CheckedIndexer()
    indexer.add(pod("a"))
    indexer.replace([pod("b")])
    assert (indexer.changed(), indexer.list_keys()) == ([], ["ns/b"])


async def test_production_has_no_checks() -> None:
    assert not Transport(ClientConfig("http://127.0.0.1:1")).checked_caches
