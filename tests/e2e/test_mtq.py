"""Managed tenant quota end to end: quotas by Kubernetes, migrations by the KubeVirt stand-in, locks by the webhook."""

import signal
import time

import pytest

from kubeloop.client.errors import ApiError, Forbidden
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import until
from lab import bodies
from lab.namespace import NAMESPACES, PODS, QUOTAS, VMIS, by_value
from pkg.util import constants
from pkg.util.managedtenantquota.lock import lock_body, lock_webhook
from tests.e2e.admin import Admin, refused
from tests.e2e.conftest import frozen
from tests.e2e.hostile_tenant import controller_reference
from tests.e2e.mtq_namespace import BUDGETS, LOCKS, SMALL, Budgeted, make_budgeted, watched
from tests.program import Program

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("running")]

ALL = {"limits.cpu": "8", "limits.memory": "8Gi", "requests.memory": "8Gi", "pods": "20"}


@pytest.fixture
async def namespace(admin: Admin) -> Budgeted:
    """Makes a namespace with a quota for everything and a VM that runs."""
    budgeted = await make_budgeted(admin)
    await budgeted.make_quota("quota", ALL)
    await budgeted.machine()
    return budgeted


async def test_a_full_quota_and_a_budget_let_a_vm_migrate(namespace: Budgeted, running: Program) -> None:
    def release_metrics() -> tuple[float, float]:
        cores = running.metric("headroom_mtq_quota_released_total", resource="limits.cpu")
        return running.metric("headroom_mtq_lock_seconds_count"), cores

    locks, cores = release_metrics()
    hard = await namespace.fill()
    async with watched(namespace) as record:
        await namespace.budget()
        migration = await namespace.migrate()
        await namespace.succeed(migration)
        await namespace.at_rest(hard)
        start, raised, end = await record.hards("quota")
    assert start == end == by_value(hard)
    # One side of the only VM uses all of the quota: as much is added for the other.
    assert raised == {name: limit + limit for name, limit in start.items()}
    assert len(record.locked) == 1
    assert all(locked for _, limits, locked in record.raised if limits == raised), "raised without a lock"
    await namespace.told("NamespaceLocked", BUDGETS.kind)
    await namespace.told("ResourceQuotaRaised", "VirtualMachineInstanceMigration")
    await namespace.told("NamespaceUnlocked", BUDGETS.kind)
    assert release_metrics() == (locks + 1, pytest.approx(cores + start["limits.cpu"].nanos * 1e-9))
    assert running.metric("headroom_mtq_locks_held") == 0


async def test_tenants_are_refused_during_the_lock_and_pass_after_it(
    cluster: Cluster, admin: Admin, namespace: Budgeted
) -> None:
    alice, tenant_admin = namespace.by(admin.by("alice")), namespace.by(admin.by("admin-of-the-tenant"))
    hard = await namespace.fill(limits_cpu="200m", limits_memory="64Mi", requests_memory="64Mi", pods="1")
    migration = await namespace.migrate()
    await namespace.until_refused(migration)
    with frozen(cluster, "kubevirt"):  # no target pod comes: the window stays open
        await namespace.budget()
        await namespace.until_raised(hard)
        message = await refused(alice.create(PODS, bodies.pod()))
        assert f"namespace {namespace} is locked by headroom (" in message
        assert " for the migration of vm1: pods other than migration targets can't be created" in message
        assert " since 2" in message
        labels = {constants.LABEL_MIGRATION_JOB_UID: "forged"}
        await refused(alice.create(PODS, bodies.pod(labels=labels)))
        patch = {"spec": {"hard": {"pods": "99"}}}
        message = await refused(alice.patch_quota(patch, "quota"))
        assert "resource quotas can't be changed" in message
        message = await refused(alice.delete(QUOTAS, "quota"))
        assert "resource quotas can't be deleted" in message
        edit = {"spec": {"additionalMigrationResources": {"pods": "99"}}}
        await refused(tenant_admin.patch(BUDGETS, "budget", edit))
        await refused(tenant_admin.patch(BUDGETS, "budget", {"status": None}, "status"))
        await refused(tenant_admin.delete(BUDGETS, "budget"))
        with pytest.raises(Forbidden, match="locked by headroom"):
            await tenant_admin.create(BUDGETS, {"metadata": {"name": "another"}, "spec": {}})
        # Everything else goes on: another namespace, another kind, the status of a quota.
        neighbour = await make_budgeted(admin)
        await neighbour.by(alice.client).create(PODS, bodies.pod())
        await alice.items(PODS)
    await namespace.succeed(migration)
    await namespace.at_rest(hard)
    await _until_there_is_room(namespace)
    await alice.create(PODS, bodies.pod())
    await alice.patch_quota(patch, "quota")
    await tenant_admin.delete(BUDGETS, "budget")
    await alice.items(PODS)


async def test_the_api_server_itself_knows_whose_target_pods_pass(admin: Admin, running: Program) -> None:
    """The lock's webhook answers nothing: what is asked about it is refused. headroom, which would end a lock without
    a cause at once, stands still."""
    namespace, user = await make_budgeted(admin), "system:serviceaccount:kubevirt:kubevirt-controller"
    client_config = {"url": "https://127.0.0.1:9/lock", "caBundle": "Q0E="}
    admitted = ["a/vm1", "b/vm2"]
    hook = lock_webhook(namespace.name, client_config, owners=[], virt_controllers=[user], admitted=admitted)
    body = lock_body(namespace.name, hook, now=time.time(), owner="", reason="")
    virt_controller = namespace.by(admin.by(user))

    async def is_refused(migration: str, vm: str) -> bool:
        labels = {constants.LABEL_MIGRATION_JOB_UID: migration}
        owner = controller_reference(vm, "uid")
        try:
            await virt_controller.create(PODS, bodies.pod(labels=labels, ownerReferences=[owner]))
        except ApiError as exc:
            return "failed calling webhook" in exc.message
        return False

    running.process.send_signal(signal.SIGSTOP)
    try:
        await admin.client.resource(LOCKS).create(body)
        await until(lambda: is_refused("c", "vm3"), "the lock to be in force")
        targets = (("a", "vm1"), ("b", "vm2"), ("a", "vm2"), ("c", "vm3"))
        assert [await is_refused(*target) for target in targets] == [False, False, True, True]
    finally:
        running.process.send_signal(signal.SIGCONT)


async def _until_there_is_room(namespace: Budgeted) -> None:
    """The source pod has ended and quota has noticed."""

    async def has_room() -> bool:
        quota = await namespace.quota("quota")
        used, hard = by_value(quota.used), by_value(quota.hard)
        return used["limits.cpu"] < hard["limits.cpu"] and used["pods"] < hard["pods"]

    await until(has_room, "room in the quota")


async def test_a_volume_that_is_hotplugged_needs_a_second_pod(admin: Admin) -> None:
    """Its attachment pod comes when the target runs: in a window of its own, unless that is in no time at all."""
    namespace = await make_budgeted(admin)
    await namespace.make_quota("quota", {"pods": "9"})
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data", "hotpluggable": True}}
    instance = {**bodies.limited(**SMALL), "volumes": [volume]}
    await namespace.create(VMIS, bodies.kubevirt("VirtualMachineInstance", "vm1", instance))
    await namespace.until_used({"pods": "2"}, "quota")
    hard = await namespace.fill()
    async with watched(namespace) as record:
        await namespace.budget({"pods": "2"})
        await namespace.succeed(await namespace.migrate())
        await namespace.at_rest(hard)
    assert 1 <= len(record.locked) <= 2


async def test_a_namespace_that_is_deleted_under_its_lock_goes(cluster: Cluster, namespace: Budgeted) -> None:
    hard = await namespace.fill()
    migration = await namespace.migrate()
    await namespace.until_refused(migration)
    with frozen(cluster, "kubevirt"):
        await namespace.budget()
        await namespace.until_raised(hard)
        await namespace.client.resource(NAMESPACES).delete(name=namespace.name)
        await namespace.until_unlocked()

    async def gone() -> bool:
        return namespace.name not in {
            namespace_object.name for namespace_object in await namespace.client.resource(NAMESPACES).list()
        }

    await until(gone, "the end of the namespace", seconds=40)
