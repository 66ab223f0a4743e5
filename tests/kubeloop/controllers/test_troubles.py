"""Stopped controllers do not start again in silence, and one can end while others go on; keys that wait until somebody
else acts: a request is refused, whatever the status, or an answer does not come."""

import asyncio

import pytest

from kubeloop.api import registry
from kubeloop.api.core import ResourceQuota
from kubeloop.api.registry import CONFIG_MAPS, NODES, SECRETS
from kubeloop.client.errors import (
    ApiError,
    BadRequest,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    PatchConflict,
    ServerError,
)
from kubeloop.controllers.errors import RetryAfter
from kubeloop.controllers.factory import ControllerFactory
from kubeloop.controllers.reconcile import UNANSWERED
from kubeloop.testing.fake.server import FakeCluster
from tests.kubeloop.controllers.controllers import Calls, ControlledQuotas
from tests.kubeloop.controllers.test_factory import ManagementCluster, forbid

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


WEBHOOK = 'admission webhook "q.example.org" denied the request: not by you'


@pytest.mark.parametrize(
    "error",
    [BadRequest(WEBHOOK), Forbidden(WEBHOOK), Invalid(WEBHOOK), ServerError(f'failed calling webhook "q": {WEBHOOK}')],
    ids=["400", "403", "422", "a webhook that does not answer"],
)
async def test_a_refusal_is_a_trouble_whatever_its_status(error: ApiError) -> None:
    kind, again = ControlledQuotas(), True

    async def fails(key: str, obj: ResourceQuota | None) -> None:
        if key == "ns/later":
            if again:
                raise RetryAfter(1, "paused") from error
            raise RetryAfter(1, "all is well")
        if again:
            raise error

    await kind.start(fails=fails)
    kind.put("a", "ns")
    kind.put("later", "ns")
    await asyncio.sleep(2)
    assert {(trouble.key, trouble.error) for trouble in kind.controller.troubles()} == {
        ("ns/a", error),
        ("ns/later", error),
    }
    assert f"fails: ns/a: {type(error).__name__}: {error}" in map(str, kind.controller.troubles())
    again = False
    await asyncio.sleep(100)
    assert kind.controller.troubles() == []


@pytest.mark.parametrize(
    "error", [PatchConflict("it does not apply"), Conflict("changed"), NotFound("gone"), KeyError(1)]
)
async def test_what_another_try_or_nobody_else_can_help_is_no_trouble(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    kind = ControlledQuotas()

    async def fails(key: str, obj: ResourceQuota | None) -> None:
        raise error

    await kind.start(fails=fails)
    kind.put("a", "ns")
    await asyncio.sleep(2)
    assert kind.controller.troubles() == []
    if isinstance(error, PatchConflict):
        assert "fails: ns/a failed, will be retried: PatchConflict: it does not apply" in caplog.messages


async def test_another_who_refuses_with_the_same_status_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    kind, names = ControlledQuotas(), iter("aab")

    async def fails(key: str, obj: ResourceQuota | None) -> None:
        name = next(names, "b")
        raise BadRequest(f'admission webhook "{name}" denied the request: no')

    await kind.start(fails=fails)
    kind.put("a", "ns")
    await asyncio.sleep(20)
    assert [line.partition('webhook "')[2][0] for line in caplog.messages if "will be retried" in line] == ["a", "b"]


async def test_an_unanswered_call_is_told_after_five_seconds() -> None:
    kind = ControlledQuotas()
    answered = asyncio.Event()

    async def waits(key: str, obj: ResourceQuota | None) -> None:
        await answered.wait()

    await kind.start(waits=waits)
    kind.put("a", "ns")
    await asyncio.sleep(UNANSWERED - 0.5)
    assert kind.controller.troubles() == []
    await asyncio.sleep(0.6)
    (trouble,) = kind.controller.troubles()
    assert (trouble.handler, trouble.key, trouble.error) == ("waits", "ns/a", None)
    answered.set()
    await asyncio.sleep(0.1)
    assert kind.controller.troubles() == []


async def test_a_forbidden_kind_is_a_trouble_of_its_controller() -> None:
    cluster = ManagementCluster()
    nodes = cluster.management.controller(registry.NODES)
    forbid(cluster.server.kind(registry.NODES))
    await cluster.start()
    await asyncio.sleep(5)
    ((controller, trouble),) = cluster.management.troubles()
    assert (controller, trouble.key, str(trouble)) == (nodes, "", "Forbidden: nodes is forbidden")
    await cluster.management.stop()


async def test_an_error_that_is_its_own_cause_is_retried_as_any_other() -> None:
    kind, calls = ControlledQuotas(), 0

    async def fails(key: str, obj: ResourceQuota | None) -> None:
        nonlocal calls
        calls += 1
        error = ServerError("not now")
        raise error from error

    await kind.start(fails=fails)
    kind.put("a", "ns")
    await asyncio.sleep(2)
    assert calls > 1
