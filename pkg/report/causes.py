"""Reasons beside the quotas that headroom manages for which a migration waits: by name, with the part of the page of
limits. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from kubeloop.api.core import Pod
from kubeloop.api.objects import find_condition
from kubeloop.api.resource_list import parse_resource_list
from kubeloop.text import quoted
from pkg.api import kubevirt
from pkg.report.snapshot import Snapshot
from pkg.util import constants
from pkg.util.amounts import format_amount, format_amounts
from pkg.util.kubevirt.claims import volume_overlap
from pkg.util.kubevirt.evidence import is_running, trusted_status
from pkg.util.kubevirt.migration import is_decentralized, refusing_quota

STORAGE, MIGRATIONS, ADMISSION, PLACEMENT = (
    f"docs/limits.md#{part}" for part in ("storage", "migrations", "admission-that-is-not-resourcequota", "placement")
)
_BLOCKED = (
    (constants.CONDITION_BLOCKED_BY_BACKUP, "KubeVirt waits for a backup of the VM"),
    (constants.CONDITION_BLOCKED_BY_UTILITY_VOLUMES, "KubeVirt waits until utility volumes are detached"),
)
_GATES = {
    "ApplicationAwareQuotaGate": "an ApplicationAwareResourceQuota (AAQ) holds its target pod back",
    "kueue.x-k8s.io/admission": "Kueue holds its target pod back",
}
_REFUSALS = {
    "maximum ": "a LimitRange refuses its target pod",
    "minimum ": "a LimitRange refuses its target pod",
    " limit to request ratio": "a LimitRange refuses its target pod",
    "must specify": "a quota refuses its target pod, which does not name what it limits",
    "violates PodSecurity": "Pod Security refuses its target pod",
}
"""Words of the API server's message, and the reason."""
_WITHOUT_VOLUMES = ("Provisioning", "WaitingForVolumeBinding", "DataVolumeError", "ErrorPvcNotFound")
_START = "headroom adds nothing for a start: enlarge the quota"
_REQUESTS_STORAGE = "requests.storage"


def kubevirt_wait_reason(migration: kubevirt.VirtualMachineInstanceMigration) -> str:
    """Returns what KubeVirt waits for by itself before it creates a target, or why there is none here; "" if nothing is
    known."""
    if is_decentralized(migration):
        return (
            "it is decentralized: nothing is added, as the receiver is its VM's only pod there and the base pays for "
            f"it: {MIGRATIONS}"
        )
    for kind, text in _BLOCKED:
        condition = find_condition(migration.status.conditions, kind)
        if condition is not None and condition.status == "True":
            return ": ".join(filter(None, [text, condition.message]))
    return ""


def pending_target_reason(target: Pod) -> str:
    """Returns why a target pod that exists does not run; "" if no reason is known."""
    spec, status = target.spec, target.status
    if status.phase != constants.PHASE_PENDING:
        return ""
    for gate in spec.scheduling_gates or ():
        if gate.name in _GATES:
            return f"{_GATES[gate.name]} (scheduling gate {gate.name}): {ADMISSION}"
    created = {claim.name for claim in status.resource_claim_statuses or () if claim.resource_claim_name}
    if missing := {claim.name for claim in spec.resource_claims or () if claim.template} - created:
        return f"ResourceClaims for its devices are not created: {', '.join(sorted(missing))}: {PLACEMENT}"
    scheduled = find_condition(status.conditions, "PodScheduled")
    if scheduled is not None and scheduled.status == "False":
        return f"no node fits its target pod: {scheduled.message or scheduled.reason or ''}: {PLACEMENT}"
    if spec.node_name:
        events = f"the events of pod {target.name} say what they wait for"
        return f"its containers have not started on {spec.node_name}: {events}"
    return f"kube-scheduler has not placed pod {target.name} yet"


def refusal_reason(snapshot: Snapshot, namespace: str, message: str) -> str:
    """Returns what refused a pod, by what KubeVirt quotes of the API server; "" if that is not known."""
    name = refusing_quota(message)
    reasons = [reason for words, reason in _REFUSALS.items() if words in message]
    if name and name not in {quota.name for quota in snapshot.quotas_of(namespace)}:
        reasons.append(f"{name} is not a ResourceQuota of the namespace, perhaps a ClusterResourceQuota")
    return f"{reasons[0]}: {ADMISSION}" if reasons else ""


def vm_notes(snapshot: Snapshot, vmi: kubevirt.VirtualMachineInstance) -> list[str]:
    """Returns what else is known of a VM: that KubeVirt does not migrate it, that its volumes move."""
    return list(filter(None, [unmigratable_reason(snapshot, vmi), _volumes_note(snapshot, vmi)]))


def unmigratable_reason(snapshot: Snapshot, vmi: kubevirt.VirtualMachineInstance) -> str:
    """Returns why a VM does not migrate, whatever quotas say; "" if it does."""
    migratable = find_condition(trusted_status(vmi).conditions, "LiveMigratable")
    if migratable is None or migratable.status != "False":
        return next(_refusing_limits(snapshot, vmi), "")
    reason = migratable.message or migratable.reason or "no reason is given"
    return f"KubeVirt does not migrate it: {reason}: {PLACEMENT}"


def _refusing_limits(snapshot: Snapshot, vmi: kubevirt.VirtualMachineInstance) -> Iterator[str]:
    """Yields the maximums of LimitRanges, written since the VM started, that a pod like the running one exceeds."""
    maximums = [
        (limit_range.name, parse_resource_list(item.max))
        for limit_range in snapshot.source.limit_ranges.list(vmi.namespace)
        for item in limit_range.spec.limits
        if item.type == "Container"
    ]
    source = snapshot.source_side(vmi) if maximums else None
    for name, most in maximums:
        for container in source.launcher.spec.containers if source else ():
            limits = parse_resource_list(container.resources.limits)
            if beyond := [limit for limit in limits.keys() & most.keys() if limits[limit] > most[limit]]:
                yield (
                    f"LimitRange {name} refuses a target pod: a container may have "
                    f"{format_amounts({limit: most[limit] for limit in beyond})}, {container.name} has "
                    f"{format_amounts({limit: limits[limit] for limit in beyond})}: {ADMISSION}"
                )


def _volumes_note(snapshot: Snapshot, vmi: kubevirt.VirtualMachineInstance) -> str:
    """Returns which volumes move, and how much of their disks a volume migration counts twice; "" for none."""
    moves = snapshot.moves_of(vmi)
    claims = {claim.name: claim for claim in snapshot.source.claims.list(vmi.namespace)} if moves else {}
    doubled_size = volume_overlap(moves, claims, snapshot.basis.releases()).source.get(_REQUESTS_STORAGE)
    effect = f", so that {format_amount(doubled_size, _REQUESTS_STORAGE)} count twice" if doubled_size else ""
    return f"its volumes {', '.join(move.volume for move in moves)} move{effect}: {STORAGE}" if moves else ""


def halted_reason(vm: kubevirt.VirtualMachine) -> str:
    """Returns why a VM without a VMI does not run, if quota or storage is the reason; else ""."""
    if shortage := vm.annotations.get(constants.ANNOTATION_INSUFFICIENT_RESOURCE_QUOTA):
        return f"it was halted: {quoted(shortage)}: {_START}"
    if (printable_status := vm.status.printable_status) not in _WITHOUT_VOLUMES:
        return ""
    refused = "quota may refuse an import's pods or scratch space"
    return f"its volumes are not ready ({printable_status}): {refused}: {STORAGE}"


def unstarted_reason(snapshot: Snapshot, vmi: kubevirt.VirtualMachineInstance) -> str:
    """Returns why a VMI is not one that KubeVirt migrates: it ends, or does not run, and what kept its pod from being
    created, as far as an event says so; "" if it runs."""
    if is_running(vmi) and not vmi.deleting:
        return ""
    reasons = [f"its VMI is {'being deleted' if vmi.deleting else f'in phase {trusted_status(vmi).phase}'}"]
    kind, since = kubevirt.VIRTUAL_MACHINE_INSTANCES.kind, vmi.metadata.creation_timestamp
    if failures := snapshot.failures_of(constants.EVENT_FAILED_CREATE, kind, vmi, since):
        reasons += [str(failures[-1]), *([_START] if refusing_quota(failures[-1].message) else ())]
    return "; ".join(reasons)
