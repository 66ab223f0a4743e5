"""The pods that are trusted as sides of a VM, those that KubeVirt names and nothing that a tenant can write; the
trusted fields of a VMI's status, which no module reads past `evidence`."""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kubeloop.api.core import Pod, ResourceQuotaSpec
from kubeloop.api.quantity import Quantity
from kubeloop.api.resource_list import smallest
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration, VirtualMachineInstanceStatus
from pkg.util.kubevirt.evidence import trusted_status, vm_of
from pkg.util.kubevirt.profiles import PROFILES
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.kubevirt.sides import ControlledPods, Sides, sides_of
from pkg.util.kubevirt.target import bound_of, bounded_usage
from pkg.util.quotacount.usage import charged_until, pod_usage
from tests.decisions import by_value, sentences
from tests.kinds import edited
from tests.objects import AT_1_5, attachment, controlled_by, ended, launcher, machine, vmi, vmim

HERE, THERE = vmi(nodeName="node-1"), vmi(nodeName="node-2")
MOVE = vmim("Running", name="move", created="2026-01-01T00:00:30Z")
SOURCE = launcher(node="node-1", created="2026-01-01T00:00:00Z")
TARGET = launcher(node="node-2", migration=MOVE, created="2026-01-01T00:00:31Z")
LIMITS = ResourceQuotaSpec(hard={"limits.cpu": "9", "limits.memory": "9Gi"})


def changed(pod: Pod, *, name: str = "forged", node: str | None = None, **metadata: Any) -> Pod:
    fields = {"name": name, "uid": f"uid-{name}", **metadata}
    return edited(pod, metadata=fields, spec={"nodeName": node or pod.spec.node_name})


def move(
    phase: str = "Running", source: Pod | None = SOURCE, target: Pod | None = None, node: str | None = None
) -> Any:
    """A migration as virt-controller writes its status; `node`: the source's."""
    source_pod, target_pod = (pod.name if pod else None for pod in (source, target))
    state = {"sourcePod": source_pod, "sourceNode": node, "targetPod": target_pod}
    return edited(vmim(phase, name="move", created="2026-01-01T00:00:30Z"), status={"migrationState": state})


def with_state(
    instance: VirtualMachineInstance,
    source: Pod | None = SOURCE,
    target: Pod = TARGET,
    uid: str = MOVE.uid,
    source_node: str | None = None,
) -> Any:
    """The VMI once the migration was handed over to virt-handler."""
    names = {"sourcePod": source.name if source else None, "targetPod": target.name, "sourceNode": source_node}
    return edited(instance, status={"migrationState": {"migrationUid": uid, **names}})


def phased(instance: VirtualMachineInstance, phase: str) -> VirtualMachineInstance:
    return edited(instance, status={"phase": phase})


NOT_CONTROLLED = changed(TARGET, ownerReferences=None)
OF_ANOTHER_VMI = changed(TARGET, ownerReferences=controlled_by("VirtualMachineInstance", "vm1", "uid-earlier"))
OWNED_ONLY = changed(TARGET, ownerReferences=[{"kind": "VirtualMachineInstance", "name": "vm1", "uid": "uid-vm1"}])
YOUNG = changed(SOURCE, creationTimestamp="2026-01-01T00:00:40Z")
OLD = changed(SOURCE, creationTimestamp="2026-01-01T00:00:10Z")
SAME_SECOND = changed(SOURCE, creationTimestamp="2026-01-01T00:00:30Z")
AGAIN = changed(SOURCE, name=SOURCE.name, creationTimestamp="2026-01-01T00:05:00Z")
UNLABELLED = changed(TARGET, name=TARGET.name, labels={"kubevirt.io": "virt-launcher"})
LABELLED = changed(SOURCE, name=SOURCE.name, labels=TARGET.labels)
SECOND, BESIDE = changed(TARGET, name="z"), changed(TARGET, node="node-1")
NAMED_LIKE_THE_TARGET = changed(TARGET, name=TARGET.name, creationTimestamp="2026-01-01T00:05:00Z")
SUCCEEDED, FAILED = move("Succeeded", target=TARGET), move("Failed", target=TARGET)


def ended_at(migration: VirtualMachineInstanceMigration, timestamp: str) -> VirtualMachineInstanceMigration:
    stamps = [{"phase": migration.phase, "phaseTransitionTimestamp": timestamp}]
    return edited(migration, status={"phaseTransitionTimestamps": stamps})


@dataclass(frozen=True)
class Vouched:
    """The VM's pods and migrations, and which of the pods are believed to be what."""

    pods: Sequence[Pod]
    instance: VirtualMachineInstance | None
    migrations: Sequence[VirtualMachineInstanceMigration] = ()
    home: Sequence[Pod] = ()
    target: Sequence[Pod] = ()
    old: Sequence[Pod] = ()
    arrived: bool = False


VOUCHED = {
    "no pods, no sides": Vouched([], HERE, [move("Pending")]),
    "a VM that does not migrate lives in the pod on its node": Vouched([SOURCE], HERE, home=[SOURCE]),
    "before the target exists there is a source": Vouched([SOURCE], HERE, [move("Pending")], [SOURCE]),
    "a target that is not handed over yet": Vouched([SOURCE, TARGET], HERE, [move("Scheduling")], [SOURCE], [TARGET]),
    "a target that the VMI names": Vouched([SOURCE, UNLABELLED], with_state(HERE), [move()], [SOURCE], [UNLABELLED]),
    "a label beside the target that is named": Vouched(
        [SOURCE, TARGET, changed(TARGET)], with_state(HERE), [move()], [SOURCE], [TARGET]
    ),
    "two that KubeVirt would take for the target": Vouched(
        [SOURCE, TARGET, SECOND], HERE, [move("Scheduling")], [SOURCE], [TARGET, SECOND]
    ),
    "a label of a migration that is over": Vouched([SOURCE, TARGET], HERE, [move("Failed")], [SOURCE]),
    "a target that is older than its migration": Vouched(
        [SOURCE, changed(TARGET, creationTimestamp="2026-01-01T00:00:29Z")], HERE, [move("Scheduling")], [SOURCE]
    ),
    "it has arrived: the source is left": Vouched(
        [SOURCE, TARGET], with_state(THERE), [move()], [TARGET], (), [SOURCE], arrived=True
    ),
    "it has arrived and the source is gone": Vouched([TARGET], with_state(THERE), [move()], [TARGET], arrived=True),
    "it has arrived and the source is over": Vouched(
        [ended(SOURCE), TARGET], with_state(THERE), [move()], [TARGET], arrived=True
    ),
    "succeeded: the source is left": Vouched([SOURCE, TARGET], THERE, [SUCCEEDED], [TARGET], (), [SOURCE]),
    "succeeded, and the VMI alone names the source": Vouched(
        [SOURCE, TARGET], with_state(THERE), [move("Succeeded", source=None)], [TARGET], (), [SOURCE]
    ),
    "succeeded, and the VMI alone names the source's node": Vouched(
        [SOURCE, TARGET],
        with_state(THERE, source=None, source_node="node-1"),
        [move("Succeeded", source=None)],
        [TARGET],
        (),
        [SOURCE],
    ),
    "an attachment pod outlives its launcher for a moment": Vouched(
        [ended(SOURCE), attachment(SOURCE), TARGET], THERE, [SUCCEEDED], [TARGET], (), [SOURCE]
    ),
    "failed: the target is left": Vouched([SOURCE, TARGET], HERE, [FAILED], [SOURCE], (), [TARGET]),
    "its migration is deleted, the VMI names the pod that it lives in": Vouched(
        [SOURCE, TARGET], with_state(THERE), [], [TARGET], (), [SOURCE]
    ),
    "a VMI that was created with a state that names another pod": Vouched(
        [TARGET, OLD], with_state(THERE, source=OLD, target=changed(TARGET, name="guessed")), [], [TARGET]
    ),
    "a VMI that is not running": Vouched([SOURCE], phased(HERE, "Scheduling"), [move("Pending")]),
    "a VMI that is over, both pods are named": Vouched(
        [SOURCE, TARGET], phased(THERE, "Failed"), [SUCCEEDED], [TARGET], (), [SOURCE]
    ),
    "no VMI, both pods are named": Vouched([SOURCE, TARGET], None, [FAILED], [TARGET], (), [SOURCE]),
    "no VMI, one pod is named": Vouched([SOURCE, TARGET], None, [move("Pending")]),
    "a pod that no VMI controls": Vouched([SOURCE, NOT_CONTROLLED], HERE, [move("Scheduling")], [SOURCE]),
    "a pod that another VMI controls": Vouched([SOURCE, OF_ANOTHER_VMI], HERE, [move("Scheduling")], [SOURCE]),
    "a pod that the VMI owns and does not control": Vouched([SOURCE, OWNED_ONLY], HERE, [move("Scheduling")], [SOURCE]),
    "a pod on the VM's node that is younger than the migration": Vouched(
        [SOURCE, YOUNG], HERE, [move("Pending")], [SOURCE]
    ),
    "one that is not: both qualify": Vouched([SOURCE, OLD], HERE, [move("Pending")], [SOURCE, OLD]),
    "whole seconds: the same one fits": Vouched([SOURCE, SAME_SECOND], HERE, [move("Pending")], [SOURCE, SAME_SECOND]),
    "KubeVirt was fooled about the source: both qualify": Vouched(
        [SOURCE, OLD], HERE, [move("Pending", source=OLD)], [SOURCE, OLD]
    ),
    "a pod that has taken the source's name": Vouched([AGAIN, TARGET], THERE, [SUCCEEDED], [TARGET]),
    "a pod that has taken the source's name while the migration waits": Vouched([AGAIN], HERE, [move("Pending")]),
    "a pod that has taken a failed target's name": Vouched(
        [SOURCE, NAMED_LIKE_THE_TARGET], HERE, [ended_at(FAILED, "2026-01-01T00:01:00Z")], [SOURCE]
    ),
    "the target itself has not": Vouched(
        [SOURCE, TARGET], HERE, [ended_at(FAILED, "2026-01-01T00:01:00Z")], [SOURCE], (), [TARGET]
    ),
    "one of the second in which its migration failed neither": Vouched(
        [SOURCE, TARGET], HERE, [ended_at(FAILED, "2026-01-01T00:00:31Z")], [SOURCE], (), [TARGET]
    ),
    "another pod on another node": Vouched([SOURCE, changed(SOURCE, node="node-7")], HERE, home=[SOURCE]),
    "a source that carries the label of its own migration": Vouched([LABELLED], HERE, [move("Pending")], [LABELLED]),
    "a forged target on the source's own node is no arrival": Vouched(
        [SOURCE, BESIDE], HERE, [move("Scheduling")], [SOURCE], [BESIDE]
    ),
    "it has arrived where a tenant's older pod waits": Vouched(
        [SOURCE, TARGET, changed(OLD, node="node-2")],
        with_state(THERE, source_node="node-1"),
        [move()],
        [TARGET],
        (),
        [SOURCE],
        arrived=True,
    ),
    "a release that names no source pod names its node": Vouched(
        [SOURCE, TARGET, changed(OLD, node="node-7")],
        THERE,
        [move("Succeeded", source=None, target=TARGET, node="node-1")],
        [TARGET],
        (),
        [SOURCE],
    ),
}


def names(sides: Sequence[Any]) -> list[str]:
    return sorted(side.launcher.name for side in sides)


@pytest.mark.parametrize("pods", [[SOURCE, OLD], [OLD, SOURCE]], ids=["oldest first", "oldest last"])
def test_the_oldest_side_is_first_whatever_the_order_of_the_pods(pods: list[Pod]) -> None:
    sides = sides_of(HERE, [move("Pending")], ControlledPods(pods))
    assert [side.launcher for side in sides.source] == [SOURCE, OLD]


@sentences(VOUCHED)
def test_vouched(case: Vouched) -> None:
    sides = sides_of(case.instance, case.migrations, ControlledPods(case.pods))
    assert names(sides.source) == sorted(pod.name for pod in case.home)
    assert names(sides.target) == sorted(pod.name for pod in case.target)
    assert names(sides.leftovers) == sorted(pod.name for pod in case.old)
    assert sides.has_arrived is case.arrived


# ---- what counts ---------------------------------------------------------------------------------------------

NOON = 1767268800.0


def deleted(pod: Pod, timestamp: str = "2026-01-01T12:00:00Z", grace: int | None = 30) -> Pod:
    return changed(pod, name=pod.name, deletionTimestamp=timestamp, deletionGracePeriodSeconds=grace)


def test_a_pod_counts_until_its_grace_is_over() -> None:
    pods = [deleted(SOURCE), TARGET]
    during = sides_of(THERE, [SUCCEEDED], ControlledPods(pods, NOON + 30))
    assert names(during.leftovers) == [SOURCE.name]
    assert charged_until(during.leftovers[0].launcher) == NOON + 30
    assert not sides_of(THERE, [SUCCEEDED], ControlledPods(pods, NOON + 31)).leftovers


@pytest.mark.parametrize("pod", [deleted(SOURCE, grace=None), ended(deleted(SOURCE))], ids=["no grace", "ended"])
def test_of_other_deleted_pods_no_moment_is_known(pod: Pod) -> None:
    assert charged_until(pod) is None


def test_attachment_pods_are_their_controllers_one_a_side() -> None:
    forged = changed(attachment(SOURCE), name="hp-forged", creationTimestamp="2026-01-01T00:09:00Z")
    sides = sides_of(HERE, [], ControlledPods([SOURCE, forged, attachment(SOURCE)]))
    (side,) = sides.source
    assert [pod.name for pod in side.attachments] == [attachment(SOURCE).name]


def test_a_pod_without_kubevirts_label_is_no_launcher() -> None:
    assert sides_of(HERE, [], ControlledPods([changed(SOURCE, labels=None)])) == Sides()
    assert vm_of(changed(SOURCE, labels=None)) == ""
    assert vm_of(SOURCE) == "vm1"


# ---- what it is worth ----------------------------------------------------------------------------------------


def test_the_smallest_of_several_counts_resource_by_resource() -> None:
    smallest_usage = smallest([by_value({"a": "3", "b": "1", "c": "1"}), by_value({"a": "2", "b": "5"})])
    assert smallest_usage == by_value({"a": "2", "b": "1"})
    assert smallest([]) == {}


@pytest.mark.parametrize("release", PROFILES)
@pytest.mark.parametrize("ratio", ["", "1.5", "10"])
def test_what_any_known_release_renders_is_within_the_bound(release: str, ratio: str) -> None:
    pod = launcher(HERE, rendering=Rendering(ratio), profile=PROFILES[release])
    usage = pod_usage(pod)
    assert bounded_usage(usage, bound_of(HERE, AT_1_5, LIMITS).launcher, HERE) == usage


def test_what_exceeds_the_bound_does_not_count() -> None:
    big = {"limits.cpu": Quantity.parse("500"), "limits.memory": Quantity.parse("1Pi"), "pods": Quantity.of(1)}
    bound = bound_of(HERE, AT_1_5, LIMITS).launcher
    limited = bounded_usage(big, bound, HERE)
    assert limited["limits.cpu"] == Quantity.parse("2015m")
    assert limited["limits.memory"] < Quantity.parse("8Gi")


def test_a_networks_extended_resource_counts_once_an_interface() -> None:
    usage = {"requests.intel.com/sriov": Quantity.of(5)}
    networked = machine({"devices": {"interfaces": [{"name": "a"}, {"name": "b"}]}})
    assert bounded_usage(usage, {}, networked) == {"requests.intel.com/sriov": Quantity.of(2)}
    assert bounded_usage(usage, {}, HERE) == {"requests.intel.com/sriov": Quantity.of(0)}


# ---- the trusted fields of a VMI's status, and that no module reads one past evidence ------------------------

PKG = Path(__file__).parents[4] / "pkg"
ALLOWED = {
    PKG / "util/kubevirt/evidence.py",
    PKG / "config/slim.py",  # keeps one copy of equal strings, and decides nothing
}
FORGED: dict[str, Any] = {
    "nodeName": "node-1",
    "migrationState": {"completed": True},
    "conditions": [{"type": "LiveMigratable"}],
}
PHASES = {
    "one that runs": ("Running", True),
    "one that no virt-api was asked about": (None, True),
    "one that was just created": ("Pending", False),
    "one that is being started": ("Scheduled", False),
    "one that has ended, perhaps without having run": ("Failed", False),
    "a phase that newer KubeVirt adds": ("WaitingForSync", False),
}


@sentences(PHASES, "phase, is_trusted")
def test_a_status_is_trusted_while_the_vmi_runs(phase: str | None, is_trusted: bool) -> None:
    instance = vmi(**(FORGED | {"phase": phase}))
    expected = instance.status if is_trusted else VirtualMachineInstanceStatus(phase=phase)
    assert trusted_status(instance) == expected


_A_VMI = re.compile(r"\bVirtualMachineInstance\b")
_OWN_FIELDS = {"node_name", "memory", "volume_status", "changed_block_tracking", "migrated_volumes"}
"""Fields that no other status has."""


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def reads(source: str) -> set[int]:
    """The lines of a module that read the status of something that is a VMI by its annotation, by its name, or by the
    collection that it comes from, in the same function."""
    module = ast.parse(source)
    statements = [node for node in module.body if not isinstance(node, (*_FUNCTIONS, ast.ClassDef))]
    functions = [node for node in ast.walk(module) if isinstance(node, _FUNCTIONS)]
    return {line for scope in (ast.Module(statements, []), *functions) for line in _reads(scope)}


def _reads(tree: ast.AST) -> Iterator[int]:
    names = {"vmi", "instance"}
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation and _A_VMI.search(ast.unparse(node.annotation)):
            names.add(node.arg)
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.comprehension)) and _has(node.iter, names | {"instances"}):
            names |= {name_node.id for name_node in ast.walk(node.target) if isinstance(name_node, ast.Name)}
        elif isinstance(node, ast.Assign) and _has(node.value, {"instances"}):
            names |= {
                name_node.id
                for target in node.targets
                for name_node in ast.walk(target)
                if isinstance(name_node, ast.Name)
            }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute):
            continue
        owner = node.value
        is_vmi = isinstance(owner, (ast.Name, ast.Attribute)) and _name(owner) in names
        is_own_field = node.attr in _OWN_FIELDS and isinstance(owner, ast.Attribute) and owner.attr == "status"
        if (node.attr == "status" and is_vmi) or is_own_field:
            yield node.lineno


def _name(node: ast.Name | ast.Attribute) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr


def _has(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(child, (ast.Name, ast.Attribute)) and _name(child) in names for child in ast.walk(node))


READS = {
    "def f(x: VirtualMachineInstance | None): return x.status.phase": True,
    "def f(x: Sequence[VirtualMachineInstance]): return [each.status for each in x]": True,
    "found = snapshot.instances.get(name='a'); found.status": True,
    "for key, value in facts.instances.items():\n    value.status": True,
    "missing.vmi.status": True,
    "each.status.volume_status": True,
    "def f(x: VirtualMachineInstanceMigration): return x.status.phase": False,
    "pod.status.phase, pod.spec.node_name, trusted_status(vmi).node_name": False,
}


@pytest.mark.parametrize("source", READS)
def test_the_rule_finds_a_read(source: str) -> None:
    assert bool(reads(source)) is READS[source]


def test_no_module_reads_a_vmis_status_past_evidence() -> None:
    readers = {
        f"{path.relative_to(PKG.parent)}:{line}: ask pkg.util.kubevirt.evidence.trusted_status"
        for path in PKG.rglob("*.py")
        if path not in ALLOWED
        for line in reads(path.read_text("utf-8"))
    }
    assert not readers
