"""Management: kinds shared, workers held back until the caches are full, an orderly end."""

import asyncio
import logging
from typing import Any

import pytest
from prometheus_client import REGISTRY

from kubeloop.api import registry
from kubeloop.api.core import Pod, ResourceQuota
from kubeloop.api.meta import Object, PartialObjectMetadata
from kubeloop.api.registry import CUSTOM_RESOURCE_DEFINITIONS, Resource
from kubeloop.client.client import Client
from kubeloop.client.config import ClientConfig
from kubeloop.client.errors import Forbidden
from kubeloop.controllers.factory import ControllerFactory
from kubeloop.controllers.reconcile import Handler
from kubeloop.testing.fake.server import FakeCluster
from kubeloop.testing.virtual_time import now, settle
from kubeloop.workqueue.rate_limiters import (
    ItemExponentialFailureRateLimiter,
    RateLimiter,
    default_controller_rate_limiter,
)
from pkg.api.harvesterhci import SETTINGS
from pkg.config.management import Management
from pkg.util.constants import SETTING_OVERHEAD_RATIO
from tests.kinds import Server
from tests.kubeloop.controllers.controllers import Calls, took

pytestmark = pytest.mark.virtual_time

LONGEST_POLL = 75.0
"""Seconds: a kind that is missing is asked for within missing_poll (60) and a fifth, at random."""


class ManagementCluster:
    """A Management on a fake client."""

    def __init__(self, workers: int = 2) -> None:
        self.server = Server()
        self.management = Management(self.server.client(), workers=workers)
        self.quotas = self.server.kind(registry.RESOURCE_QUOTAS)
        self.pods = self.server.kind(registry.PODS)
        self.settings = self.server.kind(SETTINGS)
        self.events = self.server.kind(registry.EVENTS)

    async def start(self, **handlers: Handler[ResourceQuota]) -> None:
        """Starts controllers with these handlers of ResourceQuotas, by name."""
        for name, handler in handlers.items():
            self.management.resource_quotas.on_change(name, handler)
        await self.management.start()
        await settle()


async def test_one_watch_serves_every_handler_of_a_kind() -> None:
    cluster = ManagementCluster()
    await cluster.start(one=Calls(), two=Calls(), three=Calls())
    assert [verb for verb, _, _ in cluster.quotas.calls] == ["watch"]


async def test_several_namespaces_are_one_cache_and_one_queue() -> None:
    server, calls = Server(), Calls()
    quotas = server.kind(registry.RESOURCE_QUOTAS)
    for namespace in ("one", "two", "other"):
        quotas.put("q", namespace)
    management = ControllerFactory(server.client())
    controller = management.controller(registry.RESOURCE_QUOTAS, namespace=["two", "one"])
    controller.on_change("handler", calls)
    assert management.controller(registry.RESOURCE_QUOTAS, namespace=["one", "two"]) is controller
    await management.start()
    await settle()
    assert calls.keys == ["one/q", "two/q"]
    quotas.put("new", "two")
    server.remove(registry.RESOURCE_QUOTAS, "one/q")
    await settle()
    assert sorted(calls.keys[2:]) == ["one/q", "two/new"]
    server.compact()
    quotas.put("late", "other")
    await asyncio.sleep(900)
    assert [quota.key for quota in controller.cache().list()] == ["two/q", "two/new"]
    await management.stop()


def test_several_namespaces_are_at_least_one() -> None:
    with pytest.raises(ValueError, match="name at least one namespace"):
        ControllerFactory(Server().client()).controller(registry.PODS, namespace=[])


async def test_handlers_are_called_for_the_selected_keys_alone() -> None:
    server, calls = Server(), Calls()
    management = Management(server.client(), selects=lambda key: key.startswith("mine/"))
    management.resource_quotas.on_change("handler", calls)
    for namespace in ("mine", "others"):
        server.kind(registry.RESOURCE_QUOTAS).put("q", namespace)
    await management.start()
    await settle()
    management.resource_quotas.enqueue("others/q", immediately=True)
    await settle()
    assert set(calls.keys) == {"mine/q"}
    assert len(management.resource_quotas.cache().list()) == 2


async def test_no_handler_is_called_before_every_cache_has_synced() -> None:
    cluster, calls = ManagementCluster(), Calls()
    pods = cluster.management.pods.cache()
    cluster.quotas.put("a", "ns")
    cluster.pods.put("p", "ns", metadata={"labels": {"kubevirt.io": "virt-launcher"}})
    cluster.pods.answering.clear()
    await cluster.start(handler=calls)
    await asyncio.sleep(100)
    assert calls.keys == []
    assert cluster.management.unsynced() == ["pods"]
    assert await cluster.management.wait_for_sync(timeout=1) is False
    cluster.pods.answering.set()
    assert await cluster.management.wait_for_sync() is True
    await settle()
    assert not cluster.management.unsynced()
    assert calls.keys == ["ns/a"]
    assert [pod.name for pod in pods.list()] == ["p"]


async def test_a_kind_that_is_not_installed_joins_later() -> None:
    cluster, quotas, settings = ManagementCluster(), Calls(), Calls()
    cluster.server.install(SETTINGS, installed=False)
    cluster.management.settings.on_change("settings", settings)
    cluster.quotas.put("a", "ns")
    await cluster.start(quotas=quotas)
    await asyncio.sleep(60)
    assert quotas.keys == ["ns/a"]
    assert not cluster.management.unsynced()
    assert cluster.management.healthy() == []
    cluster.server.install(SETTINGS)
    cluster.settings.put(SETTING_OVERHEAD_RATIO, value="1.5")
    await asyncio.sleep(LONGEST_POLL)
    assert settings.keys == [SETTING_OVERHEAD_RATIO]
    assert not cluster.management.unsynced()


async def test_a_kind_asked_for_while_running_starts_by_itself() -> None:
    cluster, calls = ManagementCluster(), Calls()
    cluster.management.pods.on_change("early", Calls())
    await cluster.management.start()
    await settle()
    cluster.quotas.put("a", "ns")
    cluster.management.resource_quotas.on_change("late", calls)
    await settle()
    assert calls.keys == ["ns/a"]


async def test_a_stop_lets_handlers_finish_and_writes_their_events() -> None:
    cluster = ManagementCluster()
    recorder = cluster.management.recorder("headroom")
    assert cluster.management.recorder("headroom") is recorder

    async def slow(key: str, obj: ResourceQuota | None) -> None:
        await asyncio.sleep(3)
        assert obj is not None
        recorder.event(obj, "Normal", "Raised", "room was made")

    cluster.quotas.put("a", "ns")
    await cluster.start(slow=slow)
    assert await took(cluster.management.stop()) == pytest.approx(3)
    assert [event["reason"] for event in cluster.events.asked("create")] == ["Raised"]


async def test_a_stop_keeps_its_time_whatever_hangs() -> None:
    cluster = ManagementCluster()
    recorder = cluster.management.recorder("headroom")

    async def hangs(key: str, obj: ResourceQuota | None) -> None:
        assert obj is not None
        recorder.event(obj, "Normal", "Raised", "room was made")
        await asyncio.sleep(10_000)

    cluster.events.answering.clear()
    cluster.quotas.put("a", "ns")
    await cluster.start(hangs=hangs)
    assert await took(cluster.management.stop(timeout=4)) == pytest.approx(4)


async def test_a_stop_before_the_caches_have_synced_is_quick() -> None:
    cluster, calls = ManagementCluster(), Calls()
    cluster.quotas.answering.clear()
    await cluster.start(handler=calls)
    assert await took(cluster.management.stop()) == 0
    cluster.quotas.answering.set()
    await asyncio.sleep(100)
    assert calls.keys == []
    assert cluster.management.healthy() == []


async def test_a_stop_without_a_start_does_nothing() -> None:
    await ManagementCluster().management.stop()


async def test_health_names_dead_workers() -> None:
    cluster = ManagementCluster(workers=1)

    async def deadly(key: str, obj: ResourceQuota | None) -> None:
        raise BaseExceptionGroup("beyond Exception", [GeneratorExit()])

    await cluster.start(deadly=deadly)
    assert cluster.management.healthy() == []
    cluster.quotas.put("a", "ns")
    await settle()
    (problem,) = cluster.management.healthy()
    assert problem.startswith("resourcequotas worker 0 is dead: BaseExceptionGroup: beyond Exception")


async def test_readiness_names_a_kind_whose_watch_shows_no_life() -> None:
    cluster = ManagementCluster()
    cluster.management.pods.cache()
    await cluster.start(handler=Calls())
    assert cluster.management.healthy() == []
    cluster.quotas.answering.clear()  # from now on requests hang
    await asyncio.sleep(3600)
    problems = cluster.management.unready()
    assert problems
    assert all("resourcequotas" in problem for problem in problems)
    assert cluster.management.healthy() == []  # a restart would not heal it


async def test_readiness_names_a_handler_that_hangs() -> None:
    cluster = ManagementCluster()

    async def hangs(key: str, obj: ResourceQuota | None) -> None:
        await asyncio.Event().wait()

    cluster.quotas.put("q1", "ns")
    await asyncio.sleep(100)
    await cluster.start(hangs=hangs)
    await asyncio.sleep(360)
    assert cluster.management.unready() == ["resourcequotas: hangs has been running for 360 s on ns/q1"]
    assert (cluster.management.stale(), cluster.management.healthy()) == ([], [])
    await cluster.management.stop(1)


async def test_who_shares_a_controller_gives_the_same_options() -> None:
    class Slim:
        def pod(self, pod: Pod) -> Pod:
            return pod

    factory, slim = ControllerFactory(ManagementCluster().server.client()), Slim()
    limiter: RateLimiter[str] = default_controller_rate_limiter()
    options: dict[str, Any] = {"transform": slim.pod, "resync_period": 60.0, "rate_limiter": limiter}
    pods = factory.controller(registry.PODS, **options)
    assert factory.controller(registry.PODS, **options) is pods
    other_options: list[dict[str, Any]] = [{"transform": Slim().pod}, {"transform": None}, {"resync_period": 0.0}]
    for option in (*other_options, {"rate_limiter": None}):
        with pytest.raises(ValueError, match="the controller of pods is shared: give it the same"):
            factory.controller(registry.PODS, **options | option)
    factory.controller(registry.PODS, namespace="ns")


async def test_a_controller_lists_and_retries_as_it_is_told() -> None:
    cluster, calls = FakeCluster(), Calls(ValueError("x"))
    for name, phase in (("a", "Running"), ("b", "Failed")):
        cluster.put(registry.PODS, {"metadata": {"name": name, "namespace": "ns"}, "status": {"phase": phase}})
    factory = ControllerFactory(cluster.client())
    pods = factory.controller(
        registry.PODS,
        field_selector="status.phase=Running",
        resync_period=60.0,
        rate_limiter=ItemExponentialFailureRateLimiter(5.0, 5.0),
    )
    assert factory.controller(registry.PODS, name="a") is not pods
    pods.on_change("handler", calls)
    started = now()
    await factory.start()
    await asyncio.sleep(130)
    times = [moment - started for moment in calls.times]
    assert (set(calls.keys), times) == ({"ns/a"}, pytest.approx([0, 5, 60, 120], abs=1))
    await factory.stop()


async def test_a_cache_of_the_metadata_alone() -> None:
    cluster, calls = FakeCluster(), Calls()
    cluster.put(registry.PODS, {"metadata": {"name": "a", "namespace": "ns", "labels": {"x": "y"}}})
    factory = ControllerFactory(cluster.client())
    pods = factory.controller(registry.PODS.metadata(), namespace="ns")
    assert factory.controller(registry.PODS.metadata(), namespace="ns") is pods
    pods.on_change("handler", calls)
    pods.on_remove("handler", calls)
    await factory.start()
    await settle()
    pod = pods.cache().require(namespace="ns", name="a")
    assert (type(pod), pod.labels) == (PartialObjectMetadata, {"x": "y"})
    assert pod.metadata.finalizers == ["wrangler.cattle.io/handler"]
    await factory.stop()


async def test_readiness_names_what_does_not_decode_until_it_does() -> None:
    cluster = FakeCluster()
    good: dict[str, Any] = {"metadata": {"name": "a", "namespace": "ns"}, "spec": {"limits": [{"type": "Pod"}]}}
    bad = {"spec": {"limits": "none"}}
    cluster.put(registry.LIMIT_RANGES, good)
    factory = ControllerFactory(cluster.client())
    ranges = factory.controller(registry.LIMIT_RANGES).cache()
    await factory.start()
    await settle()
    assert factory.unready() == []

    raw = cluster.raw(registry.LIMIT_RANGES)["ns/a"]
    cluster.store(registry.LIMIT_RANGES, "ns/a", raw, raw | bad)
    await settle()
    assert factory.unready() == ["limitranges: cannot be decoded: ns/a"]
    assert ranges.require(namespace="ns", name="a").spec.limits[0].type == "Pod", "what was decoded before stays"
    for name in "bcdefg":
        key = {"metadata": {"name": name, "namespace": "ns"}}
        cluster.store(registry.LIMIT_RANGES, f"ns/{name}", None, key | bad)
    await asyncio.sleep(600)  # lists again meanwhile
    assert factory.unready() == ["limitranges: cannot be decoded: ns/a, ns/b, ns/c, ns/d, ns/e and 2 more"]
    assert (factory.stale(), factory.healthy()) == ([], [])

    cluster.put(registry.LIMIT_RANGES, good | {"spec": {"limits": None}})
    for name in "bcdefg":
        cluster.remove(registry.LIMIT_RANGES, f"ns/{name}")
    await settle()
    assert (factory.unready(), ranges.require(namespace="ns", name="a").spec.limits) == ([], [])
    await factory.stop()


async def test_a_standby_has_warm_caches_and_calls_no_handler() -> None:
    cluster, calls, leading = ManagementCluster(), Calls(), asyncio.Event()
    cluster.quotas.put("q1", "ns")
    cluster.management.resource_quotas.on_change("handler", calls)
    await cluster.management.start(leading)
    await asyncio.sleep(3600)
    assert [quota.name for quota in cluster.management.resource_quotas.cache().list()] == ["q1"]
    assert (calls.keys, cluster.management.unready()) == ([], [])
    leading.set()
    await settle()
    assert calls.keys == ["ns/q1"]


class OwnPod(Object):
    """Pods as another controller needs them."""


async def test_two_definitions_of_a_resource_share_nothing() -> None:
    client = Client(ClientConfig("http://127.0.0.1:1"))
    factory = ControllerFactory(client)
    definitions: list[Any] = [
        factory.controller(registry.PODS),
        factory.controller(registry.PODS, label_selector="app"),
        factory.controller(registry.PODS, name="app"),
        factory.controller(registry.PODS, namespace="app"),
        factory.controller(Resource("", "v1", "pods", "Pod", OwnPod)),
        factory.controller(Resource("example.org", "v1", "pods", "Pod", OwnPod)),
        factory.controller(Resource("example.org", "v2", "pods", "Pod", OwnPod)),
    ]
    for parts in (
        [controller.cache() for controller in definitions],
        [controller.queue for controller in definitions],
        [controller.name for controller in definitions],
        [controller.queue.name for controller in definitions],
        [(controller.client.resource, str(controller.informer)) for controller in definitions],
    ):
        assert len(set(parts)) == len(definitions)
    assert [controller.client.resource.type for controller in definitions] == [*[Pod] * 4, *[OwnPod] * 3]
    pods = Resource("", "v1", "pods", "Pod", Pod)
    assert factory.controller(pods) is definitions[0]
    for controller in definitions[:2]:
        controller.on_change("shared", Calls())
    assert _workers_of("shared") == _workers_of(f"shared of {definitions[1].name}") == 10
    await client.close()


def _workers_of(handler: str) -> float | None:
    labels = {"controller": handler}
    return REGISTRY.get_sample_value("controller_runtime_max_concurrent_reconciles", labels)


def forbid(resource: Any) -> None:
    refused = [Forbidden("nodes is forbidden")] * 1000
    resource.errors = {"watch": list(refused), "list": list(refused)}


async def test_a_forbidden_kind_holds_only_the_handlers_that_need_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kubeloop.controllers")
    cluster, calls = ManagementCluster(), Calls()
    nodes_server = cluster.server.kind(registry.NODES)
    forbid(nodes_server)
    nodes = cluster.management.controller(registry.NODES)
    counted: list[int] = []

    async def needs_nodes(key: str, obj: ResourceQuota | None) -> None:
        counted.append(len(nodes.cache().list()))

    cluster.quotas.put("a", "ns")
    await cluster.start(needs_no_nodes=calls, needs_nodes=needs_nodes)
    await asyncio.sleep(60)
    assert set(calls.keys) == {"ns/a"}
    assert counted == []
    assert cluster.management.unsynced() == ["nodes (nodes is forbidden)"]
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.getMessage().startswith("nodes: ")

    nodes_server.errors = {}
    nodes_server.put("n1")
    await asyncio.sleep(60)
    assert set(counted) == {1}
    messages = [line for line in caplog.messages if line.startswith(("caches synced", "nodes: can be listed"))]
    assert messages == ["caches synced: resourcequotas", "nodes: can be listed now, calling every handler again"]
    assert not cluster.management.unsynced()


REQUIRED: dict[str, tuple[bool, bool, list[str]]] = {
    # required only if it is defined, is defined -> the reason for which handlers wait
    "a required kind that is not installed": (False, False, ["settings (not installed)"]),
    "a defined kind that is not served": (True, True, ["settings (not served)"]),
    "a kind without a definition": (True, False, []),
}


@pytest.mark.parametrize(("if_defined", "is_defined", "reasons"), REQUIRED.values(), ids=REQUIRED)
async def test_required_kinds_hold_the_handlers(if_defined: bool, is_defined: bool, reasons: list[str]) -> None:
    cluster, calls = ManagementCluster(), Calls()
    cluster.server.install(SETTINGS, installed=False)
    if is_defined:
        cluster.server.put(CUSTOM_RESOURCE_DEFINITIONS, {"metadata": {"name": SETTINGS.group_resource}})
    management = cluster.management
    with pytest.raises(ValueError, match="not what `controller` of this factory returned"):
        management.require(SETTINGS)  # type: ignore[arg-type]
    management.require(management.settings, management.resource_quotas, if_defined=if_defined)
    cluster.quotas.put("a", "ns")
    await cluster.start(handler=calls)
    await asyncio.sleep(60)
    assert calls.keys == ([] if reasons else ["ns/a"])
    assert (management.settings.cache().installed, management.unsynced()) == (False, reasons)
    cluster.server.install(SETTINGS)
    await asyncio.sleep(LONGEST_POLL)
    assert (management.settings.cache().installed, management.unsynced()) == (True, [])
    assert calls.keys == ["ns/a"]


async def test_a_kind_requested_during_the_stop_leaves_no_task() -> None:
    cluster = ManagementCluster()

    async def slow(key: str, obj: ResourceQuota | None) -> None:
        await asyncio.sleep(3)
        cluster.management.controller(registry.NODES)

    cluster.quotas.put("a", "ns")
    await cluster.start(slow=slow)
    await cluster.management.stop()
    assert asyncio.all_tasks() == {asyncio.current_task()}
