"""A migration's phases as a table: phase → what is done in it. Pure.

One step is one write. The next one follows from what is then observed, so that a restart anywhere goes on from there:
virt-controller's part is written into the VMIM, virt-handler's into the VMI, and a phase ends when the VMI says so.
Source for the order: kubevirt pkg/virt-controller/watch/migration (updateStatus, processMigrationPhase, sync).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Final

import msgspec

from kubeloop.api.core import EventType, Pod
from kubeloop.api.meta import Condition
from kubeloop.api.objects import condition_is_true, find_condition
from lab.kubevirt import objects
from lab.kubevirt.instance import is_running
from lab.kubevirt.objects import MigrationState, Patch, VirtualMachineInstance, VirtualMachineInstanceMigration
from lab.kubevirt.options import PACED_PHASES, MigrationOptions
from lab.kubevirt.pod import hotplugged_volumes
from lab.kubevirt.state_claims import ClaimPair
from pkg.util import constants as c

_TARGET_ADDRESS = "10.1.1.1"


@dataclass(frozen=True, slots=True)
class Write:
    """A merge patch of the VMIM, of its VMI (what virt-controller hands over and virt-handler reports) or of the target
    pod; of its status when `subresource` is "status"."""

    obj: VirtualMachineInstanceMigration | VirtualMachineInstance | Pod
    patch: Patch
    subresource: str = ""
    event: tuple[EventType, str, str] | None = None
    """The type, reason and message of an Event for the migration."""

    @property
    def phase(self) -> str:
        """The phase that the migration enters with this write, or ""."""
        phase: str = self.patch.get("status", {}).get("phase", "")
        return phase


class Create(Enum):
    """The creation of a pod: of the target as soon as the limits and quota admit it."""

    TARGET = auto()
    ATTACHMENT = auto()


@dataclass(frozen=True, slots=True)
class Wait:
    """A pause of `seconds`, or with None until something changes."""

    seconds: float | None = None


Step = Write | Create | Wait


@dataclass(frozen=True, slots=True)
class View:
    """Everything that decides a migration's next step.

    `age`: seconds since the VMIM was first seen in its phase. `rival`: another migration of the VMI is under way.
    `source`: the pod that the guest runs in. `now`: the time as written into objects.
    """

    migration: VirtualMachineInstanceMigration
    vmi: VirtualMachineInstance | None
    source: Pod | None
    target: Pod | None
    attachment: Pod | None
    options: MigrationOptions
    now: str
    age: float = 0.0
    rival: bool = False
    report_overhead: bool = False
    claims: ClaimPair | None = None
    """The claims of the VM's persistent state, if it has any."""

    @property
    def state(self) -> MigrationState:
        """The VMI's migration state if it is this migration's, else an empty one."""
        state = self.vmi.status.migration_state if self.vmi else None
        return state if state and state.migration_uid == self.migration.uid else MigrationState()

    @property
    def is_handed_over(self) -> bool:
        """Reports whether virt-handler knows of the migration: the VMI's status names it."""
        return self.state.migration_uid is not None

    @property
    def vmi_runs(self) -> bool:
        return self.vmi is not None and self.vmi.phase == c.PHASE_RUNNING and not self.vmi.deleting

    @property
    def remaining(self) -> float:
        """The seconds that the phase still has to last, to the microsecond: what is less is the clock's own error."""
        return round(self.options.hold(self.migration.phase) - self.age, 6)


def decide(view: View) -> Step:
    migration = view.migration
    if migration.phase in c.FINAL_PHASES:
        return _finish(view)
    if migration.phase and not migration.deleting and (metadata := _missing_metadata(view)):
        # In KubeVirt a webhook marks it at birth. Here Pending comes first: it is what everybody waits for.
        return Write(migration, {"metadata": metadata})
    if loss := _loss(view):
        # A VMI that lives on must not look as if it were still migrating.
        lives_on = view.is_handed_over and view.vmi_runs and not view.state.completed
        return _failure_write(view, loss) if lives_on else fail(view, loss)
    if view.state.failed:
        return fail(view, "source node reported migration failed")
    if migration.deleting and not view.state.completed:
        return _abort(view)
    if migration.phase and migration.phase == view.options.fail_at_phase:
        reason = f"told to fail in phase {migration.phase}"
        step: Step = _failure_write(view, reason) if view.is_handed_over else fail(view, reason)
    else:
        step = TABLE[migration.phase](view) if migration.phase in TABLE else Wait()
    return Wait(view.remaining) if isinstance(step, Write) and view.remaining > 0 else step


def fail(view: View, reason: str) -> Write:
    status = _phase_patch(view, c.PHASE_FAILED)
    if view.is_handed_over:
        status["migrationState"] = msgspec.to_builtins(view.state)
    if view.migration.deleting:
        status |= _condition_patch(view, c.CONDITION_ABORT_REQUESTED)
    return _migration_write(view, status, ("Warning", "FailedMigration", f"Migration failed: {reason}"))


def rejection(view: View) -> Write | None:
    """The step that marks a Pending migration as refused by quota; None when it is marked."""
    conditions = _condition_patch(view, c.CONDITION_REJECTED_BY_RESOURCE_QUOTA)
    return _migration_write(view, {**conditions, **_claims(view)}) if conditions else None


# The table's rows


def _unset(view: View) -> Step:
    if view.rival:
        return fail(view, "VMI is not eligible for migration because another migration job is in progress.")
    status = _phase_patch(view, c.PHASE_PENDING)
    if view.source is not None:
        status["migrationState"] = {"sourcePod": view.source.name}
    return _migration_write(view, status)


def _pending(view: View) -> Step:
    if view.target is None:
        return Create.TARGET
    if view.attachment is None and view.vmi is not None and hotplugged_volumes(view.vmi):
        return Create.ATTACHMENT if is_running(view.target) else Wait()
    return Wait() if view.attachment is not None and view.attachment.status.phase != "Running" else _enter(view)


def _scheduling(view: View) -> Step:
    return _enter(view) if is_running(view.target) else Wait()


def _scheduled(view: View) -> Step:
    """Hands over: virt-handler on the target node learns of the migration from the VMI."""
    return _enter(view) if view.is_handed_over else _hand_over(view)


def _preparing_target(view: View) -> Step:
    return _enter(view) if view.state.target_node_address else _vmi_write(view, targetNodeAddress=_TARGET_ADDRESS)


def _target_ready(view: View) -> Step:
    return _enter(view) if view.state.start_timestamp else _vmi_write(view, startTimestamp=view.now)


def _running(view: View) -> Step:
    if not view.state.completed:
        return _arrive(view)
    return Wait() if _is_resizing(view) else _enter(view)


TABLE: Final[Mapping[str, Callable[[View], Step]]] = MappingProxyType(
    {
        c.PHASE_UNSET: _unset,
        c.PHASE_PENDING: _pending,
        c.PHASE_SCHEDULING: _scheduling,
        c.PHASE_SCHEDULED: _scheduled,
        "PreparingTarget": _preparing_target,
        "TargetReady": _target_ready,
        c.PHASE_RUNNING: _running,
    }
)
"""The phases in their order."""
_PHASE_ORDER: Final = (*TABLE, c.PHASE_SUCCEEDED)
_WITH_HANDLER: Final = ("PreparingTarget", "TargetReady", c.PHASE_RUNNING)
"""The phases in which the VMI's status must name the migration."""


def _is_resizing(view: View) -> bool:
    """Reports whether the VMI is yet to take a plugged-in CPU or memory: until then its migration stays Running."""
    conditions = view.vmi.status.conditions if view.vmi else None
    changes = (c.CONDITION_MEMORY_CHANGE, objects.CONDITION_MIGRATION_REQUIRED)
    cpu = find_condition(conditions, c.CONDITION_CPU_CHANGE)
    return cpu is not None or any(condition_is_true(conditions, kind) for kind in changes)


# Steps that several rows share


def _enter(view: View) -> Write:
    phase = _PHASE_ORDER[_PHASE_ORDER.index(view.migration.phase) + 1]
    status = _phase_patch(view, phase) | (_claims(view) if phase == c.PHASE_SCHEDULING else {})
    if phase == c.PHASE_SUCCEEDED:
        status["migrationState"] = msgspec.to_builtins(view.state)
        message = "Source node reported migration succeeded"
        return _migration_write(view, status, ("Normal", "SuccessfulMigration", message))
    old = view.migration.status.conditions
    return _migration_write(
        view, status | objects.conditions(old, objects.conditions_without(old, c.CONDITION_REJECTED_BY_RESOURCE_QUOTA))
    )


def _arrive(view: View) -> Write:
    """Reports as virt-handler that the guest is on the target: from here on the VMI lives there."""
    target = view.target
    assert target is not None
    if objects.ANNOTATION_MIGRATION_TARGET_READY not in target.annotations:
        # The form in which Go prints a time, as KubeVirt leaves it.
        moment = view.now.replace("T", " ").replace("Z", " +0000 UTC")
        return Write(target, {"metadata": {"annotations": {objects.ANNOTATION_MIGRATION_TARGET_READY: moment}}})
    now, node = view.now, target.spec.node_name
    detection = {"targetNodeDomainDetected": True, "targetNodeDomainReadyTimestamp": now}
    step = _vmi_write(view, completed=True, endTimestamp=now, **detection)
    step.patch["status"]["nodeName"] = node
    step.patch["metadata"] = {"labels": {c.LABEL_NODE_NAME: node}}
    return step


def _hand_over(view: View) -> Write:
    target, vmi = view.target, view.vmi
    assert target is not None
    assert vmi is not None
    reported_state = view.migration.status.migration_state
    state = {
        "migrationUid": view.migration.uid,
        "sourceNode": vmi.status.node_name,
        "sourcePod": (reported_state and reported_state.source_pod) or (view.source and view.source.name),
        "targetNode": target.spec.node_name,
        "targetPod": target.name,
    }
    if view.claims is not None:
        state |= view.claims.state()
    if view.attachment is not None:
        state["targetAttachmentPodUID"] = view.attachment.uid
    if view.report_overhead:
        state["targetMemoryOverhead"] = target.annotations.get(c.ANNOTATION_MEMORY_OVERHEAD)
    old = msgspec.to_builtins(vmi.status.migration_state) if vmi.status.migration_state else {}
    labels = {objects.LABEL_MIGRATION_TARGET_NODE: target.spec.node_name}
    return Write(vmi, {"metadata": {"labels": labels}, "status": {"migrationState": objects.replacement(old, state)}})


def _abort(view: View) -> Step:
    """Cancels the migration of a deleted VMIM: at once before the hand-over, afterwards through virt-handler."""
    if not view.is_handed_over:
        return fail(view, "canceled")
    if conditions := _condition_patch(view, c.CONDITION_ABORT_REQUESTED):
        return _migration_write(view, conditions)
    if not view.state.abort_requested:
        return _vmi_write(view, abortRequested=True, abortStatus="Aborting")
    return _failure_write(view, "Live migration aborted", abortStatus="Succeeded")


def _finish(view: View) -> Step:
    metadata = objects.finalizers(view.migration, objects.FINALIZER_MIGRATION, present=False)
    return Write(view.migration, {"metadata": metadata}) if metadata else Wait()


def _loss(view: View) -> str:
    """Returns the loss that the migration cannot survive, or ""."""
    phase = view.migration.phase
    if view.vmi is None:
        return "vmi does not exist."
    if not view.vmi_runs:
        return "vmi is not running."
    if view.target is not None and view.target.terminal and phase != c.PHASE_UNSET:
        return "target pod shutdown during migration."
    if view.target is None and phase in PACED_PHASES:
        return "target pod was removed during active migration."
    if view.attachment is not None and view.attachment.terminal:
        return "target attachment pod shutdown during migration."
    if phase in _WITH_HANDLER and not view.is_handed_over:
        return "VMI's migration state was taken over or cleared during active migration."
    return ""


# Writes, and pieces of them


def _migration_write(view: View, status: Patch, event: tuple[EventType, str, str] | None = None) -> Write:
    return Write(view.migration, {"status": status}, "status", event)


def _vmi_write(view: View, **state: Any) -> Write:
    assert view.vmi is not None
    return Write(view.vmi, {"status": {"migrationState": state}})


def _failure_write(view: View, reason: str, **state: Any) -> Write:
    times = {"startTimestamp": view.state.start_timestamp or view.now, "endTimestamp": view.now}
    return _vmi_write(view, completed=True, failed=True, failureReason=reason, **times, **state)


def _phase_patch(view: View, phase: str) -> Patch:
    stamps = objects.transitions(view.migration.status.phase_transition_timestamps, [phase], view.now)
    return {"phase": phase, "phaseTransitionTimestamps": stamps}


def _claims(view: View) -> Patch:
    """Returns the migration's status about the claims; virt-controller writes it with the next other change."""
    return {"migrationState": view.claims.state()} if view.claims else {}


def _condition_patch(view: View, kind: str) -> Patch:
    """The status' conditions with one that stands from now on; empty where it does."""
    old = view.migration.status.conditions
    if condition_is_true(old, kind):
        return {}
    return objects.conditions(
        old, [*objects.conditions_without(old, kind), Condition(type=kind, status="True", last_probe_time=view.now)]
    )


def _missing_metadata(view: View) -> Patch:
    """The finalizer, and the label that KubeVirt finds a VMI's migrations by."""
    migration, name = view.migration, view.migration.spec.vmi_name
    metadata = objects.finalizers(migration, objects.FINALIZER_MIGRATION)
    if objects.LABEL_VMI_NAME not in migration.labels and 0 < len(name) <= 63:
        metadata["labels"] = {objects.LABEL_VMI_NAME: name}
    return metadata
