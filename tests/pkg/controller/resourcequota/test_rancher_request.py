"""The writer of ResourceQuotas where only Rancher may write them: it requests, learns, and waits for its turn."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from kubeloop.api.registry import NAMESPACES, RESOURCE_QUOTAS
from kubeloop.client.errors import BadRequest, Conflict
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from pkg.config.rancher_quotas import RancherWrites
from pkg.config.settings import Settings
from pkg.controller.resourcequota.register import register
from pkg.util.constants import ANNOTATION_REQUEST
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy, RancherQuotas
from pkg.util.resourcequota.rancher import SILENCE
from tests.decisions import by_value
from tests.kinds import Clock, Events, Server
from tests.objects import BASE, ENTRY, HARD, MARKS, RAISED, by_name, quota, vmi, vmim
from tests.pkg.controller.wired import Wired

ANNOTATION = "field.cattle.io/resourceQuota"
DENIED = BadRequest(
    'admission webhook "rancher.cattle.io.resourcequotas" denied the request: users are forbidden from changing '
    "resources managed by Rancher",
    status=400,
)


class ProjectCluster:
    """Namespaces `ns1` and `ns2` of one project, a VM in each, the handler over them."""

    def __init__(self, choice: RancherQuotas = RancherQuotas.ANNOTATION) -> None:
        self.clock, self.events, self.server = Clock(), Events(), Server()
        writes = RancherWrites(self.server.client(), choice=choice)
        self.management = Wired(self.server, clock=self.clock, rancher=writes)
        register(self.management, self.events.recorder, Settings(Policy(Mode.TAKEOVER, EstimateKind.HARVESTER)))
        self.quotas, self.namespaces = self.server.kind(RESOURCE_QUOTAS), self.server.kind(NAMESPACES)
        self.migrations = self.server.kind(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS)
        self.instances = self.server.kind(VIRTUAL_MACHINE_INSTANCES)
        for name in ("ns1", "ns2"):
            annotations = {ANNOTATION: BASE, "field.cattle.io/projectId": "c:p"}
            self.namespaces.put(name, metadata={"annotations": annotations})
            self.quotas.put("q", name, metadata={"labels": dict(quota().labels)}, spec={"hard": HARD})

    def migrate(self, namespace: str = "ns1", phase: str = "Pending") -> None:
        for kind, obj in ((self.instances, vmi()), (self.migrations, vmim(phase))):
            raw = msgspec.to_builtins(obj)
            raw["metadata"]["namespace"] = namespace
            kind.given(raw)

    async def look(self, namespace: str = "ns1") -> float | None:
        return await self.management.handle(RESOURCE_QUOTAS, f"{namespace}/q")

    def annotation(self, namespace: str = "ns1") -> Any:
        return json.loads(self.namespaces.now(namespace).annotations[ANNOTATION])["limit"]

    def rancher_writes(self, namespace: str = "ns1") -> None:
        limits = self.annotation(namespace)
        hard = {"limits.cpu": limits["limitsCpu"], "limits.memory": limits["limitsMemory"]}
        self.quotas.edited(f"{namespace}/q", {"spec": {"hard": hard}})

    @property
    def quota_patches(self) -> int:
        return len(self.quotas.asked("patch"))


async def test_a_request_and_its_return_are_one_write_each() -> None:
    cluster = ProjectCluster()
    cluster.migrate()
    await cluster.look()
    assert by_value({"c": cluster.annotation()["limitsCpu"]}) == by_value({"c": RAISED["limits.cpu"]})
    cluster.rancher_writes()
    await cluster.look()
    cluster.migrate(phase="Succeeded")
    await cluster.look()
    namespace = cluster.namespaces.now("ns1")
    assert (namespace.annotations[ANNOTATION], ANNOTATION_REQUEST in namespace.annotations) == (BASE, False)
    assert (len(cluster.namespaces.asked("patch")), cluster.quota_patches) == (2, 0)


async def test_a_vm_is_told_once_rancher_has_raised_and_lowered() -> None:
    cluster = ProjectCluster()
    await cluster.look()
    cluster.migrate()
    await cluster.look()
    assert cluster.events.told == []
    cluster.rancher_writes()
    for _ in range(2):
        await cluster.look()
    cluster.migrate(phase="Succeeded")
    for _ in range(2):
        await cluster.look()
        cluster.rancher_writes()
    assert [(key, reason) for key, reason, _text in cluster.events.told] == [
        ("ns1/vm1", "ResourceQuotaRaised"),
        ("ns1/vm1", "ResourceQuotaGivenBack"),
    ]
    assert cluster.events.told[0][2] == "quota q is raised by limits.cpu 2, limits.memory 4.4Gi for its migration"


async def test_a_cache_behind_the_own_request_requests_nothing_twice() -> None:
    cluster = ProjectCluster()
    cluster.migrate()
    cluster.namespaces.lagging = True
    await cluster.look()
    await cluster.look()
    assert len(cluster.namespaces.asked("patch")) == 1


async def test_a_namespace_that_changed_meanwhile_is_looked_at_again() -> None:
    cluster = ProjectCluster()
    cluster.migrate()
    larger = BASE.replace("3000m", "4")
    cluster.namespaces.lagging = True
    cluster.namespaces.before = [
        lambda: cluster.namespaces.edited("ns1", {"metadata": {"annotations": {ANNOTATION: larger}}})
    ]
    await cluster.look()
    assert json.loads(cluster.namespaces.now("ns1").annotations[ANNOTATION_REQUEST])["annotation"] == larger


@pytest.mark.parametrize("error", [DENIED, Conflict("changed", status=409)], ids=["denied", "only changed"])
async def test_a_denied_write_is_requested_at_once(error: Any) -> None:
    cluster = ProjectCluster(RancherQuotas.AUTO)
    cluster.migrate()
    cluster.quotas.errors["patch"] = [error]
    await cluster.look()
    assert (ANNOTATION_REQUEST in cluster.namespaces.now("ns1").annotations) is (error is DENIED)


async def test_a_raise_goes_on_by_request_once_rancher_locks_the_quota() -> None:
    cluster = ProjectCluster(RancherQuotas.AUTO)
    cluster.migrate()
    await cluster.look()
    assert by_value(cluster.quotas.now("ns1/q").hard) == by_value(RAISED)
    cluster.quotas.edited("ns1/q", {"spec": {"hard": HARD}})  # Rancher's agent restarts with the lock
    cluster.quotas.errors["patch"] = [DENIED] * 9
    await cluster.look()
    cluster.rancher_writes()
    await cluster.look()
    assert by_value(cluster.quotas.now("ns1/q").hard) == by_value(RAISED)
    assert [reason for _key, reason, _text in cluster.events.warnings] == ["MigratingEntryStuck"]
    text = cluster.events.warnings[0][2]
    assert "kubectl --as=system:serviceaccount:cattle-system:rancher-webhook-sudo --as-group=system:masters" in text
    cluster.migrate(phase="Failed")
    await cluster.look()
    cluster.rancher_writes()
    await cluster.look()
    assert by_value(cluster.quotas.now("ns1/q").hard) == by_value(HARD)


async def test_namespaces_of_a_project_request_one_after_the_other() -> None:
    cluster = ProjectCluster()
    cluster.migrate("ns1")
    cluster.migrate("ns2")
    await cluster.look("ns1")
    assert await cluster.look("ns2") == pytest.approx(0.05)
    cluster.rancher_writes("ns1")
    await cluster.look("ns1")
    await cluster.look("ns2")
    assert by_value({"c": cluster.annotation("ns2")["limitsCpu"]}) == by_value({"c": RAISED["limits.cpu"]})


@pytest.mark.virtual_time
async def test_a_turn_that_rancher_does_not_end_ends_by_itself() -> None:
    cluster = ProjectCluster()
    cluster.migrate("ns1")
    cluster.migrate("ns2")
    await cluster.look("ns1")
    await asyncio.sleep(SILENCE + 0.1)
    await cluster.look("ns2")
    assert ANNOTATION_REQUEST in cluster.namespaces.now("ns2").annotations


async def test_entries_from_before_the_lock_are_not_written_again() -> None:
    cluster = ProjectCluster()
    cluster.quotas.edited("ns1/q", {"metadata": {"annotations": {**MARKS, by_name(): ENTRY}}})
    cluster.migrate(phase="Succeeded")
    await cluster.look()
    assert cluster.quota_patches == 0
    assert json.loads(cluster.namespaces.now("ns1").annotations[ANNOTATION_REQUEST]).get("entries") is None
