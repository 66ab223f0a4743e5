"""What an installation says of how launcher pods are rendered: KubeVirt's CR and Harvester's setting. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from pkg.api.core import LimitRange
from pkg.api.harvesterhci import Setting
from pkg.api.kubevirt import DeveloperConfiguration, KubeVirt, KubeVirtConfiguration
from pkg.util.constants import (
    DEFAULT_OVERHEAD_RATIO,
    KUBEVIRT_PHASE_DEPLOYED,
    LABEL_AUTO_MEMORY_LIMITS_RATIO,
)
from pkg.util.launcher_pod import GATE_IMAGE_VOLUME
from pkg.util.memory_overhead import (
    OverheadProfile,
    normalize_ratio,
    parse_ratio,
    parse_version,
    profile_for_version,
)
from pkg.util.resourcequota.model import Rendering

_DEFAULT_MEMORY_LIMITS_RATIO = 2.0
_BETA_GATES_ARE_ON_SINCE = (1, 9)
_AFTER_LAST_RELEASE = (1, 10)
_BETA_GATES = (GATE_IMAGE_VOLUME,)
"""Of the gates that decide about containers. Source: KubeVirt pkg/virt-config/featuregate, pull request 17405."""


def harvester_ratio(setting: Setting | None) -> str:
    """The overhead ratio that Harvester's own formula uses."""
    return normalize_ratio(setting.value, setting.default) if setting else DEFAULT_OVERHEAD_RATIO


def rendering(
    kubevirts: Sequence[KubeVirt],
    setting: Setting | None,
    limit_ranges: Sequence[LimitRange],
    profile: OverheadProfile | None = None,
    namespace_labels: Mapping[str, str] | None = None,
) -> Rendering:
    """How KubeVirt renders a launcher pod in a namespace now.

    The ratio is the KubeVirt CR's, which is what virt-controller reads; without one there Harvester's setting,
    which Harvester copies into the CR; without either none. The CR's configuration counts once it is deployed.
    """
    deployed = [k for k in kubevirts if k.status.phase == KUBEVIRT_PHASE_DEPLOYED]
    kubevirt = deployed[0] if deployed else None
    configuration = kubevirt.spec.configuration if kubevirt else KubeVirtConfiguration()
    ratio = configuration.additional_guest_memory_overhead_ratio or ""
    if not ratio and setting is not None:
        ratio = harvester_ratio(setting)
    version = kubevirt.status.observed_kube_virt_version if kubevirt else None
    return Rendering(
        ratio,
        profile or profile_for_version(version),
        with_beta_gates(configuration, version),
        tuple(limit_ranges),
        memory_limits_ratio(namespace_labels or {}),
    )


def memory_limits_ratio(namespace_labels: Mapping[str, str]) -> float:
    """What KubeVirt multiplies a request of memory with for the limit that a quota asks for."""
    label = namespace_labels.get(LABEL_AUTO_MEMORY_LIMITS_RATIO, "")
    return parse_ratio(label, largest=float("inf")) or _DEFAULT_MEMORY_LIMITS_RATIO


def with_beta_gates(configuration: KubeVirtConfiguration, version: str | None) -> KubeVirtConfiguration:
    """The configuration with the gates named that its release switches on by itself, unless it disables them.

    `version` as the KubeVirt CR has it, or "main" for what comes after the last release.
    """
    released = _AFTER_LAST_RELEASE if version == "main" else parse_version(version)
    if released is None or released < _BETA_GATES_ARE_ON_SINCE:
        return configuration
    developer = configuration.developer_configuration or DeveloperConfiguration()
    named = developer.feature_gates or []
    settled = {*named, *(developer.disabled_feature_gates or ())}
    gates = [*named, *(gate for gate in _BETA_GATES if gate not in settled)]
    return msgspec.structs.replace(
        configuration, developer_configuration=msgspec.structs.replace(developer, feature_gates=gates)
    )
