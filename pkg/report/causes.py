"""What keeps a migration waiting beside the quotas that headroom manages: by name, with the part of the page of limits.
Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kubeloop.api.core import Pod
from kubeloop.api.meta import Condition
from kubeloop.api.objects import condition_is_true
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.report.snapshot import Snapshot
from pkg.util import constants
from pkg.util.amounts import shown
from pkg.util.kubevirt.claims import Move, doubled, moves
from pkg.util.kubevirt.evidence import trusted_status
from pkg.util.kubevirt.migration import PRIORITIES, is_decentralized, refusing_quota
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
_LIVE_MIGRATABLE = "LiveMigratable"
_REQUESTS_STORAGE = "requests.storage"


def kubevirt_waits(migration: VirtualMachineInstanceMigration) -> str:
    """What KubeVirt waits for by itself before it creates a target, or why there is none here; "": nothing."""
    if is_decentralized(migration):
        return (
            "it is decentralized: nothing is added, as the receiver is its VM's only pod there and the base pays for "
            f"it: {MIGRATIONS}"
        )
    for kind, text in _BLOCKED:
        if condition_is_true(migration.status.conditions, kind):
            message = next((c.message for c in migration.status.conditions or () if c.type == kind), None)
            return f"{text}{f': {message}' if message else ''}"
    return ""


def of_queue(snapshot: Snapshot, migration: VirtualMachineInstanceMigration) -> str:
    """How many of the migrations that wait as well KubeVirt starts first by their priority; "": none."""
    own = PRIORITIES.get(migration.spec.priority or "", 0)
    waiting = [m for m in snapshot.migrations if m.phase == constants.PHASE_PENDING]
    ahead = sum(PRIORITIES.get(m.spec.priority or "", 0) > own for m in waiting)
    return f"{ahead} that wait have a higher priority" if ahead else ""


def of_target(snapshot: Snapshot, target: Pod) -> str:
    """Why a target pod that exists does not run; "": nothing is known of that."""
    if target.status.phase != constants.PHASE_PENDING:
        return ""
    for gate in target.spec.scheduling_gates or ():
        if gate.name in _GATES:
            return f"{_GATES[gate.name]} (scheduling gate {gate.name}): {ADMISSION}"
    made = {each.name for each in target.status.resource_claim_statuses or () if each.resource_claim_name}
    lacking = [each.name for each in target.spec.resource_claims or () if each.template and each.name not in made]
    if lacking:
        limits = "".join(f"; {text}" for text in _device_limits(snapshot, target.namespace))
        return f"ResourceClaims for its devices are not created: {', '.join(sorted(lacking))}{limits}: {PLACEMENT}"
    scheduled = _condition(target.status.conditions, "PodScheduled")
    if scheduled is not None and scheduled.status == "False":
        return f"no node fits its target pod: {scheduled.message or scheduled.reason or ''}: {PLACEMENT}"
    return ""


def of_refusal(snapshot: Snapshot, namespace: str, message: str) -> str:
    """What refused a pod, by what KubeVirt quotes of the API server; "": not known."""
    for words, text, part in _REFUSALS:
        if any(word in message for word in words):
            return f"{text}: {part}"
    name = refusing_quota(message)
    if name and name not in {quota.name for quota in snapshot.quotas_of(namespace)}:
        return f"{name} is not a ResourceQuota of the namespace, perhaps a ClusterResourceQuota: {ADMISSION}"
    return ""


def of_instance(snapshot: Snapshot, vmi: VirtualMachineInstance) -> list[str]:
    """What else is known of a VM: KubeVirt does not migrate it, its volumes move."""
    found = [text for text in [hinders_migration(vmi)] if text]
    moving = moves(vmi, snapshot.source.machines.get(namespace=vmi.namespace, name=vmi.name))
    if moving:
        found.append(_volumes(snapshot, vmi.namespace, moving))
    return found


def hinders_migration(vmi: VirtualMachineInstance) -> str:
    """Why KubeVirt does not migrate a VM; "" where it does."""
    migratable = _condition(trusted_status(vmi).conditions, _LIVE_MIGRATABLE)
    if migratable is None or migratable.status != "False":
        return ""
    why = migratable.message or migratable.reason or "no reason is given"
    return f"KubeVirt does not migrate it: {why}: {PLACEMENT}"


def of_halted(printable_status: str) -> str:
    """Why a VM does not run that shall, as far as storage is the reason."""
    if printable_status not in _WITHOUT_VOLUMES:
        return ""
    refused = "quota may refuse an import's pods or scratch space"
    return f"its volumes are not ready ({printable_status}): {refused}: {STORAGE}"


def _volumes(snapshot: Snapshot, namespace: str, moving: Sequence[Move]) -> str:
    """How much disks count that a volume migration doubles."""
    claims = {claim.name: claim for claim in snapshot.claims if claim.namespace == namespace}
    twice = doubled(moving, claims, snapshot.basis.releases()).old.get(_REQUESTS_STORAGE)
    counts = f", so that {shown(twice, _REQUESTS_STORAGE)} count twice" if twice else ""
    return f"its volumes {', '.join(each.volume for each in moving)} move{counts}: {STORAGE}"


def _device_limits(snapshot: Snapshot, namespace: str) -> Iterator[str]:
    for quota in snapshot.quotas_of(namespace):
        for name, limit in sorted(quota.hard.items()):
            if counts_of_devices(name):
                yield f"{quota.name} limits {name} to {limit}, {quota.used.get(name, 0)} are used"


def _condition(conditions: Sequence[Condition] | None, kind: str) -> Condition | None:
    return next((each for each in conditions or () if each.type == kind), None)
