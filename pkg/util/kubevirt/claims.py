"""The claims of a VM beyond one set, which a migration makes and the base of a quota does not pay for. Pure.

- The claim that keeps a VM's state. KubeVirt (1.4 and later) creates a second one before the target's pod, unless both
  can share one (ReadWriteMany). In the end it deletes the source's, or the target's where the migration fails; quota
  counts a claim as long as there is a pod that names it, even one that is over. Source: KubeVirt
  pkg/storage/backend-storage, pkg/storage/cbt, pkg/virt-controller/watch/migration (handleBackendStorage).
- The claims of its disks while its volumes move to others. The VM names others under `updateVolumesStrategy:
  Migration`; KubeVirt waits until these are there, names both in the VMI's status, and takes them off it when the VM
  has arrived or goes back. Source: KubeVirt pkg/virt-controller/watch/volume-migration.

Trusted is what KubeVirt alone writes: which claims the status of a migration and of a running VMI name. Labels and
sizes are also a tenant's to change: a claim of state counts as much as KubeVirt requests for a new one, at most; a move
of volumes is a wish and counts as much as the existing claims, at most. Nothing is added for ResourceClaims of devices:
Kubernetes makes them after the pod, and any pod of the namespace could take what is added for them."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kubeloop.api.core import PersistentVolumeClaim, PersistentVolumeClaimSpec, ResourceRequirements
from kubeloop.api.quantity import Format, Quantity
from kubeloop.api.resource_list import ResourceList, add_to, minimum
from pkg.api.kubevirt import Move, PersistentVolumeClaimInfo, VirtualMachine, VirtualMachineInstance, Volume
from pkg.util import constants
from pkg.util.kubevirt.evidence import trusted_status
from pkg.util.kubevirt.migration import Leftover, MigrationPods, Migrations, pods_of, pods_of_states, seconds_of
from pkg.util.kubevirt.profiles import MI, Profile
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.quotacount.releases import Releases
from pkg.util.quotacount.usage import STORAGE_CLASS_SUFFIX, storage_usage

Claims = Mapping[str, PersistentVolumeClaim]
"""A namespace's PersistentVolumeClaims by name."""

STATE_PREFIX = "persistent-state-for"  # of the names of claims of state, and of the volume's


@dataclass(frozen=True, slots=True)
class ExtraClaims:
    """Usage of a VM's additional claims; `source`: of the claims from which its volumes move."""

    existing: ResourceList = field(default_factory=dict)
    pending: ResourceList = field(default_factory=dict)
    source: ResourceList = field(default_factory=dict)
    leftovers: Sequence[Leftover] = ()


def keeps_state(vmi: VirtualMachineInstance, profile: Profile) -> bool:
    """Reports whether the VM keeps state in a claim, which KubeVirt duplicates for a migration's target."""
    if not profile.target_claims:
        return False
    tpm, firmware = vmi.spec.domain.devices.tpm, vmi.spec.domain.firmware
    if tpm is not None and tpm.persistent and not (profile.tpm_can_be_disabled and tpm.enabled is False):
        return True
    has_efi_state = firmware.bootloader is not None and firmware.bootloader.efi.persistent
    return has_efi_state or (profile.tracks_blocks and _tracks_blocks(vmi))


def state_claims(
    vmi: VirtualMachineInstance | None,
    migrations: Migrations,
    claims: Claims,
    rendering: Rendering,
    *,
    source_launchers: Collection[str],
    is_moving: bool,
) -> ExtraClaims:
    """Returns the additional claims of the VM's state. `migrations` are all of the VM's; `source_launchers`: the names
    of the launchers in which it may live; `is_moving`: one of its migrations may still go on. Raises QuantityError."""
    if vmi is None or not keeps_state(vmi, rendering.profile):
        return ExtraClaims()
    candidates = [
        pods
        for pods in _migration_claims(vmi, migrations)
        if (not pods.source_claim or len({*pods.claims}) > 1)
        # A deleted migration: a VMI may be created with a status, but nobody knows its launcher's name by then.
        and (pods.is_known or not {pods.source, pods.target}.isdisjoint(source_launchers))
    ]
    end_by_name: dict[str, str] = {}  # of existing claims: when the last migration that names it ended
    for pods in candidates:
        for name, fits in ((pods.source_claim, pods.fits_source), (pods.target_claim, pods.fits_target)):
            if name in claims and fits(claims[name]):  # not a tenant's that has an old name
                end_by_name[name] = max(pods.ended_at, end_by_name.get(name, ""))
    active, current_claim = [pods for pods in candidates if pods.is_active and is_moving], state_claim_of(vmi)
    used_names = {current_claim} | {name for pods in active for name in pods.claims}
    if current_claim not in claims and used_names.isdisjoint(end_by_name):
        used_names.update(sorted(end_by_name)[:1])
    leftovers = [
        Leftover(claims[name].uid, f"claim {name}", _bounded_usage(claims[name], vmi, rendering), seconds_of(end))
        for name, end in end_by_name.items()
        if name not in used_names
    ]
    target = next((claims[pods.target_claim] for pods in active if pods.target_claim in end_by_name), None)
    existing = _bounded_usage(target, vmi, rendering) if target else {}
    pending = target_claim_usage(vmi, claims, rendering) if active and not target else {}
    return ExtraClaims(existing, pending, leftovers=leftovers)


def state_size(vmi: VirtualMachineInstance, profile: Profile) -> str:
    """Returns the size that KubeVirt requests when it creates the VM's claim."""
    size = 10 * MI + (profile.tracking_size if _tracks_blocks(vmi) else 0)
    return str(Quantity.of(size, Format.BINARY_SI))


def target_claim_usage(vmi: VirtualMachineInstance, claims: Claims, rendering: Rendering) -> ResourceList:
    """Returns what quota will count of the claim that KubeVirt creates for a target; empty if it creates none."""
    current_claim = claims.get(state_claim_of(vmi))
    is_shared = current_claim is not None and (current_claim.status.access_modes or [""])[0] == "ReadWriteMany"
    if not state_claim_of(vmi) or not keeps_state(vmi, rendering.profile) or is_shared:
        return {}
    # By default it has the cluster's default class, which is assumed to be the present claim's still.
    storage_class = current_claim.spec.storage_class_name if current_claim else None
    return _new_usage(vmi, rendering, rendering.kubevirt.vm_state_storage_class or storage_class)


def state_claims_concerning(
    vmi: VirtualMachineInstance | None, migrations: Migrations, claims: Claims
) -> list[PersistentVolumeClaim]:
    """Returns every claim that may make a difference to `state_claims`."""
    if vmi is None or not claims:
        return []
    names = {state_claim_of(vmi)}.union(*(pods.claims for pods in _migration_claims(vmi, migrations)))
    return [claims[name] for name in sorted(names) if name in claims]


def _migration_claims(vmi: VirtualMachineInstance, migrations: Migrations) -> Iterator[MigrationPods]:
    """Yields the claims that KubeVirt names of each migration, and of a deleted one if it names the current claim."""
    state = trusted_status(vmi).migration_state
    yield from (pods_of(migration, state) for migration in migrations)
    if state and all(state.migration_uid != migration.uid for migration in migrations):
        pods = replace(pods_of_states("", state), ended_at=state.end_timestamp or "")
        if state_claim_of(vmi) in pods.claims:
            yield pods


def state_claim_of(vmi: VirtualMachineInstance) -> str:
    """Returns the name of the claim of state that KubeVirt reports as the VM's current one, "" for none."""
    volumes = [volume for volume in trusted_status(vmi).volume_status or () if volume.name.startswith(STATE_PREFIX)]
    names = (volume.persistent_volume_claim_info.claim_name for volume in volumes)
    return next(filter(None, names), "")


def _tracks_blocks(vmi: VirtualMachineInstance) -> bool:
    return trusted_status(vmi).changed_block_tracking.state in ("Initializing", "Enabled")


def _bounded_usage(claim: PersistentVolumeClaim, vmi: VirtualMachineInstance, rendering: Rendering) -> ResourceList:
    """Returns what quota counts of the claim, at most what KubeVirt requests for a new one."""
    largest = _new_usage(vmi, rendering, claim.spec.storage_class_name)
    return minimum(storage_usage(claim, rendering.kubernetes), largest)


def _new_usage(vmi: VirtualMachineInstance, rendering: Rendering, storage_class: str | None) -> ResourceList:
    """Returns what quota counts of a claim of that class that KubeVirt creates now."""
    resources = ResourceRequirements(requests={"storage": state_size(vmi, rendering.profile)})
    spec = PersistentVolumeClaimSpec(resources=resources, storage_class_name=storage_class)
    return storage_usage(PersistentVolumeClaim(spec=spec), rendering.kubernetes)


def moves_of(vmi: VirtualMachineInstance | None, vm: VirtualMachine | None) -> list[Move]:
    """Returns the moves of a running VM's volumes, as KubeVirt reports, before as the VM requests; each claim once."""
    if vmi is None or vmi.deleting or trusted_status(vmi).phase != constants.PHASE_RUNNING:
        return []
    moves = [move for move in trusted_status(vmi).migrated_volumes or () if "" not in move.claims]
    if vm and not moves and vm.spec.update_volumes_strategy == "Migration":
        current = {volume.name: _claim_of(volume) for volume in vmi.spec.volumes or ()}
        desired = {volume.name: _claim_of(volume) for volume in vm.spec.template.spec.volumes or ()}
        moves = [Move(name, current[name], desired[name]) for name in sorted(current.keys() & desired)]
    accepted, used_names = [], set[str]()
    for move in moves:
        if len({*move.claims} - {""}) == 2 and used_names.isdisjoint(move.claims):
            accepted.append(move)
            used_names.update(move.claims)
    return accepted


def volume_overlap(moves: Iterable[Move], claims: Claims, releases: Releases) -> ExtraClaims:
    """Returns the additional claims of moving volumes: `source` is the set that they leave, `existing` the smaller
    claim of each pair, resource by resource; pending claims count as the ones they replace. The base pays for one set,
    and for the new set in a class that the source is not in. Raises QuantityError."""
    result = ExtraClaims()
    for move in moves:
        source, destination = map(claims.get, move.claims)
        requested_spec = PersistentVolumeClaimSpec(resources=ResourceRequirements(requests=move.source.requests))
        source_usage = storage_usage(source or PersistentVolumeClaim(spec=requested_spec), releases)
        add_to(result.source, source_usage)
        if source is not None:
            destination_usage = storage_usage(destination, releases) if destination else source_usage
            add_to(result.existing, minimum(source_usage, destination_usage))
        if destination is None:  # its class is not known
            add_to(result.pending, {n: amount for n, amount in source_usage.items() if STORAGE_CLASS_SUFFIX not in n})
    return result


def _claim_of(volume: Volume) -> PersistentVolumeClaimInfo:
    """Returns a volume's claim, without a name if it has none. A DataVolume's claim has the DataVolume's name."""
    return PersistentVolumeClaimInfo(claim_name=volume.persistent_volume_claim.claim_name or volume.data_volume.name)
