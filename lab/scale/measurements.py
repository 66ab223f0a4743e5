"""What the watches show, as figures. Pure: the caller says when each version was seen, in seconds of one clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from kubeloop.api.core import Event, Pod, ResourceQuota
from kubeloop.api.objects import condition_is_true
from lab.record import Refusal
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.constants import LIMITS_CPU, LIMITS_MEMORY
from pkg.util.quantity import Quantity
from pkg.util.quotacount.usage import pod_usage

RESOURCES = (LIMITS_CPU, LIMITS_MEMORY)
Amounts = tuple[float, float]
"""CPU in cores, memory in bytes."""


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed (nearest rank); 0 for none."""
    ordered = sorted(values)
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else 0.0


def amounts(resources: Mapping[str, Quantity]) -> Amounts:
    """The two that a quota of ours limits."""
    cpu, memory = resources.get(LIMITS_CPU), resources.get(LIMITS_MEMORY)
    return (cpu.milli_value() / 1000 if cpu else 0.0, float(memory.value()) if memory else 0.0)


def hard_of(quota: ResourceQuota) -> Amounts:
    """Raises QuantityError."""
    return amounts({name: Quantity.parse(raw) for name, raw in quota.hard.items() if name in RESOURCES})


@dataclass(slots=True)
class Migration:
    """One VMIM, from the first version that was seen."""

    vm: str
    created: float
    phase: str = ""
    refused: float | None = None
    """When the condition migrationRejectedByResourceQuota was first seen."""
    target: float | None = None
    """When its target pod was first seen."""
    ended: float | None = None

    @property
    def pending_by_quota(self) -> float:
        """Seconds from the refusal to the target pod; 0 for one that was not refused or has no pod."""
        if self.refused is None or self.target is None:
            return 0.0
        return max(0.0, self.target - self.refused)


@dataclass(frozen=True, slots=True)
class Refused:
    """A target pod that quota refused, `count` times with the same words."""

    migration: str
    at: float
    limits: Mapping[str, Quantity]
    count: int = 1


@dataclass(frozen=True, slots=True)
class QuotaVersion:
    """What a quota said from `at` on. `entries`: the VMs and VMIs that headroom was added for."""

    at: float
    hard: Mapping[str, Quantity]
    entries: frozenset[str]


@dataclass(slots=True)
class Room:
    """A namespace: what is allowed (spec.hard), what pods take, and the integral of their difference over time."""

    base: Amounts
    allowed: Amounts
    used: Amounts = (0.0, 0.0)
    over: Amounts = (0.0, 0.0)
    since: float = 0.0
    versions: list[QuotaVersion] = field(default_factory=list)

    def advance(self, at: float) -> None:
        """Adds the time since the last call: allowed − needed, where needed is what pods take, the base at least."""
        seconds = max(0.0, at - self.since)
        cpu, memory = (
            total + seconds * max(0.0, allowed - max(base, used))
            for total, allowed, base, used in zip(self.over, self.allowed, self.base, self.used, strict=True)
        )
        self.over, self.since = (cpu, memory), max(at, self.since)


class Measurements:
    """Told of every version that the watches show; counts from `begin` on."""

    def __init__(self) -> None:
        self.migrations: dict[str, Migration] = {}
        self.refusals: list[Refused] = []
        self.quota_writes = 0
        self.rooms: dict[str, Room] = {}
        self.nodes: dict[str, str] = {}
        self._instances: dict[str, str] = {}
        self._uids: dict[str, str] = {}
        self._newest: dict[str, str] = {}
        """A VM's last migration, by the VM's key."""
        self._events: dict[str, int] = {}
        self._quotas: dict[str, ResourceQuota] = {}
        self._pods: dict[str, tuple[str, Amounts]] = {}
        self._counting = False

    def begin(self, at: float, bases: Mapping[str, Amounts]) -> None:
        """From here on things count; `bases` are the quotas' limits by namespace."""
        for namespace, base in bases.items():
            room = self.rooms.setdefault(namespace, Room(base, base))
            room.base = room.allowed = base
            room.since = at
        self._counting = True

    def end(self, at: float) -> None:
        """Nothing counts any more."""
        for room in self.rooms.values():
            room.advance(at)
        self._counting = False

    def see_quota(self, at: float, quota: ResourceQuota) -> None:
        """A version of a quota. A write is one that changed spec.hard, annotations or labels."""
        room = self.rooms.get(quota.namespace)
        before, self._quotas[quota.key] = self._quotas.get(quota.key), quota
        if room is None or not self._counting:
            return
        if before is not None and _written(before) == _written(quota):
            return
        self.quota_writes += before is not None
        room.advance(at)
        room.allowed = hard_of(quota)
        hard = {name: Quantity.parse(raw) for name, raw in quota.hard.items()}
        room.versions.append(QuotaVersion(at, hard, entries_of(quota)))

    def see_migration(self, at: float, migration: VirtualMachineInstanceMigration) -> None:
        """A version of a VMIM."""
        track = self.migrations.get(migration.key)
        if track is None:
            track = self.migrations[migration.key] = Migration(migration.spec.vmi_name, at)
            self._uids[migration.uid] = migration.key
            self._newest[f"{migration.namespace}/{migration.spec.vmi_name}"] = migration.key
        track.phase = migration.phase
        refused = condition_is_true(
            migration.status.conditions, constants.CONDITION_REJECTED_BY_RESOURCE_QUOTA
        )
        if refused and track.refused is None:
            track.refused = at
        if migration.phase in constants.FINAL_PHASES and track.ended is None:
            track.ended = at

    def see_instance(self, at: float, vmi: VirtualMachineInstance) -> None:
        """A version of a VMI: where it runs."""
        self._instances[vmi.key] = vmi.uid
        if vmi.status.phase == constants.VMI_PHASE_RUNNING and vmi.status.node_name:
            self.nodes[vmi.key] = vmi.status.node_name

    def see_pod(self, at: float, pod: Pod) -> None:
        """A version of a pod; one that has ended takes nothing."""
        key = self._uids.get(pod.labels.get(constants.LABEL_MIGRATION_JOB_UID, ""))
        if key is not None and self.migrations[key].target is None:
            self.migrations[key].target = at
        if pod.terminal:
            self.lose_pod(at, pod)
        elif pod.key not in self._pods:
            taken = amounts(pod_usage(pod))
            self._pods[pod.key] = (pod.namespace, taken)
            self._use(at, pod.namespace, taken, 1)

    def lose_pod(self, at: float, pod: Pod) -> None:
        """A pod that is gone."""
        found = self._pods.pop(pod.key, None)
        if found is not None:
            self._use(at, *found, -1)

    def see_event(self, at: float, event: Event) -> None:
        """An Event. Those count that tell of quota's refusal of a migration's pod: KubeVirt's are about the VMI."""
        about = event.involved_object
        migration = self._newest.get(f"{about.namespace}/{about.name}")
        refusal = Refusal.of(event.message)
        if about.kind != "VirtualMachineInstance" or migration is None or refusal is None:
            return
        count = event.count or 1
        more = count - self._events.get(event.key, 0)
        self._events[event.key] = count
        if more > 0 and self._counting:
            self.refusals.append(Refused(migration, at, refusal.limited, more))

    def taken(self) -> dict[str, Amounts]:
        """What pods take, by namespace."""
        found: dict[str, Amounts] = {}
        for namespace, taken in self._pods.values():
            before = found.get(namespace, (0.0, 0.0))
            found[namespace] = (before[0] + taken[0], before[1] + taken[1])
        return found

    def totals(self) -> tuple[Amounts, Amounts]:
        """What is allowed and what pods take, of all namespaces."""
        rooms = self.rooms.values()
        return summed(room.allowed for room in rooms), summed(room.used for room in rooms)

    def settled(self) -> bool:
        """Whether every migration has ended and every quota allows what it did before."""
        return all(track.ended is not None for track in self.migrations.values()) and all(
            room.allowed == room.base for room in self.rooms.values()
        )

    def refused_after_raise(self) -> int:
        """Refusals by a limit that held the headroom for the very migration."""
        return sum(refusal.count for refusal in self.refusals if self._is_after_raise(refusal))

    def _is_after_raise(self, refusal: Refused) -> bool:
        """The version that admission went by is the latest whose limits are those that the refusal names. Without
        entries anywhere (VMMRQ, other controllers), any limit above the base was raised."""
        namespace = refusal.migration.partition("/")[0]
        room, track = self.rooms.get(namespace), self.migrations.get(refusal.migration)
        if room is None or track is None or not refusal.limits:
            return False
        if not any(version.entries for version in room.versions):
            base = dict(zip(RESOURCES, room.base, strict=True))
            return any(limit > base[name] for name, limit in _plain(refusal.limits).items() if name in base)
        for version in reversed(room.versions):
            if version.at <= refusal.at and all(
                version.hard.get(name) == limit for name, limit in refusal.limits.items()
            ):
                return not version.entries.isdisjoint(
                    (track.vm, self._instances.get(f"{namespace}/{track.vm}"))
                )
        return False

    def _use(self, at: float, namespace: str, taken: Amounts, sign: int) -> None:
        room = self.rooms.setdefault(namespace, Room((0.0, 0.0), (0.0, 0.0)))
        if self._counting:
            room.advance(at)
        room.used = (room.used[0] + sign * taken[0], room.used[1] + sign * taken[1])


def entries_of(quota: ResourceQuota) -> frozenset[str]:
    """The names of VMs (or uids of VMIs) that the quota's annotations add headroom for."""
    prefixes = (constants.ANNOTATION_MIGRATING_NAME_PREFIX, constants.ANNOTATION_MIGRATING_UID_PREFIX)
    return frozenset(
        key.removeprefix(prefix) for key in quota.annotations for prefix in prefixes if key.startswith(prefix)
    )


def summed(all_: Iterable[Amounts]) -> Amounts:
    cpu, memory = 0.0, 0.0
    for each in all_:
        cpu, memory = cpu + each[0], memory + each[1]
    return cpu, memory


def _plain(limits: Mapping[str, Quantity]) -> dict[str, float]:
    return {
        name: limit.milli_value() / 1000 if name == LIMITS_CPU else float(limit.value())
        for name, limit in limits.items()
    }


def _written(quota: ResourceQuota) -> tuple[object, ...]:
    return quota.hard, quota.annotations, quota.labels
