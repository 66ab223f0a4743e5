"""What a decision about a ResourceQuota looks at. Plain data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cachetools import LRUCache

from kubeloop.api.core import PersistentVolumeClaim, Pod, ResourceQuota, ResourceQuotaSpec
from kubeloop.api.devices import ResourceClaim
from kubeloop.api.resource_list import ResourceList
from pkg.api.kubevirt import VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.quotacount.releases import Releases
from pkg.util.quotacount.usage import counted, pod_usage
from pkg.util.resourcequota.timers import Timers

T = TypeVar("T")


class Cache:
    """What depends on objects alone, computed once for each. Owned by the observer: the decisions
    themselves keep nothing."""

    def __init__(self, size: int = 32768) -> None:
        self._made: LRUCache[Hashable, tuple[tuple[object, ...], Any]] = LRUCache(size)

    def made(self, key: Hashable, of: tuple[object, ...], work_out: Callable[[], T]) -> T:
        """What depends on `key` and on these objects, or on others that are equal; with no key it is not kept."""
        found = None if key is None else self._made.get(key)
        if found is None or found[0] != of:
            found = (of, work_out())
            if key is not None:
                self._made[key] = found
        value: T = found[1]
        return value

    def usage(self, pod: Pod, spec: ResourceQuotaSpec, now: float | None, releases: Releases) -> ResourceList:
        """What a quota charges for a version of a pod; nothing where it does not. Raises QuantityError."""
        if not counted(pod, spec, now, releases):
            return {}
        version = pod.metadata.resource_version
        key = ("usage", pod.uid) if pod.uid and version else None
        return self.made(key, (version, releases), lambda: pod_usage(pod, releases=releases))


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything a decision looks at.

    `limits` is the namespace annotation's text ("" when there is none), `max_extra` the namespace's cap likewise;
    `instances` is by VMI name; `pods` are the namespace's launcher and attachment pods; `now` is in seconds on
    one clock.
    """

    quota: ResourceQuota
    limits: str = ""
    migrations: Sequence[VirtualMachineInstanceMigration] = ()
    instances: Mapping[str, VirtualMachineInstance] = field(default_factory=dict)
    now: float = 0.0
    timers: Timers = field(default_factory=Timers)
    pods: Sequence[Pod] = ()
    rendering: Rendering = field(default_factory=Rendering)
    max_extra: str = ""
    mtq: bool = False
    """The namespace has a migration budget (VirtualMachineMigrationResourceQuota): its quotas are that strategy's."""
    namespace_off: bool = False
    """A person has switched headroom off for the whole namespace."""
    claims: Mapping[str, PersistentVolumeClaim] | None = None
    """The namespace's, by name; None: no quota there counts them."""
    machines: Mapping[str, VirtualMachine] = field(default_factory=dict)
    """The VMs whose volumes may move, by name: none where no quota counts claims."""
    device_claims: Mapping[str, ResourceClaim] = field(default_factory=dict)
    """The namespace's ResourceClaims, by name: none where no quota counts claims."""
    storage_migration: bool = False
    """An administrator lets the claims be added that a volume migration doubles."""
    running: Sequence[Collection[str]] = ()
    """For a namespace with a budget: the source nodes of every migration of the cluster that runs or has a target."""
    cache: Cache = field(default_factory=Cache, compare=False)
