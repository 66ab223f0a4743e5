"""A record of a run: changes of a namespace's quota, pods and migrations, in the order in which the API server showed
them. Plain data: every view, check and figure of a run reads only this (lab.questions).

Times (`at`) are seconds of the record's clock; versions are resourceVersions, which grow with every write of any
object: they say what came before what, however late a watch tells of it.
"""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

from kubeloop.api.core import Event, Namespace, Pod, ResourceQuota
from kubeloop.api.meta import Object, RawQuantity
from kubeloop.api.quantity import ZERO, Quantity, QuantityError
from kubeloop.api.resource_list import ResourceList, parse_resource_list
from pkg.api.kubevirt import (
    VIRTUAL_MACHINE_INSTANCES,
    VirtualMachine,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
)
from pkg.util import constants
from pkg.util.constants import LIMITS_CPU, LIMITS_MEMORY
from pkg.util.kubevirt.evidence import vm_of
from pkg.util.kubevirt.migration import is_refused
from pkg.util.quotacount.usage import pod_usage
from pkg.util.resourcequota.entries import read
from pkg.util.resourcequota.rancher import request_of, with_request

RESOURCES = (LIMITS_CPU, LIMITS_MEMORY)
_EXCEEDED = "exceeded quota"


class Amounts(dict[str, Quantity]):
    """The amounts limits.cpu and limits.memory of a ResourceList, or zero; printed as they were written."""

    def __init__(self, resources: Mapping[str, Quantity] | None = None) -> None:
        super().__init__({name: (resources or {}).get(name, ZERO) for name in RESOURCES})

    @classmethod
    def of(cls, cpu: str, memory: str) -> Self:
        """Raises QuantityError."""
        return cls.within({LIMITS_CPU: cpu, LIMITS_MEMORY: memory})

    @classmethod
    def within(cls, resources: Mapping[str, RawQuantity] | None) -> Self:
        """The two of an object's ResourceList. Raises QuantityError."""
        return cls(parse_resource_list(resources))

    @property
    def cpu(self) -> Quantity:
        return self[LIMITS_CPU]

    @property
    def memory(self) -> Quantity:
        return self[LIMITS_MEMORY]

    def __add__(self, other: Mapping[str, Quantity]) -> "Amounts":
        return Amounts({name: amount + other.get(name, ZERO) for name, amount in self.items()})

    def __sub__(self, other: Mapping[str, Quantity]) -> "Amounts":
        return Amounts({name: amount - other.get(name, ZERO) for name, amount in self.items()})

    def covers(self, other: Mapping[str, Quantity]) -> bool:
        """Reports whether a limit of this has room for the other amounts."""
        return all(amount >= other.get(name, ZERO) for name, amount in self.items())

    def __str__(self) -> str:
        return f"cpu {self.cpu}, memory {self.memory}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Quota admission's words about a pod, from "exceeded quota" on: the pod's requests and the limits that did not
    suffice; {} where the words do not say or cannot be read."""

    words: str
    requested: ResourceList
    limited: ResourceList

    @classmethod
    def of(cls, message: str) -> Self | None:
        """The refusal in the message of an event or an error; None for a message about something else."""
        _prefix, exceeded, suffix = message.partition(_EXCEEDED)
        words = exceeded + suffix
        return cls(words, _amounts(words, "requested"), _amounts(words, "limited")) if exceeded else None


def _amounts(words: str, label: str) -> ResourceList:
    """Reads the amounts after a label of "requested: a=1,b=2, used: …, limited: …"."""
    match = re.search(rf"{label}: (\S+?=\S+?)(?:, |$)", words)
    try:
        return parse_resource_list(dict(pair.split("=", 1) for pair in match[1].split(","))) if match else {}
    except (ValueError, QuantityError):
        return {}


GONE = "gone"
"""The phase of what was deleted."""
_OVER = frozenset({"Succeeded", "Failed", GONE})


@dataclass(frozen=True)
class QuotaVersion:
    """The ResourceQuota from `at` on."""

    at: float
    quota: ResourceQuota
    is_requested: bool = False
    """Reports whether its entries are those of headroom's request to Rancher, which raises it afterwards."""

    @property
    def version(self) -> int:
        return _version(self.quota)

    @cached_property
    def hard(self) -> Amounts:
        """The limits in spec.hard."""
        return Amounts.within(self.quota.hard)

    @cached_property
    def status_hard(self) -> Amounts:
        """The limits in status.hard, which quota admission applies."""
        return Amounts.within(self.quota.status.hard)

    @cached_property
    def used(self) -> Amounts:
        return Amounts.within(self.quota.used)

    @cached_property
    def entries(self) -> dict[str, ResourceList]:
        """The VMs' entries, by annotation key."""
        return read(self.quota.annotations).by_key

    @property
    def written_fields(self) -> tuple[object, ...]:
        """The part that people and controllers write; the rest is the status."""
        return self.quota.hard, self.quota.annotations, self.quota.labels


@dataclass(frozen=True, slots=True)
class PhaseChange:
    """The entry of `subject` (a migration or a pod of `vm`) into `phase`."""

    at: float
    version: int
    subject: str
    vm: str
    phase: str


@dataclass(frozen=True, slots=True)
class EventSeen:
    """A Kubernetes event about a VM in its migration `subject`, `count` times since the last one."""

    at: float
    subject: str
    reason: str
    message: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Mark:
    """An action of the run: `kind` is step, headroom, rancher, note or good (a note of what went well)."""

    at: float
    kind: str
    text: str


Happening = QuotaVersion | PhaseChange | EventSeen | Mark


@dataclass(slots=True)
class Track:
    """The life of one migration or one pod; `usage` is what quota counts of a pod."""

    name: str
    vm: str
    uid: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    usage: Amounts = field(default_factory=Amounts)
    phases: list[PhaseChange] = field(default_factory=list)
    refused: float | None = None
    """The time at which a migration was first seen refused by quota."""

    @property
    def phase(self) -> str:
        return self.phases[-1].phase if self.phases else ""

    @property
    def began(self) -> PhaseChange:
        return self.phases[0]

    @property
    def ended(self) -> PhaseChange | None:
        """The change after which quota does not count a pod, or a migration's last phase."""
        return next((change for change in self.phases if change.phase in _OVER), None)

    def counts_at(self, moment: float) -> bool:
        """Reports whether quota counts the pod at a time."""
        return self.began.at <= moment and (self.ended is None or self.ended.at > moment)


@dataclass(slots=True)
class Record:
    """The history of one namespace. Grows while the namespace is watched; `listener` is called for every new entry."""

    clock: Callable[[], float] = time.monotonic
    listener: Callable[[Happening], None] = lambda _: None
    quotas: list[QuotaVersion] = field(default_factory=list)
    migrations: dict[str, Track] = field(default_factory=dict)
    pods: dict[str, Track] = field(default_factory=dict)
    counted_pods: dict[str, Track] = field(default_factory=dict)
    """The pods that quota counts now."""
    targets: dict[str, Track] = field(default_factory=dict)
    """The pod that was made for a migration, by the migration's uid."""
    vms: dict[str, VirtualMachine] = field(default_factory=dict)
    vmis: dict[str, VirtualMachineInstance] = field(default_factory=dict)
    events: list[EventSeen] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    namespace: Namespace | None = None
    """The namespace as last seen; None where nobody follows namespaces."""
    _counts: dict[str, int] = field(default_factory=dict)

    @property
    def quota(self) -> QuotaVersion | None:
        """The quota as it was last seen."""
        return self.quotas[-1] if self.quotas else None

    @property
    def usage(self) -> Amounts:
        """The pods' usage now."""
        return sum((pod.usage for pod in self.counted_pods.values()), Amounts())

    def mark(self, kind: str, text: str) -> Mark:
        self.marks.append(Mark(self.clock(), kind, text))
        self.listener(self.marks[-1])
        return self.marks[-1]

    def see_quota(self, quota: ResourceQuota) -> None:
        is_requested = request_of(self.namespace) is not None
        self.quotas.append(QuotaVersion(self.clock(), with_request(quota, self.namespace), is_requested))
        self.listener(self.quotas[-1])

    def see_namespace(self, namespace: Namespace) -> None:
        """The entries of a quota that only Rancher may write are kept on its namespace."""
        self.namespace, previous = namespace, self.namespace
        if self.quota and request_of(previous) != request_of(namespace):
            self.see_quota(self.quota.quota)

    def see_migration(self, migration: VirtualMachineInstanceMigration) -> None:
        new_track = Track(migration.name, migration.spec.vmi_name, migration.uid)
        track = self.migrations.setdefault(migration.name, new_track)
        if is_refused(migration) and track.refused is None:
            track.refused = self.clock()
        self._enter(track, migration.phase, migration)

    def lose_migration(self, migration: VirtualMachineInstanceMigration) -> None:
        self.see_migration(migration)
        self._lose(self.migrations[migration.name], migration)

    def see_pod(self, pod: Pod) -> None:
        if pod.name not in self.pods:
            track = Track(pod.name, vm_of(pod), pod.uid, pod.labels, Amounts(pod_usage(pod)))
            self.pods[pod.name] = self.counted_pods[pod.name] = track
            self.targets.setdefault(pod.labels.get(constants.LABEL_MIGRATION_JOB_UID, ""), track)
        phase = pod.status.phase or "Pending"
        if phase in _OVER:
            self.counted_pods.pop(pod.name, None)
        self._enter(self.pods[pod.name], phase, pod)

    def lose_pod(self, pod: Pod) -> None:
        self.see_pod(pod)
        self.counted_pods.pop(pod.name, None)
        self._lose(self.pods[pod.name], pod)

    def see_event(self, event: Event) -> None:
        """An event about a VMI, or its count going up: told of the VM's last migration; none before the first."""
        subject = event.involved_object
        names = [track.name for track in self.migrations.values() if track.vm == subject.name]
        if subject.kind != VIRTUAL_MACHINE_INSTANCES.kind or not names:
            return
        count = event.count or 1
        increase = count - self._counts.get(event.name, 0)
        self._counts[event.name] = count
        if increase > 0:
            self.events.append(EventSeen(self.clock(), names[-1], event.reason, event.message, increase))
            self.listener(self.events[-1])

    def _lose(self, track: Track, obj: Object) -> None:
        if track.ended is None:
            self._enter(track, GONE, obj)

    def _enter(self, track: Track, phase: str, obj: Object) -> None:
        if track.phases and track.phase == phase:
            return
        track.phases.append(PhaseChange(self.clock(), _version(obj), track.name, track.vm, phase))
        self.listener(track.phases[-1])


def _version(obj: Object) -> int:
    return int(obj.metadata.resource_version)
