"""Watches of single namespaces, from the first question until the last question is `forget` seconds old."""

from __future__ import annotations

import asyncio

import pytest

from kubeloop.api.registry import PODS
from kubeloop.testing.polling import until
from pkg.webhook import namespace_pods as module
from pkg.webhook.namespace_pods import IDLE, NamespacePods
from tests.kinds import Kind

pytestmark = pytest.mark.virtual_time


async def test_the_first_question_waits_for_the_list_and_the_watch_brings_the_rest() -> None:
    kind = Kind(PODS)
    kind.put("a", "ns1")
    pods = NamespacePods(kind.client)
    found = await pods.of("ns1")
    assert [pod.name for pod in found or ()] == ["a"]
    asked = kind.calls
    assert {namespace for _, namespace, _ in asked} == {"ns1"}
    kind.put("b", "ns1")
    for _ in range(200):
        if len(await pods.of("ns1") or ()) == 2:
            break
        await asyncio.sleep(0.01)
    assert [pod.name for pod in await pods.of("ns1") or ()] == ["a", "b"]
    assert kind.calls == asked, "one watch, however many questions"
    kind.put("c", "ns1")
    kind.gone("ns1/c")
    await until(lambda: pods.gone("ns1") == ["uid-c"])
    await pods.close()
    assert kind.server.watches == 0


async def test_who_cannot_wait_any_longer_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SYNC_TIMEOUT", 0.05)
    kind = Kind(PODS)
    kind.answering.clear()
    pods = NamespacePods(kind.client)
    assert await pods.of("ns1") is None
    kind.answering.set()
    monkeypatch.setattr(module, "SYNC_TIMEOUT", 5.0)
    assert await pods.of("ns1") == []
    await pods.close()


async def test_a_watch_ends_also_when_nothing_is_asked_any_more() -> None:
    """The namespace was deleted, and no review comes from any other."""
    kind = Kind(PODS)
    pods = NamespacePods(kind.client)
    await pods.of("ns1")
    await until(lambda: kind.server.watches == 1)
    await asyncio.sleep(IDLE / 2)
    await pods.of("ns1")
    await asyncio.sleep(IDLE - 1.0)
    assert kind.server.watches == 1
    await asyncio.sleep(2.0)
    assert kind.server.watches == 0
    await pods.of("ns1")
    await until(lambda: kind.server.watches == 1)
    await pods.close()


async def test_of_too_many_the_one_that_was_asked_about_least_recently_gives_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST", 3)
    kind = Kind(PODS)
    pods = NamespacePods(kind.client)
    for name in ("a", "b", "c", "a", "d"):
        await pods.of(name)
    assert set(pods._watches) == {"a", "c", "d"}
    await pods.close()
