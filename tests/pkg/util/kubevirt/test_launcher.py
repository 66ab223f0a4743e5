"""Launcher pods: the recorded ones come out byte for byte; what is beside KubeVirt's own renderings (test_rendered):
VMIs that no API server completed, and text that does not parse."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kubeloop.api.core import Container, Pod, PodSpec, ResourceRequirements
from kubeloop.api.quantity import QuantityError
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.util.kubevirt.launcher import render_containers
from pkg.util.kubevirt.overhead import overhead_of
from pkg.util.kubevirt.profiles import PROFILES
from pkg.util.kubevirt.rendering import Rendering
from tests.decisions import sentences
from tests.pkg.util import vectors


def render(domain: dict[str, Any], annotations: dict[str, str] | None = None) -> PodSpec:
    metadata = {"name": "vm1", "annotations": annotations}
    vmi = msgspec.convert({"metadata": metadata, "spec": {"domain": domain}}, VirtualMachineInstance)
    return render_containers(vmi, Rendering(), overhead=300 * 1024**2)


def without_image(containers: list[Container] | None) -> list[Container]:
    return [msgspec.structs.replace(container, image=None) for container in containers or ()]


@sentences(
    {
        "the source pod, without a ratio": (vectors.SOURCE_POD, ""),
        "the target pod, without a ratio": (vectors.TARGET_POD, ""),
        "a pod with ratio 1.5": (vectors.POD_WITH_RATIO, "1.5"),
    }
)
def test_the_recorded_pods_come_out_byte_for_byte(case: tuple[str, str]) -> None:
    name, ratio = case
    pod = vectors.recorded(name, Pod)
    vmi = vectors.recorded(vectors.VMI, VirtualMachineInstance)
    overhead = overhead_of(vmi, Rendering(ratio, PROFILES["main"]))
    rendered = render_containers(vmi, Rendering("", PROFILES["main"]), overhead=overhead)
    assert pod.annotations["kubevirt.io/memory-overhead-bytes"] == str(overhead)
    assert rendered.containers == without_image(pod.spec.containers)
    assert rendered.init_containers == without_image(pod.spec.init_containers)


@sentences(
    {
        "no topology is one vCPU": ({}, "100m"),
        "no vCPUs, no request": ({"cpu": {"cores": 0}}, None),
        "a pool without a number has no threads": ({"cpu": {"cores": 0}, "ioThreads": {}}, None),
    }
)
def test_cpus_of_a_vmi_without_a_topology(case: tuple[dict[str, Any], str | None]) -> None:
    domain, request = case
    assert (render(domain).containers[0].resources.requests or {}).get("cpu") == request


HOOKS = {"two": ('[{"image": "a"}, {"image": "b"}]', 2), "none": ("[]", 0), "no list": ("{}", 0), "no JSON": ("[", 0)}


@sentences(HOOKS)
def test_hook_sidecars_are_counted_and_ask_for_nothing_by_themselves(case: tuple[str, int]) -> None:
    annotation, count = case
    rendered = render({}, {"hooks.kubevirt.io/hookSidecars": annotation})
    sidecars = rendered.containers[1:]
    assert [each.name for each in sidecars] == [f"hook-sidecar-{index}" for index in range(count)]
    assert all(each.resources == ResourceRequirements() for each in sidecars)


def test_a_quantity_that_is_none_is_an_error() -> None:
    with pytest.raises(QuantityError, match="memory: 'much'"):
        render({"resources": {"limits": {"memory": "much"}}})
