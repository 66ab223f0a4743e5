"""`headroom plan --size`: how large a quota must be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from kubeloop.api.quantity import Quantity
from kubeloop.api.resource_list import ResourceList
from pkg.api.kubevirt import VirtualMachine
from pkg.api.mtq import VirtualMachineMigrationResourceQuota
from pkg.report import size
from pkg.report.size import NotSized, Sizes
from pkg.report.snapshot import Snapshot
from tests.decisions import charged, sentences
from tests.kinds import edited
from tests.objects import (
    ENTRY,
    HARD,
    MARKS,
    RAISED,
    build,
    by_name,
    claim,
    launcher,
    pod,
    quota,
    running_vmi,
    vm,
    vmim,
    with_state,
)
from tests.pkg.util.resourcequota.snapshots import cluster

ONE, AT_4_5 = 4797464313, 5682461313
"""Bytes of limits.memory that the seed's launcher counts, at ratio 1.5 and 4.5."""
LARGE = running_vmi("vm2", limits={"cpu": "6", "memory": "8Gi"}, requests={"memory": "2730Mi"})
LARGER = 4 * 1024**3
"""What LARGE has more."""


def namespace(*instances: object, hard: object = None) -> Snapshot:
    machines = [running_vmi("vm1"), *instances]
    pods = [launcher(instance) for instance in machines]  # type: ignore[arg-type]
    other_pod = pod("1", "1Gi", name="other")
    full = charged(quota(HARD if hard is None else hard, MARKS), [*pods, other_pod])  # type: ignore[arg-type]
    return cluster([full], [], pods, machines)  # type: ignore[arg-type]


def sizes(
    snapshot: Snapshot,
    namespace: str,
    machines: Sequence[VirtualMachine] = (),
    at_once: int = 2,
    grown: Mapping[str, ResourceList] = {},
) -> Sizes:
    return size.sizes(snapshot, namespace, machines, at_once, grown)


@dataclass(frozen=True)
class Sizing:
    """limits.memory beside the 1Gi of others: for all to run, for the largest to migrate, for several."""

    run: int
    largest: int
    at_once: int
    snapshot: Snapshot
    machines: Sequence[VirtualMachine] = ()
    ratio: str | None = None
    several: int = 2
    grown: Mapping[str, ResourceList] = field(default_factory=dict)


TWO = namespace(LARGE)
CASES = {
    "one VM": Sizing(ONE, 2 * ONE, 2 * ONE, namespace()),
    "the larger one migrates": Sizing(2 * ONE + LARGER, 3 * ONE + 2 * LARGER, 4 * ONE + 2 * LARGER, TWO),
    "one at once is the largest": Sizing(2 * ONE + LARGER, 3 * ONE + 2 * LARGER, 3 * ONE + 2 * LARGER, TWO, several=1),
    "more at once than there are": Sizing(2 * ONE + LARGER, 3 * ONE + 2 * LARGER, 4 * ONE + 2 * LARGER, TWO, several=9),
    "at another ratio": Sizing(AT_4_5, 2 * AT_4_5, 2 * AT_4_5, namespace(), ratio="4.5"),
    "a VM that runs with more than a lower ratio gives": Sizing(ONE, 2 * ONE, 2 * ONE, namespace(), ratio="1.0"),
    "a VM that has grown": Sizing(
        ONE + LARGER,
        2 * (ONE + LARGER),
        2 * (ONE + LARGER),
        namespace(),
        grown={"vm1": {"memory": Quantity.parse("8Gi")}},
    ),
}


@sentences(CASES)
def test_how_much_memory_a_quota_must_grant(case: Sizing) -> None:
    snapshot = replace(case.snapshot, ratio=case.ratio)
    sized = sizes(snapshot, "ns1", case.machines, at_once=case.several, grown=case.grown)
    (quota,) = sized.quotas
    memory = quota.needs["limits.memory"]
    other_use = 1024**3
    assert memory.others.value() == other_use
    least_sizes = [case.run + other_use, case.largest + other_use, case.at_once + other_use]
    got = [memory.run.value(), memory.largest.value(), memory.at_once.value()]
    if case.grown:  # the overhead of a request that has grown in proportion comes on top
        assert all(0 <= size - least < 64 * 1024**2 for size, least in zip(got, least_sizes, strict=True))
    else:
        assert got == least_sizes


def test_a_vm_that_is_halted_is_to_run_too() -> None:
    halted = vm(status="Stopped", spec={"runStrategy": "Halted"})
    snapshot = replace(namespace(), instances=[], pods=[])
    sized = sizes(snapshot, "ns1", [halted])
    (quota,) = sized.quotas
    cpu = quota.needs["limits.cpu"]
    assert sized.vms == ["vm1"]
    assert cpu.run - cpu.others == Quantity.parse("2015m")


def test_a_state_has_a_second_claim_only_while_its_vm_migrates() -> None:
    instance = with_state(running_vmi("vm1"))
    hard = {"persistentvolumeclaims": "5", "services": "1"}
    full = quota(hard, MARKS, used={"persistentvolumeclaims": "3"})
    snapshot = replace(cluster([full], [], [launcher(instance)], [instance]), claims=[claim("state-1")])
    (need,) = sizes(snapshot, "ns1").quotas[0].needs.values()
    assert [str(quantity) for quantity in (need.run, need.largest, need.at_once)] == ["3", "4", "4"]


def test_a_vm_that_is_not_there_cannot_grow() -> None:
    with pytest.raises(NotSized, match="there is no VM gone in namespace ns1"):
        sizes(namespace(), "ns1", grown={"gone": {"cpu": Quantity.parse("4")}})


def test_what_headroom_has_added_is_no_limit_to_plan_with() -> None:
    instance = running_vmi("vm1")
    pods = [launcher(instance), launcher(instance, migration=vmim("Running"), node="node-2")]
    raised = charged(quota(RAISED, {**MARKS, by_name(): ENTRY}), pods)
    (sized,) = sizes(cluster([raised], [vmim("Running")], pods, [instance]), "ns1").quotas
    assert str(sized.needs["limits.cpu"].limited) == "3"


BIG = {"limits.cpu": "30", "limits.memory": "50Gi"}
CAPPED = {"headroom.harvesterhci.io/max-extra": '{"limits.memory":"5Gi"}'}
VERDICTS: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "a base for all VMs": (BIG, MARKS, "large enough: all VMs run, and 2 can migrate at once"),
    "a base that is too small for them": (
        HARD, MARKS, "the base is too small for all VMs to run: it lacks limits.cpu 2030m, limits.memory 5.1Gi",
    ),
    "a cap under which one migrates, and not two": (
        BIG, {**MARKS, **CAPPED},
        "too small for the 2 largest VMs at once to migrate: limits.memory 8.9Gi more are needed, and less may",
    ),
    "a cap under which none does": (
        BIG, {**MARKS, "headroom.harvesterhci.io/max-extra": '{"limits.memory":"1Gi"}'},
        "too small for the largest VM to migrate: limits.memory 4.5Gi more are needed, and less may be added",
    ),
    "a cap that is none": (BIG, {**MARKS, "headroom.harvesterhci.io/max-extra": "1Gi"}, "annotation headroom"),
}  # fmt: skip


@sentences(VERDICTS)
def test_whether_a_quota_is_large_enough(case: tuple[dict[str, str], dict[str, str], str]) -> None:
    hard, annotations, verdict = case
    machines = [running_vmi("vm1"), running_vmi("vm2")]
    pods = [launcher(instance) for instance in machines]
    full = charged(quota(hard, annotations), [*pods, pod("1", "1Gi", name="other")])
    limits = f'{{"limit":{{"limitsCpu":"{hard["limits.cpu"]}","limitsMemory":"{hard["limits.memory"]}"}}}}'
    (sized,) = sizes(cluster([full], [], pods, machines, limits=limits), "ns1").quotas
    assert any(text.startswith(verdict) for text in sized.verdicts), sized.verdicts


BUDGETS: dict[str, tuple[dict[str, str], list[str]]] = {
    "it suffices": ({"limits.cpu": "5", "limits.memory": "10Gi"}, []),
    "for one it does not": (
        {"limits.memory": "1Gi"},
        ["too small for the largest VM to migrate: limits.memory 5.1Gi more are needed, and less may be added"],
    ),
}


@sentences(BUDGETS)
def test_what_a_migration_budget_may_add_is_the_cap(case: tuple[dict[str, str], list[str]]) -> None:
    additional, verdicts = case
    budget = build(VirtualMachineMigrationResourceQuota, "budget", {"additionalMigrationResources": additional})
    snapshot = replace(namespace(), budgets=[budget])
    (sized,) = sizes(snapshot, "ns1").quotas
    assert [verdict for verdict in sized.verdicts if verdict.startswith("too small")] == verdicts


def test_a_grown_vm_has_its_cpus_and_its_guests_memory() -> None:
    instance = edited(running_vmi("vm1"), spec={"domain": {"memory": {"guest": "3Gi"}}})
    four = {"vm1": {"cpu": Quantity.parse("4"), "memory": Quantity.parse("8Gi")}}
    (sized,) = sizes(cluster([quota(HARD, MARKS)], [], [launcher(instance)], [instance]), "ns1", grown=four).quotas
    assert str(sized.needs["limits.cpu"].run) == "4015m"
    assert sized.needs["limits.memory"].run > Quantity.parse("8Gi")


def test_where_nothing_is_added_the_limit_itself_has_to_suffice() -> None:
    machines = [running_vmi("vm1")]
    pods = [launcher(instance) for instance in machines]
    foreign = charged(quota(HARD, labels={"a": "b"}), pods)
    (sized,) = sizes(cluster([foreign], [], pods, machines), "ns1").quotas
    assert sized.verdicts == [
        "too small for the largest VM to migrate: limits.cpu 1030m, limits.memory 4.1Gi more are needed, "
        "and headroom does not scale this quota"
    ]


def test_a_vm_that_would_not_start_under_the_quota_is_named() -> None:
    machines = [running_vmi("vm1"), running_vmi("vm2")]
    pods = [launcher(instance) for instance in machines]
    shrunk = charged(quota(HARD, MARKS), pods)
    (sized,) = sizes(cluster([shrunk], [], pods, machines), "ns1").quotas
    assert [text for text in sized.verdicts if "start again" in text] == [
        "VM vm1 would not start again: limits.cpu 1030m, limits.memory 4.1Gi are missing",
        "VM vm2 would not start again: limits.cpu 1030m, limits.memory 4.1Gi are missing",
    ]


def test_a_vm_that_would_not_start_at_a_larger_ratio_is_named() -> None:
    limits = '{"limit":{"limitsCpu":"3","limitsMemory":"4800Mi"}}'
    machines, pods = [running_vmi("vm1")], [launcher(running_vmi("vm1"))]
    tight = charged(quota({"limits.cpu": "3", "limits.memory": "4800Mi"}, MARKS), pods)
    snapshot = cluster([tight], [], pods, machines, limits=limits)
    for ratio, is_named in (("1.5", False), ("4.5", True)):
        (sized,) = sizes(replace(snapshot, ratio=ratio), "ns1").quotas
        assert any("VM vm1 would not start again" in text for text in sized.verdicts) is is_named


def test_what_other_ratios_would_need() -> None:
    (sized,) = sizes(namespace(), "ns1").quotas
    needs = {at_ratio.ratio: int(at_ratio.run.value()) - 1024**3 for at_ratio in sized.ratios}
    assert list(needs) == ["1.0", "1.5", "2.0", "3.0", "4.5"]
    assert (needs["1.5"], needs["4.5"]) == (ONE, AT_4_5)


HALTED = edited(vm(status="Stopped", spec={"runStrategy": "Halted"}), metadata={"name": "vm9", "namespace": "ns1"})
OF_A_TYPE = edited(HALTED, spec={"runStrategy": "Halted", "instancetype": {"name": "u1.large"}})
UNREAD = "VM vm9 is not counted: it does not run, and its instancetype u1.large cannot be read: ask again once it runs"


def test_a_halted_vm_of_an_instancetype_is_named_and_not_guessed() -> None:
    sized = sizes(namespace(), "ns1", [OF_A_TYPE])
    assert (sized.vms, sized.quotas[0].needs) == (["vm1"], sizes(namespace(), "ns1").quotas[0].needs)
    assert sized.quotas[0].verdicts[-1] == UNREAD
    assert not any(verdict.startswith("large enough") for verdict in sized.quotas[0].verdicts)


def test_a_vm_of_an_instancetype_that_runs_counts_as_it_runs() -> None:
    runs = namespace(running_vmi("vm9"))
    assert sizes(runs, "ns1", [OF_A_TYPE]) == sizes(runs, "ns1")


def test_a_halted_vm_of_an_instancetype_does_not_grow() -> None:
    with pytest.raises(NotSized, match=r"instancetype u1\.large of VM vm9 cannot be read: start the VM first"):
        sizes(namespace(), "ns1", [OF_A_TYPE], grown={"vm9": {"cpu": Quantity.parse("4")}})


def test_a_halted_vm_without_a_topology_has_one_socket() -> None:
    """100m for a vCPU, and 5m of the launcher's own."""
    snapshot = namespace(hard={"requests.cpu": "3"})
    domain = {"cpu": {"model": "host-model", "cores": None}, "resources": None}
    model = edited(HALTED, spec={"template": {"spec": {"domain": domain}}})
    with_it, without = (sizes(snapshot, "ns1", machines).quotas[0].needs["requests.cpu"] for machines in ([model], []))
    assert with_it.run - without.run == Quantity.parse("105m")
