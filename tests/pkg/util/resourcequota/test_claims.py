"""What each VM of a namespace claims: left over, target, and still to come (issue 5: exact)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from pkg.api.core import Pod
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util.quantity import Quantity
from pkg.util.resourcequota.claims import claims, entry_of
from pkg.util.resourcequota.model import EstimateKind, Mode, Policy
from tests.pkg.util.resourcequota.pods import (
    AT_4_5,
    EXACT,
    attachment,
    ended,
    launcher,
    machine,
    namespace,
)
from tests.pkg.util.resourcequota.world import quota, sentences, vmi, vmim

HARVESTER = Policy(Mode.TAKEOVER, EstimateKind.HARVESTER)
HERE, THERE = vmi(nodeName="node-1"), vmi(nodeName="node-2")
PLUGGED = machine(
    {"resources": {"limits": {"cpu": "2", "memory": "4Gi"}, "requests": {"memory": "2730Mi"}}},
    volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "c", "hotpluggable": True}}],
)
MOVE = vmim("Running")
SOURCE = launcher()
TARGET = launcher(node="node-2", migration=MOVE, created="2026-01-01T00:01:00Z")
POD, ATTACHMENT = 2015, 100
"""limits.cpu of a launcher and of an attachment pod, milli-CPU."""


@dataclass(frozen=True)
class Claimed:
    """A VM's migrations and pods; limits.cpu of its claim by part, in milli-CPU."""

    migrations: Sequence[VirtualMachineInstanceMigration]
    pods: Sequence[Pod]
    instance: VirtualMachineInstance | None = HERE
    left_over: int = 0
    target: int = 0
    future: int = 0


CLAIMED = {
    "pending: all is still to come": Claimed([vmim()], [SOURCE], future=POD),
    "pending, its pod is not known": Claimed([vmim()], [], future=POD),
    "pending with a hotplugged volume": Claimed(
        [vmim()], [SOURCE, attachment(SOURCE)], PLUGGED, future=POD + ATTACHMENT
    ),
    "the launcher is there, its attachment pod is not": Claimed(
        [vmim("Scheduling")], [SOURCE, attachment(SOURCE), TARGET], PLUGGED, target=POD, future=ATTACHMENT
    ),
    "both are there": Claimed(
        [vmim("Scheduled")],
        [SOURCE, attachment(SOURCE), TARGET, attachment(TARGET)],
        PLUGGED,
        target=POD + ATTACHMENT,
    ),
    "it runs without an attachment pod: none will come": Claimed(
        [MOVE], [SOURCE, TARGET], PLUGGED, target=POD
    ),
    "it has moved before its migration says so": Claimed([MOVE], [SOURCE, TARGET], THERE, left_over=POD),
    "it is over: the source is left": Claimed([vmim("Succeeded")], [SOURCE, TARGET], THERE, left_over=POD),
    "it is over and the source is too": Claimed([vmim("Succeeded")], [ended(SOURCE), TARGET], THERE),
    "no VMI, nothing to come": Claimed([vmim()], [SOURCE], None),
    "an abort of a pending one: nothing to come": Claimed([vmim(abort=True)], [SOURCE]),
    "an abort of a running one: the target is there": Claimed(
        [vmim("Running", abort=True)], [SOURCE, TARGET], target=POD
    ),
    "one is left over, the next is to come": Claimed(
        [vmim("Succeeded"), vmim(name="next")], [SOURCE, TARGET], THERE, left_over=POD, future=POD
    ),
}


@sentences(CLAIMED)
def test_claims(case: Claimed) -> None:
    instances = [case.instance] if case.instance else []
    found = claims(namespace(quota(), case.migrations, case.pods, instances), EXACT)
    claim = found.by_vm["vm1"]
    for part, milli in (
        (claim.left_over, case.left_over),
        (claim.target, case.target),
        (claim.future, case.future),
        (claim.exact, case.left_over + case.target + case.future),
    ):
        assert part.get("limits.cpu", Quantity.of(0)) == Quantity.parse(f"{milli}m")
    assert entry_of(claim, EXACT) == claim.exact


def test_under_harvesters_estimate_the_entry_is_its_number_while_the_vm_migrates() -> None:
    seen = namespace(quota(), [MOVE], [SOURCE, TARGET], [HERE])
    value = entry_of(claims(seen, HARVESTER).by_vm["vm1"], HARVESTER)
    assert value == {"limits.cpu": Quantity.parse("2"), "limits.memory": Quantity.parse(4737464313)}


def test_under_harvesters_estimate_a_vm_that_has_moved_claims_only_the_pod_that_it_left() -> None:
    """KubeVirt moves the VMI's node before the migration says Succeeded: its number and the old pod are one thing."""
    seen = namespace(quota(), [MOVE], [SOURCE, TARGET], [THERE])
    found = claims(seen, HARVESTER)
    value = entry_of(found.by_vm["vm1"], HARVESTER)
    assert (value["limits.cpu"], value["limits.memory"]) == (
        Quantity.parse("2015m"),
        Quantity.parse(4797464313),
    )
    assert not found.problems


@pytest.mark.parametrize(("policy", "said"), [(HARVESTER, ["MigrationNotScaled"]), (EXACT, [])])
def test_a_vm_without_limits_is_harvesters_problem_only(policy: Policy, said: list[str]) -> None:
    bare = machine({"resources": {"requests": {"memory": "1Gi"}}})
    found = claims(namespace(quota(), [vmim()], [], [bare]), policy)
    assert [problem.reason for problem in found.problems] == said


def test_a_vm_whose_quantities_are_garbage_is_left_out_and_said_and_others_go_on() -> None:
    broken = vmi(limits={"memory": "lots"})
    found = claims(namespace(quota(), [vmim(), vmim(vm="vm2")], [], [broken, vmi("vm2")]), EXACT)
    assert list(found.by_vm) == ["vm2"]
    (problem,) = found.problems
    assert "VM vm1" in str(problem)


def test_since_is_the_oldest_migration_under_way() -> None:
    migrations = [
        vmim("Succeeded", name="a", created="2026-01-01T00:00:00Z"),
        vmim(name="b", created="2026-01-03T00:00:00Z"),
        vmim("Running", name="c", created="2026-01-02T00:00:00Z"),
    ]
    claim = claims(namespace(quota(), migrations, [SOURCE], [HERE]), EXACT).by_vm["vm1"]
    assert claim.since == "2026-01-02T00:00:00Z"


def versioned(pod: Pod, version: str) -> Pod:
    import msgspec

    return msgspec.structs.replace(
        pod, metadata=msgspec.structs.replace(pod.metadata, resource_version=version)
    )


def test_what_is_worked_out_once_for_a_version_is_worked_out_anew_for_the_next() -> None:
    import msgspec

    instance = msgspec.structs.replace(
        HERE, metadata=msgspec.structs.replace(HERE.metadata, resource_version="7", uid="cached")
    )
    seen = namespace(quota(), [vmim()], [versioned(SOURCE, "1")], [instance])

    def memory_of(changed: object) -> Quantity:
        return claims(changed, EXACT).by_vm["vm1"].future["limits.memory"]  # type: ignore[arg-type]

    assert memory_of(seen) == memory_of(seen) == Quantity.parse(4797464313)
    assert memory_of(replace(seen, rendering=AT_4_5)) == Quantity.parse(5682461313)
    grown = launcher(rendering=AT_4_5)
    assert memory_of(replace(seen, pods=[versioned(grown, "2")], rendering=AT_4_5)) == Quantity.parse(
        5682461313
    )
    assert memory_of(seen) == Quantity.parse(4797464313)
