"""Which of a VM's pods is where it lives, where it goes, and what is left over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pytest

from pkg.api.core import Pod
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.api.meta import OwnerReference
from pkg.util.resourcequota.sides import Side, assign, launcher_owner, sides_by_vm
from tests.pkg.util.resourcequota.pods import attachment, ended, launcher
from tests.pkg.util.resourcequota.world import sentences, vmi, vmim

FIRST = vmim("Running", name="first")
SECOND = vmim("Running", name="second")
HERE, THERE = vmi(nodeName="node-1"), vmi(nodeName="node-2")
SOURCE = launcher(node="node-1")
TARGET = launcher(node="node-2", migration=FIRST, created="2026-01-01T00:01:00Z")
NEXT = launcher(node="node-3", migration=SECOND, created="2026-01-01T00:02:00Z")
ANOTHER = launcher(node="node-1", migration=SECOND, created="2026-01-01T00:02:00Z")


def of_earlier_vmi(pod: Pod) -> Pod:
    labels = {**pod.labels, "kubevirt.io/created-by": "uid-of-an-earlier-vmi"}
    metadata = msgspec.structs.replace(pod.metadata, labels=labels, name="earlier", uid="uid-earlier")
    return msgspec.structs.replace(pod, metadata=metadata)


@dataclass(frozen=True)
class Placed:
    """The VM's pods and migrations under way, and which side is which."""

    pods: Sequence[Pod]
    instance: VirtualMachineInstance | None
    migrations: Sequence[str]
    main: Pod | None
    target: Pod | None = None
    old: Sequence[Pod] = ()


RUNNING = [FIRST.uid]
OVER: list[str] = []
PLACED = {
    "no pods, no sides": Placed([], HERE, RUNNING, None),
    "a VM that does not migrate lives in its one pod": Placed([SOURCE], HERE, OVER, SOURCE),
    "before the target exists the source is where it lives": Placed([SOURCE], HERE, RUNNING, SOURCE),
    "while it migrates the pod of the migration is the target": Placed(
        [SOURCE, TARGET], HERE, RUNNING, SOURCE, TARGET
    ),
    "once it has moved the source is left over": Placed(
        [SOURCE, TARGET], THERE, OVER, TARGET, None, [SOURCE]
    ),
    "it has moved although its migration does not say so yet": Placed(
        [SOURCE, TARGET], THERE, RUNNING, TARGET, None, [SOURCE]
    ),
    "the migration is over and the VMI does not say yet where it lives": Placed(
        [SOURCE, TARGET], vmi(), OVER, TARGET, None, [SOURCE]
    ),
    "it failed: the target is left over": Placed([SOURCE, TARGET], HERE, OVER, SOURCE, None, [TARGET]),
    "the source is gone: the target is where it lives": Placed([TARGET], THERE, OVER, TARGET),
    "the source is gone before its migration is over": Placed([TARGET], THERE, RUNNING, TARGET),
    "a source that succeeded does not count": Placed([ended(SOURCE), TARGET], THERE, OVER, TARGET),
    "a target that failed does not count": Placed([SOURCE, ended(TARGET, "Failed")], HERE, OVER, SOURCE),
    "on to the next before the first source is gone": Placed(
        [SOURCE, TARGET, NEXT], THERE, [SECOND.uid], TARGET, NEXT, [SOURCE]
    ),
    "back to the node of the first source while that still counts": Placed(
        [SOURCE, TARGET, ANOTHER], THERE, [SECOND.uid], TARGET, ANOTHER, [SOURCE]
    ),
    "and arrived there: the newest pod on the node": Placed(
        [SOURCE, TARGET, ANOTHER], HERE, OVER, ANOTHER, None, [SOURCE, TARGET]
    ),
    "two old sides at once": Placed(
        [SOURCE, TARGET, NEXT], vmi(nodeName="node-3"), OVER, NEXT, None, [SOURCE, TARGET]
    ),
    "a pod of an earlier VMI of that name is left over": Placed(
        [of_earlier_vmi(SOURCE), SOURCE], HERE, OVER, SOURCE, None, [of_earlier_vmi(SOURCE)]
    ),
    "the VMI is not known: the newest pod that is no target": Placed(
        [SOURCE, TARGET], None, RUNNING, SOURCE, TARGET
    ),
    "the VMI is gone, its pods are not": Placed([SOURCE, TARGET], None, OVER, TARGET, None, [SOURCE]),
}


@sentences(PLACED)
@pytest.mark.parametrize("turned", [False, True], ids=["as listed", "listed the other way round"])
def test_placed(case: Placed, turned: bool) -> None:
    pods = list(reversed(case.pods)) if turned else case.pods
    placed = assign(sides_by_vm(pods).get("vm1", ()), case.instance, set(case.migrations))
    assert (placed.main and placed.main.launcher.name) == (case.main and case.main.name)
    assert (placed.target and placed.target.launcher.name) == (case.target and case.target.name)
    assert sorted(side.launcher.name for side in placed.old) == sorted(pod.name for pod in case.old)


# ---- attachment pods -----------------------------------------------------------------------------------------


def test_an_attachment_pod_is_on_the_side_of_the_launcher_that_owns_it() -> None:
    pods = [attachment(TARGET), SOURCE, attachment(SOURCE), TARGET]
    placed = assign(sides_by_vm(pods)["vm1"], HERE, set(RUNNING))
    assert placed.main == Side(SOURCE, (attachment(SOURCE),))
    assert placed.target == Side(TARGET, (attachment(TARGET),))


def test_an_attachment_pod_that_is_over_does_not_count() -> None:
    (side,) = sides_by_vm([SOURCE, attachment(SOURCE, phase="Succeeded")])["vm1"]
    assert side.attachments == ()


def test_an_attachment_pod_that_outlives_its_launcher_is_left_over() -> None:
    pods = [ended(SOURCE), attachment(SOURCE), TARGET]
    placed = assign(sides_by_vm(pods)["vm1"], THERE, OVER)
    assert placed.main == Side(TARGET)
    assert placed.old == (Side(ended(SOURCE), (attachment(SOURCE),)),)


def test_of_a_vm_that_has_stopped_nothing_is_left_over_but_its_last_side() -> None:
    placed = assign(sides_by_vm([ended(SOURCE), attachment(SOURCE)])["vm1"], HERE, OVER)
    assert placed.main == Side(ended(SOURCE), (attachment(SOURCE),))
    assert placed.old == ()


def test_an_attachment_pod_of_nobody_is_left_out() -> None:
    assert not sides_by_vm([attachment(SOURCE)])


# ---- whose pod -----------------------------------------------------------------------------------------------


def naming(owner: str | None, annotation: str | None, label: str | None) -> Pod:
    owners = [OwnerReference(kind="VirtualMachineInstance", name=owner)] if owner else None
    metadata = msgspec.structs.replace(
        SOURCE.metadata,
        owner_references=owners,
        annotations={"kubevirt.io/domain": annotation} if annotation else None,
        labels={"kubevirt.io": "virt-launcher", **({"vm.kubevirt.io/name": label} if label else {})},
    )
    return msgspec.structs.replace(SOURCE, metadata=metadata)


OWNERS = {
    "its owner beats all else, a label is cut at 63 characters": (naming("vm1", "x", "y"), "vm1"),
    "without owner the annotation": (naming(None, "vm1", "y"), "vm1"),
    "without both the label": (naming(None, None, "vm1"), "vm1"),
    "nobody": (naming(None, None, None), ""),
}


@sentences(OWNERS)
def test_whose_launcher_pod_it_is(case: tuple[Pod, str]) -> None:
    pod, owner = case
    assert launcher_owner(pod) == owner


def test_pods_that_are_no_vms_are_left_out() -> None:
    metadata = msgspec.structs.replace(SOURCE.metadata, labels={"app": "web"})
    assert not sides_by_vm([msgspec.structs.replace(SOURCE, metadata=metadata)])


def test_sides_are_by_vm() -> None:
    other = launcher(vmi("vm2"))
    assert {
        name: [side.launcher.name for side in found] for name, found in sides_by_vm([other, SOURCE]).items()
    } == {
        "vm1": [SOURCE.name],
        "vm2": [other.name],
    }
