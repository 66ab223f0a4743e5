"""What KubeVirt's configuration means: ratio, profile, limits that a quota brings."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kubeloop.api.core import ResourceQuota
from lab.kubevirt.options import Options
from lab.kubevirt.rendering import deployed_configuration, observed_version, overhead_ratio, rendering
from pkg.api.harvesterhci import Setting
from pkg.api.kubevirt import KubeVirt, KubeVirtConfiguration
from pkg.util.kubevirt.profiles import PROFILES, profile_for_version
from tests.lab.kubevirt.samples import made


def kubevirt(name: str = "kubevirt", phase: str | None = "Deployed", **configuration: Any) -> KubeVirt:
    status = {"phase": phase} if phase else {}
    return made(KubeVirt, name, {"configuration": configuration}, status)


def setting(value: str = "", default: str = "") -> Setting:
    return msgspec.convert({"metadata": {"name": "s"}, "value": value, "default": default}, Setting)


RATIOS: dict[str, tuple[str | None, Setting | None, str]] = {
    "nothing is configured": (None, None, ""),
    "the CR has a ratio": ("2.5", None, "2.5"),
    "the CR beats the setting": ("2.5", setting("4.5"), "2.5"),
    "the CR's ratio is no number": ("much", setting("4.5"), ""),
    "the CR leaves it open": ("", setting("4.5"), "4.5"),
    "the setting has only a default": (None, setting("", "3.0"), "3.0"),
    "the setting is empty": (None, setting(), "1.5"),
    "the setting is zero": (None, setting("0"), "1.5"),
    "the setting is out of range": (None, setting("11"), "1.5"),
}


@pytest.mark.parametrize(("configured", "harvester", "ratio"), RATIOS.values(), ids=RATIOS.keys())
def test_overhead_ratio(configured: str | None, harvester: Setting | None, ratio: str) -> None:
    configuration = KubeVirtConfiguration(additional_guest_memory_overhead_ratio=configured)
    assert overhead_ratio(configuration, harvester) == ratio


DEPLOYED = {
    "none": ([], None),
    "one that is Deployed": ([kubevirt(cpuModel="x", additionalGuestMemoryOverheadRatio="2")], "2"),
    "not one that is still Deploying": ([kubevirt(phase="Deploying", additionalGuestMemoryOverheadRatio="2")], None),
    "not one without a phase": ([kubevirt(phase=None, additionalGuestMemoryOverheadRatio="2")], None),
    "the first of two": (
        [kubevirt("b", additionalGuestMemoryOverheadRatio="3"), kubevirt("a", additionalGuestMemoryOverheadRatio="2")],
        "2",
    ),
}


@pytest.mark.parametrize(("kubevirts", "ratio"), DEPLOYED.values(), ids=DEPLOYED.keys())
def test_which_kubevirt_counts(kubevirts: list[KubeVirt], ratio: str | None) -> None:
    assert deployed_configuration(kubevirts).additional_guest_memory_overhead_ratio == ratio


def quota(*names: str) -> ResourceQuota:
    return made(ResourceQuota, "q", {"hard": dict.fromkeys(names, "1")})


LIMITED = {
    "no quota": ([], set()),
    "a quota on requests": ([quota("requests.memory", "pods")], set()),
    "a quota on memory limits": ([quota("limits.memory")], {"memory"}),
    "two quotas together": ([quota("limits.memory"), quota("limits.cpu")], {"cpu", "memory"}),
}


@pytest.mark.parametrize(("quotas", "expected"), LIMITED.values(), ids=LIMITED.keys())
def test_what_a_quota_limits(quotas: list[ResourceQuota], expected: set[str]) -> None:
    assert rendering([], None, Options(), quotas=quotas).quota_limits == expected


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_the_version_that_is_reported_leads_back_to_the_profile(profile: str) -> None:
    assert profile_for_version(observed_version(profile)) == PROFILES[profile]
