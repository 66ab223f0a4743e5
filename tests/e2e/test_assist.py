"""`--mode assist` on a real API server: raised at once, by a handful of patches, whatever a tenant has written."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import eventually
from tests.e2e.conftest import MakeTenant, StartController, frozen
from tests.e2e.tenant import ENTRY, HARD, RAISED, by_value
from tests.program import Program

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("alone")]


@pytest.fixture(scope="module")
def headroom(shared_controller: StartController) -> Program:
    return shared_controller("assist")


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


def test_a_vmi_that_turns_up_after_its_migration_is_served(headroom: Program, tenant: MakeTenant) -> None:
    namespace = tenant()
    namespace.migrate(phase="Pending")
    time.sleep(0.2)
    namespace.vm()
    namespace.wait_hard(RAISED)
    namespace.wait_shown("Pending migration")


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
