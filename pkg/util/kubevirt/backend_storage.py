"""The claim that keeps a VM's persistent state, and the second one, which a migration's target gets. Pure.

KubeVirt (1.4 and later) creates the target's claim before the target's pod, unless both can share one (ReadWriteMany).
In the end it deletes the source's, or the target's where the migration fails; Kubernetes keeps a claim as long as there
is a pod that names it, even one that is over, and quota counts it until then. The base of a quota pays for one; what is
added is for the others.

Believed is what KubeVirt alone writes: which claims a migration's status and a running VMI's status name. Labels and
sizes of claims are also a tenant's to change: a claim is worth what KubeVirt asks for when it creates one, at most. A
label only tells that a target's claim is there before the status names it, which changes nothing of what is granted.

Source: KubeVirt pkg/storage/backend-storage, pkg/storage/cbt, pkg/virt-controller/watch/migration
(handleSecondClaims, failMigration).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kubeloop.api.core import PersistentVolumeClaim, PersistentVolumeClaimSpec, ResourceRequirements
from pkg.api.kubevirt import MigrationState, VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.kubevirt.migration import is_finished
from pkg.util.kubevirt.profiles import Profile
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.quantity import Format, Quantity
from pkg.util.quotacount.claims import storage_usage
from pkg.util.resource_list import ResourceList, minimum, total

Claims = Mapping[str, PersistentVolumeClaim]
"""A namespace's PersistentVolumeClaims by name."""

PREFIX = "persistent-state-for"
"""What the names of these claims begin with, and the volume's."""
_SIZE = 10 * 1024**2
"""Bytes that KubeVirt asks for."""
_TRACKING = ("Initializing", "Enabled")
_SHARED = "ReadWriteMany"
_WHOLE_SECONDS = len("2026-01-01T00:00:00")


@dataclass(frozen=True, slots=True)
class SecondClaims:
    """What quota counts of a VM's claims beyond one set: of a target's that are there, of those to come, of old."""

    target: ResourceList = field(default_factory=dict)
    to_come: ResourceList = field(default_factory=dict)
    old: ResourceList = field(default_factory=dict)


NOTHING = SecondClaims()


def is_needed(vmi: VirtualMachineInstance, profile: Profile) -> bool:
    """Whether the VM keeps state in a claim, of which KubeVirt makes another for a migration's target."""
    if not profile.target_claims:
        return False
    tpm, firmware = vmi.spec.domain.devices.tpm, vmi.spec.domain.firmware
    if tpm is not None and tpm.persistent and not (profile.tpm_can_be_disabled and tpm.enabled is False):
        return True
    efi = firmware.bootloader.efi if firmware and firmware.bootloader else None
    return (efi is not None and efi.persistent) or (profile.tracks_blocks and _tracks_blocks(vmi))


def backend_storage(
    vmi: VirtualMachineInstance | None,
    migrations: Sequence[VirtualMachineInstanceMigration],
    claims: Claims,
    rendering: Rendering,
    *,
    moving: bool,
) -> SecondClaims:
    """`migrations` are all of the VM's, finished or not; `moving`: one of them may still go on.

    Raises QuantityError when a claim's quantity is none.
    """
    if vmi is None or not is_needed(vmi, rendering.profile):
        return NOTHING
    named = [
        each for each in _named(vmi, migrations, claims) if not each.source or each.source != each.target
    ]
    there = {name: claims[name] for each in named for name in each.of(claims)}
    active = [each for each in named if each.active] if moving else []
    in_use = _current(vmi)
    used = {in_use} | {name for each in active for name in (each.source, each.target)}
    if in_use not in claims and used.isdisjoint(there):
        used.update(sorted(there)[:1])
    old = total(_worth(claim, vmi, rendering) for name, claim in there.items() if name not in used)
    target = next((there[each.target] for each in active if each.target in there), None)
    if target is not None:
        return SecondClaims(_worth(target, vmi, rendering), old=old)
    return SecondClaims(to_come=claim_to_come(vmi, claims, rendering) if active else {}, old=old)


def size_of(vmi: VirtualMachineInstance, profile: Profile) -> str:
    """What KubeVirt asks for when it creates the VM's claim."""
    size = _SIZE + (profile.tracking_size if _tracks_blocks(vmi) else 0)
    return str(Quantity.of(size, Format.BINARY_SI))


def claim_to_come(vmi: VirtualMachineInstance, claims: Claims, rendering: Rendering) -> ResourceList:
    """What quota will count of the claim that KubeVirt creates for a target; empty: it creates none."""
    in_use = _current(vmi)
    if not in_use or not is_needed(vmi, rendering.profile) or _is_shared(claims.get(in_use)):
        return {}
    return storage_usage(_new_claim(vmi, rendering, claims.get(in_use)), rendering.kubernetes)


def concerning(
    vmi: VirtualMachineInstance | None, migrations: Sequence[VirtualMachineInstanceMigration], claims: Claims
) -> list[PersistentVolumeClaim]:
    """Every claim that may make a difference to `backend_storage`."""
    if vmi is None or not claims:
        return []
    names = {name for each in _named(vmi, migrations, claims) for name in (each.source, each.target)} | {
        _current(vmi)
    }
    return [claims[name] for name in sorted(names) if name in claims]


def read_of(vmi: VirtualMachineInstance) -> object:
    """What is read of a VMI's status beside its migration state."""
    return _current(vmi), vmi.status.changed_block_tracking


# ---- what KubeVirt says --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Named:
    """The claims of one migration, "" for one that is not known. `created` and `ended` are RFC 3339."""

    source: str
    target: str
    created: str
    ended: str
    active: bool

    def of(self, claims: Claims) -> Iterator[str]:
        """Those that are there and not of another time, as a claim that a tenant made under an old name would be."""
        source, target = claims.get(self.source), claims.get(self.target)
        created, ended = self.created[:_WHOLE_SECONDS], self.ended[:_WHOLE_SECONDS]
        if source is not None and (not created or _second(source) <= created):
            yield self.source
        if target is not None and created <= _second(target) and (not ended or _second(target) <= ended):
            yield self.target


def _named(
    vmi: VirtualMachineInstance, migrations: Sequence[VirtualMachineInstanceMigration], claims: Claims
) -> Iterator[_Named]:
    handed_over, current = vmi.status.migration_state, _current(vmi)
    for each in migrations:
        own = each.status.migration_state or MigrationState()
        of_vmi = handed_over if handed_over and handed_over.migration_uid == each.uid else MigrationState()
        ends = [
            t.phase_transition_timestamp or ""
            for t in each.status.phase_transition_timestamps or ()
            if t.phase in constants.FINAL_PHASES
        ]
        yield _Named(
            own.source_persistent_state_claim or of_vmi.source_persistent_state_claim or "",
            own.target_persistent_state_claim
            or of_vmi.target_persistent_state_claim
            or ("" if is_finished(each) else _labelled(each, claims)),
            each.metadata.creation_timestamp or "",
            max(ends, default=""),
            not is_finished(each),
        )
    if handed_over and all(handed_over.migration_uid != each.uid for each in migrations):
        # Of a migration that was deleted: believed if it names the claim in use, whose generated name cannot be known
        # when a VMI is created with a status.
        names = (
            handed_over.source_persistent_state_claim or "",
            handed_over.target_persistent_state_claim or "",
        )
        if current in names:
            yield _Named(*names, "", handed_over.end_timestamp or "", active=False)


def _labelled(migration: VirtualMachineInstanceMigration, claims: Claims) -> str:
    """The name of the claim that KubeVirt itself would take for the target's."""
    label = constants.LABEL_MIGRATION_NAME
    found = (name for name, claim in claims.items() if claim.labels.get(label) == migration.name)
    return min((name for name in found if name.startswith(PREFIX)), default="")


def _current(vmi: VirtualMachineInstance) -> str:
    """The name of the claim that KubeVirt says is in use."""
    for volume in vmi.status.volume_status or ():
        if volume.name.startswith(PREFIX) and volume.persistent_volume_claim_info is not None:
            return volume.persistent_volume_claim_info.claim_name
    return ""


def _is_shared(claim: PersistentVolumeClaim | None) -> bool:
    return claim is not None and (claim.status.access_modes or [""])[0] == _SHARED


def _tracks_blocks(vmi: VirtualMachineInstance) -> bool:
    tracking = vmi.status.changed_block_tracking
    return tracking is not None and tracking.state in _TRACKING


def _second(claim: PersistentVolumeClaim) -> str:
    return (claim.metadata.creation_timestamp or "")[:_WHOLE_SECONDS]


# ---- what a claim is worth -----------------------------------------------------------------------------------


def _worth(claim: PersistentVolumeClaim, vmi: VirtualMachineInstance, rendering: Rendering) -> ResourceList:
    """What quota counts of it, as far as KubeVirt asks for that much."""
    most = _new_claim(vmi, rendering, claim, its_class=True)
    return minimum(storage_usage(claim, rendering.kubernetes), storage_usage(most, rendering.kubernetes))


def _new_claim(
    vmi: VirtualMachineInstance,
    rendering: Rendering,
    like: PersistentVolumeClaim | None,
    *,
    its_class: bool = False,
) -> PersistentVolumeClaim:
    """A claim as KubeVirt would create it now. Its class is the CR's; where that names none the cluster's default,
    which is taken to be that of `like` still."""
    chosen = "" if its_class else rendering.kubevirt.vm_state_storage_class
    return PersistentVolumeClaim(
        spec=PersistentVolumeClaimSpec(
            resources=ResourceRequirements(requests={"storage": size_of(vmi, rendering.profile)}),
            storage_class_name=chosen or (like.spec.storage_class_name if like else None),
        )
    )
