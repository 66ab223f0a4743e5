"""What the API server has shown, in the order in which it did. Plain data; every view and check reads only this.

Times (`at`) are seconds since the demo began; versions are resourceVersions, which grow with every write of any
object: they say what came before what, however late a watch tells of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from kubeloop.api.core import Event, Pod, ResourceQuota
from kubeloop.api.meta import Object, RawResourceList
from pkg.api.kubevirt import VirtualMachine, VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.constants import LIMITS_CPU, LIMITS_MEMORY
from pkg.util.kubevirt.migration import is_refused
from pkg.util.quantity import ZERO, Quantity
from pkg.util.quotacount.usage import pod_usage
from pkg.util.resource_list import ResourceList, parse_resource_list
from pkg.util.resourcequota.entries import ENTRY_PREFIXES


@dataclass(frozen=True, slots=True)
class Amounts:
    """limits.cpu and limits.memory of a quota's hard or used; equal by value, printed as they were written."""

    cpu: Quantity = ZERO
    memory: Quantity = ZERO

    @classmethod
    def of(cls, cpu: str, memory: str) -> Self:
        """Raises QuantityError."""
        return cls(Quantity.parse(cpu), Quantity.parse(memory))

    @classmethod
    def within(cls, resources: RawResourceList) -> Self:
        """The two out of a ResourceList; what is missing is zero. Raises QuantityError."""
        return cls.of_quantities(parse_resource_list(resources))

    @classmethod
    def of_quantities(cls, resources: ResourceList) -> Self:
        """The same out of a parsed one."""
        return cls(resources.get(LIMITS_CPU, ZERO), resources.get(LIMITS_MEMORY, ZERO))

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(self.cpu + other.cpu, self.memory + other.memory)

    def __str__(self) -> str:
        return f"cpu {self.cpu}, memory {self.memory}"


@dataclass(frozen=True, slots=True)
class Quota:
    """What a quota allows and what it counts, at one moment."""

    hard: Amounts
    used: Amounts

    def __str__(self) -> str:
        return f"hard {self.hard}; used {self.used}"


GONE = "gone"
"""The phase of a pod that was deleted."""
_NOT_COUNTED = frozenset({"Succeeded", "Failed", GONE})


@dataclass(frozen=True, slots=True)
class QuotaVersion:
    """The ResourceQuota as it was from `at` on. `entries` are the names of its migration annotations."""

    at: float
    version: int
    name: str
    hard: Amounts
    used: Amounts
    entries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PhaseChange:
    """`about` (a migration or a pod of `vm`) entered `phase`."""

    at: float
    version: int
    about: str
    vm: str
    phase: str


@dataclass(frozen=True, slots=True)
class EventSeen:
    """A Kubernetes event about an object."""

    at: float
    about: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that the demo did: `kind` is step, headroom, rancher, note or good (a note of what went well)."""

    at: float
    kind: str
    text: str


Happening = QuotaVersion | PhaseChange | EventSeen | Mark


@dataclass(slots=True)
class Track:
    """The life of one migration or one pod. `job` is the uid of the migration that made a pod, `usage` what quota
    counts of it."""

    name: str
    vm: str
    uid: str = ""
    job: str = ""
    usage: Amounts = field(default_factory=Amounts)
    phases: list[PhaseChange] = field(default_factory=list)
    refused: float | None = None
    """When a migration was first seen refused by quota."""

    @property
    def phase(self) -> str:
        return self.phases[-1].phase if self.phases else ""

    @property
    def began(self) -> PhaseChange:
        return self.phases[0]

    @property
    def ended(self) -> PhaseChange | None:
        """For a pod: since when quota does not count it. For a migration: its last phase."""
        return next((change for change in self.phases if change.phase in _NOT_COUNTED), None)


@dataclass(slots=True)
class History:
    """Grows while the demo runs. `listener` is called for every entry as it is recorded."""

    clock: Callable[[], float]
    listener: Callable[[Happening], None] = lambda _: None
    quotas: list[QuotaVersion] = field(default_factory=list)
    quota_seen: int = 0
    """The last version of the quota that was seen, also one that is left out of `quotas`."""
    migrations: dict[str, Track] = field(default_factory=dict)
    pods: dict[str, Track] = field(default_factory=dict)
    machines: dict[str, str] = field(default_factory=dict)
    """What each VM's printableStatus says."""
    events: list[EventSeen] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    @property
    def quota(self) -> QuotaVersion | None:
        """The quota as it was last seen."""
        return self.quotas[-1] if self.quotas else None

    def mark(self, kind: str, text: str) -> Mark:
        """Note what the demo does now."""
        mark = Mark(self.clock(), kind, text)
        self.marks.append(mark)
        self.listener(mark)
        return mark

    def see_quota(self, quota: ResourceQuota) -> None:
        """A version of the quota; one that shows nothing new is left out."""
        seen = QuotaVersion(
            self.clock(),
            _version(quota),
            quota.name,
            Amounts.within(quota.hard),
            Amounts.within(quota.used),
            tuple(sorted(key for key in quota.annotations if key.startswith(ENTRY_PREFIXES))),
        )
        self.quota_seen = seen.version
        last = self.quota
        if last is not None and (last.hard, last.used, last.entries) == (seen.hard, seen.used, seen.entries):
            return
        self.quotas.append(seen)
        self.listener(seen)

    def see_migration(self, migration: VirtualMachineInstanceMigration) -> None:
        """A version of a migration."""
        track = self.migrations.setdefault(
            migration.name, Track(migration.name, migration.spec.vmi_name, migration.uid)
        )
        if is_refused(migration) and track.refused is None:
            track.refused = self.clock()
        self._enter(track, migration.phase, migration)

    def see_machine(self, machine: VirtualMachine) -> None:
        """A version of a VM."""
        self.machines[machine.name] = machine.status.printable_status or ""

    def see_pod(self, pod: Pod) -> None:
        """A version of a launcher pod."""
        track = self.pods.setdefault(
            pod.name,
            Track(
                pod.name,
                pod.labels.get(constants.LABEL_VM_NAME, ""),
                pod.uid,
                pod.labels.get(constants.LABEL_MIGRATION_JOB_UID, ""),
                Amounts.of_quantities(pod_usage(pod)),
            ),
        )
        self._enter(track, pod.status.phase or "Pending", pod)

    def lose_pod(self, pod: Pod) -> None:
        """A launcher pod was deleted."""
        self.see_pod(pod)
        if self.pods[pod.name].ended is None:
            self._enter(self.pods[pod.name], GONE, pod)

    def see_event(self, event: Event) -> None:
        """An event about a VMI, or its count going up: told once, of the VM's last migration; none before the first."""
        tracks = [track for track in self.migrations.values() if track.vm == event.involved_object.name]
        if not tracks:
            return
        about = tracks[-1].name
        if any((t.about, t.message) == (about, event.message) for t in self.events):
            return
        seen = EventSeen(self.clock(), about, event.reason, event.message)
        self.events.append(seen)
        self.listener(seen)

    def _enter(self, track: Track, phase: str, obj: Object) -> None:
        if track.phases and track.phase == phase:
            return
        change = PhaseChange(self.clock(), _version(obj), track.name, track.vm, phase)
        track.phases.append(change)
        self.listener(change)


def _version(obj: Object) -> int:
    return int(obj.metadata.resource_version)
