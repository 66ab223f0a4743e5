"""What each VM of a namespace may have beyond the base: left over, target, and still to come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import pytest

from kubeloop.api.core import Pod
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util.kubevirt.migration import Stage
from pkg.util.quantity import Quantity
from pkg.util.resourcequota.base import base_of
from pkg.util.resourcequota.errors import ResourceQuotaError
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from pkg.util.resourcequota.vm import Vm
from pkg.util.resourcequota.vms import vms_of
from tests.decisions import EXACT, namespace, sentences
from tests.objects import AT_1_5, AT_4_5, attachment, ended, launcher, machine, quota, vmi, vmim

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


def asked(seen: Facts, policy: Policy) -> tuple[dict[str, Vm], list[ResourceQuotaError]]:
    found, problems = vms_of(seen, policy, base_of(seen.quota, seen.limits, policy))
    return {vm.name: vm for vm in found}, problems


@dataclass(frozen=True)
class Claimed:
    """A VM's migrations and pods; its stage, and limits.cpu of its claim by part, in milli-CPU."""

    migrations: Sequence[VirtualMachineInstanceMigration]
    pods: Sequence[Pod]
    stage: Stage
    instance: VirtualMachineInstance | None = HERE
    left_over: int = 0
    target: int = 0
    allowed: int = 0
    to_come: int = 0
    wanted: int = 0


W, A, F, R = Stage.WANTED, Stage.ANNOUNCED, Stage.FINISHED, Stage.ARRIVED
BOTH = POD + ATTACHMENT
CLAIMED = {
    "pending: all is still to come": Claimed([vmim()], [SOURCE], W, allowed=POD, to_come=POD, wanted=POD),
    "pending, its pod is not known": Claimed([vmim()], [], A),
    "pending, its pod is over": Claimed([vmim()], [ended(SOURCE)], A),
    "pending with a hotplugged volume": Claimed(
        [vmim()], [SOURCE, attachment(SOURCE)], W, PLUGGED, allowed=BOTH, to_come=BOTH, wanted=BOTH
    ),
    "the launcher is there, its attachment pod is not": Claimed(
        [vmim("Scheduling")],
        [SOURCE, attachment(SOURCE), TARGET],
        W,
        PLUGGED,
        target=POD,
        allowed=BOTH,
        to_come=ATTACHMENT,
        wanted=BOTH,
    ),
    "both are there": Claimed(
        [vmim("Scheduled")],
        [SOURCE, attachment(SOURCE), TARGET, attachment(TARGET)],
        W,
        PLUGGED,
        target=BOTH,
        allowed=BOTH,
        wanted=BOTH,
    ),
    "it runs without an attachment pod: none will come": Claimed(
        [MOVE], [SOURCE, TARGET], W, PLUGGED, target=POD, allowed=POD, wanted=POD
    ),
    "it has moved before its migration says so": Claimed(
        [MOVE], [SOURCE, TARGET], R, THERE, left_over=POD, wanted=POD
    ),
    "it has moved and its source is over": Claimed([MOVE], [ended(SOURCE), TARGET], R, THERE),
    "it is over: the source is left": Claimed(
        [vmim("Succeeded")], [SOURCE, TARGET], F, THERE, left_over=POD, wanted=POD
    ),
    "it is over and the source is too": Claimed([vmim("Succeeded")], [ended(SOURCE), TARGET], F, THERE),
    "no VMI, nothing to come": Claimed([vmim()], [SOURCE], A, None),
    "a VMI that ends": Claimed([vmim()], [SOURCE], A, vmi(nodeName="node-1", phase="Succeeded")),
    "a VMI that has never run": Claimed([vmim()], [SOURCE], A, vmi(nodeName="node-1", phase="Pending")),
    "an abort of a pending one: nothing is wanted, but it may still come": Claimed(
        [vmim(abort=True)], [SOURCE], A, allowed=POD, to_come=POD
    ),
    "a deleted one likewise": Claimed([vmim(deleting=True)], [SOURCE], A, allowed=POD, to_come=POD),
    "an abort of a running one: the target is there": Claimed(
        [vmim("Running", abort=True)], [SOURCE, TARGET], A, target=POD, allowed=POD, wanted=POD
    ),
    "one is left over, the next is to come": Claimed(
        [vmim("Succeeded"), vmim(name="next", created="2026-01-01T00:02:00Z")],
        [SOURCE, TARGET],
        W,
        THERE,
        left_over=POD,
        allowed=POD,
        to_come=POD,
        wanted=2 * POD,
    ),
}


@sentences(CLAIMED)
def test_claims(case: Claimed) -> None:
    instances = [case.instance] if case.instance else []
    found, _problems = asked(namespace(quota(), case.migrations, case.pods, instances), EXACT)
    claim = found["vm1"]
    assert claim.stage is case.stage
    for part, milli in (
        (claim.left_over, case.left_over),
        (claim.target, case.target),
        (claim.allowed, case.allowed),
        (claim.to_come, case.to_come),
        (claim.wanted, case.wanted),
    ):
        assert part.get("limits.cpu", Quantity.of(0)) == Quantity.parse(f"{milli}m")


def test_under_harvesters_estimate_the_entry_is_its_number_while_the_vm_migrates() -> None:
    seen = namespace(quota(), [MOVE], [SOURCE, TARGET], [HERE])
    value = asked(seen, HARVESTER)[0]["vm1"].wanted
    assert value == {"limits.cpu": Quantity.parse("2"), "limits.memory": Quantity.parse(4737464313)}


def test_under_harvesters_estimate_a_vm_that_has_moved_claims_only_the_pod_that_it_left() -> None:
    """KubeVirt moves the VMI's node before the migration says Succeeded: its number and the old pod are one thing."""
    seen = namespace(quota(), [MOVE], [SOURCE, TARGET], [THERE])
    found, problems = asked(seen, HARVESTER)
    value = found["vm1"].wanted
    assert (value["limits.cpu"], value["limits.memory"]) == (
        Quantity.parse("2015m"),
        Quantity.parse(4797464313),
    )
    assert not problems


@pytest.mark.parametrize("phase", ["Pending", "Succeeded"])
def test_under_harvesters_estimate_a_vm_that_does_not_run_claims_nothing(phase: str) -> None:
    seen = namespace(quota(), [vmim()], [SOURCE], [vmi(nodeName="node-1", phase=phase)])
    claim = asked(seen, HARVESTER)[0]["vm1"]
    assert (claim.wanted, claim.upper_bound) == ({}, {})


@pytest.mark.parametrize(("policy", "said"), [(HARVESTER, ["MigrationNotScaled"]), (EXACT, [])])
def test_a_vm_without_limits_is_harvesters_problem_only(policy: Policy, said: list[str]) -> None:
    bare = machine({"resources": {"requests": {"memory": "1Gi"}}})
    _found, problems = asked(namespace(quota(), [vmim()], [], [bare]), policy)
    assert [problem.reason for problem in problems] == said


GARBAGE = ["lots", "9" * 5000, "1e2000000000", "", "٣", "1" * 200_000]


@pytest.mark.parametrize("text", GARBAGE, ids=lambda text: text[:12])
@pytest.mark.parametrize("policy", [EXACT, HARVESTER], ids=["exact", "harvester"])
def test_whatever_a_vm_says_of_itself_is_that_vms_problem(policy: Policy, text: str) -> None:
    broken, other = vmi(limits={"memory": text}, nodeName="node-1"), vmi("vm2", nodeName="node-1")
    seen = namespace(quota(), [vmim(), vmim(vm="vm2")], [launcher(HERE), launcher(other)], [broken, other])
    found, problems = asked(seen, policy)
    assert found["vm2"].wanted["limits.cpu"] > Quantity.of(1)
    (problem,) = problems
    assert problem.vm == "vm1"
    assert "VM vm1" in str(problem)
    assert len(str(problem)) < 300


@pytest.mark.parametrize("text", [*GARBAGE, "473954537", "0", "1", "1" + "0" * 14, "²", "1.5", "0x1"])
@pytest.mark.parametrize("ratio", ["1.5", "4.5"])
def test_a_forged_overhead_annotation_adds_nothing(text: str, ratio: str) -> None:
    metadata = msgspec.structs.replace(
        SOURCE.metadata, annotations={"kubevirt.io/memory-overhead-bytes": text}
    )
    forged = msgspec.structs.replace(SOURCE, metadata=metadata)
    rendering = AT_1_5 if ratio == "1.5" else AT_4_5
    honest, _ = asked(namespace(quota(), [vmim()], [SOURCE], [HERE], rendering=rendering), EXACT)
    found, problems = asked(namespace(quota(), [vmim()], [forged], [HERE], rendering=rendering), EXACT)
    assert not problems
    least, most = (each["vm1"].allowed["limits.memory"] for each in (found, honest))
    assert least <= most


def test_a_forged_attachment_pod_is_worth_no_more_than_kubevirts_own() -> None:
    real = attachment(SOURCE)
    resources = {"limits": {"cpu": "10", "memory": "50Gi"}, "requests": {"cpu": "10", "memory": "50Gi"}}
    spec = msgspec.convert({"containers": [{"name": "x", "resources": resources}]}, type(real.spec))
    forged = msgspec.structs.replace(real, spec=spec)
    honest, _ = asked(namespace(quota(), [vmim()], [SOURCE, real], [PLUGGED]), EXACT)
    found, problems = asked(namespace(quota(), [vmim()], [SOURCE, forged], [PLUGGED]), EXACT)
    assert found["vm1"].allowed == honest["vm1"].allowed
    assert [problem.reason for problem in problems] == ["PodExceedsVirtualMachine"]


def test_since_is_the_oldest_migration_under_way() -> None:
    migrations = [
        vmim("Succeeded", name="a", created="2026-01-01T00:00:00Z"),
        vmim(name="b", created="2026-01-03T00:00:00Z"),
        vmim("Running", name="c", created="2026-01-02T00:00:00Z"),
    ]
    claim = asked(namespace(quota(), migrations, [SOURCE], [HERE]), EXACT)[0]["vm1"]
    assert claim.since == "2026-01-02T00:00:00Z"


def versioned(pod: Pod, version: str) -> Pod:
    return msgspec.structs.replace(
        pod, metadata=msgspec.structs.replace(pod.metadata, resource_version=version)
    )


def test_what_is_worked_out_once_for_a_version_is_worked_out_anew_for_the_next() -> None:
    instance = msgspec.structs.replace(
        HERE, metadata=msgspec.structs.replace(HERE.metadata, resource_version="7")
    )
    seen = namespace(quota(), [vmim()], [versioned(SOURCE, "1")], [instance])

    def memory_of(changed: object) -> Quantity:
        return asked(changed, EXACT)[0]["vm1"].to_come["limits.memory"]  # type: ignore[arg-type]

    assert memory_of(seen) == memory_of(seen) == Quantity.parse(4797464313)
    assert memory_of(replace(seen, rendering=AT_4_5)) == Quantity.parse(5682461313)
    grown = launcher(rendering=AT_4_5)
    assert memory_of(replace(seen, pods=[versioned(grown, "2")], rendering=AT_4_5)) == Quantity.parse(
        5682461313
    )
    assert memory_of(seen) == Quantity.parse(4797464313)


def test_a_target_from_before_the_ratio_was_lowered_counts_as_far_as_its_source() -> None:
    """Its attachment pod, still to come, has room."""
    move = vmim("Scheduling")
    target = launcher(PLUGGED, node="node-2", migration=move, created="2026-01-01T00:01:00Z")
    pods = [launcher(PLUGGED), attachment(launcher(PLUGGED)), target]
    seen = namespace(quota(), [move], pods, [PLUGGED], rendering=replace(AT_1_5, ratio=""))
    room = asked(seen, EXACT)[0]["vm1"].allowed
    assert room["limits.memory"] == Quantity.parse(4797464313) + Quantity.parse("80M")


BARE = machine({"resources": {"requests": {"memory": "1Gi"}}})


def test_limits_that_another_quota_asks_for_are_no_reason_to_call_a_pod_too_large() -> None:
    seen = namespace(quota({"requests.memory": "9Gi"}), [vmim()], [launcher(BARE)], [BARE])
    found, problems = asked(seen, EXACT)
    assert not problems
    assert found["vm1"].allowed["limits.cpu"] == Quantity.parse("1015m")


def test_a_limit_that_spec_hard_has_just_lost_still_counts() -> None:
    """The base has it, and the same patch puts it back."""
    without = replace(AT_1_5, quota_limits=frozenset())
    seen = namespace(quota({"limits.memory": "9Gi"}), [vmim()], [launcher(BARE)], [BARE], rendering=without)
    assert asked(seen, EXACT)[0]["vm1"].allowed["limits.cpu"] == Quantity.parse("1015m")
