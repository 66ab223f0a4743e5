"""Stopped controllers do not start again in silence; a single one can end while the others go on."""

from __future__ import annotations

import asyncio

import pytest

from kubeloop.api.registry import CONFIG_MAPS, NODES, SECRETS
from kubeloop.controllers.factory import ControllerFactory
from kubeloop.testing.fake.server import FakeCluster
from tests.kubeloop.controllers.controllers import Calls

pytestmark = pytest.mark.virtual_time


def cluster_with(name: str) -> FakeCluster:
    cluster = FakeCluster()
    cluster.put(CONFIG_MAPS, {"metadata": {"name": name, "namespace": "ns"}})
    return cluster


async def test_a_stopped_factory_starts_and_makes_nothing() -> None:
    management = ControllerFactory(cluster_with("a").client())
    maps = management.controller(CONFIG_MAPS)
    await management.start()
    await management.start()  # what was added since: nothing
    await management.wait_for_sync()
    await management.stop()
    with pytest.raises(RuntimeError, match="was stopped"):
        await management.start()
    with pytest.raises(RuntimeError, match="was stopped"):
        management.controller(NODES)
    assert management.controller(CONFIG_MAPS) is maps
    assert [obj.name for obj in maps.cache().list()] == ["a"], "a cache can be looked at after the end"


async def test_a_stopped_controller_refuses_handlers_and_reads() -> None:
    cluster, calls, other_calls = cluster_with("a"), Calls(), Calls()
    management = ControllerFactory(cluster.client())
    maps, secrets = management.controller(CONFIG_MAPS), management.controller(SECRETS)
    maps.on_change("handler", calls)
    secrets.on_change("handler", other_calls)
    management.require(maps)
    await management.start()
    await asyncio.sleep(1)
    watches = cluster.watches
    await maps.stop()
    assert cluster.watches == watches - 1
    for refused in (
        lambda: maps.on_change("more", Calls()),
        maps.start_workers,
        maps.cache().list,
        lambda: maps.cache().get(namespace="ns", name="a"),
        lambda: secrets.watch_related(maps, lambda _: []),
    ):
        with pytest.raises(RuntimeError, match="was stopped"):
            refused()
    cluster.put(CONFIG_MAPS, {"metadata": {"name": "b", "namespace": "ns"}})
    cluster.put(SECRETS, {"metadata": {"name": "s", "namespace": "ns"}})
    await asyncio.sleep(600)
    assert (calls.keys, other_calls.keys) == (["ns/a"], ["ns/s"])
    assert (management.unready(), management.healthy()) == ([], [])
    await management.stop()


async def test_a_kind_of_a_stopped_controller_gets_another_one() -> None:
    cluster, calls = cluster_with("a"), Calls()
    management = ControllerFactory(cluster.client())
    stopped_controller = management.controller(CONFIG_MAPS)
    stopped_controller.on_change("handler", Calls())
    await management.start()
    await asyncio.sleep(1)
    await stopped_controller.stop()
    await stopped_controller.stop()
    new_controller = management.controller(CONFIG_MAPS)
    new_controller.on_change("handler", calls)
    await asyncio.sleep(1)
    await stopped_controller.stop()
    assert (new_controller is stopped_controller, new_controller.name, calls.keys) == (False, "configmaps", ["ns/a"])
    assert management.controller(CONFIG_MAPS) is new_controller
    await management.stop()


async def test_a_controller_that_is_stopped_finishes_what_is_queued() -> None:
    cluster, handled = cluster_with("a"), []

    async def slow(key: str, obj: object) -> None:
        await asyncio.sleep(5)
        handled.append(maps.cache().list())

    management = ControllerFactory(cluster.client())
    maps = management.controller(CONFIG_MAPS)
    maps.on_change("handler", slow)
    await management.start()
    await asyncio.sleep(1)
    await maps.stop()
    assert len(handled) == 1
    await management.stop()


async def test_a_kind_that_is_not_installed_can_be_given_up() -> None:
    cluster = FakeCluster(SECRETS)
    management = ControllerFactory(cluster.client())
    maps = management.controller(CONFIG_MAPS)
    await management.start()
    await asyncio.sleep(100)
    assert management.notes() == ["not installed: configmaps"]
    await maps.stop()
    cluster.install(CONFIG_MAPS)
    await asyncio.sleep(100)
    assert (management.notes(), management.unready()) == ([], [])
    await management.stop()
