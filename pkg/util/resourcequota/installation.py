"""What an installation says of how launcher pods are rendered: KubeVirt's CR and Harvester's setting. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from pkg.api.core import LimitRange
from pkg.api.harvesterhci import Setting
from pkg.api.kubevirt import KubeVirt, KubeVirtConfiguration
from pkg.util.constants import DEFAULT_OVERHEAD_RATIO, KUBEVIRT_PHASE_DEPLOYED
from pkg.util.memory_overhead import OverheadProfile, normalize_ratio, profile_for_version
from pkg.util.resourcequota.model import Rendering


def harvester_ratio(setting: Setting | None) -> str:
    """The overhead ratio that Harvester's own formula uses."""
    return normalize_ratio(setting.value, setting.default) if setting else DEFAULT_OVERHEAD_RATIO


def rendering(
    kubevirts: Sequence[KubeVirt],
    setting: Setting | None,
    limit_ranges: Sequence[LimitRange],
    profile: OverheadProfile | None = None,
) -> Rendering:
    """How KubeVirt renders a launcher pod now.

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
    return Rendering(ratio, profile or profile_for_version(version), configuration, tuple(limit_ranges))
