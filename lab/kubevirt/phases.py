"""A migration's phases as a table: phase → what is done in it. Pure.

One step is one write. The next one follows from what is then observed, so that a restart anywhere goes on from there:
virt-controller's part is written into the VMIM, virt-handler's into the VMI, and a phase ends when the VMI says so.
Source for the order: kubevirt pkg/virt-controller/watch/migration (updateStatus, processMigrationPhase, sync).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec

from kubeloop.api.meta import Condition
from kubeloop.api.objects import condition_is_true, find_condition
from lab.kubevirt import names
from lab.kubevirt.patches import Patch, conditions, replacing, transitions, without
from lab.kubevirt.steps import CreateAttachment, CreateTarget, Step, View, Wait, Write
from pkg.util import constants as c

_TARGET_ADDRESS = "10.1.1.1"


def decide(view: View) -> Step:
    """The migration's next step."""
    migration = view.migration
    if migration.phase in c.FINAL_PHASES:
        return _finish(view)
    if migration.phase and not migration.deleting and (metadata := _unmarked(view)):
        # In KubeVirt a webhook marks it at birth. Here Pending comes first: it is what everybody waits for.
        return Write(migration, {"metadata": metadata})
    if loss := _loss(view):
        return _lose(view, loss)
    if view.state.failed:
        return fail(view, "source node reported migration failed")
    if migration.deleting and not view.state.completed:
        return _abort(view)
    if migration.phase and migration.phase == view.options.fail_at_phase:
        return _break(view)
    act = TABLE.get(migration.phase)
    return act(view) if act else Wait()


def fail(view: View, why: str) -> Write:
    """The step into phase Failed."""
    status = _entering(view, c.PHASE_FAILED)
    if view.handed_over:
        status["migrationState"] = _own_state(view)
    if view.migration.deleting:
        status |= _marked(view, c.CONDITION_ABORT_REQUESTED)
    return _written(view, status, ("Warning", "FailedMigration", f"Migration failed: {why}"))


def rejected(view: View) -> Write | None:
    """The step that marks a Pending migration as refused by quota; None when it is marked."""
    marked = _marked(view, c.CONDITION_REJECTED_BY_RESOURCE_QUOTA)
    return _written(view, {**marked, **_claims(view)}) if marked else None


# The table's rows


def _unset(view: View) -> Step:
    if view.rival:
        return fail(view, "VMI is not eligible for migration because another migration job is in progress.")
    status = _entering(view, c.PHASE_PENDING)
    if view.source is not None:
        status["migrationState"] = {"sourcePod": view.source.name}
    return _written(view, status)


def _pending(view: View) -> Step:
    if view.target is None:
        return CreateTarget()
    if view.hotplug and view.attachment is None:
        return CreateAttachment() if view.target_runs else Wait()
    if view.attachment is not None and view.attachment.status.phase != "Running":
        return Wait()
    return _after_hold(view, _enter)


def _scheduling(view: View) -> Step:
    return _after_hold(view, _enter) if view.target_runs else Wait()


def _scheduled(view: View) -> Step:
    """Hand over: virt-handler on the target node learns of the migration from the VMI."""
    return _enter(view) if view.handed_over else _after_hold(view, _hand_over)


def _preparing_target(view: View) -> Step:
    if view.state.target_node_address:
        return _enter(view)
    return _after_hold(view, lambda v: _reported(v, targetNodeAddress=_TARGET_ADDRESS))


def _target_ready(view: View) -> Step:
    if view.state.start_timestamp:
        return _enter(view)
    return _after_hold(view, lambda v: _reported(v, startTimestamp=v.now))


def _running(view: View) -> Step:
    if view.state.completed:
        return Wait() if _is_resizing(view) else _enter(view)
    return _after_hold(view, _arrive)


TABLE: Final[Mapping[str, Callable[[View], Step]]] = MappingProxyType(
    {
        c.PHASE_UNSET: _unset,
        c.PHASE_PENDING: _pending,
        c.PHASE_SCHEDULING: _scheduling,
        c.PHASE_SCHEDULED: _scheduled,
        c.PHASE_PREPARING_TARGET: _preparing_target,
        c.PHASE_TARGET_READY: _target_ready,
        c.PHASE_RUNNING: _running,
    }
)
"""In their order."""
_WAY: Final = (*TABLE, c.PHASE_SUCCEEDED)
STARTED: Final = frozenset(_WAY[2:-1])
"""The phases in which there is a target pod."""
_WITH_HANDLER: Final = frozenset(_WAY[4:-1])
"""The phases in which the VMI's status must name the migration."""


def _is_resizing(view: View) -> bool:
    """Whether the VMI is yet to take what was plugged in: until then its migration stays Running."""
    found = view.vmi.status.conditions if view.vmi else None
    changes = (c.CONDITION_MEMORY_CHANGE, names.CONDITION_MIGRATION_REQUIRED)
    return find_condition(found, c.CONDITION_CPU_CHANGE) is not None or any(
        condition_is_true(found, kind) for kind in changes
    )


# Steps that several rows share


def _after_hold(view: View, act: Callable[[View], Step]) -> Step:
    remaining = view.remaining(view.migration.phase)
    return Wait(remaining) if remaining > 0 else act(view)


def _enter(view: View) -> Write:
    phase = _WAY[_WAY.index(view.migration.phase) + 1]
    status = _entering(view, phase) | (_claims(view) if phase == c.PHASE_SCHEDULING else {})
    if phase == c.PHASE_SUCCEEDED:
        status["migrationState"] = _own_state(view)
        told = "Source node reported migration succeeded"
        return _written(view, status, ("Normal", "SuccessfulMigration", told))
    before = view.migration.status.conditions
    return _written(view, status | conditions(before, without(before, c.CONDITION_REJECTED_BY_RESOURCE_QUOTA)))


def _arrive(view: View) -> Write:
    """virt-handler has seen the guest on the target: from here on the VMI lives there."""
    target = view.target
    assert target is not None
    if names.ANNOTATION_MIGRATION_TARGET_READY not in target.annotations:
        # The form in which Go prints a time, as KubeVirt leaves it.
        moment = view.now.replace("T", " ").replace("Z", " +0000 UTC")
        return Write(target, {"metadata": {"annotations": {names.ANNOTATION_MIGRATION_TARGET_READY: moment}}})
    now = view.now
    step = _reported(
        view, completed=True, endTimestamp=now, targetNodeDomainDetected=True, targetNodeDomainReadyTimestamp=now
    )
    node = target.spec.node_name or ""
    step.patch["status"]["nodeName"] = node
    step.patch["metadata"] = {"labels": {c.LABEL_NODE_NAME: node}}
    return step


def _hand_over(view: View) -> Write:
    target, vmi = view.target, view.vmi
    assert target is not None
    assert vmi is not None
    state = {
        "migrationUid": view.migration.uid,
        "sourceNode": vmi.status.node_name,
        "sourcePod": _source_pod(view),
        "targetNode": target.spec.node_name,
        "targetPod": target.name,
    }
    if view.claims is not None:
        state |= view.claims.state()
    if view.attachment is not None:
        state["targetAttachmentPodUID"] = view.attachment.uid
    if view.report_overhead:
        state["targetMemoryOverhead"] = target.annotations.get(c.ANNOTATION_MEMORY_OVERHEAD)
    before = msgspec.to_builtins(vmi.status.migration_state) if vmi.status.migration_state else {}
    labels = {names.LABEL_MIGRATION_TARGET_NODE: target.spec.node_name}
    return Write(vmi, {"metadata": {"labels": labels}, "status": {"migrationState": replacing(before, state)}})


def _abort(view: View) -> Step:
    """Deleting a VMIM cancels its migration: at once before the hand-over, afterwards through virt-handler."""
    if not view.handed_over:
        return fail(view, "canceled")
    if marked := _marked(view, c.CONDITION_ABORT_REQUESTED):
        return _written(view, marked)
    if not view.state.abort_requested:
        return _reported(view, abortRequested=True, abortStatus="Aborting")
    return _reported_failed(view, "Live migration aborted", abortStatus=c.ABORT_SUCCEEDED)


def _break(view: View) -> Step:
    """Fail because an annotation asks for it."""
    why = f"told to fail in phase {view.migration.phase}"
    if view.handed_over:
        return _after_hold(view, lambda v: _reported_failed(v, why))
    return _after_hold(view, lambda v: fail(v, why))


def _finish(view: View) -> Step:
    finalizers = view.migration.metadata.finalizers or []
    if names.FINALIZER_MIGRATION not in finalizers:
        return Wait()
    left = [finalizer for finalizer in finalizers if finalizer != names.FINALIZER_MIGRATION]
    return Write(view.migration, {"metadata": {"finalizers": left}})


def _lose(view: View, why: str) -> Step:
    """A VMI that lives on must not look as if it were still migrating."""
    if view.handed_over and view.vmi_runs and not view.state.completed:
        return _reported_failed(view, why)
    return fail(view, why)


def _loss(view: View) -> str:
    """What is gone that the migration cannot do without, "" when nothing is."""
    phase = view.migration.phase
    if view.vmi is None:
        return "vmi does not exist."
    if not view.vmi_runs:
        return "vmi is not running."
    if view.target is not None and view.target.terminal and phase != c.PHASE_UNSET:
        return "target pod shutdown during migration."
    if view.target is None and phase in STARTED:
        return "target pod was removed during active migration."
    if view.attachment is not None and view.attachment.terminal:
        return "target attachment pod shutdown during migration."
    if phase in _WITH_HANDLER and not view.handed_over:
        return "VMI's migration state was taken over or cleared during active migration."
    return ""


# Writes, and pieces of them


def _written(view: View, status: Patch, event: tuple[str, str, str] | None = None) -> Write:
    return Write(view.migration, {"status": status}, "status", event)


def _reported(view: View, **state: Any) -> Write:
    assert view.vmi is not None
    return Write(view.vmi, {"status": {"migrationState": state}})


def _reported_failed(view: View, why: str, **state: Any) -> Write:
    start = view.state.start_timestamp or view.now
    ended = {"completed": True, "failed": True, "failureReason": why, "endTimestamp": view.now}
    return _reported(view, startTimestamp=start, **ended, **state)


def _entering(view: View, phase: str) -> Patch:
    stamps = transitions(view.migration.status.phase_transition_timestamps, [phase], view.now)
    return {"phase": phase, "phaseTransitionTimestamps": stamps}


def _claims(view: View) -> Patch:
    """What the migration's status says of them; virt-controller writes it with the next change of anything else."""
    return {"migrationState": view.claims.state()} if view.claims else {}


def _own_state(view: View) -> Patch:
    built: Patch = msgspec.to_builtins(view.state)
    return built


def _source_pod(view: View) -> str | None:
    known = view.migration.status.migration_state
    return (known.source_pod if known else None) or (view.source.name if view.source else None)


def _marked(view: View, kind: str) -> Patch:
    """The status' conditions with one that stands from now on; empty where it does."""
    before = view.migration.status.conditions
    if condition_is_true(before, kind):
        return {}
    return conditions(before, [*without(before, kind), Condition(type=kind, status="True", last_probe_time=view.now)])


def _unmarked(view: View) -> Patch:
    """The finalizer, and the label that KubeVirt finds a VMI's migrations by."""
    metadata: Patch = {}
    migration = view.migration
    finalizers = migration.metadata.finalizers or []
    if names.FINALIZER_MIGRATION not in finalizers:
        metadata["finalizers"] = [*finalizers, names.FINALIZER_MIGRATION]
    name = migration.spec.vmi_name
    if names.LABEL_VMI_NAME not in migration.labels and 0 < len(name) <= 63:
        metadata["labels"] = {names.LABEL_VMI_NAME: name}
    return metadata
