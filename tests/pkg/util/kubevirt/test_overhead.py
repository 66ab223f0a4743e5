"""The overhead against recorded results, the numbers of the seeds, and text that does not parse."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceSpec
from pkg.util.kubevirt.overhead import harvester_delta, memory_overhead
from pkg.util.kubevirt.profiles import MI, PROFILES
from pkg.util.quantity import Quantity, QuantityError
from pkg.util.resource_list import format_resource_list, unmarshal
from tests.pkg.util import vectors

BOTH = {"limits.cpu": "3", "limits.memory": "5000Mi"}
GI = 1024 * MI


def spec(**domain: Any) -> VirtualMachineInstanceSpec:
    return msgspec.convert({"domain": domain}, VirtualMachineInstanceSpec)


def seed_spec() -> VirtualMachineInstanceSpec:
    resources = {"limits": {"cpu": "2", "memory": "4Gi"}, "requests": {"cpu": "125m", "memory": "2730Mi"}}
    return spec(cpu={"cores": 2, "sockets": 1, "threads": 1}, resources=resources)


def overhead(vmi_spec: VirtualMachineInstanceSpec) -> int:
    return memory_overhead(vmi_spec, ratio="", profile=PROFILES["1.8"])


def test_there_are_as_many_vectors_as_the_readme_says() -> None:
    assert sum(1 for _ in vectors.lines("vmi-overhead")) == 400


def test_the_overhead_is_kubevirts_on_both_architectures() -> None:
    for vector in vectors.lines("vmi-overhead"):
        vmi = msgspec.convert(vector["vmi"], VirtualMachineInstance)
        specs = [msgspec.structs.replace(vmi.spec, architecture=arch) for arch in (None, "arm64")]
        ours = [memory_overhead(spec, ratio=vector["ratio"]) for spec in specs]
        assert ours == [vector["overhead"], vector["overhead_arm64"]], vector


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
    computed = harvester_delta(seed_spec(), BOTH, ratio, profile=PROFILES[profile])
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


def test_a_fraction_of_a_byte_rounds_the_overhead_up_and_stays_exact_in_the_delta() -> None:
    domain = {"memory": {"reservedOverhead": {"addedOverhead": "1500m"}}, "resources": {"limits": {"memory": "1Gi"}}}
    delta = harvester_delta(spec(**domain), BOTH, "1.0")
    assert delta is not None
    assert overhead(spec(**domain)) == BASE + 2
    assert delta["limits.memory"] == Quantity.of(GI + BASE) + Quantity.parse("1500m")
