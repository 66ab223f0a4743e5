"""The input of a decision about a ResourceQuota, and its result: one patch, bound to that input. Plain data."""

import contextlib
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cachetools import LRUCache

from kubeloop.api.core import Namespace, PersistentVolumeClaim, Pod, ResourceQuota
from kubeloop.api.meta import RawResourceList
from kubeloop.api.quantity import Quantity, QuantityError
from kubeloop.api.resource_list import ResourceList
from pkg.api.kubevirt import VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.problems import Problem
from pkg.util.quotacount.usage import is_charged, pod_usage

T = TypeVar("T")


class Cache:
    """The values that depend on objects alone, computed once for each. Owned by the source of the observation: the
    decisions themselves keep nothing."""

    def __init__(self, size: int = 32768) -> None:
        self._values: LRUCache[Hashable, tuple[tuple[object, ...], Any]] = LRUCache(size)

    def get_or_compute(self, key: Hashable, objects: tuple[object, ...], work_out: Callable[[], T]) -> T:
        """Returns what depends on `key` and on these objects, or on others that are equal."""
        entry = self._values.get(key)
        if entry is None or entry[0] != objects:
            entry = self._values[key] = objects, work_out()
        value: T = entry[1]
        return value


@dataclass(frozen=True, slots=True)
class Denial:
    """Rancher's denials of requests for lack of room in the project: nothing as large is requested again until a pause
    is over, or what persons request there changes."""

    requests: Hashable
    amounts: Sequence[ResourceList]
    """Each is what was to be added by one request."""
    at: float


@dataclass(frozen=True, slots=True)
class Timers:
    """The times since which something has been observed (seconds), from one decision to the next. A restart may lose
    them, and a plan that is not written changes none of them: the quota alone records what was done."""

    unexplained: Mapping[str, float] = field(default_factory=dict)
    """By entry key: without a migration that explains it."""
    held_since: Mapping[str, float] = field(default_factory=dict)
    """By uid of a launcher pod or a claim: a migration has left it behind."""
    refused: Mapping[str, float] = field(default_factory=dict)
    """By uid: a migration is refused although status.hard shows its headroom."""
    denial: Denial | None = None


@dataclass(frozen=True, slots=True)
class RancherFacts:
    """Rancher's part in a decision (`pkg.util.resourcequota.rancher`)."""

    granted: ResourceList | None = None
    """The limits that Rancher granted; None where nobody validates the namespace's annotation."""
    asks: bool = False
    """Only Rancher may write the quota: headroom is added by requests to it."""
    namespace: Namespace = field(default_factory=Namespace)
    stuck: tuple[str, ...] = ()
    """The keys of the entries that the quota itself carries."""
    siblings: Sequence[tuple[str, str]] = ()
    """The project's other namespaces, by name, and what persons request for them: with that the room here changes."""


NO_RANCHER = RancherFacts()
"""Nobody validates the annotation, and whoever has the right may write the quota."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The observation: everything that a decision reads.

    `limits` is the namespace annotation's text ("" when there is none), `max_extra` the namespace's cap likewise;
    `instances` is by VMI name; `pods` are launchers and attachment pods; `now` is in seconds on one clock."""

    quota: ResourceQuota
    limits: str = ""
    migrations: Sequence[VirtualMachineInstanceMigration] = ()
    instances: Mapping[str, VirtualMachineInstance] = field(default_factory=dict)
    now: float = 0.0
    timers: Timers = field(default_factory=Timers)
    pods: Sequence[Pod] = ()
    rendering: Rendering = field(default_factory=Rendering)
    max_extra: str = ""
    rancher: RancherFacts = NO_RANCHER
    mtq: bool = False
    """The namespace has a migration budget (VirtualMachineMigrationResourceQuota): its quotas are that strategy's."""
    namespace_off: bool = False
    """A person has switched headroom off for the whole namespace."""
    claims: Mapping[str, PersistentVolumeClaim] | None = None
    """The namespace's, by name; None: no quota there counts them."""
    machines: Mapping[str, VirtualMachine] = field(default_factory=dict)
    """The VMs whose volumes may move, by name: none where no quota counts claims."""
    storage_migration: bool = False
    """An administrator lets the claims be added that a volume migration doubles."""
    running: Sequence[Collection[str]] = ()
    """For a namespace with a budget: the source nodes of every migration of the cluster that runs or has a target."""
    cache: Cache = field(default_factory=Cache, compare=False)

    def usage(self, pod: Pod, now: float | None) -> ResourceList:
        """Returns what the quota charges for a version of a pod; nothing for one that terminates past its grace period
        at `now` (None: all count). Raises QuantityError for one that the API server would not admit."""
        releases = self.rendering.kubernetes
        if not is_charged(pod, self.quota.spec, now, releases):
            return {}
        key, version = ("usage", pod.uid or pod.key), pod.metadata.resource_version or pod  # a pod of a file has none
        return self.cache.get_or_compute(key, (version, releases), lambda: pod_usage(pod, releases=releases))

    def charge(self, pod: Pod, now: float | None) -> ResourceList:
        """Returns the usage of any pod of the namespace: of one that cannot be read nothing, as it is not there."""
        with contextlib.suppress(QuantityError):
            return self.usage(pod, now)
        return {}


@dataclass(frozen=True, slots=True)
class Plan:
    """The writes of a decision (none, if the maps are empty), its reports, and when it is made again (seconds)."""

    annotations: Mapping[str, str | None] = field(default_factory=dict)
    hard: Mapping[str, str] = field(default_factory=dict)
    namespace: Mapping[str, str | None] = field(default_factory=dict)
    """The changes of the namespace's annotations: a request to Rancher, or its end."""
    raised: Mapping[str, Quantity] | None = None
    """The limits that the quota shall have; None where the decision leaves them as they are."""
    problems: Sequence[Problem] = ()
    timers: Timers = field(default_factory=Timers)
    recheck_after: float | None = None
    asks: bool = False
    """`hard` is what Rancher is to write: the request is all that is written here."""

    def annotations_of(self, quota: ResourceQuota) -> dict[str, str]:
        """Returns the quota's annotations as the plan leaves them."""
        return {key: text for key, text in {**quota.annotations, **self.annotations}.items() if text is not None}

    def __bool__(self) -> bool:
        return bool(self.namespace or (not self.asks and (self.annotations or self.hard)))

    def patch(self, quota: ResourceQuota, used: RawResourceList | None = None) -> list[dict[str, Any]]:
        """Returns the JSON patch (RFC 6902), bound to this very quota, its labels, annotations and spec.hard, and with
        `used` given, status.used of the limits that change. Not to the resourceVersion: the status moves it with every
        pod that comes or goes, and one patch in five met a conflict without a cause."""
        meta = quota.metadata
        counted = {name: value for name, value in (used or {}).items() if name in self.hard}
        return [
            _test("/metadata/uid", meta.uid),
            _test("/metadata/labels", meta.labels),
            _test("/metadata/annotations", meta.annotations),
            _test("/spec/hard", quota.spec.hard),
            *(_test(pointer("/status/used", name), value) for name, value in counted.items()),
            *_changes("/metadata/annotations", meta.annotations, self.annotations),
            *_changes("/spec/hard", quota.spec.hard, self.hard),
        ]

    def namespace_patch(self, namespace: Namespace) -> list[dict[str, Any]]:
        """Returns the JSON patch of the namespace, bound to the request and the record that were decided from."""
        annotations = namespace.metadata.annotations or {}
        keys = constants.ANNOTATION_RANCHER_RESOURCE_QUOTA, constants.ANNOTATION_REQUEST
        return [
            _test("/metadata/uid", namespace.uid),
            *(_test(pointer("/metadata/annotations", key), annotations.get(key)) for key in keys),
            *_changes("/metadata/annotations", annotations, self.namespace),
        ]


def _test(path: str, value: object) -> dict[str, Any]:
    """Returns a JSON patch's test; None means that the path is absent (the API server's JSON patch has it so)."""
    return {"op": "test", "path": path, "value": dict(value) if isinstance(value, Mapping) else value}


def pointer(path: str, key: str) -> str:
    """Returns the JSON pointer (RFC 6901) of a key of the map at `path`."""
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"


def _changes(path: str, old: Mapping[str, Any] | None, changes: Mapping[str, str | None]) -> Iterator[dict[str, Any]]:
    if changes and old is None:
        yield {"op": "add", "path": path, "value": {}}
    for key, value in changes.items():
        if value is not None:
            yield {"op": "add", "path": pointer(path, key), "value": value}
        elif key in (old or {}):
            yield {"op": "remove", "path": pointer(path, key)}
