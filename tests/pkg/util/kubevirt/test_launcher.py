"""Launcher pods: the recorded ones come out byte for byte, and each rule of KubeVirt's template by itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kubeloop.api.core import Container, Pod, PodSpec, ResourceRequirements
from pkg.api.kubevirt import KubeVirtConfiguration, VirtualMachineInstance
from pkg.util.kubevirt.launcher import (
    attachment_container,
    render_containers,
)
from pkg.util.kubevirt.overhead import memory_overhead
from pkg.util.kubevirt.profiles import PROFILES
from pkg.util.kubevirt.rendering import Rendering
from tests.pkg.util import vectors

OVERHEAD = 300 * 1024**2


def render(spec: dict[str, Any], config: dict[str, Any] | None = None, **options: Any) -> PodSpec:
    annotations = options.pop("annotations", {})
    document = {"metadata": {"name": "vm1", "annotations": annotations}, "spec": spec}
    vmi = msgspec.convert(document, VirtualMachineInstance)
    kubevirt = msgspec.convert(config or {}, KubeVirtConfiguration)
    return render_containers(vmi, Rendering(kubevirt=kubevirt), overhead=OVERHEAD, **options)


def without_image(containers: list[Container] | None) -> list[Container]:
    return [msgspec.structs.replace(container, image=None) for container in containers or ()]


@pytest.mark.parametrize(
    ("name", "ratio"),
    [
        pytest.param(vectors.SOURCE_POD, "", id="the source pod, without a ratio"),
        pytest.param(vectors.TARGET_POD, "", id="the target pod, without a ratio"),
        pytest.param(vectors.POD_WITH_RATIO, "1.5", id="a pod with ratio 1.5"),
    ],
)
def test_the_recorded_pods_come_out_byte_for_byte(name: str, ratio: str) -> None:
    pod = vectors.recorded(name, Pod)
    vmi = vectors.recorded(vectors.VMI, VirtualMachineInstance)
    overhead = memory_overhead(vmi.spec, ratio=ratio, profile=PROFILES["main"])
    rendered = render_containers(vmi, Rendering("", PROFILES["main"]), overhead=overhead)
    assert pod.annotations["kubevirt.io/memory-overhead-bytes"] == str(overhead)
    assert rendered.containers == without_image(pod.spec.containers)
    assert rendered.init_containers == without_image(pod.spec.init_containers)


def names_of(containers: list[Container]) -> list[str]:
    return [container.name for container in containers]


@pytest.mark.parametrize(
    ("devices", "config", "logged"),
    [
        pytest.param({}, {}, True, id="by default"),
        pytest.param({"logSerialConsole": False}, {}, False, id="switched off on the VMI"),
        pytest.param({"autoattachSerialConsole": False}, {}, False, id="without a serial console"),
        pytest.param(
            {"autoattachSerialConsole": False, "logSerialConsole": True},
            {},
            False,
            id="a log without a console",
        ),
        pytest.param(
            {}, {"virtualMachineOptions": {"disableSerialConsoleLog": {}}}, False, id="off in the cluster"
        ),
        pytest.param(
            {"logSerialConsole": True},
            {"virtualMachineOptions": {"disableSerialConsoleLog": {}}},
            True,
            id="on on the VMI, off in the cluster",
        ),
        pytest.param({}, {"virtualMachineOptions": {}}, True, id="options that say nothing"),
    ],
)
def test_the_console_log_is_there_unless_it_is_switched_off(
    devices: dict[str, Any], config: dict[str, Any], logged: bool
) -> None:
    rendered = render({"domain": {"devices": devices}}, config)
    assert names_of(rendered.init_containers) == (["guest-console-log"] if logged else [])


GUARANTEED = {
    "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}}
}
DEDICATED = {"cpu": {"cores": 1, "dedicatedCpuPlacement": True}}


@pytest.mark.parametrize("domain", [GUARANTEED, DEDICATED], ids=["Guaranteed", "dedicated CPUs"])
def test_support_containers_of_a_pinned_vm_request_their_limits(domain: dict[str, Any]) -> None:
    spec = {
        "domain": domain | {"devices": {"filesystems": [{"name": "fs"}]}},
        "volumes": [{"name": "fs"}, {"name": "disk", "containerDisk": {"image": "i"}}],
    }
    rendered = render(spec, annotations={"hooks.kubevirt.io/hookSidecars": "[{}]"})
    support = rendered.containers[1:] + rendered.init_containers
    assert len(support) == 6
    for container in support:
        requests = dict(container.resources.requests or {})
        requests.pop("ephemeral-storage", None)
        assert requests == container.resources.limits, container.name


def test_the_cr_changes_what_support_containers_ask_for() -> None:
    config = {
        "supportContainerResources": [
            {"type": "guest-console-log", "resources": {"limits": {"cpu": "0", "memory": "90M"}}},
            {"type": "guest-console-log", "resources": {"limits": {"cpu": "20m", "memory": "1M"}}},
            {"type": "other", "resources": {"limits": {"cpu": "9"}}},
        ]
    }
    (log,) = render({"domain": {}}, config).init_containers
    assert log.resources.limits == {"cpu": "20m", "memory": "90M"}
    assert log.resources.requests == {"cpu": "5m", "memory": "35M"}
    assert log.restart_policy == "Always"


def test_container_disks_cost_a_container_and_two_init_containers() -> None:
    rendered = render(
        {"domain": {}, "volumes": [{"name": "root", "containerDisk": {"image": "i"}}, {"name": "data"}]}
    )
    assert names_of(rendered.containers) == ["compute", "volumeroot"]
    assert names_of(rendered.init_containers) == [
        "guest-console-log",
        "container-disk-binary",
        "volumeroot-init",
    ]
    assert rendered.containers[1].resources.requests == {
        "cpu": "1m",
        "memory": "1M",
        "ephemeral-storage": "50M",
    }
    assert rendered.containers[1].resources.limits == {"cpu": "10m", "memory": "40M"}
    assert rendered.init_containers[1].resources.requests == {"cpu": "10m", "memory": "1M"}
    assert rendered.init_containers[1].resources.limits == {"cpu": "100m", "memory": "40M"}


def test_with_image_volumes_container_disks_only_cost_an_init_container() -> None:
    config = {"developerConfiguration": {"featureGates": ["ImageVolume"]}}
    rendered = render({"domain": {}, "volumes": [{"name": "root", "containerDisk": {"image": "i"}}]}, config)
    assert names_of(rendered.containers) == ["compute"]
    assert names_of(rendered.init_containers) == ["guest-console-log", "volumeroot"]


def test_a_kernel_image_costs_what_a_container_disk_costs() -> None:
    rendered = render({"domain": {"firmware": {"kernelBoot": {"container": {"image": "k"}}}}})
    assert names_of(rendered.containers) == ["compute", "volumekernel-boot-volume"]


def test_each_shared_filesystem_has_its_container() -> None:
    spec = {
        "domain": {"devices": {"filesystems": [{"name": "a"}, {"name": "b"}, {"name": "missing"}]}},
        "volumes": [{"name": "a"}, {"name": "b", "containerPath": {"path": "/"}}, {"name": "c"}],
    }
    rendered = render(spec)
    assert names_of(rendered.containers) == ["compute", "virtiofs-a"]
    assert rendered.containers[1].resources == ResourceRequirements(
        limits={"cpu": "100m", "memory": "80M"}, requests={"cpu": "10m", "memory": "1M"}
    )


@pytest.mark.parametrize(
    ("annotation", "count"),
    [
        pytest.param('[{"image": "a"}, {"image": "b"}]', 2, id="two sidecars"),
        pytest.param("[]", 0, id="none"),
        pytest.param("{}", 0, id="no list"),
        pytest.param("[", 0, id="no JSON"),
    ],
)
def test_hook_sidecars_are_counted_and_ask_for_nothing_by_themselves(annotation: str, count: int) -> None:
    rendered = render({"domain": {}}, annotations={"hooks.kubevirt.io/hookSidecars": annotation})
    assert names_of(rendered.containers[1:]) == [f"hook-sidecar-{index}" for index in range(count)]
    assert all(container.resources == ResourceRequirements() for container in rendered.containers[1:])


def test_an_attachment_pod_has_one_small_container() -> None:
    assert attachment_container(Rendering()).resources == ResourceRequirements(
        limits={"cpu": "100m", "memory": "80M"}, requests={"cpu": "10m", "memory": "2M"}
    )
