"""The overhead against recorded results, the numbers of the seeds, text that does not parse; which constants each
release has, how Harvester's ratio setting is read, and what a pod says of its overhead."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from kubeloop.api.core import Pod
from kubeloop.api.quantity import Quantity, QuantityError
from kubeloop.api.resource_list import format_resource_list, unmarshal
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceSpec
from pkg.util.kubevirt.overhead import at_ratio, harvester_delta, overhead_difference, overhead_of, overhead_parts
from pkg.util.kubevirt.profiles import MI, PROFILES, Profile, is_unknown, profile_for_version
from pkg.util.kubevirt.rendering import Rendering, factor_of, normalize_ratio, parse_ratio
from tests.objects import launcher, machine, vmi
from tests.pkg.util import vectors

BOTH = {"limits.cpu": "3", "limits.memory": "5000Mi"}
GI = 1024 * MI


def spec(**domain: Any) -> VirtualMachineInstanceSpec:
    return msgspec.convert({"domain": domain}, VirtualMachineInstanceSpec)


def overhead(vmi_spec: VirtualMachineInstanceSpec, profile: str = "1.8", ratio: str = "") -> int:
    return at_ratio(overhead_parts(vmi_spec, PROFILES[profile]), factor_of(ratio)).value()


def test_the_overhead_is_kubevirts_on_both_architectures() -> None:
    checked = 0
    for vector in vectors.lines("vmi-overhead"):
        vmi = msgspec.convert(vector["vmi"], VirtualMachineInstance)
        specs = [msgspec.structs.replace(vmi.spec, architecture=arch) for arch in (None, "arm64")]
        overheads = [overhead(spec, ratio=vector["ratio"]) for spec in specs]
        assert overheads == [vector["overhead"], vector["overhead_arm64"]], vector
        checked += 1
    assert checked == 400


def test_the_delta_is_harvesters() -> None:
    for vector in vectors.lines("vmi-overhead"):
        vmi = msgspec.convert(vector["vmi"], VirtualMachineInstance)
        delta = harvester_delta(vmi.spec, vector["hard"], vector["ratio"])
        assert (delta is not None) == vector["scale"], vector
        assert delta is None or delta == unmarshal(vector["entry"]), vector


@pytest.mark.parametrize(
    ("profile", "ratio", "delta"),
    [
        pytest.param("1.8", "1.5", "4737464313", id="Harvester 1.7.0 with ratio 1.5"),
        pytest.param("1.8", "4.5", "5622461313", id="Harvester 1.7.0 with ratio 4.5"),
        pytest.param("0.54", "1.5", "4531245057", id="Harvester 1.2.1, which knows no ratio"),
    ],
)
def test_the_seeds_numbers(profile: str, ratio: str, delta: str) -> None:
    computed = harvester_delta(vmi().spec, BOTH, ratio, profile=PROFILES[profile])
    assert computed is not None
    assert format_resource_list(computed) == {"limits.cpu": "2", "limits.memory": delta}


@pytest.mark.parametrize(
    ("hard", "limits", "delta"),
    [
        pytest.param(BOTH, {"cpu": "2"}, {"limits.cpu": "2"}, id="a VMI with a cpu limit only"),
        pytest.param(BOTH, {"cpu": "0", "memory": "0"}, None, id="limits of zero are none"),
        pytest.param(BOTH, {}, None, id="a VMI without limits is not scaled"),
        pytest.param({"limits.cpu": "1"}, {"memory": "1Gi"}, {}, id="a quota without that limit gets nothing"),
        pytest.param({}, {"cpu": "2"}, None, id="a quota without either limit is not scaled"),
        pytest.param({"pods": "1"}, {"cpu": "2"}, None, id="a quota on other things is not scaled"),
        pytest.param({"limits.cpu": "1"}, {"cpu": "3e0"}, {"limits.cpu": "3e0"}, id="a spelling is kept"),
    ],
)
def test_only_what_both_limit_is_in_the_delta(
    hard: dict[str, str], limits: dict[str, str], delta: dict[str, str] | None
) -> None:
    computed = harvester_delta(spec(resources={"limits": limits}), hard, "1.5")
    assert (computed if computed is None else format_resource_list(computed)) == delta


BASE = 25 * MI + 100 * MI + 25 * MI + 40 * MI + 30 * MI + 8 * MI + 8 * MI + 32 * MI


@pytest.mark.parametrize(
    ("domain", "names"),
    [
        ({"resources": {"requests": {"memory": "lots"}}}, "memory"),
        ({"resources": {"limits": {"cpu": "2 cores"}}}, "cpu"),
        ({"memory": {"reservedOverhead": {"addedOverhead": "some"}}}, "some"),
    ],
)
def test_a_quantity_that_is_none_is_an_error_that_says_which(domain: dict[str, Any], names: str) -> None:
    with pytest.raises(QuantityError, match=names):
        overhead(spec(**domain))


def test_a_fraction_of_a_byte_rounds_up_the_overhead_alone() -> None:
    domain = {"memory": {"reservedOverhead": {"addedOverhead": "1500m"}}, "resources": {"limits": {"memory": "1Gi"}}}
    delta = harvester_delta(spec(**domain), BOTH, "1.0")
    assert delta is not None
    assert overhead(spec(**domain)) == BASE + 2
    assert delta["limits.memory"] == Quantity.of(GI + BASE) + Quantity.parse("1500m")


# ---- releases and ratios -------------------------------------------------------------------------------------


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
    assert normalize_ratio(value or default) == expected
    assert parse_ratio(expected) is not None


VERSIONS = {
    "main": "v1.10.0 v2.0.0",
    "1.9": "v1.9.0 v1.9.7",
    "1.8": "v1.8.3 1.8.0-150600.1.1 devel",
    "1.7": "v1.7.0",
    "1.6.4": "v1.6.6",
    "1.6": "v1.6.1 1.6.2-150700.3.19.1 v1.6.3",
    "1.5.3": "v1.5.3",
    "1.5.2": "v1.5.2",
    "1.5.1": "v1.5.1",
    "1.5": "v1.5.0",
    "1.4.1": "1.4.1-150600.5.15.1",
    "1.4": "v1.4.0 1.4",
    "1.3": "v1.3.1",
    "1.2": "v1.2.2",
    "1.1": "v1.1.1",
    "1.0": "v1.0.1",
    "0.59": "v0.59.2",
    "0.57": "v0.58.0",
    "0.54": "v0.54.0 v0.30.0",
}
"""By the release whose constants they have."""


@pytest.mark.parametrize("profile", VERSIONS)
def test_a_kubevirt_version_has_the_constants_of_its_release(profile: str) -> None:
    for observed in [*VERSIONS[profile].split(), *(["", None] if profile == "1.8" else [])]:
        assert profile_for_version(observed) is PROFILES[profile], observed


QOS = {"cpu": {"cores": 1, "dedicatedCpuPlacement": True}}
PASST = {
    "devices": {
        "interfaces": [
            {"name": "all", "passt": {}},
            {"name": "all too", "passt": {}},
            {"name": "one", "passt": {}, "ports": [{"port": 80}]},
            {"name": "other", "masquerade": {}},
        ]
    }
}


@pytest.mark.parametrize(
    ("profile", "domain", "ratio", "expected"),
    [
        pytest.param("0.54", {}, "", (25 + 75 + 17 + 33 + 30 + 16 + 16) * MI, id="0.54 as in the seed"),
        pytest.param("0.55", {}, "", (25 + 100 + 17 + 33 + 30 + 16 + 16) * MI, id="0.55: a larger launcher"),
        pytest.param("0.57", {}, "", (25 + 100 + 18 + 35 + 30 + 16 + 16) * MI, id="0.57: larger daemons"),
        pytest.param("1.0", {}, "", (25 + 100 + 20 + 35 + 30 + 16 + 16) * MI, id="1.0"),
        pytest.param("main", {}, "", BASE + 20 * MI, id="main: larger qemu"),
        pytest.param("0.59", {}, "2.0", (25 + 100 + 20 + 35 + 30 + 16 + 16) * MI, id="0.59 knows no ratio"),
        pytest.param("1.0", QOS, "", (25 + 100 + 20 + 35 + 30 + 16 + 16) * MI, id="1.0 adds nothing for QoS"),
        pytest.param("1.6", {"launchSecurity": {"snp": {}}}, "", BASE, id="1.6 does not know SEV-SNP"),
        pytest.param(
            "1.5",
            {"devices": {"tpm": {"enabled": False}}},
            "",
            (25 + 100 + 25 + 40 + 30 + 16 + 16 + 53) * MI,
            id="1.5 counts a TPM even when it is off",
        ),
        pytest.param("1.2", PASST, "", (25 + 100 + 20 + 35 + 30 + 16 + 16 + 1600) * MI, id="1.2 counts passt's ports"),
        pytest.param(
            "1.7", {"memory": {"reservedOverhead": {"addedOverhead": "7Mi"}}}, "", BASE, id="1.7 knows no reserve"
        ),
    ],
)
def test_each_release_has_its_own_formula(profile: str, domain: dict[str, Any], ratio: str, expected: int) -> None:
    assert overhead(spec(**domain), profile, ratio) == expected


def test_from_1_5_3_on_the_ratio_counts_for_qos_too() -> None:
    old_overhead, new_overhead = (overhead(spec(**QOS), release, "2.0") for release in ("1.5.2", "1.5.3"))
    assert new_overhead - old_overhead == pytest.approx(100 * MI, rel=1e-5)


@pytest.mark.parametrize(
    ("observed", "unknown"),
    [("v1.10.0", True), ("v2.0.0-rc.1", True), ("v1.9.9", False), ("1.6.2-1", False), ("devel", False), (None, False)],
)
def test_which_versions_are_newer_than_all_that_is_known(observed: str | None, unknown: bool) -> None:
    assert is_unknown(observed) is unknown


# ---- what a pod says of it: any ratio, and a cap on what nothing explains -------------------------------------

PINNED = machine({"cpu": {"cores": 2, "dedicatedCpuPlacement": True}, "resources": {"requests": {"memory": "1500M"}}})
FREE = machine({"cpu": {"cores": 2}, "resources": {"requests": {"memory": "2730Mi"}, "limits": {"memory": "4Gi"}}})


def rendered(vmi: VirtualMachineInstance, ratio: str, profile: Profile) -> Pod:
    return launcher(vmi, rendering=Rendering(ratio), profile=profile)


@pytest.mark.parametrize("vmi", [PINNED, FREE], ids=["dedicated CPUs", "shared CPUs"])
@pytest.mark.parametrize("profile", [*PROFILES])
def test_any_ratio_is_recognised(vmi: VirtualMachineInstance, profile: str) -> None:
    """A ratio of the installed release, with the part for QoS inside the ratio or outside it."""
    installed = PROFILES[profile]
    for old_ratio in ["", "1.0", "1.0625", "1.333", "3.14", "1.2345678", "9.99"]:
        pod = rendered(vmi, old_ratio, installed)
        for now in ("1.5", "4.5", old_ratio):
            old_overhead, new_overhead = (overhead_of(vmi, Rendering(ratio, installed)) for ratio in (old_ratio, now))
            assert overhead_difference(vmi, pod, Rendering(now, installed)) == new_overhead - old_overhead, (
                old_ratio,
                now,
            )


@pytest.mark.parametrize("shift_mib", [-60, -7, 1, 20, 300, 800])
@pytest.mark.parametrize("ratio", ["", "1.5", "1.25", "4.5", "1.75"])
def test_a_release_with_other_constants_is_taken_as_it_is(shift_mib: int, ratio: str) -> None:
    unknown = replace(PROFILES["1.8"], processes=PROFILES["1.8"].processes + shift_mib * MI)
    assert overhead_difference(FREE, rendered(FREE, ratio, unknown), Rendering(ratio)) == 0


@pytest.mark.parametrize("surplus", [4_683_344, 102_761_448, 192_937_984, 250_611_664, 1_896_000_000])
@pytest.mark.parametrize("ratio", ["", "1.5", "3", "10"])
def test_nothing_is_added_to_a_pod_that_others_gave_more(ratio: str, surplus: int) -> None:
    pod = launcher(FREE, overhead=overhead_of(FREE, Rendering(ratio)) + surplus)
    assert overhead_difference(FREE, pod, Rendering(ratio)) <= 0


@pytest.mark.parametrize("overhead", [1, 10**8 + 17, 7 * 10**9 + 3])
@pytest.mark.parametrize("ratio", ["", "1.5", "10", "no number"])
def test_what_nothing_explains_is_raised_to_the_formula_at_most(overhead: int, ratio: str) -> None:
    now = overhead_of(FREE, Rendering(ratio))
    pod = launcher(FREE, overhead=overhead)
    assert 0 <= overhead_difference(FREE, pod, Rendering(ratio)) <= max(now - overhead, 0)
