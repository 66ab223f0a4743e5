"""Launcher pods: the recorded ones come out byte for byte; what is beside KubeVirt's own renderings (test_rendered):
VMIs that no API server completed, text that does not parse; installations and namespaces; KubeVirt's accounts."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from kubeloop.api.core import Container, Pod, PodSpec, ResourceQuotaSpec, ResourceRequirements
from kubeloop.client.decode import decoder_for
from pkg.api.kubevirt import KubeVirt, KubeVirtConfiguration, VirtualMachineInstance
from pkg.cmd.options import WrongCall, exact_user
from pkg.util import constants
from pkg.util.kubevirt.launcher import render_containers, rendered_from
from pkg.util.kubevirt.overhead import overhead_of
from pkg.util.kubevirt.profiles import PROFILES
from pkg.util.kubevirt.rendering import Rendering, rendering, virt_controllers
from pkg.util.kubevirt.target import Side, bound_of, target_usage
from tests.decisions import sentences
from tests.kinds import edited
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
    },
    "name, ratio",
)
def test_the_recorded_pods_come_out_byte_for_byte(name: str, ratio: str) -> None:
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
    },
    "domain, asked_cpu",
)
def test_cpus_of_a_vmi_without_a_topology(domain: dict[str, Any], asked_cpu: str | None) -> None:
    assert (render(domain).containers[0].resources.requests or {}).get("cpu") == asked_cpu


@sentences(
    {
        "one that is attached by itself": ({}, True),
        "none": ({"autoattachPodInterface": False}, False),
        "one that is named": ({"autoattachPodInterface": False, "interfaces": [{"name": "a"}]}, True),
    },
    "devices, tun",
)
def test_an_interface_needs_the_tun_device(devices: dict[str, Any], tun: bool) -> None:
    limits = render({"devices": devices}).containers[0].resources.limits or {}
    assert ("devices.kubevirt.io/tun" in limits) is tun


HOOKS = {"two": ('[{"image": "a"}, {"image": "b"}]', 2), "none": ("[]", 0), "no list": ("{}", 0), "no JSON": ("[", 0)}


@sentences(HOOKS, "annotation, count")
def test_hook_sidecars_are_counted_and_ask_for_nothing(annotation: str, count: int) -> None:
    rendered = render({}, {"hooks.kubevirt.io/hookSidecars": annotation})
    sidecars = rendered.containers[1:]
    assert [sidecar.name for sidecar in sidecars] == [f"hook-sidecar-{index}" for index in range(count)]
    assert all(sidecar.resources == ResourceRequirements() for sidecar in sidecars)


@sentences(
    {
        "a path that the guest may read": ({"path": "/var/run/secrets", "readOnly": True}, 1),
        "one that it may write: KubeVirt's webhook leaves it out": ({"path": "/var/run/secrets"}, 0),
    },
    "path, count",
)
def test_a_path_of_the_compute_container_has_a_container(path: dict[str, Any], count: int) -> None:
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


# ---- rendering by installation and namespace -----------------------------------------------------------------

WITH_CONTAINER_DISK = machine(
    {"resources": {"requests": {"memory": "1Gi"}}},
    volumes=[{"name": "disk", "containerDisk": {"image": "registry/disk:1"}}],
)


def installed(version: str, developer: Mapping[str, Any], phase: str = "Deployed") -> KubeVirt:
    body = {
        "spec": {"configuration": {"developerConfiguration": developer}},
        "status": {"phase": phase, "observedKubeVirtVersion": version},
    }
    return msgspec.convert(body, KubeVirt)


ON = {"featureGates": ["ImageVolume"]}
OFF = {"disabledFeatureGates": ["ImageVolume"]}
OTHERS = {"featureGates": ["A"], "disabledFeatureGates": ["B"]}
GATED: dict[str, tuple[str, Mapping[str, Any], bool]] = {
    "1.8 leaves beta gates off": ("v1.8.4", {}, False),
    "1.8 with the gate named": ("v1.8.4", ON, True),
    "1.9 switches beta gates on": ("v1.9.0", {}, True),
    "1.10, with a suffix": ("v1.10.0-alpha.0.55", {}, True),
    "1.9 with the gate disabled": ("v1.9.0", OFF, False),
    "named beats disabled": ("v1.9.0", ON | OFF, True),
    "other gates change nothing": ("v1.9.0", OTHERS, True),
    "1.5 has not that gate, whatever its CR names": ("v1.5.3", ON, False),
    "an unknown version leaves them off": ("latest", {}, False),
}
"""A release and its gates; whether a container disk is an image volume there, without a container of its own."""


@sentences(GATED, "version, developer, image_volume")
def test_container_disks_by_release_and_gates(version: str, developer: Mapping[str, Any], image_volume: bool) -> None:
    rendered = render_containers(WITH_CONTAINER_DISK, rendering([installed(version, developer)], None), overhead=0)
    assert ("volumedisk" in [c.name for c in rendered.containers]) is not image_volume


@pytest.mark.parametrize("number", [-1, 0])
def test_a_number_below_one_is_not_the_one_in_force(number: int) -> None:
    developer = {"cpuAllocationRatio": number, "memoryOvercommit": number}
    vmi = machine({"cpu": {"cores": 2}, "memory": {"guest": "4Gi"}})
    by_number, by_default = (rendering([installed("v1.8.4", options)], None) for options in (developer, {}))
    assert render_containers(vmi, by_number, overhead=0) == render_containers(vmi, by_default, overhead=0)


HYPERVISOR = {"featureGates": ["ConfigurableHypervisor"]}
HYPERVISORS: dict[str, tuple[str, Mapping[str, Any], list[str], str]] = {
    "none is named": ("v1.9.0", HYPERVISOR, [], "kvm"),
    "KVM by name": ("v1.9.0", HYPERVISOR, ["kvm", "hyperv-direct"], "kvm"),
    "Hyper-V, the first that is named": ("v1.9.0", HYPERVISOR, ["hyperv-direct", "kvm"], "mshv"),
    "since 1.8": ("v1.8.0", HYPERVISOR, ["hyperv-direct"], "mshv"),
    "without the gate": ("v1.9.0", {}, ["hyperv-direct"], "kvm"),
    "1.7 has not that gate": ("v1.7.0", HYPERVISOR, ["hyperv-direct"], "kvm"),
    "one that is not known": ("v1.9.0", HYPERVISOR, ["another"], "kvm"),
    "emulated: no device": ("v1.9.0", {**HYPERVISOR, "useEmulation": True}, ["hyperv-direct"], ""),
}


@sentences(HYPERVISORS, "version, developer, names, device")
def test_the_device_of_the_hypervisor(
    version: str, developer: Mapping[str, Any], names: list[str], device: str
) -> None:
    hypervisors = {"hypervisors": [{"name": name} for name in names]}
    cr = edited(installed(version, developer), spec={"configuration": hypervisors})
    rendered = render_containers(WITH_CONTAINER_DISK, rendering([cr], None), overhead=0)
    (compute,) = [container for container in rendered.containers if container.name == "compute"]
    limits = compute.resources.limits or {}
    devices = {f"devices.kubevirt.io/{name}" for name in ("kvm", "mshv")}
    assert devices & limits.keys() == ({f"devices.kubevirt.io/{device}"} if device else set())


def test_a_cr_that_is_not_deployed_says_nothing() -> None:
    assert rendering([installed("v1.9.0", {}, phase="Deploying")], None).kubevirt == KubeVirtConfiguration()


@pytest.mark.parametrize(
    ("label", "ratio"),
    [("1.3", 1.3), ("4", 4.0), ("20.5", 20.5), ("1", 1.0), ("0.9", 2.0), ("-3", 2.0), ("much", 2.0), ("", 2.0)],
)
def test_a_namespaces_ratio_of_limits_to_requests(label: str, ratio: float) -> None:
    labels = {"alpha.kubevirt.io/auto-memory-limits-ratio": label}
    assert rendering([], None, namespace_labels=labels).memory_limits_ratio == ratio
    assert rendering([], None).memory_limits_ratio == 2.0


# ---- its accounts --------------------------------------------------------------------------------------------

IN_KUBEVIRT = "system:serviceaccount:kubevirt:kubevirt-controller"
IN_HARVESTER = "system:serviceaccount:harvester-system:kubevirt-controller"


def kubevirt(namespace: str, phase: str = "", day: int = 1) -> KubeVirt:
    created = f"2026-01-{day:02}T00:00:00Z"
    metadata = {"name": "kubevirt", "namespace": namespace, "creationTimestamp": created}
    return msgspec.convert({"metadata": metadata, "status": {"phase": phase}}, KubeVirt)


WHERE = {
    "the only one, which is being deployed": ([kubevirt("virt", "Deploying")], "virt"),
    "the deployed one beside a tenant's": ([kubevirt("tenant"), kubevirt("virt", "Deployed", 2)], "virt"),
    "the older one if a tenant says that its own is deployed": (
        [kubevirt("tenant", "Deployed", 2), kubevirt("virt", "Deployed")],
        "virt",
    ),
    "the older one as long as none is deployed": ([kubevirt("tenant", "", 2), kubevirt("virt")], "virt"),
}


@sentences(WHERE, "kubevirts, namespace")
def test_the_account_is_where_the_kubevirt_cr_that_counts_is(kubevirts: list[KubeVirt], namespace: str) -> None:
    for ordered in (kubevirts, kubevirts[::-1]):
        assert virt_controllers(ordered) == [f"system:serviceaccount:{namespace}:kubevirt-controller"]


def test_without_a_cr_two_accounts_are_usual_or_those_chosen() -> None:
    assert virt_controllers([]) == [IN_HARVESTER, IN_KUBEVIRT]
    assert virt_controllers([kubevirt("virt")], ["me"]) == ["me"]


@pytest.mark.parametrize("user", ["", "system:serviceaccount:*:kubevirt-controller", "kub?virt", "[a-z]"])
def test_a_pattern_is_no_account(user: str) -> None:
    with pytest.raises(WrongCall, match="not an exact user name"):
        exact_user(user)
    assert exact_user(IN_KUBEVIRT) == IN_KUBEVIRT
