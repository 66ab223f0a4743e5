"""The claims of a VM's disks while its volumes move to others: both sets are there, and quota counts both. Pure.

A tenant starts it: the VM names other claims under `updateVolumesStrategy: Migration`. KubeVirt waits until these are
there, names both in the VMI's status, and takes them off it when the VM has arrived or goes back to the old ones. So
what is read here is a wish, worth no more than the claims that there are. The base of a quota pays for one set; of a
class that the old one is not in, for the new one.

Source: KubeVirt pkg/virt-controller/watch/volume-migration, pkg/virt-handler (removeMigratedVolumes).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kubeloop.api.core import PersistentVolumeClaim, PersistentVolumeClaimSpec, ResourceRequirements
from kubeloop.api.meta import RawResourceList
from pkg.api.kubevirt import VirtualMachine, VirtualMachineInstance, Volume
from pkg.util import constants
from pkg.util.quotacount.claims import STORAGE_CLASS_SUFFIX, storage_usage
from pkg.util.quotacount.releases import Releases
from pkg.util.resource_list import ResourceList, add_to, minimum

_MIGRATION = "Migration"


@dataclass(frozen=True, slots=True)
class Move:
    """A volume, the claim that it is in, and the one that it goes to, by name. `asked` is what KubeVirt says that the
    first one asked for, None where it does not."""

    volume: str
    source: str
    destination: str
    asked: RawResourceList | None = None


@dataclass(frozen=True, slots=True)
class Doubled:
    """What quota counts of the old set, of both sets, and of the claims to come. Both: the smaller claim of each pair,
    resource by resource, where those to come are as large as the old ones."""

    old: ResourceList = field(default_factory=dict)
    both: ResourceList = field(default_factory=dict)
    to_come: ResourceList = field(default_factory=dict)


NOT_DOUBLED = Doubled()


def moves(vmi: VirtualMachineInstance | None, machine: VirtualMachine | None) -> list[Move]:
    """Of a VM that runs: what KubeVirt says that moves; before that, what the VM asks for. No claim is named twice."""
    if vmi is None or vmi.deleting or vmi.status.phase != constants.VMI_PHASE_RUNNING:
        return []
    asked = _under_way(vmi) or (_asked(vmi, machine) if machine else [])
    seen: set[str] = set()
    found = []
    for move in asked:
        named = {move.source, move.destination}
        if len(named - {""}) == 2 and seen.isdisjoint(named):
            found.append(move)
            seen |= named
    return found


def doubled(found: Iterable[Move], claims: Mapping[str, PersistentVolumeClaim], releases: Releases) -> Doubled:
    """Raises QuantityError when a claim's quantity is none."""
    result = Doubled()
    for move in found:
        source, destination = claims.get(move.source), claims.get(move.destination)
        usage = storage_usage(source or _claim(move.asked), releases)
        add_to(result.old, usage)
        if source is not None:
            then = storage_usage(destination, releases) if destination else usage
            add_to(result.both, minimum(usage, then))
        if destination is None:  # its class is not known
            add_to(result.to_come, {n: q for n, q in usage.items() if STORAGE_CLASS_SUFFIX not in n})
    return result


def _under_way(vmi: VirtualMachineInstance) -> list[Move]:
    return [
        Move(each.volume_name, each.source.claim_name, each.destination.claim_name, each.source.requests)
        for each in vmi.status.migrated_volumes or ()
        if each.source is not None and each.destination is not None
    ]


def _asked(vmi: VirtualMachineInstance, machine: VirtualMachine) -> list[Move]:
    if machine.spec.update_volumes_strategy != _MIGRATION:
        return []
    now = {each.name: _claim_of(each) for each in vmi.spec.volumes or ()}
    then = {each.name: _claim_of(each) for each in machine.spec.template.spec.volumes or ()}
    return [Move(name, now[name], then[name]) for name in sorted(now.keys() & then) if then[name] != now[name]]


def _claim(requests: RawResourceList | None) -> PersistentVolumeClaim:
    return PersistentVolumeClaim(spec=PersistentVolumeClaimSpec(resources=ResourceRequirements(requests=requests)))


def _claim_of(volume: Volume) -> str:
    """The name of a volume's claim; a DataVolume's is its own. "" for one without."""
    if volume.persistent_volume_claim is not None:
        return volume.persistent_volume_claim.claim_name
    return volume.data_volume.name if volume.data_volume is not None else ""
