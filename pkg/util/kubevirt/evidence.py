"""The trusted fields of a VM's objects. Pure; the only module that reads a VMI's status (a test holds that).

A tenant who can pass a pod off as a VM's gets headroom for nothing. A tenant may write anything in the own namespace
except ResourceQuota, Namespace and cluster objects. What is read here, who can write it, and why it is trusted:

- pod labels, annotations, ownerReferences, nodeName, resources: written by every user who may create or patch pods. Not
  trusted. A controller reference only narrows down what KubeVirt names. A label only tells a target that has not been
  handed over yet, where it decides what counts as taken, never how much is granted.
- pod uid, creationTimestamp, deletionTimestamp, status: API server and kubelet. Trusted.
- VMIM status.phase, conditions, migrationState.{sourcePod, targetPod, sourceNode}, phaseTransitionTimestamps:
  virt-controller alone (a subresource). Trusted; but a later pod can take a name again, so creation times must fit:
  a source is not younger than its migration, a target neither older nor younger than its end. Whole seconds.
- VMIM spec and metadata: some tenants may create and delete them. A wish.
- VMI status.phase: Pending at birth, by virt-api, then KubeVirt's accounts only. Trusted.
- the rest of a VMI's status: as submitted at birth, then KubeVirt's accounts only. Trusted of a VMI that runs.
- VMI status.migrationState: nothing takes away what was submitted, so of a VMI that runs it is trusted of a migration
  that exists; of one that was deleted only if it names the pod in which the VM lives as one side, for a generated name
  cannot be known at birth. Its fields about another VM's migration count for nothing.
- VMI status.activePods: virt-controller, from whatever has a controller reference. Not trusted.
- VMI spec: tenant at birth, then KubeVirt's accounts only. The bound of a side's usage (`target.UsageBound`).
- VMI annotations: tenant. Only sidecars are read from them, up to a number.
- start and end times in migrationState: they may be of another moment than they seem to be. Not trusted.
- events: every user who may create them, with any source, text and time. Never trusted, only quoted.

Source: KubeVirt pkg/controller/controller.go (CurrentVMIPod, SetSourcePod), pkg/virt-controller/watch/migration
(listMatchingTargetPods, handleTargetPodHandoff, updateStatus), pkg/virt-api/webhooks/mutating-webhook (VMI status)."""

from collections.abc import Sequence

from kubeloop.api.core import Pod
from kubeloop.api.meta import OwnerReference
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceStatus
from pkg.util import constants

VMI = "VirtualMachineInstance"
POD = "Pod"
_NO_OWNER = OwnerReference()


def is_running(vmi: VirtualMachineInstance) -> bool:
    """Reports whether the VMI runs, as one without a phase does: virt-api did not see it (upstream's case)."""
    return not vmi.status.phase or vmi.status.phase == constants.PHASE_RUNNING


def trusted_status(vmi: VirtualMachineInstance) -> VirtualMachineInstanceStatus:
    """Returns the VMI's status as far as KubeVirt vouches for it: the whole of a running VMI's, else only the phase."""
    return vmi.status if is_running(vmi) else VirtualMachineInstanceStatus(phase=vmi.status.phase)


def leftover_pods(vmi: VirtualMachineInstance, pods: Sequence[Pod]) -> list[Pod]:
    """Returns an aborted migration's pods that belong to this VMI but not to its node: its launcher on another node,
    and that launcher's attachment pods. Empty if the VM's node is unknown."""
    node = trusted_status(vmi).node_name
    elsewhere = [pod for pod in pods if vmi.uid and node and pod.spec.node_name != node]
    launchers = [pod for pod in elsewhere if controller_of(pod, VMI).uid == vmi.uid]
    uids = {pod.uid for pod in launchers}
    return launchers + [pod for pod in pods if controller_of(pod, POD).uid in uids]


def controller_of(pod: Pod, kind: str) -> OwnerReference:
    """Returns the pod's controller if it is of that kind, else an owner without a name."""
    owners = pod.metadata.owner_references or ()
    return next((owner for owner in owners if owner.controller and owner.kind == kind), _NO_OWNER)


def vm_of(pod: Pod) -> str:
    """Returns the VMI that a launcher pod names as its controller, "" for any other pod. It proves nothing."""
    is_launcher = pod.labels.get(constants.LABEL_APP) == constants.APP_VIRT_LAUNCHER
    return controller_of(pod, VMI).name if is_launcher else ""
