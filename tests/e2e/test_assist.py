"""`--mode assist` on a real API server: Harvester's wire format ≥ 1.4.2, the seed's numbers, every repair at once."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import eventually, polls
from tests.e2e.conftest import MakeTenant, StartController, frozen
from tests.e2e.tenant import ENTRY, HARD, MIGRATION_UID, OWNER, RAISED, RESYNC, SKIP, STATE, by_value
from tests.program import Program

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("alone")]

MANAGED = "headroom.harvesterhci.io/managed"
BASE = "headroom.harvesterhci.io/base"
TEXT = '{"limits.cpu":"2","limits.memory":"4737464313"}'


@pytest.fixture(scope="module")
def headroom(shared_controller: StartController) -> Program:
    return shared_controller("assist")


def test_the_seeds_migration_with_its_exact_numbers(headroom: Program, tenant: MakeTenant) -> None:
    """3 CPU / 5000Mi → 5 CPU / 9980344313 → 3 CPU / 5000Mi; entry by uid, no skip, no mark of ours."""
    namespace = tenant()
    namespace.vm()
    migration = namespace.migrate(phase="Pending", refused=True)
    namespace.wait_hard(RAISED)
    key = f"harvesterhci.io/migratingUID-{namespace.uid()}"
    assert namespace.annotations() == {key: TEXT}
    assert namespace.quota()["spec"]["hard"] == RAISED
    for phase in ("Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running"):
        namespace.phase(migration, phase)
        namespace.wait_shown("Migrating")
    assert namespace.annotations() == {key: TEXT}
    namespace.phase(migration, "Succeeded")
    namespace.wait_hard(HARD)
    namespace.wait_shown(None)
    assert namespace.annotations() == {}
    annotations = namespace.get_vmi()["metadata"].get("annotations") or {}
    assert not {MIGRATION_UID, STATE} & set(annotations)
    assert namespace.timestamp()


def test_raised_and_restored_within_a_quarter_of_a_second_with_one_patch_each(
    headroom: Program, tenant: MakeTenant
) -> None:
    namespace = tenant()
    namespace.vm()
    migration = namespace.migrate()
    namespace.wait_shown("Pending migration")
    with namespace.watch_quota() as versions:
        took = []
        for phase, hard in (("Pending", RAISED), ("Succeeded", HARD)):
            namespace.phase(migration, phase)
            took.append(namespace.wait_hard(hard))
        eventually(lambda: len(versions.seen) >= 3)
        time.sleep(0.3)
        specs = [json.dumps(event.object["spec"], sort_keys=True) for event in versions.caught_up()]
    assert len([n for n, spec in enumerate(specs) if n and spec != specs[n - 1]]) == 2
    assert max(took) < 1.0, took
    assert sorted(took)[0] < 0.25, took


def test_an_abort_is_shown_and_its_end_restores(headroom: Program, tenant: MakeTenant) -> None:
    namespace = tenant()
    namespace.vm()
    migration = namespace.migrate(phase="Running")
    namespace.wait_hard(RAISED)
    namespace.phase(migration, "Running", abort=True)
    namespace.wait_shown("Aborting migration")
    assert by_value(namespace.quota()["spec"]["hard"]) == by_value(RAISED)
    namespace.phase(migration, "Failed", abort=True)
    namespace.wait_hard(HARD)
    namespace.wait_shown(None)


def test_ranchers_revert_under_way_is_repaired(headroom: Program, tenant: MakeTenant) -> None:
    namespace = tenant()
    namespace.vm()
    migration = namespace.migrate(phase="Running")
    namespace.wait_hard(RAISED)
    for _ in range(5):
        namespace.revert()
        assert namespace.wait_hard(RAISED) < 1.0
    namespace.phase(migration, "Succeeded")
    namespace.wait_hard(HARD)


def test_a_foreign_edit_of_hard_is_repaired_in_quiet_times_too(headroom: Program, tenant: MakeTenant) -> None:
    namespace = tenant()
    namespace.patch_quota({"spec": {"hard": {"limits.cpu": "100", "limits.memory": "1Gi"}}})
    assert namespace.wait_hard(HARD) < 1.0


def test_a_change_of_the_namespace_annotation_reaches_the_quota_at_once(
    headroom: Program, tenant: MakeTenant
) -> None:
    """Upstream: still the old base after ten seconds."""
    namespace = tenant()
    namespace.vm()
    namespace.limit({"limitsCpu": "10", "limitsMemory": "6000Mi"})
    assert namespace.wait_hard({"limits.cpu": "10", "limits.memory": "6000Mi"}) < 1.0
    namespace.migrate(phase="Running")
    namespace.wait_hard({"limits.cpu": "12", "limits.memory": str(6000 * 2**20 + 4737464313)})
    namespace.limit({"limitsCpu": "3", "limitsMemory": "5000Mi"})
    assert namespace.wait_hard(RAISED) < 1.0


def test_harvesters_own_entries_count_once_and_are_removed_in_every_form(
    headroom: Program, tenant: MakeTenant
) -> None:
    namespace = tenant()
    namespace.vm()
    migration = namespace.migrate()
    uid_key, name_key = f"harvesterhci.io/migratingUID-{namespace.uid()}", "harvesterhci.io/migrating-vm1"
    namespace.phase(migration, "Running")
    namespace.patch_quota({"metadata": {"annotations": {uid_key: TEXT, RESYNC: "true"}}})
    namespace.wait_hard(RAISED)
    eventually(lambda: namespace.annotations() == {uid_key: TEXT, RESYNC: "false"})
    namespace.patch_quota({"metadata": {"annotations": {name_key: TEXT}}})
    namespace.phase(migration, "Succeeded")
    namespace.wait_hard(HARD)
    assert namespace.annotations() == {RESYNC: "false"}


def test_a_persons_skip_is_an_off_switch_and_restoring_is_still_done(
    headroom: Program, tenant: MakeTenant
) -> None:
    namespace = tenant(annotations={SKIP: "true"})
    namespace.vm()
    other = tenant()
    other.vm()
    migration = namespace.migrate(phase="Pending")
    other.migrate(phase="Pending")
    other.wait_hard(RAISED)
    assert by_value(namespace.quota()["spec"]["hard"]) == by_value(HARD)
    assert namespace.annotations() == {SKIP: "true"}
    key = f"harvesterhci.io/migratingUID-{namespace.uid()}"
    namespace.patch_quota({"metadata": {"annotations": {key: TEXT}}})
    namespace.phase(migration, "Succeeded")
    eventually(lambda: key not in namespace.annotations())
    assert namespace.annotations() == {SKIP: "true", RESYNC: "true"}
    assert by_value(namespace.quota()["spec"]["hard"]) == by_value(HARD)
    namespace.patch_quota({"metadata": {"annotations": {SKIP: None}}})
    namespace.migrate(name="second", phase="Pending")
    namespace.wait_hard(RAISED)


def test_a_quota_that_is_not_the_default_is_left_alone(headroom: Program, tenant: MakeTenant) -> None:
    namespace = tenant(quota=False)
    namespace.api.create(
        f"{namespace.path}/resourcequotas", {"metadata": {"name": "default-abc"}, "spec": {"hard": HARD}}
    )
    namespace.vm()
    namespace.migrate(phase="Pending")
    namespace.wait_shown("Pending migration")
    time.sleep(0.3)
    assert namespace.quota()["spec"]["hard"] == HARD
    assert namespace.annotations() == {}


def test_a_quota_that_is_managed_by_its_label_is_raised_from_its_own_base(
    headroom: Program, tenant: MakeTenant
) -> None:
    """Harvester's controllers know default quotas only: on another there is nothing to agree with."""
    namespace = tenant(quota=False)
    namespace.make_quota(HARD, labels={MANAGED: "true"})
    namespace.vm()
    migration = namespace.migrate(phase="Pending")
    namespace.wait_hard(RAISED)
    assert by_value(json.loads(namespace.annotations()[BASE])) == by_value(HARD)
    namespace.phase(migration, "Succeeded")
    namespace.wait_hard(HARD)
    assert eventually(lambda: namespace.entries() == {})


def test_a_vmi_that_turns_up_after_its_migration_is_served(headroom: Program, tenant: MakeTenant) -> None:
    namespace = tenant()
    namespace.migrate(phase="Pending")
    time.sleep(0.2)
    namespace.vm()
    namespace.wait_hard(RAISED)
    namespace.wait_shown("Pending migration")


def test_a_migration_that_is_deleted_is_no_longer_shown(headroom: Program, tenant: MakeTenant) -> None:
    namespace = tenant()
    namespace.vm()
    migration = namespace.migrate(phase="Running")
    namespace.wait_shown("Migrating")
    namespace.delete_migration(migration)
    namespace.wait_shown(None)


def test_the_ratio_setting_counts_for_the_next_migration(headroom: Program, tenant: MakeTenant) -> None:
    namespace = tenant()
    namespace.vm()
    path = "/apis/harvesterhci.io/v1beta1/settings"
    name = "additional-guest-memory-overhead-ratio"
    namespace.api.create(
        path,
        {
            "apiVersion": "harvesterhci.io/v1beta1",
            "kind": "Setting",
            "metadata": {"name": name},
            "value": "4.5",
            "default": "1.5",
        },
    )
    try:
        time.sleep(0.3)
        namespace.migrate(phase="Pending")
        namespace.wait_hard({"limits.cpu": "5", "limits.memory": "10865341313"})
    finally:
        namespace.api.delete(f"{path}/{name}")


def test_a_hundred_migrations_pending_at_once_in_one_namespace(
    headroom: Program, tenant: MakeTenant, cluster: Cluster
) -> None:
    """All raised with a handful of patches; and never a conflict while no other client writes: quota's own controller,
    which writes status.hard after each of our patches, stands still meanwhile."""
    much = {"limits.cpu": "1000", "limits.memory": "1Ti"}
    namespace = tenant(limits={"limitsCpu": "1000", "limitsMemory": "1Ti"}, hard=much)
    names = [f"vm{n}" for n in range(100)]

    def patches() -> float:
        return headroom.metric("headroom_resourcequota_patches_total", result="written")

    with ThreadPoolExecutor(8) as pool, frozen(cluster, "kube-controller-manager"):
        list(pool.map(namespace.vmi, names))
        migrations = list(pool.map(namespace.migrate, names))
        eventually(lambda: namespace.shown(names[-1]) == "Pending migration", 20)
        conflicts, before = headroom.metric("rest_client_requests_total", code="409"), patches()
        list(pool.map(lambda name: namespace.phase(name, "Pending"), migrations))
        raised = {"limits.cpu": "1200", "limits.memory": str(2**40 + 100 * 4737464313)}
        took = namespace.wait_hard(raised, timeout=20)
        assert took < 2.0, took
        assert patches() - before <= 30
        assert list(namespace.entries().values()) == [by_value(ENTRY)] * 100
        list(pool.map(lambda name: namespace.phase(name, "Succeeded"), migrations))
        namespace.wait_hard(much, timeout=20)
        assert namespace.annotations() == {}
        assert headroom.metric("rest_client_requests_total", code="409") == conflicts


class TestBadInput:
    def test_an_annotation_that_is_not_json_is_told_and_other_namespaces_go_on(
        self, headroom: Program, tenant: MakeTenant
    ) -> None:
        bad, good = tenant(limits="{nope"), tenant()
        for namespace in (bad, good):
            namespace.vm()
            namespace.migrate(phase="Pending")
        good.wait_hard(RAISED)
        (event,) = eventually(lambda: bad.events("InvalidResourceQuotaAnnotation"))
        assert event["type"] == "Warning"
        assert event["involvedObject"]["kind"] == "ResourceQuota"
        assert "field.cattle.io/resourceQuota is not JSON" in event["message"]
        assert (bad.quota()["spec"]["hard"], bad.annotations()) == (HARD, {})
        bad.limit({"limitsCpu": "3", "limitsMemory": "5000Mi"})
        bad.wait_hard(RAISED)

    @pytest.mark.parametrize("text", ["3 cores", "1e", "5GB"])
    def test_a_limit_that_is_no_quantity_is_told_with_its_value(
        self, headroom: Program, tenant: MakeTenant, text: str
    ) -> None:
        namespace = tenant(limits={"limitsCpu": text, "limitsMemory": "5000Mi"})
        namespace.vm()
        namespace.migrate(phase="Pending")
        (event,) = eventually(lambda: namespace.events("InvalidResourceQuotaAnnotation"))
        assert repr(text) in event["message"]
        assert (namespace.quota()["spec"]["hard"], namespace.annotations()) == (HARD, {})

    def test_a_garbage_entry_is_told_and_not_overwritten(self, headroom: Program, tenant: MakeTenant) -> None:
        namespace = tenant(annotations={"harvesterhci.io/migrating-vm1": "{nope"})
        namespace.vm()
        namespace.migrate(phase="Running")
        (event,) = eventually(lambda: namespace.events("InvalidMigratingEntry"))
        assert "harvesterhci.io/migrating-vm1" in event["message"]
        assert namespace.annotations() == {"harvesterhci.io/migrating-vm1": "{nope"}
        assert namespace.quota()["spec"]["hard"] == HARD

    def test_a_vmi_whose_quantities_are_garbage_costs_no_other_vm_anything(
        self, headroom: Program, tenant: MakeTenant
    ) -> None:
        """A CRD without a schema lets everything in."""
        namespace = tenant()
        namespace.vmi("odd", resources={"limits": {"cpu": "two", "memory": "4Gi"}})
        namespace.vmi("odder", resources={"limits": {"cpu": ["2"]}})
        namespace.vm("vm1")
        for name in ("odd", "odder", "vm1"):
            namespace.migrate(name, phase="Pending")
        namespace.wait_hard(RAISED)
        assert list(namespace.entries()) == [f"harvesterhci.io/migratingUID-{namespace.uid('vm1')}"]


def test_nothing_above_left_a_traceback_a_failed_reconcile_or_an_unhealthy_program(headroom: Program) -> None:
    assert "Traceback" not in headroom.text()
    assert headroom.get("/healthz") == (200, "ok")
    assert headroom.get("/readyz") == (200, "ok")
    assert headroom.metric("controller_runtime_reconcile_errors_total") == 0
    for _ in polls(5):
        if headroom.metric("workqueue_depth") == 0:
            break
    assert headroom.metric("workqueue_depth") == 0


def test_no_mark_of_takeover_is_left(headroom: Program, tenant: MakeTenant) -> None:
    namespace = tenant()
    namespace.vm()
    namespace.migrate(phase="Running")
    namespace.wait_hard(RAISED)
    assert OWNER not in namespace.annotations()
