"""`headroom plan`: which VMs could migrate now, at another ratio, all of a node; and what would be added."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kubeloop.api.resource_list import format_resource_list
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.report.explain import explain
from pkg.report.plan import MigrationPlan, NodeCapacity, VmPlan, plan_evacuations, plan_migrations
from pkg.report.snapshot import Basis, Snapshot
from pkg.util.resourcequota import vm as vm_module
from pkg.util.resourcequota.facts import Cache
from pkg.util.resourcequota.policy import EstimateKind, Mode
from pkg.util.resourcequota.vm import VmUsage, assess
from tests.decisions import charged, sentences
from tests.kinds import edited
from tests.objects import HARD, MARKS, SKIP, launcher, quota, vmi, vmim
from tests.pkg.util.resourcequota.snapshots import cluster, settled

ONE_AT_1_5 = {"limits.cpu": "2015m", "limits.memory": "4797464313"}
ONE_AT_4_5 = {"limits.cpu": "2015m", "limits.memory": "5682461313"}


def vms(*names: str, node: str = "node-1") -> list[VirtualMachineInstance]:
    return [vmi(name, nodeName=node) for name in names]


def running(instances: Sequence[VirtualMachineInstance], hard: Mapping[str, str] = HARD, **fields: object) -> Snapshot:
    limits = f'{{"limit":{{"limitsCpu":"{hard["limits.cpu"]}","limitsMemory":"{hard["limits.memory"]}"}}}}'
    pods = [launcher(instance, node=instance.status.node_name or "") for instance in instances]
    return cluster([quota(dict(hard), MARKS)], [], pods, instances, limits=limits, **fields)  # type: ignore[arg-type]


def only(plan_of_all: MigrationPlan) -> VmPlan:
    (vm,) = plan_of_all.vms
    return vm


SEED: Mapping[str, tuple[str, str | None, bool, bool]] = {
    "5000Mi at today's ratio": ("5000Mi", None, False, False),
    "5000Mi at 4.5": ("5000Mi", "4.5", False, False),
    "room for two of today's": ("9594928626", None, True, True),
    "room for two of today's, at 4.5": ("9594928626", "4.5", True, False),
    "room for one of today's and one at 4.5": ("10479925626", "4.5", True, True),
}
"""The namespace's memory limit and the ratio that is tried; whether the seed's VM fits now, and then."""


@sentences(SEED)
def test_which_of_my_vms_could_still_migrate_at_ratio_4_5(case: tuple[str, str | None, bool, bool]) -> None:
    memory, ratio, *fits = case
    snapshot = running(vms("vm1"), {"limits.cpu": "5", "limits.memory": memory})
    vm = only(plan_migrations(replace(snapshot, ratio=ratio)))
    assert [vm.fits_now, vm.fits_at_ratio, vm.fits_with_headroom] == [*fits, True]
    assert format_resource_list(vm.fits[0].raised) == (ONE_AT_4_5 if ratio else ONE_AT_1_5)


def test_harvesters_formula_is_tried_at_the_ratio_too() -> None:
    """The seed of Harvester: 5000Mi grow to 10865341313 at 4.5."""
    snapshot = replace(running(vms("vm1")), quotas=[charged(quota(HARD), [launcher()])])
    snapshot = replace(snapshot, basis=Basis(Mode.ASSIST, EstimateKind.HARVESTER, "flags"))
    raises = [
        only(plan_migrations(replace(snapshot, ratio=ratio))).fits[0].raised["limits.memory"] for ratio in (None, "4.5")
    ]
    assert [str(amount) for amount in raises] == ["4737464313", "5622461313"]


def test_each_vm_is_planned_by_itself() -> None:
    snapshot = running(vms("vm1", "vm2", "vm3"), {"limits.cpu": "9", "limits.memory": "16Gi"})
    plan_of_all = plan_migrations(snapshot)
    assert [(vm.vm, format_resource_list(vm.fits[0].raised)) for vm in plan_of_all.vms] == [
        (name, ONE_AT_1_5) for name in ("vm1", "vm2", "vm3")
    ]
    assert plan_of_all.together == ()


def test_what_the_base_lacks_without_a_migration_is_not_added() -> None:
    """Two VMs run where one fits."""
    snapshot = running(vms("vm1", "vm2"))
    for vm in plan_migrations(snapshot).vms:
        assert not vm.fits_with_headroom
        assert str(vm.fits[0].raised["limits.memory"]) == "4797464313"


def test_a_plan_says_what_is_explained_of_the_vm_alone() -> None:
    """At the larger ratio a VM that rests has outgrown the base, too: what headroom adds for it is in the amounts."""
    snapshot = replace(running(vms("vm1", "vm2"), ratio="1.0"), ratio="4.5")
    planned = plan_migrations(snapshot).vms
    assert [vm.fits for vm in planned] == [explain(snapshot, vmi).fits for vmi in snapshot.instances]


def test_a_vm_that_migrates_already_is_not_planned() -> None:
    snapshot = cluster([quota(HARD, MARKS)], [vmim("Running")], [launcher()], vms("vm1"))
    vm = only(plan_migrations(snapshot))
    assert (vm.migrates, vm.fits, vm.notes) == (True, (), ["phase Running"])


TWO = {"limits.cpu": "6", "limits.memory": "10000Mi"}
FOR_TWO = '{"limit":{"limitsCpu":"6","limitsMemory":"10000Mi"}}'


def test_others_that_migrate_keep_their_room() -> None:
    pods = [launcher(), launcher(vmi("vm2"))]
    snapshot = cluster([quota(TWO, MARKS)], [vmim("Pending", "vm1")], pods, vms("vm1", "vm2"), limits=FOR_TWO)
    vm2 = plan_migrations(settled(snapshot)).vms[1]
    assert vm2.fits_with_headroom
    assert str(vm2.fits[0].raised["limits.memory"]) == "4797464313"


def test_what_is_held_keeps_its_room() -> None:
    """vm1 has moved, its migration is gone, and its source still counts."""
    target = launcher(node="node-2", migration=vmim("Succeeded"), created="2026-01-01T00:01:00Z")
    state = {"migrationUid": "gone", "sourcePod": launcher().name, "targetPod": target.name}
    instances = [vmi("vm1", nodeName="node-2", migrationState=state), vmi("vm2", nodeName="node-1")]
    pods = [launcher(), target, launcher(vmi("vm2"))]
    snapshot = settled(cluster([quota(TWO, MARKS)], [], pods, instances, limits=FOR_TWO))
    assert str(snapshot.quotas[0].hard["limits.cpu"]) == "8015m"
    vm2 = plan_migrations(snapshot).vms[1]
    assert vm2.fits_with_headroom
    assert str(vm2.fits[0].raised["limits.cpu"]) == "2015m"


def test_where_headroom_does_nothing() -> None:
    vm = only(plan_migrations(cluster([quota(HARD, {SKIP: "true"})], [], [launcher()], vms("vm1"))))
    assert (vm.fits_with_headroom, "switched it off" in vm.fits[0].action) == (False, True)


# ---- a node --------------------------------------------------------------------------------------------------


def test_a_node_is_evacuated_with_all_its_vms_at_once() -> None:
    snapshot = running([*vms("vm1", "vm2"), *vms("vm3", node="node-2")], {"limits.cpu": "9", "limits.memory": "16Gi"})
    (plan_of_all,) = plan_evacuations(snapshot, ["node-1"], NodeCapacity())
    assert [vm.vm for vm in plan_of_all.vms] == ["vm1", "vm2"]
    (fit,) = plan_of_all.together
    assert fit.namespace == "ns1"
    assert format_resource_list(fit.raised) == {"limits.cpu": "4030m", "limits.memory": "9594928626"}
    assert fit.fits_then
    assert not fit.fits


def test_a_node_at_another_ratio() -> None:
    snapshot = running(vms("vm1", "vm2"), {"limits.cpu": "9", "limits.memory": "16Gi"})
    (plan_of_all,) = plan_evacuations(replace(snapshot, ratio="4.5"), ["node-1"], NodeCapacity())
    assert plan_of_all.ratio == "4.5"
    assert format_resource_list(plan_of_all.together[0].raised)["limits.memory"] == str(2 * 5682461313)


def test_a_cap_that_not_all_of_a_node_fit_under() -> None:
    """Each by itself would; together the last has to wait."""
    capped = {"headroom.harvesterhci.io/max-extra": '{"limits.memory":"5Gi"}'}
    wide = running(vms("vm1", "vm2"), {"limits.cpu": "4030m", "limits.memory": "9594928626"}, annotations=capped)
    (plan_of_all,) = plan_evacuations(wide, ["node-1"], NodeCapacity())
    assert all(vm.fits_with_headroom for vm in plan_of_all.vms)
    (fit,) = plan_of_all.together
    assert not fit.fits_then
    assert "max-extra is 5Gi" in fit.action


def test_vms_are_planned_with_the_quotas_of_their_namespaces() -> None:
    here, (vm9,) = running(vms("vm1")), vms("vm9")
    both = replace(here, instances=[*here.instances, edited(vm9, metadata={"namespace": "ns2"})])
    (plan_of_all,) = plan_evacuations(both, ["node-1"], NodeCapacity())
    assert [(vm.namespace, vm.vm, len(vm.fits)) for vm in plan_of_all.vms] == [("ns1", "vm1", 1), ("ns2", "vm9", 0)]
    assert [fit.namespace for fit in plan_of_all.together] == ["ns1"]


def test_the_document() -> None:
    document = plan_migrations(replace(running(vms("vm1")), ratio="4.5")).document()
    (vm,) = document["vms"]
    assert document["overheadRatio"] == "4.5"
    assert document["evacuate"] is None
    assert [*document["together"], *document["violations"]] == []
    fits = [vm[name] for name in ("vm", "node", "fitsNow", "fitsAtRatio", "fitsWithHeadroom")]
    assert fits == ["vm1", "node-1", False, False, True]
    assert vm["quotas"][0]["raisedBy"] == ONE_AT_4_5


def test_an_empty_node() -> None:
    (plan_of_all,) = plan_evacuations(running(vms("vm1")), ["node-7"], NodeCapacity())
    assert plan_of_all.vms == []


def test_a_vm_is_looked_at_once_for_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    assessed: list[str] = []

    def counted(*inputs: Any) -> VmUsage:
        usage = assess(*inputs)
        assessed.append(usage.name)
        return usage

    monkeypatch.setattr(vm_module, "assess", counted)
    many = [*vms("vm1", "vm2"), *vms("vm3", "vm4", node="node-2")]
    plan_evacuations(running(many, {"limits.cpu": "99", "limits.memory": "99Gi"}), ["node-1", "node-2"], NodeCapacity())
    assert sorted(assessed) == ["vm1", "vm2", "vm3", "vm4"]


def test_two_ratios_do_not_throw_each_others_values_out(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = list[Hashable]()

    def counted(self: Cache, key: Hashable, objects: tuple[object, ...], work_out: Callable[[], object]) -> object:
        return original(self, key, objects, lambda: (computed.append(key), work_out())[1])

    original = Cache.get_or_compute
    monkeypatch.setattr(Cache, "get_or_compute", counted)

    def computations(count: int) -> int:
        instances = vms(*(f"vm{number}" for number in range(count)))
        finished = [vmim("Succeeded", vmi.name, name=f"of-{vmi.name}") for vmi in instances]
        snapshot = replace(running(instances), migrations=finished, ratio="4.5")
        computed.clear()
        assert len(plan_migrations(snapshot).vms) == count
        return len(computed)

    assert computations(20) < 2.2 * computations(10)
