"""KubeVirt's releases: which constants each has, and how Harvester's ratio setting is read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pkg.api.kubevirt import VirtualMachineInstanceSpec
from pkg.util.kubevirt.overhead import memory_overhead, normalize_ratio, parse_ratio
from pkg.util.kubevirt.profiles import MI, PROFILES, is_unknown, profile_for_version

BASE = 25 * MI + 100 * MI + 25 * MI + 40 * MI + 30 * MI + 8 * MI + 8 * MI + 32 * MI


def overhead(domain: dict[str, Any], profile: str, ratio: str) -> int:
    spec = msgspec.convert({"domain": domain}, VirtualMachineInstanceSpec)
    return memory_overhead(spec, ratio=ratio, profile=PROFILES[profile])


@pytest.mark.parametrize(
    ("value", "default", "expected"),
    [
        pytest.param("2.0", "1.5", "2.0", id="the value"),
        pytest.param("", "2.5", "2.5", id="an empty value: the default"),
        pytest.param("", "", "1.5", id="both empty"),
        pytest.param("0", "3.0", "1.5", id="zero does not fall back on the default"),
        pytest.param("0.0", "", "1.5", id="zero otherwise spelled"),
        pytest.param("0.9", "", "1.5", id="too small"),
        pytest.param("10.1", "", "1.5", id="too large"),
        pytest.param("10", "", "10", id="the largest"),
        pytest.param("1", "", "1", id="the smallest"),
        pytest.param("1e0", "", "1e0", id="an exponent"),
        pytest.param("abc", "2.0", "1.5", id="no number"),
        pytest.param("nan", "", "1.5", id="not a number"),
        pytest.param("1_5", "", "1.5", id="Python's own spellings are no numbers"),
        pytest.param(" 2", "", "1.5", id="white space"),
    ],
)
def test_the_setting_is_read_as_harvester_reads_it(value: str, default: str, expected: str) -> None:
    assert normalize_ratio(value, default) == expected
    assert parse_ratio(expected) is not None


@pytest.mark.parametrize(
    ("observed", "profile"),
    [
        ("v1.8.3", "1.8"),
        ("1.8.0-150600.1.1", "1.8"),
        ("v1.9.0", "1.9"),
        ("v1.9.7", "1.9"),
        ("v1.10.0", "main"),
        ("v2.0.0", "main"),
        ("v1.7.0", "1.7"),
        ("v1.6.6", "1.6.4"),
        ("v1.6.3", "1.6.3"),
        ("1.6.2-150700.3.19.1", "1.6.2"),
        ("v1.6.1", "1.6"),
        ("v1.5.3", "1.5.3"),
        ("v1.5.2", "1.5.2"),
        ("v1.5.1", "1.5.1"),
        ("v1.5.0", "1.5"),
        ("1.4.1-150600.5.15.1", "1.4.1"),
        ("v1.4.0", "1.4"),
        ("1.4", "1.4"),
        ("v1.3.1", "1.3"),
        ("v1.2.2", "1.2"),
        ("v1.1.1", "1.1"),
        ("v1.0.1", "1.0"),
        ("v0.59.2", "0.59"),
        ("v0.58.0", "0.57"),
        ("v0.54.0", "0.54"),
        ("v0.30.0", "0.54"),
        ("", "1.8"),
        (None, "1.8"),
        ("devel", "1.8"),
    ],
)
def test_a_kubevirt_version_has_the_constants_of_its_release(observed: str | None, profile: str) -> None:
    assert profile_for_version(observed) is PROFILES[profile]


QOS = {"cpu": {"cores": 1, "dedicatedCpuPlacement": True}}


@pytest.mark.parametrize(
    ("profile", "domain", "ratio", "expected"),
    [
        pytest.param("0.54", {}, "", (25 + 75 + 17 + 33 + 30 + 16 + 16) * MI, id="0.54 as in the seed"),
        pytest.param("1.0", {}, "", (25 + 100 + 20 + 35 + 30 + 16 + 16) * MI, id="1.0"),
        pytest.param("1.5", {}, "", (25 + 100 + 25 + 40 + 30 + 16 + 16) * MI, id="1.5: larger daemons"),
        pytest.param("1.6", {}, "", BASE, id="1.6: larger video"),
        pytest.param("main", {}, "", BASE + 20 * MI, id="main: larger qemu"),
        pytest.param("0.59", {}, "2.0", (25 + 100 + 20 + 35 + 30 + 16 + 16) * MI, id="0.59 knows no ratio"),
        pytest.param("1.0", QOS, "", (25 + 100 + 20 + 35 + 30 + 16 + 16) * MI, id="1.0 adds nothing for QoS"),
        pytest.param("1.7", {"launchSecurity": {"snp": {}}}, "", BASE + 256 * MI, id="1.7 knows SEV-SNP"),
        pytest.param("1.6", {"launchSecurity": {"snp": {}}}, "", BASE, id="1.6 does not"),
        pytest.param(
            "1.5",
            {"devices": {"tpm": {"enabled": False}}},
            "",
            (25 + 100 + 25 + 40 + 30 + 16 + 16 + 53) * MI,
            id="1.5 counts a TPM even when it is off",
        ),
        pytest.param(
            "1.7", {"memory": {"reservedOverhead": {"addedOverhead": "7Mi"}}}, "", BASE, id="1.7 knows no reserve"
        ),
    ],
)
def test_each_release_has_its_own_formula(profile: str, domain: dict[str, Any], ratio: str, expected: int) -> None:
    assert overhead(domain, profile, ratio) == expected


@pytest.mark.parametrize(
    ("observed", "unknown"),
    [("v1.10.0", True), ("v2.0.0-rc.1", True), ("v1.9.9", False), ("1.6.2-1", False), ("devel", False), (None, False)],
)
def test_which_versions_are_newer_than_all_that_is_known(observed: str | None, unknown: bool) -> None:
    assert is_unknown(observed) is unknown
