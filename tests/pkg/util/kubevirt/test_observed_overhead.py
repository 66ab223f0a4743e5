"""What a pod says of its overhead: any ratio, constants that moved, and a cap on what nothing explains."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from kubeloop.api.core import Pod
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.util.kubevirt.overhead import overhead_difference, overhead_of
from pkg.util.kubevirt.profiles import MI, PROFILES, Profile
from pkg.util.kubevirt.rendering import Rendering
from tests.objects import launcher, machine

PINNED = machine({"cpu": {"cores": 2, "dedicatedCpuPlacement": True}, "resources": {"requests": {"memory": "1500M"}}})
FREE = machine({"cpu": {"cores": 2}, "resources": {"requests": {"memory": "2730Mi"}, "limits": {"memory": "4Gi"}}})


def rendered(vmi: VirtualMachineInstance, ratio: str, profile: Profile) -> Pod:
    return launcher(vmi, rendering=Rendering(ratio), profile=profile, annotated=False)


@pytest.mark.parametrize("vmi", [PINNED, FREE], ids=["dedicated CPUs", "shared CPUs"])
@pytest.mark.parametrize("profile", [*PROFILES])
def test_any_ratio_is_recognised(vmi: VirtualMachineInstance, profile: str) -> None:
    """Of the installed release, with the part for QoS inside the ratio or outside it."""
    installed = PROFILES[profile]
    for then in ["", "1.0", "1.0625", "1.333", "3.14", "1.2345678", "9.99"]:
        pod = rendered(vmi, then, installed)
        for now in ("1.5", "4.5", then):
            before, after = (overhead_of(vmi, Rendering(ratio, installed)) for ratio in (then, now))
            assert overhead_difference(vmi, pod, Rendering(now, installed)) == after - before, (then, now)


@pytest.mark.parametrize("moved", [-100, -7, 1, 20, 124, 300, 800])
@pytest.mark.parametrize("then", ["", "1.5", "1.25", "4.5", "1.75"])
def test_constants_that_moved_by_whole_mebibytes_are_found(moved: int, then: str) -> None:
    unknown = replace(PROFILES["1.8"], processes=PROFILES["1.8"].processes + moved * MI)
    pod = rendered(FREE, then, unknown)
    assert overhead_difference(FREE, pod, Rendering(then)) == 0
    if abs(moved) <= 64:
        before, after = (overhead_of(FREE, Rendering(ratio, unknown)) for ratio in (then, "2"))
        assert overhead_difference(FREE, pod, Rendering("2")) == after - before


@pytest.mark.parametrize("more", [4_683_344, 102_761_448, 192_937_984, 250_611_664, 1_896_000_000])
@pytest.mark.parametrize("ratio", ["", "1.5", "3", "10"])
def test_nothing_is_added_to_a_pod_that_others_gave_more(ratio: str, more: int) -> None:
    """Some of these numbers fit unknown constants at a smaller ratio."""
    pod = launcher(FREE, overhead=overhead_of(FREE, Rendering(ratio)) + more)
    assert overhead_difference(FREE, pod, Rendering(ratio)) <= 0


@pytest.mark.parametrize("overhead", [1, 10**8 + 17, 7 * 10**9 + 3])
@pytest.mark.parametrize("ratio", ["", "1.5", "10", "no number"])
def test_what_nothing_explains_is_raised_to_the_formula_at_most_and_never_lowered(overhead: int, ratio: str) -> None:
    now = overhead_of(FREE, Rendering(ratio))
    pod = launcher(FREE, overhead=overhead, annotated=False)
    assert 0 <= overhead_difference(FREE, pod, Rendering(ratio)) <= max(now - overhead, 0)


def test_an_annotation_that_a_tenant_wrote_is_not_believed_beside_the_container() -> None:
    pod = launcher(FREE)
    metadata = msgspec.structs.replace(pod.metadata, annotations={"kubevirt.io/memory-overhead-bytes": "1"})
    pod = msgspec.structs.replace(pod, metadata=metadata)
    assert overhead_difference(FREE, pod, Rendering("1.5")) == 0
