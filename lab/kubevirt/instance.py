"""A VirtualMachineInstance's decisions: which pod is it, which phase follows, what has come to its end. Pure."""

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

import msgspec

from kubeloop.api.core import Pod
from kubeloop.api.meta import Condition
from kubeloop.api.objects import set_condition
from lab.kubevirt import objects
from lab.kubevirt.defaults import defaults
from lab.kubevirt.objects import Patch, VirtualMachineInstance, conditions, conditions_without, replacement, transitions
from lab.kubevirt.pod import COMPUTE, hotplugged_volumes
from pkg.api.kubevirt import HotplugVolumeStatus, PersistentVolumeClaimInfo, VolumeStatus
from pkg.util import constants

PENDING, SCHEDULING, SCHEDULED = constants.PHASE_PENDING, constants.PHASE_SCHEDULING, constants.PHASE_SCHEDULED
RUNNING, SUCCEEDED, FAILED = constants.PHASE_RUNNING, constants.PHASE_SUCCEEDED, constants.PHASE_FAILED

_STATE = "persistent-state-for-this-vm"
"""The volume of a VM's persistent state."""
_ORDER = (PENDING, SCHEDULING, SCHEDULED, RUNNING)


def is_launcher(pod: Pod) -> bool:
    return pod.labels.get(constants.LABEL_APP) == constants.APP_VIRT_LAUNCHER


def is_running(pod: Pod | None) -> bool:
    """Reports whether the pod runs and is to stay."""
    return pod is not None and pod.status.phase == "Running" and not pod.deleting


def current_pod(vmi: VirtualMachineInstance, launchers: Iterable[Pod]) -> Pod | None:
    """The pod that the guest runs in: on the VMI's node, the newest of those that live (KubeVirt's CurrentVMIPod)."""
    node = vmi.status.node_name
    if node:
        candidates = [pod for pod in launchers if pod.spec.node_name == node]
    else:
        candidates = [pod for pod in launchers if constants.LABEL_MIGRATION_JOB_UID not in pod.labels]
    return max(candidates, key=lambda pod: (not pod.terminal, pod.metadata.creation_timestamp or ""), default=None)


def wants_pod(vmi: VirtualMachineInstance, launchers: Sequence[Pod]) -> bool:
    """Reports whether the VMI is to get its first pod. A VMI created as Running without one is started, too."""
    return not launchers and _stage(vmi) in ("", PENDING)


def next_phase(vmi: VirtualMachineInstance, pod: Pod | None) -> str:
    """The phase that follows from the VMI's pod."""
    if vmi.phase in constants.FINAL_PHASES:
        return vmi.phase
    if pod is None:
        return PENDING if _stage(vmi) in ("", PENDING) else FAILED
    if pod.terminal:
        has_succeeded = pod.status.phase == "Succeeded" and vmi.phase == RUNNING
        return SUCCEEDED if has_succeeded else FAILED
    return RUNNING if is_running(pod) or vmi.phase == RUNNING else SCHEDULING


def status_patch(
    vmi: VirtualMachineInstance, launchers: Sequence[Pod], now: str, *, report_overhead: bool = False
) -> Patch | None:
    """The merge patch of the VMI (it has no status subresource), None when all is said."""
    pod = current_pod(vmi, launchers)
    phase = next_phase(vmi, pod)
    # Every launcher that exists, ended or not: KubeVirt lists them until they are deleted.
    old_pods, new_pods = vmi.status.active_pods or {}, {pod.uid: pod.spec.node_name or "" for pod in launchers}
    status = _phase(vmi, phase, now) | ({} if old_pods == new_pods else {"activePods": replacement(old_pods, new_pods)})
    if pod is not None and phase == RUNNING:
        status |= _placement_patch(vmi, pod, report_overhead)
    status |= conditions(vmi.status.conditions, _conditions(vmi, pod, phase, now))
    # As virt-api sets it when the VMI is created, which has a phase from then on.
    spec = {} if vmi.phase else defaults(vmi)
    patch = {"spec": spec, "status": status, "metadata": _metadata(vmi, pod if phase == RUNNING else None)}
    return {part: changes for part, changes in patch.items() if changes} or None


def refused_patch(vmi: VirtualMachineInstance, message: str, now: str) -> Patch | None:
    """The merge patch that says why there is no pod."""
    old, text = vmi.status.conditions, f"failed to create virtual machine pod: {message}"
    new = set_condition(old, objects.CONDITION_SYNCHRONIZED, "False", reason="FailedCreate", message=text, now=now)
    changes = conditions(old, new)
    return {"status": changes} if changes else None


def volumes_patch(vmi: VirtualMachineInstance, attachments: Sequence[Pod], claim: str) -> Patch | None:
    """The merge patch of the VMI's volumeStatus, None when it is right: `claim` is the one of its state ("": it has
    none), and what is plugged in is as its launcher's attachment pod is."""
    names, old = sorted(volume.name for volume in hotplugged_volumes(vmi)), vmi.status.volume_status or []
    state = VolumeStatus(name=_STATE, persistent_volume_claim_info=PersistentVolumeClaimInfo(claim_name=claim))
    phase, reference = "Pending", None
    for pod in attachments[:1]:
        phase = "Ready" if is_running(pod) else "AttachedToNode"
        reference = HotplugVolumeStatus(attach_pod_name=pod.name, attach_pod_uid=pod.uid)
    new = [status for status in old if status.hotplug_volume is None and status.name not in (*names, _STATE)]
    new += [VolumeStatus(name=name, phase=phase, hotplug_volume=reference) for name in names]
    new += [state] if claim else []
    if sorted(new, key=attrgetter("name")) == sorted(old, key=attrgetter("name")):
        return None
    return {"status": {"volumeStatus": msgspec.to_builtins(new)}}


def leftovers(vmi: VirtualMachineInstance, launchers: Iterable[Pod], is_under_way: Callable[[str], bool]) -> list[Pod]:
    """The pods that no longer belong to the guest nor to a migration that is under way, and have not ended.

    `is_under_way` tells of a VMIM's uid whether it exists and is not final.
    """
    current = current_pod(vmi, launchers)
    state = vmi.status.migration_state
    busy_source = state.source_pod if state and not state.completed else None
    pods = []
    for pod in launchers:
        job = pod.labels.get(constants.LABEL_MIGRATION_JOB_UID, "")
        # A former target keeps its label for good: as the guest's own pod, or as a later source.
        is_needed = pod is current or pod.name == busy_source or (job and is_under_way(job))
        if not (is_needed or pod.terminal or pod.deleting):
            pods.append(pod)
    return pods


def final_phase_of(vmi: VirtualMachineInstance, pod: Pod) -> str:
    """Returns the phase in which a leftover pod ends: a source that was left well Succeeded, a target that was handed
    over Failed.

    "" for a target that no virt-handler ever saw: virt-controller deletes it.
    """
    state = vmi.status.migration_state
    if constants.LABEL_MIGRATION_JOB_UID not in pod.labels or (state and state.source_pod == pod.name):
        return "Succeeded"
    is_handed_over = state is not None and state.target_pod == pod.name
    return "Failed" if is_handed_over else ""


def _stage(vmi: VirtualMachineInstance) -> str:
    never_had_a_pod = vmi.phase == RUNNING and not vmi.status.active_pods
    return PENDING if never_had_a_pod else vmi.phase


def _phase(vmi: VirtualMachineInstance, phase: str, now: str) -> Patch:
    if vmi.phase == phase:
        return {}
    entered_phases = _ORDER[: _ORDER.index(phase) + 1] if phase in _ORDER else (phase,)
    stamps = transitions(vmi.status.phase_transition_timestamps, entered_phases, now)
    return {"phase": phase, "phaseTransitionTimestamps": stamps}


def _placement_patch(vmi: VirtualMachineInstance, pod: Pod, report_overhead: bool) -> Patch:
    patch: Patch = {}
    if not vmi.status.node_name and pod.spec.node_name:
        patch = {"nodeName": pod.spec.node_name, "migrationMethod": "LiveMigration", "migrationTransport": "Unix"}
    overhead = pod.annotations.get(constants.ANNOTATION_MEMORY_OVERHEAD)
    reported_overhead = (vmi.status.memory or {}).get("memoryOverhead")
    if report_overhead and overhead and str(reported_overhead) != overhead:
        patch["memory"] = {"memoryOverhead": overhead}
    image = next((container.image for container in pod.spec.containers if container.name == COMPUTE), None)
    if image and vmi.status.launcher_container_image_version != image:
        patch["launcherContainerImageVersion"] = image
    return patch


def _conditions(vmi: VirtualMachineInstance, pod: Pod | None, phase: str, now: str) -> list[Condition]:
    old = vmi.status.conditions
    current = list(old or ()) if pod is None else conditions_without(old, objects.CONDITION_SYNCHRONIZED)
    if phase == RUNNING:
        return set_condition(set_condition(current, "Ready", "True", now=now), "LiveMigratable", "True", now=now)
    message = "Guest VM is not reported as running"
    return set_condition(current, "Ready", "False", reason="GuestNotRunning", message=message, now=now)


def _metadata(vmi: VirtualMachineInstance, pod: Pod | None) -> Patch:
    metadata = objects.finalizers(vmi, objects.FINALIZER_VMI)
    node = vmi.status.node_name or (pod.spec.node_name if pod else None)
    if pod is not None and node and vmi.labels.get(constants.LABEL_NODE_NAME) != node:
        metadata["labels"] = {constants.LABEL_NODE_NAME: node}
    return metadata
