"""Every decision of the webhooks, allowed and denied, through the real API server: people by impersonation, VMs by the
KubeVirt stand-in, quota by Kubernetes."""

import json

import pytest

from kubeloop.api.quantity import Quantity
from kubeloop.client.errors import ApiError, Forbidden
from kubeloop.testing.polling import until
from lab import bodies
from lab.bodies import quota_text
from lab.namespace import LASTING, NAMESPACES, PODS, QUOTAS, VMS, by_value
from pkg.util import constants
from pkg.webhook.configurations import QUOTA_CONTROLLERS
from tests.e2e.admin import HARD, LIMITS, RANCHER, Admin, refused
from tests.program import Program

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("running")]

TARGET_CPU = Quantity.parse("2015m")
"""What quota counts of the VM's pod: 2 CPU and the console log's 15m."""


async def test_a_quota_annotation_is_held_against_use_and_migrations(admin: Admin) -> None:
    namespace = await admin.namespace(HARD)
    alice = namespace.by(admin.by("alice"))
    # Without anything used, any quota will do.
    await alice.annotate(quota_text({**LIMITS, "limitsCpu": "2500m"}))
    await namespace.machine()
    prefix = f"can't update the resource quota of namespace {namespace}, error: "
    cases = {
        quota_text({**LIMITS, "limitsCpu": "2"}): "new CPU limit 2 is lower than the current used CPU limit 2015m",
        quota_text({"limitsMemory": "1.5Gi"}): "new Memory limit 1536Mi is lower than the current used Memory limit ",
        quota_text({"limitsCpu": "2e3m"}): "invalid LimitsCPU 2e3m, error: quantities must match the regular "
        "expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        "{": "invalid NamespaceResourceQuota {, error: field.cattle.io/resourceQuota is not JSON: ",
    }
    for text, message in cases.items():
        assert (await refused(alice.annotate(text))).startswith(prefix + message)
    await alice.annotate(quota_text(LIMITS))
    migration = await namespace.migrate(running=LASTING)
    await namespace.until_phase(migration, "Running")
    refusal = await refused(alice.annotate(quota_text({"limitsCpu": "100"})))
    assert refusal == f"namespace {namespace} has migrating VMs, can't change resource quotas"
    # What lowers nothing is let in, and is the base at once.
    await alice.annotate(quota_text({**LIMITS, "limitsCpu": "4"}))

    async def enlarged() -> bool:
        return (await namespace.hard())["limits.cpu"] == Quantity.parse("4") + TARGET_CPU

    await until(enlarged, "the larger base under a migration")
    # Another annotation, or taking this one away, is allowed.
    await alice.mark(annotations={"of/alice": "here"})


async def test_a_quota_under_a_migration_is_not_lowered(admin: Admin) -> None:
    namespace = await admin.namespace(HARD)
    alice, rancher = namespace.by(admin.by("alice")), namespace.by(admin.by(RANCHER))
    # Outside migrations everything is allowed.
    await alice.set_hard({"limits.cpu": "1"})
    await namespace.until_hard(HARD)
    await namespace.migrating()
    raised = await namespace.hard()
    assert raised["limits.cpu"] == Quantity.parse("3") + TARGET_CPU
    refusal = await refused(alice.set_hard(HARD))
    assert "(vm1)" in refusal
    assert f"limits.cpu can't be 3, the lowest allowed value is {raised['limits.cpu']}" in refusal
    assert f"the lowest allowed value is {raised['limits.memory']}" in refusal
    # Also for the administrator, and without the label, and down to zero.
    await refused(namespace.set_hard({"limits.cpu": "5014m"}))
    labels = {constants.LABEL_DEFAULT_RESOURCE_QUOTA: None}
    await refused(alice.set_hard(HARD, labels=labels))
    await refused(alice.set_hard({"limits.cpu": "0", "limits.memory": "0"}))
    # Nor what makes it managed taken off by itself, through whichever subresource.
    name = (await namespace.quota()).name
    for part in ("", "status"):
        for mark, refusal_text in (
            ({"labels": labels}, "its label"),
            ({"annotations": {constants.ANNOTATION_OWNER: None}}, constants.ANNOTATION_OWNER),
        ):
            refusal = await refused(alice.patch(QUOTAS, name, {"metadata": mark}, part))
            assert f"{refusal_text} can be removed when" in refusal
    # Nor the limits that quota admission goes by; what the quota controller writes there never waits for a webhook.
    low = {"status": {"hard": {"limits.cpu": "3"}}}
    refusal = await refused(alice.patch(QUOTAS, name, low, "status"))
    assert f"limits.cpu can't be 3, the lowest allowed value is {raised['limits.cpu']}" in refusal
    await namespace.by(admin.by(QUOTA_CONTROLLERS[0])).patch(QUOTAS, name, low, "status")
    # Whoever copies spec.hard there, whatever the controller manager is called.
    await alice.patch(QUOTAS, name, {"status": {"hard": dict((await namespace.quota()).hard)}}, "status")
    lower = {constants.ANNOTATION_RANCHER_RESOURCE_QUOTA: quota_text({"limitsCpu": "1"})}
    for part in ("", "status"):
        patch = {"metadata": {"annotations": lower}}
        namespaces = alice.client.resource(NAMESPACES)
        write = namespaces.merge_patch(patch, name=namespace.name, subresource=part)
        assert "migrating VMs" in await refused(write)
    # Raising is allowed, and put right by the controller.
    await alice.set_hard({"limits.cpu": "50"})
    await namespace.until_hard(raised)
    # Rancher is corrected: what comes back from its own write is right already.
    corrected = await rancher.set_hard(HARD)
    assert by_value(corrected.hard) == raised


async def test_a_quota_is_not_deleted_under_a_migration(admin: Admin) -> None:
    namespace = await admin.namespace(HARD)
    alice = namespace.by(admin.by("alice"))
    migration = await namespace.migrating()
    quota = await namespace.quota()
    refusal = await refused(alice.delete(QUOTAS, quota.name))
    assert "it can be deleted when they are done" in refusal
    assert await namespace.phase(migration) == "Running"
    empty = await admin.namespace(HARD)
    await empty.by(alice.client).delete(QUOTAS, (await empty.quota()).name)
    assert await empty.items(QUOTAS) == []


async def test_storage_that_the_namespace_has_not_got_is_refused(admin: Admin) -> None:
    namespace = await admin.namespace({**HARD, "requests.storage": "100Gi"})
    alice = namespace.by(admin.by("alice"))

    def claims(*sizes: str) -> dict[str, str]:
        templates = [{"spec": {"resources": {"requests": {"storage": size}}}} for size in sizes]
        return {constants.ANNOTATION_VOLUME_CLAIM_TEMPLATES: json.dumps(templates)}

    create = alice.create_machine(annotations=claims("60Gi", "41Gi"), strategy="Halted")
    assert await refused(create) == "storage insufficient resources due to resource quota"
    await alice.create_machine(annotations=claims("60Gi", "40Gi"), strategy="Halted")
    await alice.patch(VMS, "vm1", {"metadata": {"annotations": claims("200Gi")}})
    larger_claim = alice.patch(VMS, "vm1", {"metadata": {"annotations": claims("301Gi")}})
    assert await refused(larger_claim) == "storage insufficient resources due to resource quota"


async def test_added_room_is_for_the_migration_the_base_for_all_pods(admin: Admin) -> None:
    namespace = await admin.namespace(HARD)
    tenant = namespace.by(admin.by("tenant"))
    await namespace.machine()
    migration = await namespace.migrate(running=LASTING, linger=0.5)
    await namespace.until_phase(migration, "Running")
    assert await namespace.is_labelled()
    first_pod = await tenant.create(PODS, bodies.pod(cpu="900m"))
    refusal = await refused(tenant.create(PODS, bodies.pod(cpu="86m")))
    assert "limits.cpu 86m is requested and 85m is left" in refusal
    assert "reserved for migrating VMs (vm1)" in refusal
    await tenant.create(PODS, bodies.pod(cpu="85m"))
    # Nor does a label make a migration's pod of a tenant's.
    uid = (await namespace.migration(migration)).uid
    labels = {constants.LABEL_APP: "virt-launcher", constants.LABEL_MIGRATION_JOB_UID: uid}
    await refused(tenant.create(PODS, bodies.pod(cpu="1", labels=labels)))
    # Nor does a review that is too large to be read: in the API server's JSON each of these has six bytes.
    assert "too large" in await refused(tenant.create(PODS, bodies.pod(cpu="1", text="<" * 700_000)))
    # KubeVirt's own account makes it for the migration: only quota has a say in that.
    kubevirt = namespace.by(admin.by("system:serviceaccount:kubevirt:kubevirt-controller"))
    with pytest.raises(Forbidden, match="exceeded quota"):
        await kubevirt.create(PODS, bodies.pod(cpu="1", labels=labels))
    # A pod does not grow into it either.
    resize = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"cpu": "2"}}}]}}
    with pytest.raises(ApiError):
        await tenant.patch(PODS, first_pod.name, resize, "resize")
    await namespace.hurry(migration)
    await namespace.until_phase(migration, "Succeeded")
    await namespace.until_hard(HARD)


async def test_elsewhere_no_pod_is_looked_at(admin: Admin, running: Program) -> None:
    namespace = await admin.namespace(HARD)

    def request_count() -> float:
        return running.metric("controller_runtime_webhook_latency_seconds_count", webhook="pods")

    requests = request_count()
    assert not await namespace.is_labelled()
    await namespace.by(admin.by("tenant")).create(PODS, bodies.pod())
    assert request_count() == requests
