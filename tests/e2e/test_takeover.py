"""`--mode takeover` on a real API server: our keys and marks, adoption of what Harvester left, and giving back."""

from __future__ import annotations

import time

import pytest

from kubeloop.testing.polling import eventually
from pkg.util.names import migrating_key
from tests.e2e.api import ApiFailure, Raw
from tests.e2e.conftest import MakeTenant, StartController
from tests.e2e.tenant import ENTRY, HARD, OWNER, RAISED, RESYNC, SKIP, by_value
from tests.program import Program, run

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("alone")]

TEXT = '{"limits.cpu":"2","limits.memory":"4737464313"}'
MARKS = {SKIP: "true", OWNER: "headroom"}
LONG = "a-very-long-name-exceeds-the-63-length-and-it-reports-error-in-old-version"
NAME_KEY = "harvesterhci.io/migrating-vm1"


@pytest.fixture(scope="module")
def headroom(shared_controller: StartController) -> Program:
    return shared_controller("takeover")


def test_a_quota_is_taken_over_when_it_is_first_seen(headroom: Program, tenant: MakeTenant) -> None:
    namespace = tenant()
    eventually(lambda: namespace.annotations() == MARKS)
    assert namespace.quota()["spec"]["hard"] == HARD


def test_the_seeds_migration_with_its_exact_numbers(headroom: Program, tenant: MakeTenant) -> None:
    namespace = tenant()
    namespace.vm()
    migration = namespace.migrate(phase="Pending", refused=True)
    namespace.wait_hard(RAISED)
    assert namespace.annotations() == {**MARKS, NAME_KEY: TEXT}
    for phase in ("Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running"):
        namespace.phase(migration, phase)
    namespace.wait_shown("Migrating")
    namespace.phase(migration, "Succeeded")
    namespace.wait_hard(HARD)
    namespace.wait_shown(None)
    assert namespace.annotations() == MARKS


def test_a_long_name_goes_through_a_key_that_the_api_server_takes(
    headroom: Program, tenant: MakeTenant
) -> None:
    """Harvester ≤ 1.4.1 fails here: the API server refuses its key."""
    namespace = tenant()
    namespace.vm(LONG)
    with pytest.raises(ApiFailure, match="must be no more than 63"):
        namespace.patch_quota({"metadata": {"annotations": {f"harvesterhci.io/migrating-{LONG}": TEXT}}})
    migration = namespace.migrate(LONG, phase="Pending")
    namespace.wait_hard(RAISED)
    (key,) = namespace.entries()
    assert key == migrating_key(LONG)
    assert key.startswith("harvesterhci.io/migrating-a-very-long-name")
    namespace.phase(migration, "Succeeded")
    namespace.wait_hard(HARD)
    assert namespace.annotations() == MARKS


def test_ranchers_revert_under_way_is_repaired(headroom: Program, tenant: MakeTenant) -> None:
    namespace = tenant()
    namespace.vm()
    namespace.migrate(phase="Running")
    namespace.wait_hard(RAISED)
    namespace.revert()
    assert namespace.wait_hard(RAISED) < 1.0


def test_a_change_of_the_namespace_annotation_reaches_the_quota_at_once(
    headroom: Program, tenant: MakeTenant
) -> None:
    namespace = tenant()
    namespace.vm()
    namespace.migrate(phase="Running")
    namespace.wait_hard(RAISED)
    namespace.limit({"limitsCpu": "4", "limitsMemory": "6000Mi"})
    raised = {"limits.cpu": "6", "limits.memory": str(6000 * 2**20 + 4737464313)}
    assert namespace.wait_hard(raised) < 1.0


@pytest.mark.parametrize("removed", [NAME_KEY, SKIP, OWNER], ids=["the entry", "our skip", "our mark"])
def test_what_another_client_removes_under_way(headroom: Program, tenant: MakeTenant, removed: str) -> None:
    """An entry that is needed and our skip come back; without our mark the skip is a
    person's, and we leave the quota alone."""
    namespace = tenant()
    namespace.vm()
    migration = namespace.migrate(phase="Running")
    namespace.wait_hard(RAISED)
    eventually(lambda: namespace.annotations() == {**MARKS, NAME_KEY: TEXT})
    namespace.patch_quota({"metadata": {"annotations": {removed: None}}})
    if removed != OWNER:
        eventually(lambda: namespace.annotations() == {**MARKS, NAME_KEY: TEXT})
        assert by_value(namespace.quota()["spec"]["hard"]) == by_value(RAISED)
        return
    namespace.revert()
    namespace.phase(migration, "Succeeded")
    eventually(lambda: NAME_KEY not in namespace.annotations())
    assert namespace.quota()["spec"]["hard"] == HARD
    assert namespace.annotations() == {SKIP: "true", RESYNC: "true"}


def test_a_persons_skip_is_respected(headroom: Program, tenant: MakeTenant) -> None:
    namespace, other = tenant(annotations={SKIP: "true"}), tenant()
    for each in (namespace, other):
        each.vm()
        each.migrate(phase="Pending")
    other.wait_hard(RAISED)
    time.sleep(0.3)
    assert namespace.annotations() == {SKIP: "true"}
    assert namespace.quota()["spec"]["hard"] == HARD
    namespace.patch_quota({"metadata": {"annotations": {SKIP: None}}})
    namespace.wait_hard(RAISED)
    assert namespace.annotations() == {**MARKS, NAME_KEY: TEXT}


@pytest.mark.parametrize("form", ["uid", "name", "both"])
def test_harvesters_entries_are_adopted_and_one_vm_counts_once(
    headroom: Program, tenant: MakeTenant, form: str
) -> None:
    namespace = tenant(quota=False)
    namespace.vm()
    migration = namespace.migrate(phase="Running")
    uid_key = f"harvesterhci.io/migratingUID-{namespace.uid()}"
    admin = {"uid": [uid_key], "name": [NAME_KEY], "both": [uid_key, NAME_KEY]}[form]
    raised = RAISED if form != "both" else {"limits.cpu": "7", "limits.memory": "14717808626"}
    namespace.make_quota(raised, {**dict.fromkeys(admin, TEXT), RESYNC: "false"})
    namespace.wait_hard(RAISED)
    eventually(lambda: namespace.annotations() == {**MARKS, NAME_KEY: TEXT, RESYNC: "false"})
    assert namespace.entries() == {NAME_KEY: by_value(ENTRY)}
    assert by_value(namespace.quota()["spec"]["hard"]) == by_value(RAISED)
    namespace.phase(migration, "Succeeded")
    namespace.wait_hard(HARD)
    assert namespace.entries() == {}


def test_an_entry_that_harvester_writes_beside_ours_does_not_count_twice(
    headroom: Program, tenant: MakeTenant
) -> None:
    namespace = tenant()
    namespace.vm()
    namespace.migrate(phase="Running")
    namespace.wait_hard(RAISED)
    uid_key = f"harvesterhci.io/migratingUID-{namespace.uid()}"
    namespace.patch_quota({"metadata": {"annotations": {uid_key: TEXT, RESYNC: "true"}}})
    eventually(lambda: uid_key not in namespace.annotations())
    assert namespace.annotations() == {**MARKS, NAME_KEY: TEXT, RESYNC: "false"}
    assert by_value(namespace.quota()["spec"]["hard"]) == by_value(RAISED)


def test_a_migration_that_is_deleted_leaves_no_entry(headroom: Program, tenant: MakeTenant) -> None:
    namespace = tenant()
    namespace.vm()
    migration = namespace.migrate(phase="Running")
    namespace.wait_hard(RAISED)
    namespace.delete_migration(migration)
    namespace.wait_hard(HARD)
    namespace.wait_shown(None)
    assert namespace.annotations() == MARKS


def test_several_vms_come_and_go(headroom: Program, tenant: MakeTenant) -> None:
    namespace = tenant()
    names = [f"vm{n}" for n in range(6)]
    for name in names:
        namespace.vmi(name)
    migrations = [namespace.migrate(name, phase="Pending") for name in names]
    for left in range(6, 0, -1):
        cpu, memory = 3 + 2 * left, 5242880000 + left * 4737464313
        namespace.wait_hard({"limits.cpu": str(cpu), "limits.memory": str(memory)})
        namespace.phase(migrations[left - 1], "Succeeded" if left % 2 else "Failed")
    namespace.wait_hard(HARD)


def test_default_quotas_are_rendered_only_where_that_is_asked_for(
    headroom: Program, tenant: MakeTenant
) -> None:
    namespace = tenant(quota=False)
    time.sleep(0.3)
    assert namespace.api.items(f"{namespace.path}/resourcequotas") == []


def test_nothing_above_left_a_traceback_or_an_unhealthy_program(headroom: Program) -> None:
    assert "Traceback" not in headroom.text()
    assert headroom.get("/healthz") == (200, "ok")
    assert headroom.metric("controller_runtime_reconcile_errors_total") == 0


class TestRelease:
    """`headroom release` after the controller has stopped. The last tests of this file: they stop it."""

    def test_every_quota_is_given_back_as_harvester_expects_it(
        self, headroom: Program, tenant: MakeTenant
    ) -> None:
        busy, quiet, off = tenant(), tenant(), tenant(annotations={SKIP: "true"})
        busy.vm()
        busy.migrate(phase="Running")
        busy.wait_hard(RAISED)
        eventually(lambda: OWNER in quiet.annotations())
        assert headroom.stop() == 0
        released = run("release", "--kubeconfig", str(busy.api.kubeconfig))
        assert released.returncode == 0, released.stderr
        lines = released.stdout.splitlines()
        assert {f"released {each.name}/default-abc" for each in (busy, quiet)} <= set(lines)
        given_back = [line for line in lines if line.startswith("released ")]
        assert lines[-1] == f"{len(given_back)} resource quotas released"
        uid_key = f"harvesterhci.io/migratingUID-{busy.uid()}"
        assert busy.annotations() == {uid_key: TEXT, RESYNC: "true"}
        assert by_value(busy.quota()["spec"]["hard"]) == by_value(RAISED)
        assert quiet.annotations() == {RESYNC: "true"}
        assert off.annotations() == {SKIP: "true"}
        again = run("release", "--kubeconfig", str(busy.api.kubeconfig))
        assert again.stdout == "0 resource quotas released\n"

    def test_rendering_a_default_quota_and_keeping_all_its_limits(
        self, controller: StartController, tenant: MakeTenant
    ) -> None:
        program = controller("takeover", "--render-default-quota")
        namespace = tenant(quota=False, limits={"limitsCpu": "3", "limitsMemory": "5000Mi", "pods": "10"})

        def rendered() -> list[Raw]:
            return namespace.api.items(f"{namespace.path}/resourcequotas")

        (quota,) = eventually(rendered)
        assert quota["metadata"]["name"].startswith("default-")
        assert quota["spec"]["hard"] == {"limits.cpu": "3", "limits.memory": "5000Mi", "pods": "10"}
        namespace.limit({"limitsCpu": "4", "limitsMemory": "5000Mi", "pods": "20"})
        wanted = {"limits.cpu": "4", "limits.memory": "5000Mi", "pods": "20"}
        eventually(lambda: rendered()[0]["spec"]["hard"] == wanted)
        assert len(rendered()) == 1
        assert program.get("/readyz") == (200, "ok")
