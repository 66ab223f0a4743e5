"""Launcher pods: the recorded ones come out byte for byte; what is beside KubeVirt's own renderings (test_rendered):
VMIs that no API server completed, and text that does not parse."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from kubeloop.api.core import Container, Pod, PodSpec, ResourceQuotaSpec, ResourceRequirements
from kubeloop.api.quantity import QuantityError
from kubeloop.client.decode import decoder_for
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.util import constants
from pkg.util.kubevirt.launcher import render_containers, rendered_from
from pkg.util.kubevirt.overhead import overhead_of
from pkg.util.kubevirt.profiles import PROFILES
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.kubevirt.target import Side, bound_of, target_usage
from tests.decisions import sentences
from tests.objects import machine
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


@sentences(
    {
        "one that is attached by itself": ({}, True),
        "none": ({"autoattachPodInterface": False}, False),
        "one that is named": ({"autoattachPodInterface": False, "interfaces": [{"name": "a"}]}, True),
    }
)
def test_an_interface_needs_the_tun_device(case: tuple[dict[str, Any], bool]) -> None:
    devices, tun = case
    limits = render({"devices": devices}).containers[0].resources.limits or {}
    assert ("devices.kubevirt.io/tun" in limits) is tun


HOOKS = {"two": ('[{"image": "a"}, {"image": "b"}]', 2), "none": ("[]", 0), "no list": ("{}", 0), "no JSON": ("[", 0)}


@sentences(HOOKS)
def test_hook_sidecars_are_counted_and_ask_for_nothing(case: tuple[str, int]) -> None:
    annotation, count = case
    rendered = render({}, {"hooks.kubevirt.io/hookSidecars": annotation})
    sidecars = rendered.containers[1:]
    assert [sidecar.name for sidecar in sidecars] == [f"hook-sidecar-{index}" for index in range(count)]
    assert all(sidecar.resources == ResourceRequirements() for sidecar in sidecars)


@sentences(
    {
        "a path that the guest may read": ({"path": "/var/run/secrets", "readOnly": True}, 1),
        "one that it may write: KubeVirt's webhook leaves it out": ({"path": "/var/run/secrets"}, 0),
    }
)
def test_a_path_of_the_compute_container_has_a_container(case: tuple[dict[str, Any], int]) -> None:
    path, count = case
    volumes = [{"name": "token", "containerPath": path}, {"name": "no-filesystem", "containerPath": path}]
    vmi = machine({"devices": {"filesystems": [{"name": "token", "virtiofs": {}}]}}, volumes=volumes)
    virtiofs_containers = [
        container
        for container in render_containers(vmi, Rendering(), overhead=0).containers[1:]
        if "-log" not in container.name
    ]
    assert [container.name for container in virtiofs_containers] == ["virtiofs-token"] * count
    resources = ResourceRequirements(limits={"cpu": "100m", "memory": "80M"}, requests={"cpu": "10m", "memory": "1M"})
    assert all(container.resources == resources for container in virtiofs_containers)


def test_a_quantity_that_is_none_is_an_error() -> None:
    with pytest.raises(QuantityError, match="memory: 'much'"):
        render({"resources": {"limits": {"memory": "much"}}})


# ---- what a rendering depends on: a migration's progress is not in it, whatever changes an amount is ---------

STATE = constants.ANNOTATION_MIGRATION_STATE
SIDECARS, OVERHEAD = "hooks.kubevirt.io/hookSidecars", "kubevirt.io/memory-overhead-bytes"
MANY = "[" + "{}," * 9999 + "{}]"
RESIZED = {"type": "HotVCPUChange", "status": "True"}
Change = Callable[[dict[str, Any], dict[str, Any]], object]


PROGRESS: dict[str, Change] = {
    "a new version": lambda vmi, pod: [body["metadata"].update(resourceVersion="9") for body in (vmi, pod)],
    "the VM's node": lambda vmi, pod: vmi["status"].update(nodeName="node-9"),
    "the node's label": lambda vmi, pod: vmi["metadata"]["labels"].update({"kubevirt.io/nodeName": "node-9"}),
    "the state that we let it show": lambda vmi, pod: vmi["metadata"]["annotations"].update({STATE: "x"}),
    "a note": lambda vmi, pod: vmi["metadata"]["annotations"].update({"example.com/note": "x"}),
    "more sidecars than are read": lambda vmi, pod: vmi["metadata"]["annotations"].update({SIDECARS: MANY}),
    "the next launcher": lambda vmi, pod: [pod["metadata"].update(uid="u9"), pod["spec"].update(nodeName="node-9")],
    "how the migration goes on": lambda vmi, pod: vmi["status"]["migrationState"].update(completed=False),
}  # fmt: skip
MATTERS: dict[str, Change] = {
    "CPUs": lambda vmi, pod: vmi["spec"]["domain"]["cpu"].update(sockets=4),
    "a limit": lambda vmi, pod: vmi["spec"]["domain"]["resources"]["limits"].update(memory="9Gi"),
    "an annotation": lambda vmi, pod: vmi["metadata"]["annotations"].update({SIDECARS: "[{}]"}),
    "a label": lambda vmi, pod: vmi["metadata"]["labels"].update({"kubevirt.io/outdatedLauncherImage": ""}),
    "a resize under way": lambda vmi, pod: vmi["status"]["conditions"].append(RESIZED),
    "a hotplugged volume": lambda vmi, pod: vmi["status"].update(volumeStatus=[{"name": "d", "hotplugVolume": {}}]),
    "the source's resources": lambda vmi, pod: pod["spec"]["containers"][0]["resources"]["limits"].update(memory="9Gi"),
    "the source's overhead": lambda vmi, pod: pod["metadata"]["annotations"].update({OVERHEAD: "1"}),
    "the source's end": lambda vmi, pod: pod.update(status={"phase": "Succeeded"}),
}  # fmt: skip


def changed(change: Change) -> tuple[VirtualMachineInstance, Pod]:
    vmi, pod = vectors.recorded(vectors.VMI), vectors.recorded(vectors.SOURCE_POD)
    change(vmi, pod)
    return (
        decoder_for(VirtualMachineInstance).object(json.dumps(vmi).encode()),
        decoder_for(Pod).object(json.dumps(pod).encode()),
    )


BEFORE, SOURCE = changed(lambda vmi, pod: None)


@pytest.mark.parametrize("name", PROGRESS)
def test_a_migrations_progress_changes_no_rendering(name: str) -> None:
    vmi, pod = changed(PROGRESS[name])
    assert (vmi, pod) != (BEFORE, SOURCE)
    assert rendered_from(vmi) == rendered_from(BEFORE)
    rendering, spec = Rendering(), ResourceQuotaSpec()
    assert target_usage(vmi, Side(pod), rendering, spec) == target_usage(BEFORE, Side(SOURCE), rendering, spec)
    assert bound_of(vmi, rendering, spec) == bound_of(BEFORE, rendering, spec)


@pytest.mark.parametrize("name", MATTERS)
def test_what_may_change_an_amount_is_rendered_anew(name: str) -> None:
    vmi, pod = changed(MATTERS[name])
    assert (rendered_from(vmi), pod) != (rendered_from(BEFORE), SOURCE)
