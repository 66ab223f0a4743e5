"""The claim that keeps a VM's persistent state, and the second one, which a migration's target gets. Pure.

KubeVirt (1.4 and later) creates the target's claim before the target's pod, unless both can share one (ReadWriteMany).
In the end it deletes the source's, or the target's where the migration fails; Kubernetes keeps a claim as long as there
is a pod that names it, even one that is over, and quota counts it until then. The base of a quota pays for one; what is
added is for the others.

Believed is what KubeVirt alone writes: which claims a migration's status and a running VMI's status name. Labels and
sizes of claims are also a tenant's to change: a claim is worth what KubeVirt asks for when it creates one, at most. A
label only tells that a target's claim is there before the status names it, which changes nothing of what is granted.

Source: KubeVirt pkg/storage/backend-storage, pkg/storage/cbt, pkg/virt-controller/watch/migration
(handleBackendStorage, failMigration).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kubeloop.api.core import PersistentVolumeClaim, PersistentVolumeClaimSpec, ResourceRequirements
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.kubevirt.migration import MigrationPods, of_state, pods_of
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
    named = [each for each in _named(vmi, migrations, claims) if not each.source_claim or len({*each.claims}) > 1]
    there = {name: claims[name] for each in named for name in _there(each, claims)}
    active = [each for each in named if each.active] if moving else []
    in_use = _current(vmi)
    used = {in_use} | {name for each in active for name in each.claims}
    if in_use not in claims and used.isdisjoint(there):
        used.update(sorted(there)[:1])
    old = total(_worth(claim, vmi, rendering) for name, claim in there.items() if name not in used)
    target = next((there[each.target_claim] for each in active if each.target_claim in there), None)
    if target is not None:
        return SecondClaims(_worth(target, vmi, rendering), old=old)
    return SecondClaims(to_come=claim_to_come(vmi, claims, rendering) if active else {}, old=old)


def size_of(vmi: VirtualMachineInstance, profile: Profile) -> str:
    """What KubeVirt asks for when it creates the VM's claim."""
    size = _SIZE + (profile.tracking_size if _tracks_blocks(vmi) else 0)
    return str(Quantity.of(size, Format.BINARY_SI))


def claim_to_come(vmi: VirtualMachineInstance, claims: Claims, rendering: Rendering) -> ResourceList:
    """What quota will count of the claim that KubeVirt creates for a target; empty: it creates none."""
    in_use = claims.get(_current(vmi))
    is_shared = in_use is not None and (in_use.status.access_modes or [""])[0] == _SHARED
    if not _current(vmi) or not is_needed(vmi, rendering.profile) or is_shared:
        return {}
    return storage_usage(_new_claim(vmi, rendering, in_use), rendering.kubernetes)


def concerning(
    vmi: VirtualMachineInstance | None, migrations: Sequence[VirtualMachineInstanceMigration], claims: Claims
) -> list[PersistentVolumeClaim]:
    """Every claim that may make a difference to `backend_storage`."""
    if vmi is None or not claims:
        return []
    names = {_current(vmi)}.union(*(each.claims for each in _named(vmi, migrations, claims)))
    return [claims[name] for name in sorted(names) if name in claims]


def read_of(vmi: VirtualMachineInstance) -> object:
    """What is read of a VMI's status beside its migration state."""
    return _current(vmi), vmi.status.changed_block_tracking


# ---- what KubeVirt says --------------------------------------------------------------------------------------


def _named(
    vmi: VirtualMachineInstance, migrations: Sequence[VirtualMachineInstanceMigration], claims: Claims
) -> Iterator[MigrationPods]:
    state = vmi.status.migration_state
    for each in migrations:
        named = pods_of(each, state)
        open_ = named.active and not named.target_claim
        yield replace(named, target_claim=_labelled(each, claims)) if open_ else named
    if state and all(state.migration_uid != each.uid for each in migrations):
        # Of a migration that was deleted: believed if it names the claim in use, whose generated name cannot be known
        # when a VMI is created with a status.
        named = replace(of_state("", state), ended=state.end_timestamp or "")
        if _current(vmi) in named.claims:
            yield named


def _there(named: MigrationPods, claims: Claims) -> Iterator[str]:
    """Those that are there and not of another time, as a claim that a tenant made under an old name would be."""
    source, target = (claims.get(name) for name in named.claims)
    if source is not None and named.fits_source(source):
        yield named.source_claim
    if target is not None and named.fits_target(target):
        yield named.target_claim


def _labelled(migration: VirtualMachineInstanceMigration, claims: Claims) -> str:
    """The name of the claim that KubeVirt itself would take for the target's."""
    found = (name for name, each in claims.items() if each.labels.get(constants.LABEL_MIGRATION_NAME) == migration.name)
    return min((name for name in found if name.startswith(PREFIX)), default="")


def _current(vmi: VirtualMachineInstance) -> str:
    """The name of the claim that KubeVirt says is in use."""
    states = (volume for volume in vmi.status.volume_status or () if volume.name.startswith(PREFIX))
    claims = (volume.persistent_volume_claim_info for volume in states)
    return next((claim.claim_name for claim in claims if claim is not None), "")


def _tracks_blocks(vmi: VirtualMachineInstance) -> bool:
    tracking = vmi.status.changed_block_tracking
    return tracking is not None and tracking.state in _TRACKING


# ---- what a claim is worth -----------------------------------------------------------------------------------


def _worth(claim: PersistentVolumeClaim, vmi: VirtualMachineInstance, rendering: Rendering) -> ResourceList:
    """What quota counts of it, as far as KubeVirt asks for that much."""
    most = _new_claim(vmi, rendering, claim, its_class=True)
    return minimum(storage_usage(claim, rendering.kubernetes), storage_usage(most, rendering.kubernetes))


def _new_claim(
    vmi: VirtualMachineInstance, rendering: Rendering, like: PersistentVolumeClaim | None, *, its_class: bool = False
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
