"""The input and the output of a decision about a ResourceQuota. Plain data."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from cachetools import LRUCache

from kubeloop.api.core import Pod, ResourceQuota, ResourceQuotaSpec
from kubeloop.api.meta import RawResourceList
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util.kubevirt.migration import Stage
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.quantity import ZERO, Quantity
from pkg.util.quotacount.releases import NEWEST, Releases
from pkg.util.quotacount.usage import counted, pod_usage
from pkg.util.resource_list import ResourceList, add, maximum, minimum, total
from pkg.util.resourcequota.errors import ResourceQuotaError
from pkg.util.resourcequota.policy import EstimateKind, Policy

T = TypeVar("T")


class Estimate(Protocol):
    """Harvester's formula: what a migration of a VM adds under a quota with this spec.hard; None: the VM has no
    limits. Raises QuantityError for a VM whose quantities are garbage."""

    def __call__(
        self, vmi: VirtualMachineInstance, hard: RawResourceList
    ) -> Mapping[str, Quantity] | None: ...


@dataclass(frozen=True, slots=True)
class Timers:
    """Since when something is seen (seconds). A restart may lose it, and a plan that is not written changes nothing of
    it: what was done stands on the quota alone."""

    unexplained: Mapping[str, float] = field(default_factory=dict)
    """By entry key: without a migration that explains it."""
    short_since: float | None = None
    """A refused migration does not fit although its entry is applied."""
    held_since: Mapping[str, float] = field(default_factory=dict)
    """By uid of its launcher pod: an old side is left over."""
    refused: Mapping[str, float] = field(default_factory=dict)
    """By uid: a migration is refused although status.hard shows its headroom."""
    shown_since: float | None = None
    """spec.hard and status.hard are what they shall be; only while a migration is refused."""


class Cache:
    """What depends on objects alone, computed once for each. Owned by the observer: the decisions
    themselves keep nothing."""

    def __init__(self, size: int = 16384) -> None:
        self._usages: LRUCache[tuple[str, str, Releases], ResourceList] = LRUCache(size)
        self._made: LRUCache[Hashable, tuple[tuple[object, ...], Any]] = LRUCache(size)

    def usage(
        self, pods: Iterable[Pod], spec: ResourceQuotaSpec, now: float, releases: Releases = NEWEST
    ) -> ResourceList:
        """What a quota charges for these pods together."""
        return total([self._usage(pod, releases) for pod in pods if counted(pod, spec, now, releases)])

    def made(self, key: Hashable, of: tuple[object, ...], work_out: Callable[[], T]) -> T:
        """What depends on `key` and on these very objects; with no key it is not kept."""
        if key is None:
            return work_out()
        found = self._made.get(key)
        if found is None or len(found[0]) != len(of) or not all(map(operator.is_, found[0], of)):
            found = self._made[key] = (of, work_out())
        value: T = found[1]
        return value

    def _usage(self, pod: Pod, releases: Releases) -> ResourceList:
        version = (pod.uid, pod.metadata.resource_version, releases)
        if not all(version):
            return pod_usage(pod, releases=releases)
        found = self._usages.get(version)
        if found is None:
            found = self._usages[version] = pod_usage(pod, releases=releases)
        return found


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything a decision looks at.

    `limits` is the namespace annotation's text ("" when there is none), `max_extra` the namespace's cap likewise;
    `instances` is by VMI name; `pods` are the namespace's launcher and attachment pods; `now` is in seconds on
    one clock.
    """

    quota: ResourceQuota
    limits: str
    migrations: Sequence[VirtualMachineInstanceMigration]
    instances: Mapping[str, VirtualMachineInstance]
    estimate: Estimate
    now: float = 0.0
    timers: Timers = field(default_factory=Timers)
    pods: Sequence[Pod] = ()
    rendering: Rendering = field(default_factory=Rendering)
    max_extra: str = ""
    mtq: bool = False
    """The namespace has a migration budget (VirtualMachineMigrationResourceQuota): its quotas are that strategy's."""
    namespace_off: bool = False
    """A person has switched headroom off for the whole namespace."""
    cache: Cache = field(default_factory=Cache, compare=False)


@dataclass(frozen=True, slots=True)
class OldSide:
    """A side that a migration left behind. `ended` is when that was, in seconds since the epoch, None where that
    is not known."""

    uid: str
    usage: ResourceList
    ended: float | None


@dataclass(frozen=True, slots=True)
class Claim:
    """One VM's claim. Resources are by every name that quota counts them under.

    `since` is the creation time (RFC 3339) of its oldest migration under way: first come, first served.
    """

    vm_name: str
    vmi_uid: str
    stage: Stage
    migrates: bool = False
    """The VM has migrations, finished or not."""
    since: str = ""
    old: tuple[OldSide, ...] = ()
    target: ResourceList = field(default_factory=dict)
    """What an existing target uses, as far as its VMI's spec goes: a fact, however little of it was granted."""
    room: ResourceList = field(default_factory=dict)
    """What the target may have while the migration may still go on: its pods, and those still to be created."""
    to_come: ResourceList = field(default_factory=dict)
    """What quota will count of the target's pods that do not exist yet."""
    formula: ResourceList | None = None
    """Harvester's number for the same migration, under `--estimate harvester`."""
    ended: Quantity = ZERO
    """How many pods of earlier migrations are over and still there, while this one needs headroom: as objects they
    count."""

    @property
    def left_over(self) -> ResourceList:
        return total(side.usage for side in self.old)

    @property
    def granted(self) -> ResourceList:
        """What its pods use of what is granted to them."""
        return add(self.left_over, minimum(self.target, self.room))

    def wanted(self, policy: Policy) -> ResourceList:
        """The wanted entry, whatever the present one is."""
        if self.stage < Stage.ANNOUNCED:
            return self.left_over
        if self.stage is Stage.ANNOUNCED:
            return self.granted
        if policy.estimate is EstimateKind.HARVESTER:
            return add(self.left_over, self.formula or {})
        return add(self.left_over, self.room)

    def may_stay(self) -> ResourceList:
        """The most that is kept of an existing entry: what the pods that it was granted for use, and what the
        migration would be granted today if it goes on after all."""
        going_on = self.room if self.formula is None else maximum(self.room, self.formula)
        return add(self.left_over, maximum(self.target, going_on))


@dataclass(frozen=True, slots=True)
class Claims:
    """All claims by VM name, what could not be computed, and when Kubernetes will cease to charge one of the pods
    (seconds since the epoch)."""

    by_vm: Mapping[str, Claim]
    problems: tuple[ResourceQuotaError, ...]
    changes_at: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write (nothing, if both maps are empty), what to report, and when to re-check (seconds)."""

    annotations: Mapping[str, str | None] = field(default_factory=dict)
    hard: Mapping[str, str | None] = field(default_factory=dict)
    """Resource name to quantity; None removes it."""
    problems: Sequence[ResourceQuotaError] = ()
    timers: Timers = field(default_factory=Timers)
    recheck_after: float | None = None

    def __bool__(self) -> bool:
        return bool(self.annotations or self.hard)

    def patch(self, quota: ResourceQuota, used: RawResourceList | None = None) -> list[dict[str, Any]]:
        """The JSON patch (RFC 6902), bound to what was decided from and to that alone: this very quota, its labels,
        annotations and spec.hard, and where it is given `used`, status.used of what it changes. status.hard and
        status.used move the resourceVersion with every pod that comes or goes; bound to that, one patch in five met a
        conflict without a cause."""
        meta = quota.metadata
        counted = {name: value for name, value in (used or {}).items() if name in self.hard}
        return [
            _test("/metadata/uid", meta.uid),
            _test("/metadata/labels", meta.labels),
            _test("/metadata/annotations", meta.annotations),
            _test("/spec/hard", quota.spec.hard),
            *(_test(_pointer("/status/used", name), value) for name, value in counted.items()),
            *_changes("/metadata/annotations", meta.annotations, self.annotations),
            *_changes("/spec/hard", quota.spec.hard, self.hard),
        ]


def _test(path: str, value: object) -> dict[str, Any]:
    """None: nothing is there (the API server's JSON patch has it so)."""
    return {"op": "test", "path": path, "value": dict(value) if isinstance(value, Mapping) else value}


def _pointer(path: str, key: str) -> str:
    """JSON pointer (RFC 6901) of a key of the map at `path`."""
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"


def _changes(
    path: str, before: Mapping[str, Any] | None, changes: Mapping[str, str | None]
) -> Iterator[dict[str, Any]]:
    if changes and before is None:
        yield {"op": "add", "path": path, "value": {}}
    for key, value in changes.items():
        if value is not None:
            yield {"op": "add", "path": _pointer(path, key), "value": value}
        elif key in (before or {}):
            yield {"op": "remove", "path": _pointer(path, key)}


def earliest(*seconds: float | None) -> float | None:
    """The first of several times to re-check, in seconds from now; None: none of them."""
    given = [each for each in seconds if each is not None]
    return max(0.0, min(given)) if given else None
