"""Launcher pods: the recorded ones come out byte for byte, and each rule of KubeVirt's template by itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pkg.api.core import Container, Pod, ResourceRequirements
from pkg.api.kubevirt import KubeVirtConfiguration, VirtualMachineInstance
from pkg.util.launcher_pod import (
    LauncherContainers,
    attachment_container,
    render_containers,
)
from pkg.util.memory_overhead import PROFILES, memory_overhead
from pkg.util.quantity import QuantityError
from tests.pkg.util import vectors

OVERHEAD = 300 * 1024**2


def render(spec: dict[str, Any], config: dict[str, Any] | None = None, **options: Any) -> LauncherContainers:
    annotations = options.pop("annotations", {})
    document = {"metadata": {"name": "vm1", "annotations": annotations}, "spec": spec}
    vmi = msgspec.convert(document, VirtualMachineInstance)
    kubevirt = msgspec.convert(config or {}, KubeVirtConfiguration)
    return render_containers(vmi, overhead=OVERHEAD, kubevirt=kubevirt, **options)


def compute(
    domain: dict[str, Any], config: dict[str, Any] | None = None, **options: Any
) -> ResourceRequirements:
    return render({"domain": domain}, config, **options).containers[0].resources


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
    rendered = render_containers(vmi, overhead=overhead, kubevirt=KubeVirtConfiguration())
    assert pod.annotations["kubevirt.io/memory-overhead-bytes"] == str(overhead)
    assert rendered.containers == without_image(pod.spec.containers)
    assert rendered.init_containers == without_image(pod.spec.init_containers)


CPU_CASES = [
    pytest.param({}, {}, "100m", None, id="one vCPU at the allocation ratio of ten"),
    pytest.param({"cpu": {"cores": 4}}, {}, "400m", None, id="a tenth of each vCPU"),
    pytest.param({"cpu": {"cores": 20}}, {}, "2", None, id="whole CPUs"),
    pytest.param(
        {"cpu": {"cores": 1}},
        {"cpuAllocationRatio": 3},
        "334m",
        None,
        id="a third is rounded up to a thousandth",
    ),
    pytest.param({"cpu": {"cores": 3}}, {"cpuAllocationRatio": 2}, "1500m", None, id="one and a half"),
    pytest.param(
        {"cpu": {"cores": 4}}, {"cpuAllocationRatio": 0}, None, None, id="no allocation ratio, no request"
    ),
    pytest.param({"cpu": {"cores": 0}}, {}, None, None, id="no vCPUs, no request"),
    pytest.param(
        {"cpu": {"cores": 4}, "resources": {"requests": {"cpu": "3"}}},
        {},
        "3",
        None,
        id="the VMI's request wins",
    ),
    pytest.param(
        {"cpu": {"cores": 4}, "resources": {"limits": {"cpu": "4"}}},
        {},
        "400m",
        "4",
        id="a limit does not change it",
    ),
    pytest.param(
        {"cpu": {"cores": 2}, "ioThreads": {"supplementalPoolThreadCount": 4}},
        {},
        "600m",
        None,
        id="IO threads count",
    ),
    pytest.param(
        {"cpu": {"cores": 4, "dedicatedCpuPlacement": True}}, {}, "4", "4", id="dedicated CPUs in full"
    ),
    pytest.param(
        {"cpu": {"cores": 4, "dedicatedCpuPlacement": True}, "ioThreads": {"supplementalPoolThreadCount": 2}},
        {},
        "6",
        "6",
        id="dedicated CPUs for IO threads too",
    ),
    pytest.param(
        {"cpu": {"cores": 4, "dedicatedCpuPlacement": True, "isolateEmulatorThread": True}},
        {},
        "5",
        "5",
        id="one more for the emulator",
    ),
    pytest.param(
        {
            "cpu": {"dedicatedCpuPlacement": True},
            "resources": {"limits": {"cpu": "3"}, "requests": {"cpu": "3"}},
        },
        {},
        "3",
        "3",
        id="dedicated CPUs without topology: the VMI's own",
    ),
]


@pytest.mark.parametrize(("domain", "developer", "request_", "limit"), CPU_CASES)
def test_cpus(
    domain: dict[str, Any], developer: dict[str, Any], request_: str | None, limit: str | None
) -> None:
    resources = compute(domain, {"developerConfiguration": developer})
    assert (resources.requests or {}).get("cpu") == request_
    assert (resources.limits or {}).get("cpu") == limit


def test_the_emulator_takes_two_cpus_where_the_total_is_to_come_out_even() -> None:
    parity = {"alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity": ""}
    cpu = {"dedicatedCpuPlacement": True, "isolateEmulatorThread": True}
    even = compute({"cpu": cpu | {"cores": 4}}, annotations=parity)
    odd = compute({"cpu": cpu | {"cores": 5}}, annotations=parity)
    assert even.limits is not None
    assert odd.limits is not None
    assert (even.limits["cpu"], odd.limits["cpu"]) == ("6", "6")


MEMORY_CASES = [
    pytest.param({}, {}, "300Mi", None, id="no memory asked for: the overhead"),
    pytest.param(
        {"resources": {"requests": {"memory": "1Gi"}}}, {}, "1324Mi", None, id="the request and the overhead"
    ),
    pytest.param(
        {"resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}}},
        {},
        "1324Mi",
        "2348Mi",
        id="both get the overhead",
    ),
    pytest.param(
        {"resources": {"limits": {"memory": "2Gi"}}},
        {},
        "2348Mi",
        "2348Mi",
        id="without a request the limit is it",
    ),
    pytest.param({"memory": {"guest": "1Gi"}}, {}, "1324Mi", None, id="without either the guest's memory"),
    pytest.param(
        {"memory": {"guest": "1Gi"}},
        {"memoryOvercommit": 200},
        "812Mi",
        None,
        id="the guest's memory over-committed",
    ),
    pytest.param(
        {"memory": {"guest": "1Gi"}, "resources": {"requests": {"memory": "0"}}},
        {},
        "300Mi",
        None,
        id="a request of zero stays",
    ),
    pytest.param(
        {"resources": {"requests": {"memory": "1Gi"}, "overcommitGuestOverhead": True}},
        {},
        "1Gi",
        None,
        id="an over-committed overhead is not requested",
    ),
    pytest.param(
        {
            "cpu": {"cores": 2, "dedicatedCpuPlacement": True},
            "resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "2Gi"}},
        },
        {},
        "1324Mi",
        "1324Mi",
        id="dedicated CPUs: the memory limit is the request",
    ),
]


@pytest.mark.parametrize(("domain", "developer", "request_", "limit"), MEMORY_CASES)
def test_memory(domain: dict[str, Any], developer: dict[str, Any], request_: str, limit: str | None) -> None:
    resources = compute(domain, {"developerConfiguration": developer})
    assert (resources.requests or {}).get("memory") == request_
    assert (resources.limits or {}).get("memory") == limit


@pytest.mark.parametrize(
    ("domain", "pages", "memory_request", "memory_limit"),
    [
        pytest.param(
            {"memory": {"hugepages": {"pageSize": "2Mi"}}, "resources": {"requests": {"memory": "1Gi"}}},
            "1Gi",
            "314572800",
            None,
            id="the request becomes huge pages, the overhead stays memory",
        ),
        pytest.param(
            {
                "memory": {"hugepages": {"pageSize": "2Mi"}, "guest": "1Gi"},
                "resources": {"requests": {"memory": "1536Mi"}, "limits": {"memory": "2Gi"}},
            },
            "1Gi",
            "812Mi",
            "1324Mi",
            id="what is beyond the guest stays memory",
        ),
        pytest.param(
            {
                "memory": {"hugepages": {"pageSize": "2Mi"}, "guest": "1Gi"},
                "resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}},
            },
            "1Gi",
            "314572800",
            "314572800",
            id="nothing beyond the guest",
        ),
        pytest.param(
            {"memory": {"hugepages": {"pageSize": "2Mi"}, "guest": "1Gi"}},
            "1Gi",
            "300Mi",
            None,
            id="the guest's memory where nothing is requested",
        ),
    ],
)
def test_huge_pages(
    domain: dict[str, Any], pages: str, memory_request: str, memory_limit: str | None
) -> None:
    resources = compute(domain)
    limits, requests = resources.limits or {}, resources.requests or {}
    assert limits["hugepages-2Mi"] == requests["hugepages-2Mi"] == pages
    assert (requests["memory"], limits.get("memory")) == (memory_request, memory_limit)


def test_a_quota_on_limits_makes_kubevirt_set_those_that_the_vmi_lacks() -> None:
    domain = {"cpu": {"cores": 4}, "resources": {"requests": {"memory": "1Gi"}}}
    limits = compute(domain, quota_limits=("cpu", "memory")).limits or {}
    assert (limits["cpu"], limits["memory"]) == ("4", "2648Mi")
    assert "cpu" not in (compute(domain, quota_limits=("memory",)).limits or {})


def test_the_namespace_can_set_the_ratio_of_such_memory_limits() -> None:
    domain = {"resources": {"requests": {"memory": "1Gi"}}}
    limits = compute(domain, quota_limits=("memory",), memory_limits_ratio=1.25).limits or {}
    assert limits["memory"] == "1655Mi"


def test_limits_of_the_vmi_stay_whatever_the_quota() -> None:
    domain = {"resources": {"limits": {"cpu": "3", "memory": "1Gi"}}}
    assert compute(domain, quota_limits=("cpu", "memory")) == compute(domain)


def test_ephemeral_storage_is_requested_and_added_to_a_limit() -> None:
    given = {"resources": {"requests": {"ephemeral-storage": "1G"}, "limits": {"ephemeral-storage": "2G"}}}
    resources = compute(given)
    assert (resources.requests or {})["ephemeral-storage"] == "1050M"
    assert (resources.limits or {})["ephemeral-storage"] == "2050M"
    assert (compute({}).requests or {})["ephemeral-storage"] == "50M"


KVM, TUN, NET = "kvm", "tun", "vhost-net"


@pytest.mark.parametrize(
    ("domain", "developer", "names"),
    [
        pytest.param({}, {}, {KVM, TUN}, id="a pod interface that is attached by itself"),
        pytest.param({"devices": {"autoattachPodInterface": False}}, {}, {KVM}, id="no interface at all"),
        pytest.param(
            {"devices": {"interfaces": [{"name": "a"}]}}, {}, {KVM, TUN, NET}, id="a virtio interface"
        ),
        pytest.param(
            {"devices": {"interfaces": [{"name": "a", "model": "e1000"}]}}, {}, {KVM, TUN}, id="another model"
        ),
        pytest.param(
            {"devices": {"interfaces": [{"name": "a"}]}},
            {"useEmulation": True},
            {TUN},
            id="software emulation",
        ),
        pytest.param({"devices": {"autoattachVSOCK": True}}, {}, {KVM, TUN, "vhost-vsock"}, id="a vsock"),
        pytest.param({"launchSecurity": {"sev": {}}}, {}, {KVM, TUN, "sev"}, id="SEV"),
        pytest.param({"launchSecurity": {"snp": {}}}, {}, {KVM, TUN, "sev"}, id="SEV-SNP"),
        pytest.param({"launchSecurity": {"tdx": {}}}, {}, {KVM, TUN, "tdx"}, id="TDX"),
        pytest.param(
            {"devices": {"disks": [{"name": "d", "lun": {"reservation": True}}]}},
            {},
            {KVM, TUN, "pr-helper"},
            id="a reserved LUN",
        ),
    ],
)
def test_devices_of_kubevirt(domain: dict[str, Any], developer: dict[str, Any], names: set[str]) -> None:
    resources = compute(domain, {"developerConfiguration": developer})
    expected = {f"devices.kubevirt.io/{name}": "1" for name in names}
    limits, requests = resources.limits or {}, resources.requests or {}
    assert {name: value for name, value in limits.items() if "/" in name} == expected
    assert {name: value for name, value in requests.items() if "/" in name} == expected


def test_other_devices_are_counted_by_kind() -> None:
    devices = {
        "gpus": [{"name": "a", "deviceName": "nvidia.com/x"}, {"name": "b", "deviceName": "nvidia.com/x"}],
        "hostDevices": [
            {"name": "c", "deviceName": "nvidia.com/x"},
            {"name": "d", "deviceName": "intel.com/qat"},
            {"name": "e", "claimName": "claim"},
        ],
    }
    limits = (
        compute({"devices": devices}, network_resources=["intel.com/sriov", "", "intel.com/sriov"]).limits
        or {}
    )
    others = {name: value for name, value in limits.items() if "/" in name and "kubevirt" not in name}
    assert others == {"nvidia.com/x": "3", "intel.com/qat": "1", "intel.com/sriov": "2"}


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
    assert attachment_container(KubeVirtConfiguration()).resources == ResourceRequirements(
        limits={"cpu": "100m", "memory": "80M"}, requests={"cpu": "10m", "memory": "2M"}
    )


def test_a_quantity_that_is_none_is_an_error() -> None:
    with pytest.raises(QuantityError, match="memory: 'much'"):
        compute({"resources": {"limits": {"memory": "much"}}})
