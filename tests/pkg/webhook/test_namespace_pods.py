"""Watches of single namespaces, from the first question until the last question is `forget` seconds old."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from pkg.api.core import Pod
from pkg.api.registry import PODS
from pkg.client.resource_client import ResourceClient
from pkg.webhook import namespace_pods as module
from pkg.webhook.namespace_pods import IDLE, NamespacePods
from tests.kinds import Clock
from tests.pkg.generic.fakes import FakeResource
from tests.polling import until


class Server(FakeResource[Pod]):
    """Notes which namespace is asked for."""

    def __init__(self) -> None:
        super().__init__(PODS)
        self.namespaces: list[str] = []

    async def list_page(self, namespace: str = "", **more: Any) -> Any:
        self.namespaces.append(namespace)
        return await super().list_page(namespace, **more)

    def watch(self, namespace: str = "", **more: Any) -> Any:
        self.namespaces.append(namespace)
        return super().watch(namespace, **more)

    @property
    def client(self) -> ResourceClient[Pod]:
        return cast("ResourceClient[Pod]", self)

    @property
    def watchers(self) -> int:
        return self.cluster.watches


async def test_the_first_question_waits_for_the_list_and_the_watch_brings_the_rest() -> None:
    server = Server()
    server.put("a", "ns1")
    pods = NamespacePods(server.client)
    found = await pods.of("ns1")
    assert [pod.name for pod in found or ()] == ["a"]
    assert set(server.namespaces) == {"ns1"}
    before = len(server.namespaces)
    server.put("b", "ns1")
    for _ in range(200):
        if len(await pods.of("ns1") or ()) == 2:
            break
        await asyncio.sleep(0.01)
    assert [pod.name for pod in await pods.of("ns1") or ()] == ["a", "b"]
    assert len(server.namespaces) == before, "one watch, however many questions"
    await pods.close()
    assert server.watchers == 0


async def test_who_cannot_wait_any_longer_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SYNC_TIMEOUT", 0.05)
    server = Server()
    server.answering.clear()
    pods = NamespacePods(server.client)
    assert await pods.of("ns1") is None
    server.answering.set()
    monkeypatch.setattr(module, "SYNC_TIMEOUT", 5.0)
    assert await pods.of("ns1") == []
    await pods.close()


async def test_a_namespace_without_questions_is_not_watched_for_ever() -> None:
    server, clock = Server(), Clock()
    pods = NamespacePods(server.client, clock)
    await pods.of("ns1")
    await until(lambda: server.watchers == 1)
    clock.now += IDLE + 1
    await pods.of("ns2")
    await until(lambda: server.watchers == 1)
    clock.now += IDLE / 2
    await pods.of("ns3")
    await until(lambda: server.watchers == 2)
    await pods.close()
    assert server.watchers == 0


async def test_of_too_many_the_one_that_was_asked_about_least_recently_gives_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST", 3)
    server, clock = Server(), Clock()
    pods = NamespacePods(server.client, clock)
    for name in ("a", "b", "c", "a", "d"):
        clock.now += 1
        await pods.of(name)
    assert set(pods._informers) == {"a", "c", "d"}
    await pods.close()
