"""The installed KubeVirt by its CR, and by Harvester's setting: how it renders launcher pods, and its account. Pure."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from kubeloop.api.core import LimitRange
from kubeloop.api.meta import RawResourceList
from kubeloop.api.selectors import selector
from pkg.api.harvesterhci import Setting
from pkg.api.kubevirt import KubeVirt, KubeVirtConfiguration
from pkg.util import constants
from pkg.util.kubevirt.profiles import DEFAULT_PROFILE, Profile, profile_for_version
from pkg.util.quotacount.releases import NEWEST, Releases

_DEFAULT_MEMORY_LIMITS_RATIO = 2.0
MAX_RATIO = 10.0  # of Harvester's setting; the smallest is 1.0
_LARGEST_CONFIGURED = 1e6
"""KubeVirt itself sets its ratios no upper bound; this one keeps what they are multiplied with finite."""
UNKNOWN_RATIO: Final = "unknown"
"""The overhead ratio of a KubeVirt CR that may not be read: a target has its source's overhead."""
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Rendering:
    """The configuration by which KubeVirt renders a launcher pod in one namespace now, and quota counts it."""

    ratio: str = ""
    """The overhead ratio, "" for none; `factor` is this, parsed once."""
    profile: Profile = DEFAULT_PROFILE
    kubevirt: KubeVirtConfiguration = field(default_factory=KubeVirtConfiguration)
    limit_ranges: Sequence[LimitRange] = ()
    quota_limits: frozenset[str] = frozenset()
    """The resources ("cpu", "memory") that a quota of the namespace limits: KubeVirt then limits every launcher."""
    memory_limits_ratio: float = _DEFAULT_MEMORY_LIMITS_RATIO  # of a memory limit that a quota requires to the request
    auto_cpu_limit: bool = False  # the CR selects the namespace for limits of cpu, quota or not
    network_resources: Mapping[str, str] = field(default_factory=dict)
    """The extended resource of each NetworkAttachmentDefinition that counts as one, by `namespace/name`."""
    pod_overhead: RawResourceList = field(default_factory=dict)
    """The overhead that the API server adds to each launcher for the CR's default RuntimeClass."""
    usual_ratio: str = constants.DEFAULT_OVERHEAD_RATIO
    """The ratio that the installation came with: the one of launchers rendered before people raised it."""
    kubernetes: Releases = NEWEST
    harvester_ratio: str = constants.DEFAULT_OVERHEAD_RATIO  # the one of Harvester's own formula
    policy_in_force: bool = False
    """Whether deploy/policy.yaml is: then KubeVirt and the cluster's mutating webhooks alone shape the pods of VMs, and
    these are trusted as they are, with what a mesh or KubeVirt's own webhook put in."""
    factor: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", factor_of(self.ratio))

    def has_gate(self, gate: str) -> bool:
        """Reports whether a feature gate is on: named in the CR, or on by default and not disabled there; off where the
        release does not have it. Source: KubeVirt pkg/virt-config/featuregate, pull request 17405."""
        developer = self.kubevirt.developer_configuration
        by_default = gate in self.profile.default_gates and gate not in (developer.disabled_feature_gates or ())
        return gate in self.profile.gates and (by_default or gate in (developer.feature_gates or ()))


def parse_ratio(text: str, largest: float = MAX_RATIO) -> float | None:
    """Returns the ratio that a text contains, None if it is not a number from 1.0 to 10.0 (or another `largest`)."""
    return ratio if _NUMBER.fullmatch(text) and 1.0 <= (ratio := float(text)) <= largest else None


def normalize_ratio(ratio: str) -> str:
    """Returns the ratio as Harvester reads its setting: "1.5" for all but numbers from 1.0 to 10.0."""
    return ratio if parse_ratio(ratio) is not None else constants.DEFAULT_OVERHEAD_RATIO


def factor_of(ratio: str) -> float:
    """Returns the factor that KubeVirt multiplies by at a configured ratio, "" for none."""
    return parse_ratio(ratio, _LARGEST_CONFIGURED) or 1.0


def rendering(
    kubevirts: Sequence[KubeVirt],
    setting: Setting | None,
    profile: Profile | None = None,
    namespace_labels: Mapping[str, str] | None = None,
) -> Rendering:
    """Returns how KubeVirt renders a launcher pod in a namespace now, as far as its CR, once it is deployed, and the
    namespace's labels say. The ratio is the CR's, which virt-controller reads; by default Harvester's setting, which
    Harvester copies into the CR; without both none."""
    kubevirt = deployed_kubevirt(kubevirts)
    configuration = kubevirt.spec.configuration
    labels, harvester = namespace_labels or {}, setting or Setting()
    harvester_ratio = normalize_ratio(harvester.value or harvester.default)
    limits_cpu = False
    with suppress(ValueError):  # an invalid selector selects nothing
        limit_selector = configuration.auto_cpu_limit_namespace_label_selector
        limits_cpu = limit_selector is not None and selector(limit_selector)(labels)
    memory_limits = parse_ratio(labels.get("alpha.kubevirt.io/auto-memory-limits-ratio", ""), _LARGEST_CONFIGURED)
    return Rendering(
        configuration.additional_guest_memory_overhead_ratio or (harvester_ratio if setting else ""),
        profile or profile_for_version(kubevirt.status.observed_kube_virt_version),
        configuration,
        memory_limits_ratio=memory_limits or _DEFAULT_MEMORY_LIMITS_RATIO,
        auto_cpu_limit=limits_cpu,
        usual_ratio=normalize_ratio(harvester.default),
        harvester_ratio=harvester_ratio,
    )


def limited_resources(names: Iterable[str]) -> frozenset[str]:
    """Returns the resources ("cpu", "memory") that quotas with these names in spec.hard limit."""
    return frozenset(n.removeprefix("limits.") for n in names if n in (constants.LIMITS_CPU, constants.LIMITS_MEMORY))


def deployed_kubevirt(kubevirts: Iterable[KubeVirt]) -> KubeVirt:
    """Returns the KubeVirt CR that counts, an empty one if there is none, and the oldest of several: virt-operator's
    webhook admits no second one (KubeVirtCreateAdmitter), and without it a tenant's CR is younger."""
    return _oldest(k for k in kubevirts if k.status.phase == constants.KUBEVIRT_PHASE_DEPLOYED)


def virt_controllers(kubevirts: Sequence[KubeVirt], configured_users: Collection[str] = ()) -> Sequence[str]:
    """Returns virt-controller's user names, by which the reserve, the locks and deploy/policy.yaml go, as it alone
    creates VMs' pods and patches their metadata: those of `--kubevirt-user`; else the account in the namespace of the
    KubeVirt CR that is deployed, or will be; without a CR, where Harvester and KubeVirt's manifests install it. Names
    are exact: any tenant can create an account of that name in the own namespace."""
    if configured_users:
        return sorted(configured_users)
    namespace = deployed_kubevirt(kubevirts).namespace or _oldest(kubevirts).namespace
    namespaces = [namespace] if namespace else ["harvester-system", "kubevirt"]
    return [f"system:serviceaccount:{namespace}:kubevirt-controller" for namespace in namespaces]


def _oldest(kubevirts: Iterable[KubeVirt]) -> KubeVirt:
    return min(kubevirts, key=lambda k: k.metadata.creation_timestamp or "", default=KubeVirt())
