"""The label of namespaces that hold added headroom, before the room and a little longer than it; and `--render-
default-quota`: a namespace's default quota where no Rancher makes it, and never a second one."""

import asyncio
import json
from typing import Any

import pytest

from kubeloop.api import registry
from kubeloop.api.core import ResourceQuota
from kubeloop.api.registry import NAMESPACES, RESOURCE_QUOTAS
from kubeloop.client.errors import Forbidden
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS
from pkg.config.settings import Settings
from pkg.controller.namespace.namespace_controller import (
    EVENT_LABEL_REMOVED,
    LONGEST_SETTLE,
    SETTLE,
    register,
    register_holding,
    unlabel_all,
)
from pkg.util import constants
from pkg.util.constants import WEBHOOK_CONFIGURATION_NAME
from pkg.util.resourcequota.guard import holding_state_of, holds
from pkg.util.resourcequota.policy import Mode, Policy
from tests.decisions import sentences
from tests.kinds import Events, Server, edited
from tests.objects import BASE, COMPENSATION, ENTRY, MARKS, SKIP, annotated_namespace, by_name, by_uid, quota, vmi, vmim
from tests.pkg.controller.wired import Wired, retry_after

pytestmark = pytest.mark.virtual_time

ONE = {**MARKS, by_name(): ENTRY}
LINGER = 30.0


def lagging(status: dict[str, str]) -> ResourceQuota:
    """The controller manager has not seen spec.hard yet."""
    return edited(quota(annotations=MARKS), status={"hard": status})


HELD = {
    "an entry stands": (quota(annotations=ONE), [], True),
    "one by uid": (quota(annotations={by_uid(): ENTRY}), [], True),
    "one that is garbage": (quota(annotations={by_name(): "x"}), [], True),
    "quota admission still goes by more than spec.hard": (lagging({"limits.cpu": "5"}), [], True),
    "quota admission goes by less, or by another spelling": (
        lagging({"limits.cpu": "2", "limits.memory": "5120000Ki"}),
        [],
        False,
    ),
    "a compensation stands": (quota(annotations={COMPENSATION: "{}"}), [], True),
    "a migration was announced": (quota(annotations=MARKS), [vmim(None)], True),
    "a migration runs": (quota(annotations=MARKS), [vmim("Running")], True),
    "nothing": (quota(annotations=MARKS), [], False),
    "every migration is over": (quota(annotations=MARKS), [vmim("Succeeded"), vmim("Failed")], False),
    "a migration in a namespace without a quota of ours": (quota(labels={}), [vmim("Running")], False),
    "it is switched off": (quota(annotations={SKIP: "true", by_name(): ENTRY}), [vmim("Running")], False),
}


@sentences(HELD, "found, migrations, is_labelled")
def test_whether_a_namespace_holds_room(found: Any, migrations: list[Any], is_labelled: bool) -> None:
    assert holds([found], migrations) is is_labelled


CHANGES = {
    "a first entry is written": (quota(annotations=MARKS), quota(annotations=ONE), True),
    "a second entry is written": (quota(annotations=ONE), quota(annotations={**ONE, by_uid(): ENTRY}), False),
    "an entry's amount changes": (quota(annotations=ONE), quota(annotations={**ONE, by_name(): "{}"}), False),
    "the last entry goes": (quota(annotations=ONE), quota(annotations=MARKS), True),
    "a person annotates it": (quota(annotations=MARKS), quota(annotations={**MARKS, "note": "x"}), False),
    "a pod is counted": (quota(annotations=ONE), edited(quota(annotations=ONE), status={"used": {"pods": "9"}}), False),
    "it is switched off": (quota(annotations=ONE), quota(annotations={SKIP: "true", by_name(): ENTRY}), True),
    "status.hard is still above spec.hard": (quota(annotations=MARKS), lagging({"limits.cpu": "5"}), True),
}


@sentences(CHANGES, "old, new, is_read")
def test_which_changes_of_a_quota_enqueue_its_namespace(old: Any, new: Any, is_read: bool) -> None:
    assert (holding_state_of(old) != holding_state_of(new)) is is_read


class OneNamespace:
    """A namespace and the handler."""

    def __init__(self, *, reserve: bool = True, labelled: bool = False) -> None:
        server = Server()
        self._management = Wired(server)
        self.events = Events()
        self._holding = register_holding(self._management, self.events.recorder, Settings(reserve=reserve))
        self.namespaces, self.quotas = server.kind(registry.NAMESPACES), server.kind(registry.RESOURCE_QUOTAS)
        self.migrations = server.kind(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS)
        self.instances = server.kind(VIRTUAL_MACHINE_INSTANCES)
        self.webhooks = server.kind(registry.VALIDATING_WEBHOOK_CONFIGURATIONS)
        self.budgets = server.kind(VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS)
        self.register(["pods"])
        self.namespaces.given(annotated_namespace())
        if labelled:
            self.namespaces.edited("ns1", {"metadata": {"labels": {constants.LABEL_HOLDING: "true"}}})

    def register(self, *resources: list[str], policy: str = "Ignore") -> None:
        """Webhooks with these rules."""
        rules = [{"rules": [{"resources": names}], "failurePolicy": policy} for names in resources]
        self.webhooks.given({"metadata": {"name": WEBHOOK_CONFIGURATION_NAME, "uid": "u"}, "webhooks": rules})

    async def handle(self) -> float | None:
        return await self._management.handle(registry.NAMESPACES, "ns1")

    async def before_raise(self) -> float | None:
        return await retry_after(self._holding.before_raise("ns1"))

    @property
    def labelled(self) -> bool:
        return bool(self.namespaces.now("ns1").labels.get(constants.LABEL_HOLDING) == "true")

    @property
    def writes(self) -> int:
        return len(self.namespaces.asked("patch"))


@pytest.fixture
def rig() -> OneNamespace:
    return OneNamespace()


async def test_labelled_once_while_room_is_held(rig: OneNamespace) -> None:
    assert await rig.handle() is None
    assert not rig.labelled
    rig.quotas.given(quota(annotations=ONE))
    await rig.handle()
    assert rig.labelled
    await rig.handle()
    assert rig.writes == 1


async def test_the_label_stands_a_little_longer_than_the_room() -> None:
    rig = OneNamespace(labelled=True)
    assert await rig.handle() == LINGER
    await asyncio.sleep(LINGER - 1)
    assert await rig.handle() == 1
    await asyncio.sleep(1)
    assert await rig.handle() is None
    assert not rig.labelled


async def test_the_next_migration_keeps_it() -> None:
    rig = OneNamespace(labelled=True)
    await rig.handle()
    await asyncio.sleep(LINGER - 1)
    rig.quotas.given(quota(annotations=ONE))
    await rig.handle()
    rig.quotas.given(quota(annotations=MARKS))
    assert await rig.handle() == LINGER, "it lingers anew"


async def test_a_raise_waits_until_the_label_counts(rig: OneNamespace) -> None:
    assert await rig.before_raise() == pytest.approx(SETTLE)
    assert rig.labelled
    await asyncio.sleep(SETTLE / 2)
    assert await rig.before_raise() == pytest.approx(SETTLE / 2)
    await asyncio.sleep(SETTLE)
    assert await rig.before_raise() is None
    assert rig.writes == 1


@pytest.mark.parametrize(("took", "waits"), [(0.01, SETTLE), (0.05, 0.5), (5.0, LONGEST_SETTLE)])
async def test_on_a_busy_api_server_it_waits_longer(took: float, waits: float, rig: OneNamespace) -> None:
    rig.namespaces.before.append(lambda: asyncio.sleep(took))
    assert await rig.before_raise() == pytest.approx(waits)


async def test_a_raise_in_a_labelled_namespace_waits_for_nothing() -> None:
    rig = OneNamespace(labelled=True)
    assert await rig.before_raise() is None
    assert rig.writes == 0


async def test_a_cache_that_is_behind_is_no_reason_to_write_again(rig: OneNamespace) -> None:
    rig.namespaces.lagging = True
    await rig.before_raise()
    await asyncio.sleep(SETTLE)
    assert await rig.before_raise() is None
    assert rig.writes == 1


async def test_a_label_that_is_removed_comes_back(rig: OneNamespace) -> None:
    rig.quotas.given(quota(annotations=ONE))
    await rig.handle()
    rig.namespaces.edited("ns1", {"metadata": {"labels": None}})
    assert await rig.handle() is None
    assert rig.labelled


async def test_a_client_that_removes_the_label_is_reported(rig: OneNamespace) -> None:
    rig.quotas.given(quota(annotations=ONE))
    await rig.handle()
    for _ in range(2):
        rig.namespaces.edited("ns1", {"metadata": {"labels": None}})
        await rig.handle()
        assert rig.labelled
    assert rig.events.reasons == [EVENT_LABEL_REMOVED] * 2
    (key, _type, _reason, message), _ = rig.events.recorded
    assert (key, constants.LABEL_HOLDING in message) == ("ns1", True)


async def test_a_label_that_headroom_removed_was_not_removed_by_others() -> None:
    rig = OneNamespace(labelled=True)
    for _ in range(4):
        await rig.handle()
        await asyncio.sleep(LINGER)
        await rig.handle()
        assert not rig.labelled
        assert await rig.before_raise() == pytest.approx(SETTLE)
    assert rig.events.recorded == []


async def test_a_label_that_cannot_be_written_holds_no_migration_up(rig: OneNamespace) -> None:
    rig.namespaces.errors["patch"] = [Forbidden("no", status=403)]
    assert await rig.before_raise() is None


async def test_a_raise_while_the_label_goes_has_it_set_anew() -> None:
    """The cache shows it until the watch has brought its removal."""
    rig = OneNamespace(labelled=True)
    await rig.handle()
    await asyncio.sleep(LINGER)
    rig.namespaces.lagging = True
    rig.namespaces.answering.clear()
    going = asyncio.create_task(rig.handle())
    await asyncio.sleep(0)
    raising = asyncio.create_task(rig.before_raise())
    await asyncio.sleep(0)
    rig.namespaces.answering.set()
    await going
    assert await raising == pytest.approx(SETTLE)
    assert rig.labelled
    rig.namespaces.catch_up()
    await asyncio.sleep(SETTLE)
    assert await rig.before_raise() is None


async def test_switched_off_labels_are_only_taken_away() -> None:
    rig = OneNamespace(reserve=False, labelled=True)
    rig.quotas.given(quota(annotations=ONE))
    assert await rig.before_raise() is None
    assert await rig.handle() is None
    assert not rig.labelled


async def test_a_namespace_on_its_way_out_is_left_alone(rig: OneNamespace) -> None:
    rig.quotas.given(quota(annotations=ONE))
    rig.namespaces.given(annotated_namespace(deleting=True))
    await rig.handle()
    rig.namespaces.gone("ns1")
    await rig.handle()
    assert rig.writes == 0


async def test_where_no_webhook_sees_pods_a_label_is_of_no_use() -> None:
    rig = OneNamespace(labelled=True)
    rig.quotas.given(quota(annotations=ONE))
    rig.register(["namespaces"], ["resourcequotas"])
    assert await rig.before_raise() is None
    assert await rig.handle() is None
    assert not rig.labelled
    rig.register(["namespaces"], ["pods"])
    assert await rig.before_raise() == pytest.approx(SETTLE)
    assert rig.labelled


async def test_a_namespace_with_a_budget_keeps_no_label() -> None:
    rig = OneNamespace(labelled=True)
    rig.quotas.given(quota(annotations=ONE))
    rig.budgets.put("budget", "ns1")
    assert await rig.handle() == LINGER


async def test_release_removes_the_label_and_reads_no_other_namespace() -> None:
    server = Server()
    for name, labels in (("held", {constants.LABEL_HOLDING: "true"}), ("other", {"a": "b"})):
        server.put(registry.NAMESPACES, {"metadata": {"name": name, "labels": labels}})
    await unlabel_all(server.client())
    assert not server.raw(registry.NAMESPACES)["held"]["metadata"].get("labels")
    assert server.raw(registry.NAMESPACES)["other"]["metadata"]["labels"] == {"a": "b"}
    assert server.asked("list")[0]["labelSelector"] == constants.LABEL_HOLDING


@pytest.mark.parametrize(
    ("found", "policy", "labelled"),
    [(quota(), "Ignore", True), (quota(labels={}), "Ignore", False), (quota(), "Fail", False)],
    ids=["a managed quota", "another quota", "an outage would stop its pods"],
)
async def test_a_namespace_with_a_vm_is_labelled_before_any_migration(
    found: ResourceQuota, policy: str, labelled: bool, rig: OneNamespace
) -> None:
    rig.register(["pods"], policy=policy)
    rig.quotas.given(found)
    await rig.handle()
    assert not rig.labelled
    rig.instances.given(vmi())
    await rig.handle()
    assert rig.labelled is labelled
    await asyncio.sleep(SETTLE)
    assert (await rig.before_raise() is None) is labelled


# ---- --render-default-quota: a namespace's default quota where no Rancher makes it; and never a second one ---

ANNOTATION = "field.cattle.io/resourceQuota"
DEFAULT = "resourcequota.management.cattle.io/default-resource-quota"


class NamespaceCluster:
    """A namespace and its quotas."""

    def __init__(self) -> None:
        self.events, server = Events(), Server()
        self._management = Wired(server)
        register(self._management, self.events.recorder, Settings(Policy(Mode.TAKEOVER, render=True)))
        self.namespaces, self.quotas = server.kind(NAMESPACES), server.kind(RESOURCE_QUOTAS)

    def namespace(self, annotation: str | None, **metadata: str) -> None:
        annotations = {} if annotation is None else {ANNOTATION: annotation}
        self.namespaces.given({"metadata": {"name": "ns1", "uid": "u", "annotations": annotations, **metadata}})

    def quota(self, name: str, labels: dict[str, str]) -> None:
        metadata = {"name": name, "namespace": "ns1", "uid": f"uid-{name}", "labels": labels}
        self.quotas.given({"metadata": metadata, "spec": {"hard": {"pods": "1"}}})

    async def look(self) -> None:
        await self._management.handle(NAMESPACES, "ns1")

    def created(self) -> list[dict[str, str]]:
        return [body["spec"]["hard"] for body in self.quotas.asked("create")]


@pytest.fixture
def cluster() -> NamespaceCluster:
    return NamespaceCluster()


CREATED = {
    "the two limits": (BASE, {"limits.cpu": "3", "limits.memory": "5000Mi"}),
    "every limit that Rancher knows": (
        json.dumps({"limit": {"pods": "10", "requestsCpu": "1500m", "servicesLoadBalancers": "2"}}),
        {"pods": "10", "requests.cpu": "1500m", "services.loadbalancers": "2"},
    ),
    "extended resources": ('{"limit":{"extended":{"requests.nvidia.com/gpu":"2"}}}', {"requests.nvidia.com/gpu": "2"}),
    "a limit of zero forbids": ('{"limit":{"limitsCpu":"0"}}', {"limits.cpu": "0"}),
}


@sentences(CREATED, "annotation, hard")
async def test_a_default_quota_is_made_as_rancher_makes_it(
    annotation: str, hard: dict[str, str], cluster: NamespaceCluster
) -> None:
    cluster.namespace(annotation)
    await cluster.look()
    (body,) = cluster.quotas.asked("create")
    assert body["spec"] == {"hard": hard}
    assert body["metadata"] == {
        "generateName": "default-",
        "labels": {DEFAULT: "true"},
        "annotations": {ANNOTATION: annotation},
    }


async def test_before_the_watch_has_caught_up_the_server_is_asked(cluster: NamespaceCluster) -> None:
    """The name is generated: a second create would not collide."""
    cluster.namespace(BASE)
    cluster.quotas.lagging = True
    for _ in range(3):
        await cluster.look()
    assert len(cluster.created()) == 1
    assert {call["labelSelector"] for call in cluster.quotas.asked("list")} == {f"{DEFAULT}=true"}


async def test_a_quota_that_stands_is_never_written(cluster: NamespaceCluster) -> None:
    cluster.namespace(BASE)
    cluster.quota("default-abc", {DEFAULT: "true"})
    await cluster.look()
    assert cluster.quotas.calls == []


@pytest.mark.parametrize("labels", [{}, {DEFAULT: "false"}])
async def test_another_quota_is_not_the_default(cluster: NamespaceCluster, labels: dict[str, str]) -> None:
    cluster.namespace(BASE)
    cluster.quota("mine", labels)
    await cluster.look()
    assert len(cluster.created()) == 1


NOTHING = {
    "no annotation": None,
    "an empty annotation": "",
    "no limits": "{}",
    "empty limits": '{"limit":{"limitsCpu":""}}',
    "limits that Rancher does not know": '{"limit":{"foo":"3"}}',
}


@sentences(NOTHING)
async def test_nothing_to_render(case: str | None, cluster: NamespaceCluster) -> None:
    cluster.namespace(case)
    await cluster.look()
    assert not cluster.quotas.calls
    assert not cluster.events.recorded


GARBAGE = {
    "not JSON": "{nope",
    "a number for a limit": '{"limit":{"limitsCpu":3}}',
    "a limit that is no quantity": '{"limit":{"limitsMemory":"5 GB"}}',
}


@sentences(GARBAGE)
async def test_garbage_is_a_warning_event_on_the_namespace(case: str, cluster: NamespaceCluster) -> None:
    cluster.namespace(case)
    await cluster.look()
    assert not cluster.quotas.calls
    ((key, kind, reason, message),) = cluster.events.recorded
    assert (key, kind, reason) == ("ns1", "Warning", "InvalidResourceQuotaAnnotation")
    assert message.startswith("field.cattle.io/resourceQuota")


async def test_a_namespace_on_its_way_out_or_gone_gets_none(cluster: NamespaceCluster) -> None:
    await cluster.look()
    cluster.namespace(BASE, deletionTimestamp="2026-01-01T00:00:00Z")
    await cluster.look()
    assert not cluster.quotas.calls


async def test_a_server_that_refuses_is_the_queues_affair(cluster: NamespaceCluster) -> None:
    cluster.namespace(BASE)
    cluster.quotas.errors["create"] = [Forbidden("no", status=403)]
    with pytest.raises(Forbidden):
        await cluster.look()
    await cluster.look()
    assert len(cluster.quotas.objects) == 1
