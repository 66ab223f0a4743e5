"""`headroom plan --size`: how large a quota must be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from kubeloop.api.quantity import Quantity
from pkg.api.kubevirt import VirtualMachine
from pkg.report.size import Growth, NotSized, sizes
from pkg.report.snapshot import Snapshot
from tests.decisions import charged, sentences
from tests.objects import (
    ENTRY,
    HARD,
    MARKS,
    RAISED,
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
    found = [running_vmi("vm1"), *instances]
    pods = [launcher(each) for each in found]  # type: ignore[arg-type]
    other = pod("1", "1Gi", name="other")
    full = charged(quota(HARD if hard is None else hard, MARKS), [*pods, other])  # type: ignore[arg-type]
    return cluster([full], [], pods, found)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Case:
    """limits.memory beside the 1Gi of others: for all to run, for the largest to migrate, for several."""

    run: int
    largest: int
    at_once: int
    seen: Snapshot
    machines: Sequence[VirtualMachine] = ()
    ratio: str | None = None
    several: int = 2
    growth: Growth | None = None


TWO = namespace(LARGE)
CASES = {
    "one VM": Case(ONE, 2 * ONE, 2 * ONE, namespace()),
    "the larger one migrates": Case(2 * ONE + LARGER, 3 * ONE + 2 * LARGER, 4 * ONE + 2 * LARGER, TWO),
    "one at once is the largest": Case(2 * ONE + LARGER, 3 * ONE + 2 * LARGER, 3 * ONE + 2 * LARGER, TWO, several=1),
    "more at once than there are": Case(2 * ONE + LARGER, 3 * ONE + 2 * LARGER, 4 * ONE + 2 * LARGER, TWO, several=9),
    "at another ratio": Case(AT_4_5, 2 * AT_4_5, 2 * AT_4_5, namespace(), ratio="4.5"),
    "a VM that runs with more than a lower ratio gives": Case(ONE, 2 * ONE, 2 * ONE, namespace(), ratio="1.0"),
    "a VM that has grown": Case(
        ONE + LARGER,
        2 * (ONE + LARGER),
        2 * (ONE + LARGER),
        namespace(),
        growth=Growth("vm1", memory=Quantity.parse("8Gi")),
    ),
}


@sentences(CASES)
def test_how_much_memory_a_quota_must_grant(case: Case) -> None:
    found = sizes(case.seen, "ns1", case.machines, ratio=case.ratio, at_once=case.several, growth=case.growth)
    (quota,) = found.quotas
    memory = quota.needs["limits.memory"]
    others = 1024**3
    assert memory.others.value() == others
    wanted = [case.run + others, case.largest + others, case.at_once + others]
    got = [memory.run.value(), memory.largest.value(), memory.at_once.value()]
    if case.growth is not None:  # the overhead of a request that has grown in proportion comes on top
        assert all(0 <= more - least < 64 * 1024**2 for more, least in zip(got, wanted, strict=True))
    else:
        assert got == wanted


def test_a_vm_that_is_halted_is_to_run_too() -> None:
    halted = vm(status="Stopped", spec={"runStrategy": "Halted"})
    seen = replace(namespace(), instances=[], pods=[])
    found = sizes(seen, "ns1", [halted])
    (quota,) = found.quotas
    cpu = quota.needs["limits.cpu"]
    assert found.vms == ["vm1"]
    assert cpu.run - cpu.others == Quantity.parse("2015m")


def test_the_claim_of_a_state_is_needed_twice_only_while_its_vm_migrates() -> None:
    instance = with_state(running_vmi("vm1"))
    hard = {"persistentvolumeclaims": "5", "services": "1"}
    full = quota(hard, MARKS, used={"persistentvolumeclaims": "3"})
    seen = replace(cluster([full], [], [launcher(instance)], [instance]), claims=[claim("state-1")])
    (need,) = sizes(seen, "ns1").quotas[0].needs.values()
    assert [str(each) for each in (need.run, need.largest, need.at_once)] == ["3", "4", "4"]


def test_a_vm_that_is_not_there_cannot_grow() -> None:
    with pytest.raises(NotSized, match="there is no VM gone in namespace ns1"):
        sizes(namespace(), "ns1", growth=Growth("gone", Quantity.parse("4")))


def test_what_headroom_has_added_is_no_limit_to_plan_with() -> None:
    instance = running_vmi("vm1")
    pods = [launcher(instance), launcher(instance, migration=vmim("Running"), node="node-2")]
    raised = charged(quota(RAISED, {**MARKS, by_name(): ENTRY}), pods)
    (found,) = sizes(cluster([raised], [vmim("Running")], pods, [instance]), "ns1").quotas
    assert str(found.needs["limits.cpu"].limited) == "3"
