"""The `compute` container: cpus, memory, huge pages and devices by KubeVirt's rules."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kubeloop.api.core import ResourceRequirements
from pkg.api.kubevirt import KubeVirtConfiguration, VirtualMachineInstance
from pkg.util.kubevirt.launcher import render_containers
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.quantity import QuantityError

OVERHEAD = 300 * 1024**2


def compute(
    domain: dict[str, Any],
    config: dict[str, Any] | None = None,
    annotations: dict[str, str] | None = None,
    **options: Any,
) -> ResourceRequirements:
    spec = {"domain": domain, "networks": options.pop("networks", None)}
    document = {"metadata": {"name": "vm1", "annotations": annotations}, "spec": spec}
    vmi = msgspec.convert(document, VirtualMachineInstance)
    kubevirt = msgspec.convert(config or {}, KubeVirtConfiguration)
    limits = frozenset(options.pop("quota_limits", ()))
    rendering = Rendering(kubevirt=kubevirt, quota_limits=limits, **options)
    rendered = render_containers(vmi, rendering, overhead=OVERHEAD)
    return rendered.containers[0].resources


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
        {"cpu": {"cores": 4}},
        {"cpuAllocationRatio": 0},
        "400m",
        None,
        id="a ratio of zero is none: KubeVirt's own",
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
        pytest.param({"launchSecurity": {"tdx": {}}}, {}, {KVM, TUN}, id="TDX up to 1.8"),
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
    networks = [{"name": n, "multus": {"networkName": n}} for n in ("ns/a", "ns/b", "ns/c")]
    resources = {"ns/a": "intel.com/sriov", "ns/b": "", "ns/c": "intel.com/sriov"}
    limits = compute({"devices": devices}, networks=networks, network_resources=resources).limits or {}
    others = {name: value for name, value in limits.items() if "/" in name and "kubevirt" not in name}
    assert others == {"nvidia.com/x": "3", "intel.com/qat": "1", "intel.com/sriov": "2"}


def test_a_quantity_that_is_none_is_an_error() -> None:
    with pytest.raises(QuantityError, match="memory: 'much'"):
        compute({"resources": {"limits": {"memory": "much"}}})
