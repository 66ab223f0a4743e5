"""Reasons beside the quotas that headroom manages for which a migration waits: by name, with the part of the page of
limits. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from kubeloop.api.core import Pod
from kubeloop.api.objects import find_condition
from kubeloop.api.resource_list import parse_resource_list
from kubeloop.text import quoted
from pkg.api.kubevirt import (
    VIRTUAL_MACHINE_INSTANCES,
    VirtualMachine,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
)
from pkg.report.snapshot import Snapshot
from pkg.util import constants
from pkg.util.amounts import format_amount, format_amounts
from pkg.util.kubevirt.claims import Move, moves_of, volume_overlap
from pkg.util.kubevirt.evidence import is_running, trusted_status
from pkg.util.kubevirt.migration import PRIORITIES, is_decentralized, refusing_quota
from pkg.util.kubevirt.sides import sides_of
from pkg.util.resourcequota.base import counts_of_devices

_PAGE = "docs/limits.md"
STORAGE, MIGRATIONS, ADMISSION, PLACEMENT = (
    f"{_PAGE}#{part}" for part in ("storage", "migrations", "admission-that-is-not-resourcequota", "placement")
)
_BLOCKED = (
    (constants.CONDITION_BLOCKED_BY_BACKUP, "KubeVirt waits for a backup of the VM"),
    (constants.CONDITION_BLOCKED_BY_UTILITY_VOLUMES, "KubeVirt waits until utility volumes are detached"),
)
_GATES = {
    "ApplicationAwareQuotaGate": "an ApplicationAwareResourceQuota (AAQ) holds its target pod back",
    "kueue.x-k8s.io/admission": "Kueue holds its target pod back",
}
_REFUSALS = (
    (("maximum ", "minimum ", " limit to request ratio"), "a LimitRange refuses its target pod", ADMISSION),
    (("must specify",), "a quota refuses its target pod, which does not name what it limits", ADMISSION),
    (("violates PodSecurity",), "Pod Security refuses its target pod", ADMISSION),
)
_WITHOUT_VOLUMES = ("Provisioning", "WaitingForVolumeBinding", "DataVolumeError", "ErrorPvcNotFound")
_START = "headroom adds nothing for a start: enlarge the quota"
_LIVE_MIGRATABLE = "LiveMigratable"
_REQUESTS_STORAGE = "requests.storage"


def kubevirt_wait_reason(migration: VirtualMachineInstanceMigration) -> str:
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
            return f"{text}{f': {condition.message}' if condition.message else ''}"
    return ""


def priority_note(snapshot: Snapshot, migration: VirtualMachineInstanceMigration) -> str:
    """Returns how many of the waiting migrations KubeVirt starts first by their priority; "" for none."""
    priority = PRIORITIES.get(migration.spec.priority or "", 0)
    waiting = [m for m in snapshot.migrations if m.phase == constants.PHASE_PENDING]
    ahead_count = sum(PRIORITIES.get(m.spec.priority or "", 0) > priority for m in waiting)
    return f"{ahead_count} that wait have a higher priority" if ahead_count else ""


def pending_target_reason(snapshot: Snapshot, target: Pod) -> str:
    """Returns why a target pod that exists does not run; "" if no reason is known."""
    if target.status.phase != constants.PHASE_PENDING:
        return ""
    for gate in target.spec.scheduling_gates or ():
        if gate.name in _GATES:
            return f"{_GATES[gate.name]} (scheduling gate {gate.name}): {ADMISSION}"
    created = {claim.name for claim in target.status.resource_claim_statuses or () if claim.resource_claim_name}
    missing = [
        claim.name for claim in target.spec.resource_claims or () if claim.template and claim.name not in created
    ]
    if missing:
        notes = "".join(f"; {text}" for text in _device_limit_notes(snapshot, target.namespace))
        return f"ResourceClaims for its devices are not created: {', '.join(sorted(missing))}{notes}: {PLACEMENT}"
    scheduled = find_condition(target.status.conditions, "PodScheduled")
    if scheduled is not None and scheduled.status == "False":
        return f"no node fits its target pod: {scheduled.message or scheduled.reason or ''}: {PLACEMENT}"
    if node := target.spec.node_name:
        return f"its containers have not started on {node}: the events of pod {target.name} say what they wait for"
    return f"kube-scheduler has not placed pod {target.name} yet"


def refusal_reason(snapshot: Snapshot, namespace: str, message: str) -> str:
    """Returns what refused a pod, by what KubeVirt quotes of the API server; "" if that is not known."""
    for words, text, part in _REFUSALS:
        if any(word in message for word in words):
            return f"{text}: {part}"
    name = refusing_quota(message)
    if name and name not in {quota.name for quota in snapshot.quotas_of(namespace)}:
        return f"{name} is not a ResourceQuota of the namespace, perhaps a ClusterResourceQuota: {ADMISSION}"
    return ""


def vm_notes(snapshot: Snapshot, vmi: VirtualMachineInstance) -> list[str]:
    """Returns what else is known of a VM: that KubeVirt does not migrate it, that its volumes move."""
    notes = [text for text in [unmigratable_reason(snapshot, vmi)] if text]
    volume_moves = moves_of(vmi, snapshot.source.machines.get(namespace=vmi.namespace, name=vmi.name))
    if volume_moves:
        notes.append(_volumes_note(snapshot, vmi.namespace, volume_moves))
    return notes


def unmigratable_reason(snapshot: Snapshot, vmi: VirtualMachineInstance) -> str:
    """Returns why a VM does not migrate, whatever quotas say; "" if it does."""
    migratable = find_condition(trusted_status(vmi).conditions, _LIVE_MIGRATABLE)
    if migratable is None or migratable.status != "False":
        return next(_refusing_limits(snapshot, vmi), "")
    reason = migratable.message or migratable.reason or "no reason is given"
    return f"KubeVirt does not migrate it: {reason}: {PLACEMENT}"


def _refusing_limits(snapshot: Snapshot, vmi: VirtualMachineInstance) -> Iterator[str]:
    """Yields the maximums of LimitRanges, written since the VM started, that a pod like the running one exceeds."""
    if not (limit_ranges := snapshot.source.limit_ranges.list(vmi.namespace)):
        return
    sides = sides_of(vmi, snapshot.migrations_of(vmi.namespace, vmi.name), snapshot.controlled(vmi.namespace)).source
    for limit_range, side in product(limit_ranges, sides[:1]):
        items = [item for item in limit_range.spec.limits if item.type == "Container"]
        for item, container in product(items, side.launcher.spec.containers):
            limits, most = parse_resource_list(container.resources.limits), parse_resource_list(item.max)
            if beyond := {name: most[name] for name in limits.keys() & most.keys() if limits[name] > most[name]}:
                limited = format_amounts({name: limits[name] for name in beyond})
                yield (
                    f"LimitRange {limit_range.name} refuses a target pod: a container may have "
                    f"{format_amounts(beyond)}, {container.name} has {limited}: {ADMISSION}"
                )


def halted_reason(vm: VirtualMachine) -> str:
    """Returns why a VM without a VMI does not run, if quota or storage is the reason; else ""."""
    if shortage := vm.annotations.get(constants.ANNOTATION_INSUFFICIENT_RESOURCE_QUOTA):
        return f"it was halted: {quoted(shortage)}: {_START}"
    if (printable_status := vm.status.printable_status) not in _WITHOUT_VOLUMES:
        return ""
    refused = "quota may refuse an import's pods or scratch space"
    return f"its volumes are not ready ({printable_status}): {refused}: {STORAGE}"


def unstarted_reason(snapshot: Snapshot, vmi: VirtualMachineInstance) -> str:
    """Returns why a VMI is not one that KubeVirt migrates: it ends, or does not run, and what kept its pod from being
    created, as far as an event says so; "" if it runs."""
    if is_running(vmi) and not vmi.deleting:
        return ""
    reasons = [f"its VMI is {'being deleted' if vmi.deleting else f'in phase {trusted_status(vmi).phase}'}"]
    about, since = {(VIRTUAL_MACHINE_INSTANCES.kind, vmi.name)}, vmi.metadata.creation_timestamp or ""
    if failures := snapshot.failures_of(constants.EVENT_FAILED_CREATE, vmi.namespace, about, since):
        reasons.append(str(max(failures)))
        if refusing_quota(max(failures).message):
            reasons.append(_START)
    return "; ".join(reasons)


def _volumes_note(snapshot: Snapshot, namespace: str, volume_moves: Sequence[Move]) -> str:
    """Returns which volumes move, and how much of their disks a volume migration counts twice."""
    claims = {claim.name: claim for claim in snapshot.claims if claim.namespace == namespace}
    doubled_size = volume_overlap(volume_moves, claims, snapshot.basis.releases()).source.get(_REQUESTS_STORAGE)
    effect = f", so that {format_amount(doubled_size, _REQUESTS_STORAGE)} count twice" if doubled_size else ""
    return f"its volumes {', '.join(move.volume for move in volume_moves)} move{effect}: {STORAGE}"


def _device_limit_notes(snapshot: Snapshot, namespace: str) -> Iterator[str]:
    for quota in snapshot.quotas_of(namespace):
        for name, limit in sorted(quota.hard.items()):
            if counts_of_devices(name):
                yield f"{quota.name} limits {name} to {limit}, {quota.used.get(name, 0)} are used"
