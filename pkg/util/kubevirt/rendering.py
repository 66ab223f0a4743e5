"""What an installation says of how launcher pods are rendered: KubeVirt's CR and Harvester's setting. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kubeloop.api.core import LimitRange
from kubeloop.api.meta import LabelSelector, RawResourceList
from kubeloop.api.selectors import selector
from pkg.api.harvesterhci import Setting
from pkg.api.kubevirt import DeveloperConfiguration, KubeVirt, KubeVirtConfiguration
from pkg.util.constants import (
    CPU,
    DEFAULT_OVERHEAD_RATIO,
    LABEL_AUTO_MEMORY_LIMITS_RATIO,
    LIMITS_CPU,
    LIMITS_MEMORY,
    MEMORY,
)
from pkg.util.kubevirt.installed import deployed, observed_version
from pkg.util.kubevirt.profiles import DEFAULT_PROFILE, Profile, profile_for_version
from pkg.util.quotacount.releases import NEWEST, Releases

_DEFAULT_MEMORY_LIMITS_RATIO = 2.0
_MIN_RATIO, MAX_RATIO = 1.0, 10.0
"""What Harvester's setting may be."""
_LARGEST_CONFIGURED = 1e6
"""KubeVirt itself sets its ratios no upper bound; this one keeps what they are multiplied with finite."""
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Rendering:
    """What decides how KubeVirt would render a launcher pod in one namespace now, and how it counts."""

    ratio: str = ""
    """The overhead ratio, "" for none."""
    profile: Profile = DEFAULT_PROFILE
    kubevirt: KubeVirtConfiguration = field(default_factory=KubeVirtConfiguration)
    limit_ranges: Sequence[LimitRange] = ()
    quota_limits: frozenset[str] = frozenset()
    """What ("cpu", "memory") a quota of the namespace limits: KubeVirt then limits every launcher."""
    memory_limits_ratio: float = _DEFAULT_MEMORY_LIMITS_RATIO
    """What a limit of memory that a quota asks for is of the request."""
    auto_cpu_limit: bool = False
    """Whether the CR selects the namespace for limits of cpu, quota or not."""
    network_resources: Mapping[str, str] = field(default_factory=dict)
    """The extended resource of each NetworkAttachmentDefinition that counts as one, by `namespace/name`."""
    pod_overhead: RawResourceList = field(default_factory=dict)
    """What the API server adds to each launcher for the CR's default RuntimeClass."""
    usual_ratio: str = DEFAULT_OVERHEAD_RATIO
    """The ratio that the installation came with: what VMs were rendered with before people raised it."""
    kubernetes: Releases = NEWEST
    """The releases by which the API servers count the pods."""
    harvester_ratio: str = DEFAULT_OVERHEAD_RATIO
    """The overhead ratio of Harvester's own formula."""
    factor: float = field(init=False)
    """What the overhead is multiplied with: `ratio`, parsed once."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "factor", factor_of(self.ratio))

    def has_gate(self, gate: str) -> bool:
        """Whether a feature gate is on: named in the CR, or on by default and not disabled there. A gate that the
        release has not is off, whatever the CR says. Source: KubeVirt pkg/virt-config/featuregate, pull request 17405.
        """
        developer = self.kubevirt.developer_configuration or DeveloperConfiguration()
        by_default = gate in self.profile.default_gates and gate not in (developer.disabled_feature_gates or ())
        return gate in self.profile.gates and (by_default or gate in (developer.feature_gates or ()))


def parse_ratio(text: str, largest: float = MAX_RATIO) -> float | None:
    """The ratio that a text says, None if it is not a number from 1.0 to 10.0 (or another `largest`)."""
    if _NUMBER.fullmatch(text) is None:
        return None
    ratio = float(text)
    return ratio if _MIN_RATIO <= ratio <= largest else None


def normalize_ratio(value: str, default: str) -> str:
    """Harvester's reading of its setting: the value, else the default, else "1.5"; "", zero, what is not a number
    and what is out of 1.0–10.0 count as "1.5"."""
    chosen = value or default
    return chosen if parse_ratio(chosen) is not None else DEFAULT_OVERHEAD_RATIO


def factor_of(ratio: str) -> float:
    """What KubeVirt multiplies with at a ratio as configured, "" for none."""
    return parse_ratio(ratio, _LARGEST_CONFIGURED) or _MIN_RATIO


def harvester_ratio(setting: Setting | None) -> str:
    """The overhead ratio that Harvester's own formula uses."""
    return normalize_ratio(setting.value, setting.default) if setting else DEFAULT_OVERHEAD_RATIO


def rendering(
    kubevirts: Sequence[KubeVirt],
    setting: Setting | None,
    limit_ranges: Sequence[LimitRange],
    profile: Profile | None = None,
    namespace_labels: Mapping[str, str] | None = None,
    quota_limits: frozenset[str] = frozenset(),
    kubernetes: Releases = NEWEST,
) -> Rendering:
    """How KubeVirt renders a launcher pod in a namespace now.

    The ratio is the KubeVirt CR's, which is what virt-controller reads; without one there Harvester's setting,
    which Harvester copies into the CR; without either none. The CR's configuration counts once it is deployed.
    """
    kubevirt = deployed(kubevirts)
    configuration = kubevirt.spec.configuration if kubevirt else KubeVirtConfiguration()
    ratio = configuration.additional_guest_memory_overhead_ratio or ""
    labels = namespace_labels or {}
    limited = configuration.auto_cpu_limit_namespace_label_selector
    return Rendering(
        ratio or (harvester_ratio(setting) if setting else ""),
        profile or profile_for_version(observed_version(kubevirts)),
        configuration,
        tuple(limit_ranges),
        quota_limits,
        memory_limits_ratio(labels),
        auto_cpu_limit=limited is not None and _selects(limited, labels),
        usual_ratio=normalize_ratio("", setting.default if setting else ""),
        kubernetes=kubernetes,
        harvester_ratio=harvester_ratio(setting),
    )


def _selects(wanted: LabelSelector, labels: Mapping[str, str]) -> bool:
    """One that is not valid selects nothing."""
    try:
        return selector(wanted)(labels)
    except ValueError:
        return False


def limited_by(names: Iterable[str]) -> frozenset[str]:
    """What ("cpu", "memory") quotas with these names in spec.hard limit."""
    limits = {LIMITS_CPU: CPU, LIMITS_MEMORY: MEMORY}
    return frozenset(limits[name] for name in names if name in limits)


def memory_limits_ratio(namespace_labels: Mapping[str, str]) -> float:
    """What KubeVirt multiplies a request of memory with for the limit that a quota asks for."""
    label = namespace_labels.get(LABEL_AUTO_MEMORY_LIMITS_RATIO, "")
    return parse_ratio(label, _LARGEST_CONFIGURED) or _DEFAULT_MEMORY_LIMITS_RATIO
