"""A target pod as quota will count it: LimitRanges, RuntimeClasses, attachment pods; and a target that is not as large
as its source, beside KubeVirt's own renderings of resized VMs (test_rendered)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace as replaced

from kubeloop.api.core import Container, LimitRange, Pod, ResourceRequirements
from kubeloop.api.meta import RawResourceList
from kubeloop.api.quantity import Quantity
from pkg.api.kubevirt import KubeVirtConfiguration, VirtualMachineInstance, VirtualMachineInstanceStatus
from pkg.util.kubevirt.profiles import PROFILES
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.kubevirt.target import Side, attachments_usage, launcher_usage
from pkg.util.quotacount.pod_resources import apply_limit_ranges
from pkg.util.quotacount.usage import pod_usage
from tests.decisions import sentences
from tests.objects import AT_1_5, BOTH, CPU, attachment, launcher, limit_range, machine, vmi
from tests.pkg.util.kubevirt.vm_shapes import LIMITED, SEED, SHAPES, UNSCOPED, USUAL, shape

# ---- LimitRanges ---------------------------------------------------------------------------------------------

NO_LIMITS = SHAPES["a VM without any limit"]


@dataclass(frozen=True)
class Ranged:
    """LimitRanges, and the ratio when the source was made and now; the quota counts requests only."""

    ranges: Sequence[LimitRange]
    old_ratio: str = "1.5"
    now: str = "1.5"


RANGED = {
    "a default limit that the source has too": Ranged([limit_range({"cpu": "3", "memory": "8Gi"})]),
    "a default limit is no larger when the ratio is": Ranged([limit_range({"memory": "8Gi"})], "1.5", "4.5"),
    "of two LimitRanges each fills what is missing": Ranged(
        [limit_range({"memory": "8Gi"}), limit_range({"cpu": "3"})]
    ),
    "an extended resource for every container": Ranged([limit_range({"ephemeral-storage": "1Gi"})]),
}


@sentences(RANGED)
@pytest.mark.parametrize("moment", ["before the source", "after the source", "there is no source"])
def test_limit_ranges_count_as_admission_applies_them(case: Ranged, moment: str) -> None:
    target = launcher(NO_LIMITS, rendering=Rendering(case.now), limited=())
    real = pod_usage(apply_limit_ranges(target, case.ranges))
    source = launcher(NO_LIMITS, rendering=Rendering(case.old_ratio), limited=())
    if moment == "before the source":
        source = apply_limit_ranges(source, case.ranges)
    side = None if moment == "there is no source" else Side(source)
    usage = launcher_usage(NO_LIMITS, side, Rendering(case.now, limit_ranges=case.ranges), UNSCOPED)
    assert usage == real


def test_a_limit_that_a_quota_has_since_is_foreseen() -> None:
    """KubeVirt gives the target limits as soon as a quota of the namespace limits them."""
    source = launcher(NO_LIMITS, limited=())
    assert pod_usage(source)["limits.memory"] == Quantity.parse("60M")  # the support container's alone
    usage = launcher_usage(NO_LIMITS, Side(source), AT_1_5, UNSCOPED)
    assert usage == pod_usage(launcher(NO_LIMITS))


# ---- RuntimeClasses ------------------------------------------------------------------------------------------

KATA = msgspec.convert({"defaultRuntimeClass": "kata"}, KubeVirtConfiguration)


@pytest.mark.parametrize(
    ("source_overhead", "class_overhead", "counts"),
    [
        pytest.param({"cpu": "250m"}, {}, "2265m", id="a class that is not known: the source's counts"),
        pytest.param({"cpu": "250m"}, {"cpu": "1"}, "3015m", id="the class costs more since"),
        pytest.param(None, {"cpu": "1"}, "3015m", id="the CR names a class since"),
    ],
)
@pytest.mark.parametrize("resized", [False, True])
def test_the_overhead_of_a_runtime_class(
    source_overhead: dict[str, str] | None, class_overhead: dict[str, str], counts: str, resized: bool
) -> None:
    conditions = [{"type": "HotVCPUChange", "status": "True"}] if resized else []
    instance = vmi(requests={"cpu": "2", "memory": "4Gi"}, conditions=conditions)
    pod = launcher(instance)
    source = Side(msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, overhead=source_overhead)))
    now = Rendering("1.5", kubevirt=KATA, pod_overhead=dict(class_overhead))
    assert launcher_usage(instance, source, now, UNSCOPED)["limits.cpu"] == Quantity.parse(counts)


def test_without_a_source_the_crs_runtime_class_counts() -> None:
    now = Rendering("1.5", kubevirt=KATA, pod_overhead={"cpu": "250m"})
    assert launcher_usage(SEED, None, now, UNSCOPED)["limits.cpu"] == Quantity.parse("2265m")


# ---- support containers --------------------------------------------------------------------------------------


def test_a_support_container_counts_as_the_cr_sizes_it_now() -> None:
    sizes = {"type": "guest-console-log", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}
    sized = Rendering("1.5", kubevirt=msgspec.convert({"supportContainerResources": [sizes]}, KubeVirtConfiguration))
    usage = launcher_usage(SEED, Side(launcher(SEED)), sized, UNSCOPED)
    assert usage == pod_usage(launcher(SEED, rendering=sized))
    assert usage["limits.cpu"] == Quantity.of(3)


# ---- hotplugged volumes --------------------------------------------------------------------------------------

PLUGGED = shape(
    LIMITED,
    {"memory": "2730Mi"},
    volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "c", "hotpluggable": True}}],
)
SMALL = msgspec.convert(
    {"supportContainerResources": [{"type": "hotplug-disk", "resources": {"limits": {"cpu": "1m", "memory": "1M"}}}]},
    KubeVirtConfiguration,
)


DUMPING = msgspec.convert({"volumeStatus": [{"name": "dump", "hotplugVolume": {}}]}, VirtualMachineInstanceStatus)


@dataclass(frozen=True)
class Plugged:
    """A VMI, its source side and the KubeVirt CR; what its target's attachment pods count."""

    limits: tuple[str, str] | None
    instance: VirtualMachineInstance = PLUGGED
    source: Side | None = None
    kubevirt: KubeVirtConfiguration = USUAL


ATTACHMENTS = {
    "no hotplugged volume, no attachment pod": Plugged(None, instance=vmi()),
    "a volume that was there from the start needs none": Plugged(
        None, instance=shape(LIMITED, {}, volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}])
    ),
    "an attachment pod as KubeVirt sizes it": Plugged(("100m", "80M")),
    "a volume that only the VMI's status knows: being unplugged, or a memory dump": Plugged(
        ("100m", "80M"), instance=msgspec.structs.replace(SEED, status=DUMPING)
    ),
    "a hotplugged DataVolume likewise": Plugged(
        ("100m", "80M"),
        instance=shape(LIMITED, {}, volumes=[{"name": "d", "dataVolume": {"name": "c", "hotpluggable": True}}]),
    ),
    "an attachment pod as the KubeVirt CR sizes it": Plugged(("1m", "1M"), kubevirt=SMALL),
    "one like the source's": Plugged(
        ("1m", "1M"), source=Side(launcher(PLUGGED), (attachment(launcher(PLUGGED), SMALL),))
    ),
    "one, while the source has two for a moment": Plugged(
        ("100m", "80M"),
        source=Side(launcher(PLUGGED), (attachment(launcher(PLUGGED)), attachment(launcher(PLUGGED), SMALL))),
    ),
    "one as the KubeVirt CR sizes it since the source got its own": Plugged(
        ("1m", "1M"), source=Side(launcher(PLUGGED), (attachment(launcher(PLUGGED)),)), kubevirt=SMALL
    ),
    "a source whose attachment pod is not there yet": Plugged(("100m", "80M"), source=Side(launcher(PLUGGED))),
}


@sentences(ATTACHMENTS)
def test_attachment_pods(case: Plugged) -> None:
    rendering = Rendering("1.5", kubevirt=case.kubevirt)
    usage = attachments_usage(case.instance, case.source, rendering, UNSCOPED)
    if case.limits is None:
        assert usage == {}
        return
    assert (usage["limits.cpu"], usage["limits.memory"]) == tuple(map(Quantity.parse, case.limits))
    assert usage["pods"] == Quantity.parse(1)


# ---- resized VMs ---------------------------------------------------------------------------------------------

MAIN = Rendering("1.5", PROFILES["main"], quota_limits=BOTH)
CPU_CHANGE, MEMORY_CHANGE = "HotVCPUChange", "HotMemoryChange"


def shaped(resources: Mapping[str, Any], guest: str = "2Gi", condition: str = "") -> VirtualMachineInstance:
    """A VM with two cores; `condition` is True on it."""
    devices = {"interfaces": [{"name": "default"}]}
    instance = machine({"cpu": CPU, "memory": {"guest": guest}, "resources": resources, "devices": devices})
    conditions = [{"type": condition, "status": "True"}] if condition else []
    status = msgspec.convert({"conditions": conditions}, type(instance.status))
    return msgspec.structs.replace(instance, status=status)


def resources(cpu: tuple[str, str], memory: tuple[str, str]) -> dict[str, Any]:
    """(limit, request) of each."""
    return {"limits": {"cpu": cpu[0], "memory": memory[0]}, "requests": {"cpu": cpu[1], "memory": memory[1]}}


LARGE = resources(("2", "125m"), ("4Gi", "2730Mi"))
PINNED = resources(("2", "2"), ("4Gi", "4Gi"))


def with_others(pod: Pod) -> Pod:
    """The pod with what webhooks of others add: a container, and a device of a network."""
    device: RawResourceList = {"intel.com/sriov": "1"}
    sidecar: RawResourceList = {"cpu": "300m"}
    compute, *support_containers = pod.spec.containers
    limits, requests = compute.resources.limits or {}, compute.resources.requests or {}
    compute = replaced(compute, resources=ResourceRequirements(limits=limits | device, requests=requests | device))
    proxy = Container(name="istio-proxy", resources=ResourceRequirements(limits=sidecar, requests=sidecar))
    return replaced(pod, spec=replaced(pod.spec, containers=[compute, *support_containers, proxy]))


@sentences({"of a VM with limits": LARGE, "of a pinned VM": PINNED, "of a VM without limits": {}})
@pytest.mark.parametrize("condition", [CPU_CHANGE, MEMORY_CHANGE])
def test_nothing_changes_by_the_condition_alone(case: Mapping[str, Any], condition: str) -> None:
    """The condition stands for a moment before the spec and after the migration."""
    source = with_others(launcher(shaped(case), rendering=MAIN, profile=MAIN.profile))
    usage = launcher_usage(shaped(case, condition=condition), Side(source), MAIN, UNSCOPED)
    assert usage == pod_usage(source)


@pytest.mark.parametrize("annotated", [True, False])
def test_plugged_memory_and_a_raised_ratio_add_up(annotated: bool) -> None:
    enlarged = shaped(resources(("2", "125m"), ("6Gi", "4778Mi")), guest="4Gi", condition=MEMORY_CHANGE)
    raised = replace(MAIN, ratio="4.5")
    source = launcher(shaped(LARGE), rendering=MAIN, profile=MAIN.profile, annotated=annotated)
    target = launcher(enlarged, rendering=raised, profile=raised.profile)
    assert launcher_usage(enlarged, Side(source), raised, UNSCOPED) == pod_usage(target)


@pytest.mark.parametrize(("old_label", "now", "counts"), [("1.5", "1.5", "2620950837"), ("1.5", "4.5", "3842855937")])
def test_a_namespaces_label_sizes_a_quotas_limit(old_label: str, now: str, counts: str) -> None:
    """Its ratio is of the whole request, the overhead in it included."""
    vm = shaped({"requests": {"memory": "1500M"}})
    at_first = replace(MAIN, ratio=old_label, memory_limits_ratio=1.3)
    source = launcher_usage(vm, None, at_first, UNSCOPED)
    assert source["limits.memory"] == Quantity.parse("2620950837")
    today = replace(at_first, ratio=now)
    side = Side(launcher(vm, rendering=at_first, profile=MAIN.profile))
    assert launcher_usage(vm, side, today, UNSCOPED)["limits.memory"] == Quantity.parse(counts)
