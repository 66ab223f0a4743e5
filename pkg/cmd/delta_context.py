"""The cluster around the VMIs of `headroom delta`: the documents read so far, each until a later one replaces it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

import msgspec

from kubeloop.api.core import LimitRange, Namespace, PersistentVolumeClaim, Pod, ResourceQuota, RuntimeClass
from kubeloop.api.meta import Object
from kubeloop.cache.store import Indexer
from kubeloop.controllers.cache_reader import CacheReader
from pkg.api.harvesterhci import Setting
from pkg.api.instancetype import CONTROLLER_REVISIONS, INSTANCETYPES
from pkg.api.kubevirt import KubeVirt, VirtualMachineInstance
from pkg.cmd.manifests import group_of
from pkg.report.collect import AROUND_VMIS
from pkg.util.constants import ANNOTATION_NETWORK_RESOURCE, KUBEVIRT_PHASE_DEPLOYED, LIMITS_CPU, LIMITS_MEMORY
from pkg.util.kubevirt.instancetype import Instancetypes
from pkg.util.kubevirt.profiles import Profile
from pkg.util.kubevirt.rendering import Rendering, limited_resources, observed_version
from pkg.util.kubevirt.sides import ControlledPods, sides_of
from pkg.util.kubevirt.target import Side
from pkg.util.quotacount.pod_resources import apply_limit_ranges
from pkg.util.resourcequota.observe import Source

T = TypeVar("T", bound=Object)

_CONTROLLER: Final = "controller"
"""Pods by `namespace/<uid of what controls them>`."""


class NetworkAttachmentDefinition(Object):
    """k8s.cni.cncf.io/v1 NetworkAttachmentDefinition: an annotation names the extended resource that it counts as."""


_KINDS: Final[Mapping[str, type[Object]]] = {
    kind.__name__: kind for kind in (*AROUND_VMIS, RuntimeClass, NetworkAttachmentDefinition)
}
_SIZES: Final[Mapping[str, type[Object]]] = {
    resource.kind: resource.type for resource in (*INSTANCETYPES, CONTROLLER_REVISIONS)
}
_GROUPS: Final = {
    "KubeVirt": "kubevirt.io",
    "Setting": "harvesterhci.io",
    "RuntimeClass": "node.k8s.io",
    "NetworkAttachmentDefinition": "k8s.cni.cncf.io",
    **{resource.kind: resource.group for resource in (*INSTANCETYPES, CONTROLLER_REVISIONS)},
}
"""The API groups of those that are not in the core: other projects have kinds of the same names."""


class Context:
    """The cluster, as far as it is known."""

    def __init__(self) -> None:
        self._indexers: dict[type[Object], Indexer[Any]] = {kind: Indexer() for kind in _KINDS.values()}
        self._indexers[Pod].add_indexers({_CONTROLLER: _controllers})
        self._network_resources: dict[str, str] = {}
        """The extended resource of each NetworkAttachmentDefinition by `namespace/name`, "" for none."""
        self.instancetypes = Instancetypes()
        self._source = Source(
            namespaces=self._reader(Namespace),
            limit_ranges=self._reader(LimitRange),
            kubevirts=self._reader(KubeVirt),
            settings=self._reader(Setting),
            quotas=self._reader(ResourceQuota),
        )

    def take(self, document: Mapping[str, Any]) -> bool:
        """Keep a document; False: its kind is none of a context's. msgspec.ValidationError if it is malformed."""
        name = str(document.get("kind"))
        kind = _KINDS.get(name) or _SIZES.get(name)
        if kind is None or group_of(document) not in (None, _GROUPS.get(name, "")):
            return False
        obj = msgspec.convert(document, kind)
        if name in _SIZES:
            self.instancetypes.add(obj)
            return True
        match obj:
            case KubeVirt() if obj.status.phase is None:  # written by hand
                status = msgspec.structs.replace(obj.status, phase=KUBEVIRT_PHASE_DEPLOYED)
                obj = msgspec.structs.replace(obj, status=status)
            case Pod():
                obj = apply_limit_ranges(obj, ())
            case NetworkAttachmentDefinition():
                self._network_resources[obj.key] = obj.annotations.get(ANNOTATION_NETWORK_RESOURCE, "")
        self._indexers[kind].update(obj)
        return True

    def rendering(self, namespace: str, profile: Profile | None, ratio: str | None) -> Rendering:
        """Returns how KubeVirt renders launcher pods there; `profile` and `ratio` override the KubeVirt object. Where
        the input says nothing of the ratio it is what Harvester comes with; nothing of the cluster: quotas limit both
        cpu and memory."""
        rendering = self._source.rendering(namespace, profile)
        is_configured = self._indexers[KubeVirt] or self._indexers[Setting]
        configured = rendering.ratio if is_configured else rendering.harvester_ratio
        runtime_class = self._indexers[RuntimeClass].get_by_key(rendering.kubevirt.default_runtime_class or "")
        return replace(
            rendering,
            ratio=configured if ratio is None else ratio,
            quota_limits=rendering.quota_limits
            if any(self._indexers.values())
            else limited_resources((LIMITS_CPU, LIMITS_MEMORY)),
            network_resources=self._network_resources,
            pod_overhead=(runtime_class.overhead.pod_fixed or {}) if runtime_class else {},
        )

    def version(self) -> str | None:
        """The version of KubeVirt."""
        return observed_version(self._indexers[KubeVirt].list())

    def claims(self, namespace: str) -> Mapping[str, PersistentVolumeClaim]:
        """Returns a namespace's claims by name."""
        return {claim.name: claim for claim in self._reader(PersistentVolumeClaim).list(namespace)}

    def source(self, vmi: VirtualMachineInstance) -> Side | None:
        """Returns the side in which a VM runs, of several the newest."""
        launchers = self._controlled_by(vmi)
        attachments = [pod for launcher in launchers for pod in self._controlled_by(launcher)]
        return next(reversed(sides_of(vmi, (), ControlledPods([*launchers, *attachments])).source), None)

    def _controlled_by(self, owner: Object) -> list[Pod]:
        """Returns its pods; none of an object without a uid."""
        return self._reader(Pod).by_index(_CONTROLLER, f"{owner.namespace}/{owner.uid}") if owner.uid else []

    def _reader(self, kind: type[T]) -> CacheReader[T]:
        return CacheReader(self._indexers[kind])


def _controllers(pod: Pod) -> list[str]:
    owners = pod.metadata.owner_references or ()
    return [f"{pod.namespace}/{owner.uid}" for owner in owners if owner.controller][:1]
