"""Every decision of the webhooks, allowed and denied, through the real API server: people by impersonation, VMs by the
KubeVirt stand-in, quota by Kubernetes."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from kubeloop.api import registry
from kubeloop.api.core import Event
from kubeloop.client.errors import ApiError, Forbidden
from kubeloop.testing.polling import until
from lab.bodies import quota_text
from pkg.api.kubevirt import (
    VIRTUAL_MACHINE_INSTANCE_MIGRATIONS,
    VIRTUAL_MACHINES,
    VirtualMachineInstanceMigration,
)
from pkg.controller.namespace.holding_controller import LONGEST_SETTLE
from pkg.util import constants
from pkg.util.quantity import Quantity
from pkg.webhook.configurations import QUOTA_CONTROLLERS
from tests.e2e.admin import RANCHER, Admin
from tests.e2e.tenant import BASE as LIMITS
from tests.program import Program

pytestmark = pytest.mark.cluster

BASE = {"limits.cpu": "3", "limits.memory": "5000Mi"}
TARGET_CPU = Quantity.parse("2015m")
"""What quota counts of the VM's pod: 2 CPU and the console log's 15m."""


async def refused(attempt: object) -> str:
    """The message of a refusal by a webhook."""
    with pytest.raises(Forbidden) as caught:
        await attempt  # type: ignore[misc]
    assert "admission webhook" in caught.value.message, caught.value.message
    return caught.value.message.partition("denied the request: ")[2]


async def test_a_quota_annotation_is_held_against_what_is_used_and_what_migrates(admin: Admin) -> None:
    namespace = await admin.namespace()
    alice = admin.by("alice")
    # Without anything used, any quota will do.
    await admin.annotate(namespace, quota_text({**LIMITS, "limitsCpu": "2500m"}), alice)
    await admin.machine(namespace)
    prefix = f"can't update the resource quota of namespace {namespace}, error: "
    cases = {
        quota_text(
            {**LIMITS, "limitsCpu": "2"}
        ): "new CPU limit 2 is lower than the current used CPU limit 2015m",
        quota_text(
            {"limitsMemory": "1.5Gi"}
        ): "new Memory limit 1536Mi is lower than the current used Memory limit ",
        quota_text({"limitsCpu": "2e3m"}): "invalid LimitsCPU 2e3m, error: quantities must match the regular "
        "expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        "{": "invalid NamespaceResourceQuota {, error: field.cattle.io/resourceQuota is not JSON: ",
    }
    for text, message in cases.items():
        assert (await refused(admin.annotate(namespace, text, alice))).startswith(prefix + message)
    await admin.annotate(namespace, quota_text(LIMITS), alice)
    migration = await admin.migrate(namespace)
    await admin.until_phase(namespace, migration, "Running")
    said = await refused(admin.annotate(namespace, quota_text({"limitsCpu": "100"}), alice))
    assert said == f"namespace {namespace} has migrating VMs, can't change resource quotas"
    # What lowers nothing is let in, and is the base at once.
    await admin.annotate(namespace, quota_text({**LIMITS, "limitsCpu": "4"}), alice)

    async def enlarged() -> bool:
        return (await admin.hard(namespace))["limits.cpu"] == Quantity.parse("4") + TARGET_CPU

    await until(enlarged, "the larger base under a migration")
    # Another annotation, or taking this one away, is allowed.
    patch = {"metadata": {"annotations": {"of/alice": "here"}}}
    await alice.resource(registry.NAMESPACES).merge_patch(patch, name=namespace)


async def test_a_namespace_without_a_default_quota_takes_any_annotation(admin: Admin) -> None:
    namespace = await admin.namespace(annotated=False)
    await admin.annotate(namespace, "not JSON", admin.by("alice"))


async def test_a_quota_under_a_migration_is_not_lowered(admin: Admin) -> None:
    namespace = await admin.namespace()
    alice, rancher = admin.by("alice"), admin.by(RANCHER)
    # Outside migrations everything is allowed.
    await admin.set_hard(namespace, {"limits.cpu": "1"}, alice)
    await until(lambda: has_hard(admin, namespace, BASE), "the repair of a foreign edit")
    await admin.migrating(namespace)
    raised = await admin.hard(namespace)
    assert raised["limits.cpu"] == Quantity.parse("3") + TARGET_CPU
    said = await refused(admin.set_hard(namespace, BASE, alice))
    assert "(vm1)" in said
    assert f"limits.cpu can't be 3, the lowest allowed value is {raised['limits.cpu']}" in said
    assert f"the lowest allowed value is {raised['limits.memory']}" in said
    # Also for the administrator, and without the label, and down to zero.
    await refused(admin.set_hard(namespace, {"limits.cpu": "5014m"}))
    labels = {constants.LABEL_DEFAULT_RESOURCE_QUOTA: None}
    await refused(admin.set_hard(namespace, BASE, alice, labels=labels))
    await refused(admin.set_hard(namespace, {"limits.cpu": "0", "limits.memory": "0"}, alice))
    # Nor what makes it managed taken off by itself, through whichever subresource.
    quotas, name = alice.resource(registry.RESOURCE_QUOTAS), (await admin.quota(namespace)).name
    for part in ("", "status"):
        where = {"name": name, "namespace": namespace, "subresource": part}
        for mark, what in (
            ({"labels": labels}, "its label"),
            ({"annotations": {constants.ANNOTATION_OWNER: None}}, constants.ANNOTATION_OWNER),
        ):
            said = await refused(quotas.merge_patch({"metadata": mark}, **where))
            assert f"{what} can be removed when" in said
    # Nor the limits that quota admission goes by; what the quota controller writes there never waits for a webhook.
    low = {"status": {"hard": {"limits.cpu": "3"}}}
    said = await refused(quotas.merge_patch(low, name=name, namespace=namespace, subresource="status"))
    assert f"limits.cpu can't be 3, the lowest allowed value is {raised['limits.cpu']}" in said
    counts = admin.by(QUOTA_CONTROLLERS[0]).resource(registry.RESOURCE_QUOTAS)
    await counts.merge_patch(low, name=name, namespace=namespace, subresource="status")
    lower = {constants.ANNOTATION_RANCHER_RESOURCE_QUOTA: quota_text({"limitsCpu": "1"})}
    for part in ("", "status"):
        patch = {"metadata": {"annotations": lower}}
        namespaces = alice.resource(registry.NAMESPACES)
        assert "migrating VMs" in await refused(
            namespaces.merge_patch(patch, name=namespace, subresource=part)
        )
    # Raising is allowed, and put right by the controller.
    await admin.set_hard(namespace, {"limits.cpu": "50"}, alice)
    await until(lambda: has_hard(admin, namespace, raised), "the end of a foreign raise")
    # Rancher is corrected: what comes back from its own write is right already.
    corrected = await admin.set_hard(namespace, BASE, rancher)
    assert {name: Quantity.parse(value) for name, value in corrected.hard.items()} == raised


async def test_a_quota_is_not_deleted_under_a_migration_but_goes_with_its_namespace(admin: Admin) -> None:
    namespace = await admin.namespace()
    alice = admin.by("alice")
    migration = await admin.migrating(namespace)
    quota = await admin.quota(namespace)
    said = await refused(
        alice.resource(registry.RESOURCE_QUOTAS).delete(name=quota.name, namespace=namespace)
    )
    assert "it can be deleted when they are done" in said
    assert await admin.phase(namespace, migration) == "Running"
    await admin.client.resource(registry.NAMESPACES).delete(name=namespace)

    async def gone() -> bool:
        return not (await admin.client.resource(registry.RESOURCE_QUOTAS).list(namespace))

    await until(gone, "the end of the quota", seconds=40)
    empty = await admin.namespace()
    await alice.resource(registry.RESOURCE_QUOTAS).delete(
        name=(await admin.quota(empty)).name, namespace=empty
    )


async def test_storage_that_the_namespace_has_not_got_is_refused(admin: Admin) -> None:
    namespace = await admin.namespace({**LIMITS, "requestsStorage": "100Gi"})
    alice = admin.by("alice")

    def claims(*sizes: str) -> dict[str, str]:
        templates = [{"spec": {"resources": {"requests": {"storage": size}}}} for size in sizes]
        return {constants.ANNOTATION_VOLUME_CLAIM_TEMPLATES: json.dumps(templates)}

    create = admin.create_machine(
        namespace, annotations=claims("60Gi", "41Gi"), client=alice, strategy="Halted"
    )
    assert await refused(create) == "storage insufficient resources due to resource quota"
    await admin.create_machine(namespace, annotations=claims("60Gi", "40Gi"), client=alice, strategy="Halted")
    machines = alice.resource(VIRTUAL_MACHINES)
    await machines.merge_patch(
        {"metadata": {"annotations": claims("200Gi")}}, name="vm1", namespace=namespace
    )
    grown = machines.merge_patch(
        {"metadata": {"annotations": claims("301Gi")}}, name="vm1", namespace=namespace
    )
    assert await refused(grown) == "storage insufficient resources due to resource quota"


async def test_added_room_is_for_the_migration_and_the_base_for_all_pods(admin: Admin) -> None:
    namespace = await admin.namespace()
    tenant = admin.by("tenant")
    await admin.machine(namespace)
    migration = await admin.migrate(namespace, running=4.0)
    await admin.until_phase(namespace, migration, "Running")
    assert await admin.is_labelled(namespace)
    first = await admin.pod(namespace, tenant, cpu="900m")
    said = await refused(admin.pod(namespace, tenant, cpu="86m"))
    assert "limits.cpu 86m is requested and 85m is left" in said
    assert "reserved for migrating VMs (vm1)" in said
    await admin.pod(namespace, tenant, cpu="85m")
    # Nor does a label make a migration's pod of a tenant's.
    uid = (await migration_of(admin, namespace, migration)).uid
    labels = {constants.LABEL_APP: "virt-launcher", constants.LABEL_MIGRATION_JOB_UID: uid}
    await refused(admin.pod(namespace, tenant, cpu="1", labels=labels))
    # Nor does a review that is too large to be read: in the API server's JSON each of these has six bytes.
    assert "too large" in await refused(admin.pod(namespace, tenant, cpu="1", text="<" * 700_000))
    # KubeVirt's own account makes it for the migration: only quota has a say in that.
    kubevirt = admin.by("system:serviceaccount:kubevirt:kubevirt-controller")
    with pytest.raises(Forbidden, match="exceeded quota"):
        await admin.pod(namespace, kubevirt, cpu="1", labels=labels)
    # A pod does not grow into it either.
    resize = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": "2"}}}]}}
    with pytest.raises(ApiError):
        await tenant.resource(registry.PODS).merge_patch(
            resize, name=first.name, namespace=namespace, subresource="resize"
        )
    await admin.until_phase(namespace, migration, "Succeeded")
    await until(lambda: has_hard(admin, namespace, BASE), "the room's end")


async def test_a_namespace_with_a_vm_is_labelled_before_anything_migrates(admin: Admin) -> None:
    namespace = await admin.namespace()
    assert not await admin.is_labelled(namespace)
    await admin.machine(namespace)
    await until(lambda: admin.is_labelled(namespace), "the label")
    await asyncio.sleep(LONGEST_SETTLE)  # a VM is there for longer than this before it migrates
    began = time.monotonic()
    await admin.migrate(namespace)
    raised = {**BASE, "limits.cpu": Quantity.parse("3") + TARGET_CPU}

    async def is_raised() -> bool:
        return (await admin.hard(namespace))["limits.cpu"] == raised["limits.cpu"]

    await until(is_raised, "the raise", pause=0.002)
    print(f"the first migration of a namespace was raised after {(time.monotonic() - began) * 1000:.0f} ms")


async def test_a_pod_that_another_quota_refuses_is_refused_before_it(admin: Admin) -> None:
    namespace = await admin.namespace()
    tenant = admin.by("tenant")
    body = {"metadata": {"name": "second"}, "spec": {"hard": {"limits.cpu": "2100m"}}}
    await admin.client.resource(registry.RESOURCE_QUOTAS).create(body, namespace=namespace)
    await admin.machine(namespace)
    await until(lambda: admin.is_labelled(namespace), "the label")

    async def is_refused_here() -> bool:
        """Not by quota, which comes after the webhooks."""
        try:
            await admin.pod(namespace, tenant, cpu="90m")
        except Forbidden as refusal:
            return f"resource quota {namespace}/second is used up" in refusal.message
        return False

    await until(is_refused_here, "the webhook's word", pause=0.1)


async def test_elsewhere_no_pod_is_looked_at(admin: Admin, running: Program) -> None:
    namespace = await admin.namespace()

    def asked() -> float:
        return running.metric("controller_runtime_webhook_latency_seconds_count", webhook="pods")

    before = asked()
    assert not await admin.is_labelled(namespace)
    await admin.pod(namespace, admin.by("tenant"))
    assert asked() == before


async def test_a_vm_that_cannot_start_is_told_so_and_the_reason_goes_when_it_runs(admin: Admin) -> None:
    namespace = await admin.namespace()
    await admin.create_machine(namespace, cpu="3")  # 3 CPU fit, with the console log's 15m they do not
    machines = admin.client.resource(VIRTUAL_MACHINES)
    reason = constants.ANNOTATION_INSUFFICIENT_RESOURCE_QUOTA

    async def halted() -> bool:
        machine = await machines.get(name="vm1", namespace=namespace)
        return machine.spec.run_strategy == "Halted" and reason in machine.annotations

    await until(halted, "the VM to be halted")
    machine = await machines.get(name="vm1", namespace=namespace)
    assert machine.annotations[reason] == "cpu insufficient resources due to resource quota"

    async def told() -> list[str]:
        events = await events_of(admin, namespace)
        return [event.message for event in events if event.reason == "InsufficientResourceQuota"]

    said = await until(told, "the event")
    assert said == ["Set runStrategy to Halted: cpu insufficient resources due to resource quota"]
    await admin.annotate(namespace, quota_text({**LIMITS, "limitsCpu": "4"}))
    await until(lambda: has_hard(admin, namespace, {**BASE, "limits.cpu": "4"}), "the larger quota")
    await machines.merge_patch({"spec": {"runStrategy": "Always"}}, name="vm1", namespace=namespace)

    async def cleared() -> bool:
        machine = await machines.get(name="vm1", namespace=namespace)
        return machine.status.printable_status == "Running" and reason not in machine.annotations

    await until(cleared, "the reason to go")


async def test_a_vm_that_only_waits_for_a_migration_to_end_is_not_halted(admin: Admin) -> None:
    namespace = await admin.namespace({"limitsCpu": "4030m", "limitsMemory": "100Gi"})
    migration = await admin.migrating(namespace)
    # 2015m are left without the migration; with it the quota's used is above the base.
    await admin.create_machine(namespace, "vm2")
    machines = admin.client.resource(VIRTUAL_MACHINES)

    async def runs() -> bool:
        machine = await machines.get(name="vm2", namespace=namespace)
        assert machine.spec.run_strategy != "Halted", machine.annotations
        return machine.status.printable_status == "Running"

    await until(runs, "vm2 to run", seconds=15)
    assert await admin.phase(namespace, migration) == "Running"


async def has_hard(admin: Admin, namespace: str, hard: object) -> bool:
    assert isinstance(hard, dict)
    wanted = {name: Quantity.parse(q) if isinstance(q, str) else q for name, q in hard.items()}
    return await admin.hard(namespace) == wanted


async def migration_of(admin: Admin, namespace: str, name: str) -> VirtualMachineInstanceMigration:
    return await admin.client.resource(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS).get(
        name=name, namespace=namespace
    )


async def events_of(admin: Admin, namespace: str) -> list[Event]:
    return await admin.client.resource(registry.EVENTS).list(namespace)
