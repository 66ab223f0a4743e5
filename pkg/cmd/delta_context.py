"""The cluster around the VMIs of `headroom delta`: the documents read so far, each until a later one replaces it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from kubeloop.api.core import (
    LimitRange,
    Namespace,
    PersistentVolumeClaim,
    Pod,
    ResourceQuota,
    RuntimeClass,
)
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
from pkg.util.kubevirt.profiles import Profile
from pkg.util.kubevirt.rendering import Rendering, limited_by, observed_version, rendering
from pkg.util.kubevirt.target import Side
from pkg.util.quotacount.limit_ranges import apply_limit_ranges

_Key = tuple[str, str]


class NetworkAttachmentDefinition(Object):
    """k8s.cni.cncf.io/v1 NetworkAttachmentDefinition: an annotation names the extended resource that it counts as."""


@dataclass
class Context:
    """Objects by namespace and name; pods also by the uid of what controls them."""

    kubevirts: dict[_Key, KubeVirt] = field(default_factory=dict)
    settings: dict[_Key, Setting] = field(default_factory=dict)
    namespaces: dict[_Key, Namespace] = field(default_factory=dict)
    runtime_classes: dict[_Key, RuntimeClass] = field(default_factory=dict)
    network_resources: dict[str, str] = field(default_factory=dict)
    """The extended resource of each NetworkAttachmentDefinition by `namespace/name`, "" for none."""
    quotas: dict[str, dict[_Key, ResourceQuota]] = field(default_factory=lambda: defaultdict(dict))
    limit_ranges: dict[str, dict[_Key, LimitRange]] = field(default_factory=lambda: defaultdict(dict))
    claims: dict[str, dict[str, PersistentVolumeClaim]] = field(default_factory=lambda: defaultdict(dict))
    """By namespace, then name."""
    pods: dict[_Key, Pod] = field(default_factory=dict)
    controlled: dict[str, dict[_Key, Pod]] = field(default_factory=lambda: defaultdict(dict))
    is_given: bool = False
    """Whether anything of the cluster was read: then what was not read is not there."""

    def take(self, document: Mapping[str, Any]) -> bool:
        """Keep a document; False: its kind is none of a context's. msgspec.ValidationError if it is malformed."""
        kind = _KINDS.get(str(document.get("kind")))
        if kind is None:
            return False
        self._keep(msgspec.convert(document, kind))
        self.is_given = True
        return True

    def _keep(self, obj: Object) -> None:
        key = obj.namespace, obj.name
        match obj:
            case KubeVirt():
                if obj.status.phase is None:  # written by hand
                    status = msgspec.structs.replace(obj.status, phase=KUBEVIRT_PHASE_DEPLOYED)
                    obj = msgspec.structs.replace(obj, status=status)
                self.kubevirts[key] = obj
            case Setting():
                self.settings["", obj.name] = obj
            case Namespace():
                self.namespaces["", obj.name] = obj
            case ResourceQuota():
                self.quotas[obj.namespace][key] = obj
            case LimitRange():
                self.limit_ranges[obj.namespace][key] = obj
            case PersistentVolumeClaim():
                self.claims[obj.namespace][obj.name] = obj
            case Pod():
                pod = apply_limit_ranges(obj, ())
                if (known := self.pods.get(key)) is not None:
                    self.controlled[_controller(known)].pop(key, None)
                self.pods[key] = self.controlled[_controller(pod)][key] = pod
            case RuntimeClass():
                self.runtime_classes["", obj.name] = obj
            case NetworkAttachmentDefinition():
                self.network_resources[obj.key] = obj.annotations.get(ANNOTATION_NETWORK_RESOURCE, "")

    def rendering(self, namespace: str, profile: Profile | None, ratio: str | None) -> Rendering:
        """How KubeVirt renders launcher pods there; `profile` and `ratio` override what the KubeVirt object says."""
        labels = self.namespaces.get(("", namespace), Namespace()).labels
        kubevirts = list(self.kubevirts.values())
        setting = self.settings.get(("", SETTING_OVERHEAD_RATIO))
        ranges = list(self.limit_ranges[namespace].values())
        found = rendering(kubevirts, setting, ranges, profile, labels, self._quota_limits(namespace))
        runtime_class = self.runtime_classes.get(("", found.kubevirt.default_runtime_class))
        return replace(
            found,
            ratio=found.ratio if ratio is None else ratio,
            network_resources=self.network_resources,
            pod_overhead=(runtime_class.overhead.pod_fixed or {}) if runtime_class else {},
        )

    def _quota_limits(self, namespace: str) -> frozenset[str]:
        """What quotas of the namespace limit; both where the input says nothing of the cluster."""
        quotas = self.quotas.get(namespace, {}).values()
        names = {name for quota in quotas for name in quota.hard}
        return limited_by(names if self.is_given else (LIMITS_CPU, LIMITS_MEMORY))

    @property
    def has_ratio(self) -> bool:
        """Whether the input says which overhead ratio KubeVirt has, none at all included."""
        return bool(self.kubevirts or self.settings)

    def version(self) -> str | None:
        """The version of KubeVirt."""
        return observed_version(list(self.kubevirts.values()))

    def source(self, vmi: VirtualMachineInstance) -> Side | None:
        """The launcher pod that a running VMI lives in, the newest that it controls on its node, and the attachment
        pods of that one."""
        node = vmi.status.node_name
        if vmi.status.phase != VMI_PHASE_RUNNING or not node or not vmi.uid:
            return None
        pods = [pod for pod in self._controlled(vmi) if pod.spec.node_name == node and not pod.terminal]
        if not pods:
            return None
        launcher = max(pods, key=age)
        attachments = [pod for pod in self._controlled(launcher) if not pod.terminal] if launcher.uid else []
        return Side(launcher, tuple(attachments))

    def _controlled(self, owner: Object) -> list[Pod]:
        pods = self.controlled.get(owner.uid, {})
        return [pod for pod in pods.values() if pod.namespace == owner.namespace]


def _controller(pod: Pod) -> str:
    """The uid of what controls the pod."""
    owners = pod.metadata.owner_references or ()
    return next((owner.uid for owner in owners if owner.controller), "")


_KINDS: Mapping[str, type[Object]] = {
    "KubeVirt": KubeVirt,
    "Setting": Setting,
    "Namespace": Namespace,
    "ResourceQuota": ResourceQuota,
    "LimitRange": LimitRange,
    "PersistentVolumeClaim": PersistentVolumeClaim,
    "Pod": Pod,
    "RuntimeClass": RuntimeClass,
    "NetworkAttachmentDefinition": NetworkAttachmentDefinition,
}
