"""The claims of a VM beyond one set, which the base of a quota pays for: those that a migration makes. Pure.

- The claim that keeps a VM's state. KubeVirt (1.4 and later) creates a second one before the target's pod, unless both
  can share one (ReadWriteMany). In the end it deletes the source's, or the target's where the migration fails;
  Kubernetes keeps a claim as long as there is a pod that names it, even one that is over, and quota counts it until
  then. Source: KubeVirt pkg/storage/backend-storage, pkg/storage/cbt, pkg/virt-controller/watch/migration
  (handleBackendStorage, failMigration).
- The claims of its disks while its volumes move to others. The VM names others under `updateVolumesStrategy:
  Migration`; KubeVirt waits until these are there, names both in the VMI's status, and takes them off it when the VM
  has arrived or goes back. Source: KubeVirt pkg/virt-controller/watch/volume-migration, pkg/virt-handler
  (removeMigratedVolumes).

Believed is what KubeVirt alone writes: which claims the status of a migration and of a running VMI name. Labels and
sizes are also a tenant's to change: a claim of state is worth what KubeVirt asks for when it creates one, at most; a
move of volumes is a wish, worth no more than the claims that there are. A label only tells that a target's claim is
there before the status names it, which changes nothing of what is granted.

ResourceClaims of devices are not added to: Kubernetes makes them after the pod, so nothing reserves what is added for
them, and any pod of the namespace could take it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kubeloop.api.core import PersistentVolumeClaim, PersistentVolumeClaimSpec, ResourceRequirements
from kubeloop.api.meta import RawResourceList
from kubeloop.api.quantity import Format, Quantity
from kubeloop.api.resource_list import ResourceList, add_to, minimum
from pkg.api.kubevirt import VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration, Volume
from pkg.util import constants
from pkg.util.kubevirt.evidence import trusted_status
from pkg.util.kubevirt.migration import WHOLE_SECONDS, Leftover, MigrationPods, pods_of, said, seconds_of
from pkg.util.kubevirt.profiles import MI, Profile
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.quotacount.releases import Releases
from pkg.util.quotacount.usage import STORAGE_CLASS_SUFFIX, storage_usage

Claims = Mapping[str, PersistentVolumeClaim]
"""A namespace's PersistentVolumeClaims by name."""
Labelled = Mapping[str, str]
"""The name of the claim that KubeVirt itself would take for a migration's target, by the migration's name."""

STATE_PREFIX = "persistent-state-for"
"""What the names of the claims of state begin with, and the volume's."""
_STATE_SIZE = 10 * MI
"""What KubeVirt asks for."""
_TRACKING = ("Initializing", "Enabled")
_SHARED = "ReadWriteMany"


@dataclass(frozen=True, slots=True)
class SecondClaims:
    """What quota counts of a VM's claims beyond one set: of those that are there, of those to come, of old ones;
    `leftovers` are the old ones of its state."""

    there: ResourceList = field(default_factory=dict)
    to_come: ResourceList = field(default_factory=dict)
    old: ResourceList = field(default_factory=dict)
    leftovers: Sequence[Leftover] = ()


NOTHING = SecondClaims()


# ---- its state -----------------------------------------------------------------------------------------------


def keeps_state(vmi: VirtualMachineInstance, profile: Profile) -> bool:
    """Whether the VM keeps state in a claim, of which KubeVirt makes another for a migration's target."""
    if not profile.target_claims:
        return False
    tpm, firmware = vmi.spec.domain.devices.tpm, vmi.spec.domain.firmware
    if tpm is not None and tpm.persistent and not (profile.tpm_can_be_disabled and tpm.enabled is False):
        return True
    efi = firmware.bootloader.efi if firmware and firmware.bootloader else None
    return (efi is not None and efi.persistent) or (profile.tracks_blocks and _tracks_blocks(vmi))


def state_claims(
    vmi: VirtualMachineInstance | None,
    migrations: Sequence[VirtualMachineInstanceMigration],
    claims: Claims,
    rendering: Rendering,
    *,
    labelled: Labelled,
    home: Collection[str] = (),
    moving: bool,
) -> SecondClaims:
    """`migrations` are all of the VM's, finished or not; `home`: the names of the launchers in which it may live;
    `moving`: one of its migrations may still go on, so that a claim may be there for the target before any status names
    it. Raises QuantityError when a claim's quantity is none.
    """
    if vmi is None or not keeps_state(vmi, rendering.profile):
        return NOTHING
    named = [
        each
        for each in _named(vmi, migrations, labelled if moving else {})
        if (not each.source_claim or len({*each.claims}) > 1)
        # Of a deleted one: a VMI may be created with a status, but no one knows then how its launcher will be named.
        and (each.known or not {each.source, each.target}.isdisjoint(home))
    ]
    there: dict[str, str] = {}  # since when, by name: until the last migration that names it ended
    for each in named:
        there |= {name: max(each.ended, there.get(name, "")) for name in _there(each, claims)}
    active = [each for each in named if each.active] if moving else []
    in_use = _in_use(vmi)
    used = {in_use} | {name for each in active for name in each.claims}
    if in_use not in claims and used.isdisjoint(there):
        used.update(sorted(there)[:1])
    leftovers = [
        Leftover(claims[name].uid, f"claim {name}", _worth(claims[name], vmi, rendering), seconds_of(ended))
        for name, ended in there.items()
        if name not in used
    ]
    target = next((claims[each.target_claim] for each in active if each.target_claim in there), None)
    if target is not None:
        return SecondClaims(_worth(target, vmi, rendering), leftovers=leftovers)
    return SecondClaims(to_come=claim_to_come(vmi, claims, rendering) if active else {}, leftovers=leftovers)


def labelled_claims(claims: Claims) -> Labelled:
    """By the label that KubeVirt gives a target's claim, and a tenant any claim; of several the first by name."""
    found: dict[str, str] = {}
    for name, claim in claims.items():
        migration = claim.labels.get(constants.LABEL_MIGRATION_NAME)
        if migration and name.startswith(STATE_PREFIX):
            found[migration] = min(name, found.get(migration, name))
    return found


def state_size(vmi: VirtualMachineInstance, profile: Profile) -> str:
    """What KubeVirt asks for when it creates the VM's claim."""
    size = _STATE_SIZE + (profile.tracking_size if _tracks_blocks(vmi) else 0)
    return str(Quantity.of(size, Format.BINARY_SI))


def claim_to_come(vmi: VirtualMachineInstance, claims: Claims, rendering: Rendering) -> ResourceList:
    """What quota will count of the claim that KubeVirt creates for a target; empty: it creates none."""
    in_use = claims.get(_in_use(vmi))
    is_shared = in_use is not None and (in_use.status.access_modes or [""])[0] == _SHARED
    if not _in_use(vmi) or not keeps_state(vmi, rendering.profile) or is_shared:
        return {}
    return storage_usage(_new_claim(vmi, rendering, in_use), rendering.kubernetes)


def state_claims_concerning(
    vmi: VirtualMachineInstance | None,
    migrations: Sequence[VirtualMachineInstanceMigration],
    claims: Claims,
    labelled: Labelled,
) -> list[PersistentVolumeClaim]:
    """Every claim that may make a difference to `state_claims`."""
    if vmi is None or not claims:
        return []
    names = {_in_use(vmi)}.union(*(each.claims for each in _named(vmi, migrations, labelled)))
    return [claims[name] for name in sorted(names) if name in claims]


def read_of(vmi: VirtualMachineInstance) -> object:
    """What is read of a VMI's status beside its migration state."""
    return _in_use(vmi), trusted_status(vmi).changed_block_tracking


def _named(
    vmi: VirtualMachineInstance, migrations: Sequence[VirtualMachineInstanceMigration], labelled: Labelled
) -> Iterator[MigrationPods]:
    """What KubeVirt says of the claims of each migration, and of one that was deleted, if it names the one in use."""
    state = trusted_status(vmi).migration_state
    for each in migrations:
        named = pods_of(each, state)
        open_ = named.active and not named.target_claim
        yield replace(named, target_claim=labelled.get(each.name, "")) if open_ else named
    if state and all(state.migration_uid != each.uid for each in migrations):
        named = MigrationPods("", *said(state), ended=(state.end_timestamp or "")[:WHOLE_SECONDS])
        if _in_use(vmi) in named.claims:
            yield named


def _there(named: MigrationPods, claims: Claims) -> Iterator[str]:
    """Those that are there and not of another time, as a claim that a tenant made under an old name would be."""
    source, target = (claims.get(name) for name in named.claims)
    if source is not None and named.fits_source(source):
        yield named.source_claim
    if target is not None and named.fits_target(target):
        yield named.target_claim


def _in_use(vmi: VirtualMachineInstance) -> str:
    """The name of the claim that KubeVirt says is in use."""
    states = (volume for volume in trusted_status(vmi).volume_status or () if volume.name.startswith(STATE_PREFIX))
    claims = (volume.persistent_volume_claim_info for volume in states)
    return next((claim.claim_name for claim in claims if claim is not None), "")


def _tracks_blocks(vmi: VirtualMachineInstance) -> bool:
    tracking = trusted_status(vmi).changed_block_tracking
    return tracking is not None and tracking.state in _TRACKING


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
    storage_class = chosen or (like.spec.storage_class_name if like else None)
    asked = ResourceRequirements(requests={"storage": state_size(vmi, rendering.profile)})
    return PersistentVolumeClaim(spec=PersistentVolumeClaimSpec(resources=asked, storage_class_name=storage_class))


# ---- its disks -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Move:
    """A volume, the claim that it is in, and the one that it goes to, by name. `asked` is what KubeVirt says that the
    first one asked for, None where it does not."""

    volume: str
    source: str
    destination: str
    asked: RawResourceList | None = None


def moves(vmi: VirtualMachineInstance | None, machine: VirtualMachine | None) -> list[Move]:
    """Of a VM that runs: what KubeVirt says that moves; before that, what the VM asks for. No claim is named twice."""
    if vmi is None or vmi.deleting or trusted_status(vmi).phase != constants.VMI_PHASE_RUNNING:
        return []
    under_way = [
        Move(each.volume_name, each.source.claim_name, each.destination.claim_name, each.source.requests)
        for each in trusted_status(vmi).migrated_volumes or ()
        if each.source is not None and each.destination is not None
    ]
    seen: set[str] = set()
    found = []
    for move in under_way or (_asked(vmi, machine) if machine else ()):
        named = {move.source, move.destination}
        if len(named - {""}) == 2 and seen.isdisjoint(named):
            found.append(move)
            seen |= named
    return found


def doubled(found: Iterable[Move], claims: Claims, releases: Releases) -> SecondClaims:
    """`old` is the old set, `there` the smaller claim of each pair, resource by resource, where those to come are as
    large as the old ones. The base pays for one set; of a class that the old one is not in, for the new one. Raises
    QuantityError when a claim's quantity is none.
    """
    result = SecondClaims()
    for move in found:
        source, destination = claims.get(move.source), claims.get(move.destination)
        asked = PersistentVolumeClaimSpec(resources=ResourceRequirements(requests=move.asked))
        usage = storage_usage(source or PersistentVolumeClaim(spec=asked), releases)
        add_to(result.old, usage)
        if source is not None:
            then = storage_usage(destination, releases) if destination else usage
            add_to(result.there, minimum(usage, then))
        if destination is None:  # its class is not known
            add_to(result.to_come, {n: q for n, q in usage.items() if STORAGE_CLASS_SUFFIX not in n})
    return result


def _asked(vmi: VirtualMachineInstance, machine: VirtualMachine) -> list[Move]:
    if machine.spec.update_volumes_strategy != "Migration":
        return []
    now = {each.name: _claim_of(each) for each in vmi.spec.volumes or ()}
    then = {each.name: _claim_of(each) for each in machine.spec.template.spec.volumes or ()}
    return [Move(name, now[name], then[name]) for name in sorted(now.keys() & then) if then[name] != now[name]]


def _claim_of(volume: Volume) -> str:
    """The name of a volume's claim; a DataVolume's is its own. "" for one without."""
    if volume.persistent_volume_claim is not None:
        return volume.persistent_volume_claim.claim_name
    return volume.data_volume.name if volume.data_volume is not None else ""
