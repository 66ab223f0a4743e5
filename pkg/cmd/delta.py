"""`headroom delta`: what a migration adds to the quota, for VMIs from a file or a pipe."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import msgspec

from kubeloop.api import core
from kubeloop.api.meta import Object
from kubeloop.api.objects import edit
from kubeloop.api.registry import BY_TYPE
from kubeloop.api.resource_list import add, format_resource_list
from kubeloop.cache.store import Indexer
from kubeloop.controllers.cache_reader import CacheReader
from pkg.api.harvesterhci import Setting
from pkg.api.instancetype import INSTANCETYPES
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCES, KubeVirt, VirtualMachine, VirtualMachineInstance
from pkg.cmd.flags import option, optional
from pkg.cmd.manifests import Foreign, ManifestError, describe_each, group_of
from pkg.cmd.options import check_ratio, overhead_profile, remark
from pkg.report.collect import AROUND_VMIS
from pkg.report.snapshot import LISTS
from pkg.util.constants import KUBEVIRT_PHASE_DEPLOYED, LIMITS_CPU, LIMITS_MEMORY
from pkg.util.kubevirt.claims import target_claim_usage
from pkg.util.kubevirt.expansion import Instancetypes, missing_instancetype, vmi_of, with_defaults, with_topology
from pkg.util.kubevirt.overhead import at_ratio, harvester_delta, overhead_of, overhead_parts
from pkg.util.kubevirt.profiles import NEWEST, Profile, is_unknown
from pkg.util.kubevirt.rendering import Rendering, deployed_kubevirt, factor_of, limited_resources
from pkg.util.kubevirt.sides import ControlledPods, sides_of
from pkg.util.kubevirt.target import Side, target_usage
from pkg.util.quotacount.pod_resources import apply_limit_ranges
from pkg.util.resourcequota.observe import Source
from pkg.util.resourcequota.policy import EstimateKind


class NetworkAttachmentDefinition(Object):
    """k8s.cni.cncf.io/v1 NetworkAttachmentDefinition: an annotation names the extended resource that it counts as."""


_CONTEXT: Final[Mapping[str, tuple[str, type[Object]]]] = {
    **{kind.__name__: (BY_TYPE[kind].group, kind) for kind in AROUND_VMIS},
    **{resource.kind: (resource.group, resource.type) for resource in INSTANCETYPES},
    "RuntimeClass": ("node.k8s.io", core.RuntimeClass),
    "NetworkAttachmentDefinition": ("k8s.cni.cncf.io", NetworkAttachmentDefinition),
}
"""The kinds around VMs, with their groups: other projects have kinds of the same names."""
_DOMAINS: Final = {"VirtualMachineInstance": "spec.domain", "VirtualMachine": "spec.template.spec.domain"}
"""The paths of their domains, by kind."""
_QUOTA = (LIMITS_CPU, LIMITS_MEMORY)
"""What the quota is taken to limit where the input says nothing of the cluster."""


@dataclass(frozen=True)
class DeltaOptions:
    file: str = option(..., "YAML or JSON file; - is stdin.", "--file", "-f", metavar="FILE")
    overhead_ratio: str | None = optional(
        "Value of additional-guest-memory-overhead-ratio, 1.0 to 10.0. Default: what the KubeVirt object or the "
        "Setting in FILE says, else 1.5.",
        metavar="RATIO",
    )
    arch: Literal["amd64", "arm64"] | None = optional("Architecture of VMIs that name none. Default: amd64.")
    estimate: EstimateKind = option(
        EstimateKind.HARVESTER,
        "How much a migration needs: Harvester's formula, or exactly what quota counts of the target pod.",
    )
    kubevirt_profile: str | None = optional(
        'KubeVirt release, or "main". Default: the version that the KubeVirt object in FILE reports, else 1.8.',
        metavar="VERSION",
    )


def delta(options: DeltaOptions) -> int:
    """Print what a live migration of each VirtualMachineInstance, or VirtualMachine once it runs, adds to its
    namespace's quota, a JSON line each.

    Offline: reads nothing but the input. KubeVirt, Setting, Namespace, ResourceQuota, LimitRange, Pod and
    PersistentVolumeClaim objects (RuntimeClass, NetworkAttachmentDefinition, instancetypes and preferences too) hold
    for the VMIs that follow them. Without any such object the quota is taken to limit both cpu and memory."""
    check_ratio(options.overhead_ratio)
    cluster = _Cluster(overhead_profile(options.kubevirt_profile), options.overhead_ratio)

    def describe(document: Mapping[str, Any]) -> dict[str, Any] | None:
        if cluster.take(document):
            return None
        vmi = _vmi_in(document, cluster.instancetypes)
        if options.arch and not vmi.spec.architecture:
            vmi = edit(vmi, spec={"architecture": options.arch})
        rendering = cluster.rendering(vmi.namespace)
        line = {"namespace": vmi.namespace, "name": vmi.name}
        if options.estimate is EstimateKind.EXACT:
            return line | _exact(vmi, rendering, cluster)
        if not vmi.uid and vmi.spec.domain.cpu is not None:  # else the formula takes it as it is
            vmi = with_topology(vmi)
        profile, ratio = rendering.profile, rendering.harvester_ratio
        need = harvester_delta(vmi.spec, _QUOTA, ratio, profile)
        overhead = at_ratio(overhead_parts(vmi.spec, profile), factor_of(ratio)).value()
        return {**line, "overhead": overhead, "delta": format_resource_list(need or {})}

    return describe_each(options.file, tuple(_DOMAINS), describe)


def _exact(vmi: VirtualMachineInstance, rendering: Rendering, cluster: "_Cluster") -> dict[str, Any]:
    """Returns all that quota counts of the target's launcher and attachment pods, and of the claim for its state."""
    if not vmi.uid:  # one that the API server has stored is complete
        vmi = with_defaults(vmi, rendering)
    pods = target_usage(vmi, cluster.source(vmi), rendering, core.ResourceQuotaSpec())
    claims = {claim.name: claim for claim in cluster.objects.claims.list(vmi.namespace)}
    target = format_resource_list(add(pods, target_claim_usage(vmi, claims, rendering)))
    # Names under which a quota may limit requests, too: `delta` has them as requests.… only.
    counted = {name: text for name, text in target.items() if name not in ("cpu", "memory", "ephemeral-storage")}
    return {"overhead": overhead_of(vmi, rendering), "delta": counted, "target": target}


def _vmi_in(document: Mapping[str, Any], instancetypes: Instancetypes) -> VirtualMachineInstance:
    """Returns the VMI that a document holds, or that KubeVirt makes of its VM; a document without a kind is taken for a
    VMI if it looks like one. Raises Foreign, ManifestError, msgspec.ValidationError."""
    kind = str(document.get("kind", VIRTUAL_MACHINE_INSTANCES.kind))
    if kind not in _DOMAINS or group_of(document) not in (None, VIRTUAL_MACHINE_INSTANCES.group):
        raise Foreign
    domain: Any = document
    for name in _DOMAINS[kind].split("."):
        domain = domain.get(name) if isinstance(domain, dict) else None
    if not isinstance(domain, dict):
        raise ManifestError(f"no {_DOMAINS[kind]}") if "kind" in document else Foreign
    if kind == VIRTUAL_MACHINE_INSTANCES.kind:
        return msgspec.convert(document, VirtualMachineInstance)
    vm = instancetypes.expanded(msgspec.convert(document, VirtualMachine))
    if missing := missing_instancetype(vm):
        raise ManifestError(
            f"its {missing} is not before it: put it there, named by the VM, or give the VirtualMachineInstance"
        )
    return vmi_of(vm)


class _Cluster:
    """The cluster, as far as it was read. `profile` and `ratio` override the KubeVirt object."""

    def __init__(self, profile: Profile | None, ratio: str | None) -> None:
        self._indexers: dict[type[Object], Indexer[Any]] = {kind: Indexer() for _, kind in _CONTEXT.values()}
        self._indexers[core.Pod].add_indexers({"controller": _controllers})
        self.instancetypes = Instancetypes()
        readers: dict[str, Any] = {
            name: CacheReader(self._indexers[kind]) for name, kind in LISTS.items() if kind in AROUND_VMIS
        }
        self.objects = Source(**readers, profile=profile, ratio=ratio)

    def take(self, document: Mapping[str, Any]) -> bool:
        """Keeps a document; False: its kind is none of a cluster's. Raises msgspec.ValidationError."""
        group, kind = _CONTEXT.get(str(document.get("kind")), ("", None))
        if kind is None or group_of(document) not in (None, group):
            return False
        obj = msgspec.convert(document, kind)
        match obj:
            case KubeVirt():
                if obj.status.phase is None:  # written by hand
                    obj = edit(obj, status={"phase": KUBEVIRT_PHASE_DEPLOYED})
                version = deployed_kubevirt([obj]).status.observed_kube_virt_version
                if self.objects.profile is None and is_unknown(version):
                    remark(f"KubeVirt {version} is not known, profile {NEWEST!r} is used")
            case core.Pod():
                obj = apply_limit_ranges(obj, ())
        store = self.instancetypes if BY_TYPE.get(kind) in INSTANCETYPES else self._indexers[kind]
        store.add(obj)
        return True

    def rendering(self, namespace: str) -> Rendering:
        """Returns how KubeVirt renders launcher pods there. Where the input says nothing of the ratio it is what
        Harvester comes with; nothing of the cluster: quotas limit both cpu and memory."""
        rendering = self.objects.rendering(namespace)
        is_configured = self._indexers[KubeVirt] or self._indexers[Setting]
        runtime_class = self._indexers[core.RuntimeClass].get_by_key(rendering.kubevirt.default_runtime_class or "")
        networks = self._indexers[NetworkAttachmentDefinition].list()
        return replace(
            rendering,
            ratio=rendering.ratio if is_configured else rendering.harvester_ratio,
            quota_limits=rendering.quota_limits if any(self._indexers.values()) else limited_resources(_QUOTA),
            network_resources={net.key: net.annotations.get("k8s.v1.cni.cncf.io/resourceName", "") for net in networks},
            pod_overhead=(runtime_class.overhead.pod_fixed or {}) if runtime_class else {},
        )

    def source(self, vmi: VirtualMachineInstance) -> Side | None:
        """Returns the side in which a VM runs, of several the newest: other VMs' pods are not looked at."""
        launchers = self._controlled_by(vmi)
        attachments = [pod for launcher in launchers for pod in self._controlled_by(launcher)]
        return next(reversed(sides_of(vmi, (), ControlledPods([*launchers, *attachments])).source), None)

    def _controlled_by(self, owner: Object) -> list[core.Pod]:
        """Returns its pods; none of an object without a uid."""
        return self._indexers[core.Pod].by_index("controller", f"{owner.namespace}/{owner.uid}") if owner.uid else []


def _controllers(pod: core.Pod) -> list[str]:
    return [f"{pod.namespace}/{owner.uid}" for owner in pod.metadata.owner_references or () if owner.controller]
