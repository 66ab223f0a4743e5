"""The cluster around the VMIs of `headroom delta`: the documents read so far, each until a later one replaces it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from kubeloop.api.core import LimitRange, Namespace, PersistentVolumeClaim, Pod, ResourceQuota, RuntimeClass
from kubeloop.api.meta import Object
from pkg.api.harvesterhci import Setting
from pkg.api.kubevirt import KubeVirt, VirtualMachineInstance
from pkg.util.constants import (
    ANNOTATION_NETWORK_RESOURCE,
    KUBEVIRT_PHASE_DEPLOYED,
    LIMITS_CPU,
    LIMITS_MEMORY,
    SETTING_OVERHEAD_RATIO,
    VMI_PHASE_RUNNING,
)
from pkg.util.kubevirt.evidence import age
from pkg.util.kubevirt.installed import observed_version
from pkg.util.kubevirt.profiles import Profile
from pkg.util.kubevirt.rendering import Rendering, limited_by, rendering
from pkg.util.kubevirt.target import Side
from pkg.util.quotacount.limit_ranges import apply_limit_ranges

T = TypeVar("T", bound=Object)


class NetworkAttachmentDefinition(Object):
    """k8s.cni.cncf.io/v1 NetworkAttachmentDefinition: an annotation names the extended resource that it counts as."""


class Context:
    """The objects; of pods also which of them a uid controls."""

    def __init__(self) -> None:
        self._objects: dict[tuple[type[Object], str], dict[str, Any]] = defaultdict(dict)
        """By kind and namespace, then by name."""
        self._controlled: dict[str, dict[str, Pod]] = defaultdict(dict)
        self._network_resources: dict[str, str] = {}
        """The extended resource of each NetworkAttachmentDefinition by `namespace/name`, "" for none."""
        self._is_given = False
        """Whether anything of the cluster was read: then what was not read is not there."""

    def take(self, document: Mapping[str, Any]) -> bool:
        """Keep a document; False: its kind is none of a context's. msgspec.ValidationError if it is malformed."""
        kind = _KINDS.get(str(document.get("kind")))
        if kind is None:
            return False
        self._keep(msgspec.convert(document, kind))
        self._is_given = True
        return True

    def _keep(self, obj: Object) -> None:
        name, scope = obj.name, obj.namespace
        match obj:
            case KubeVirt():
                if obj.status.phase is None:  # written by hand
                    status = msgspec.structs.replace(obj.status, phase=KUBEVIRT_PHASE_DEPLOYED)
                    obj = msgspec.structs.replace(obj, status=status)
                name, scope = obj.key, ""
            case Setting() | Namespace() | RuntimeClass():
                scope = ""
            case Pod():
                obj = apply_limit_ranges(obj, ())
                if (known := self.of(Pod, scope).get(name)) is not None:
                    self._controlled[_controller(known)].pop(known.key, None)
                self._controlled[_controller(obj)][obj.key] = obj
            case NetworkAttachmentDefinition():
                self._network_resources[obj.key] = obj.annotations.get(ANNOTATION_NETWORK_RESOURCE, "")
        self.of(type(obj), scope)[name] = obj

    def of(self, kind: type[T], namespace: str = "") -> dict[str, T]:
        """Those of a namespace by name; KubeVirts and what has no namespace without one."""
        return self._objects[kind, namespace]

    def rendering(self, namespace: str, profile: Profile | None, ratio: str | None) -> Rendering:
        """How KubeVirt renders launcher pods there; `profile` and `ratio` override what the KubeVirt object says."""
        labels = self.of(Namespace).get(namespace, Namespace()).labels
        kubevirts, ranges = list(self.of(KubeVirt).values()), list(self.of(LimitRange, namespace).values())
        found = rendering(kubevirts, self.setting, ranges, profile, labels, self._quota_limits(namespace))
        runtime_class = self.of(RuntimeClass).get(found.kubevirt.default_runtime_class)
        return replace(
            found,
            ratio=found.ratio if ratio is None else ratio,
            network_resources=self._network_resources,
            pod_overhead=(runtime_class.overhead.pod_fixed or {}) if runtime_class else {},
        )

    def _quota_limits(self, namespace: str) -> frozenset[str]:
        """What quotas of the namespace limit; both where the input says nothing of the cluster."""
        names = {name for quota in self.of(ResourceQuota, namespace).values() for name in quota.hard}
        return limited_by(names if self._is_given else (LIMITS_CPU, LIMITS_MEMORY))

    @property
    def has_ratio(self) -> bool:
        """Whether the input says which overhead ratio KubeVirt has, none at all included."""
        return bool(self.of(KubeVirt) or self.of(Setting))

    @property
    def setting(self) -> Setting | None:
        """The overhead ratio, as Harvester sets it."""
        return self.of(Setting).get(SETTING_OVERHEAD_RATIO)

    def version(self) -> str | None:
        """The version of KubeVirt."""
        return observed_version(list(self.of(KubeVirt).values()))

    def source(self, vmi: VirtualMachineInstance) -> Side | None:
        """The launcher pod that a running VMI lives in, the newest that it controls on its node, and the attachment
        pods of that one."""
        node = vmi.status.node_name
        if vmi.status.phase != VMI_PHASE_RUNNING or not node or not vmi.uid:
            return None
        pods = [pod for pod in self._pods_of(vmi) if pod.spec.node_name == node and not pod.terminal]
        if not pods:
            return None
        launcher = max(pods, key=age)
        attachments = [pod for pod in self._pods_of(launcher) if not pod.terminal] if launcher.uid else []
        return Side(launcher, tuple(attachments))

    def _pods_of(self, owner: Object) -> list[Pod]:
        pods = self._controlled.get(owner.uid, {})
        return [pod for pod in pods.values() if pod.namespace == owner.namespace]


def _controller(pod: Pod) -> str:
    """The uid of what controls the pod."""
    owners = pod.metadata.owner_references or ()
    return next((owner.uid for owner in owners if owner.controller), "")


_KINDS: Mapping[str, type[Object]] = {
    kind.__name__: kind
    for kind in (
        KubeVirt,
        Setting,
        Namespace,
        ResourceQuota,
        LimitRange,
        PersistentVolumeClaim,
        Pod,
        RuntimeClass,
        NetworkAttachmentDefinition,
    )
}
