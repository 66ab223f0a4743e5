"""A target pod as quota will count it, beside KubeVirt's own renderings (test_rendered): against recorded pods and
pods of a release that is not known; LimitRanges, RuntimeClasses, attachment pods; a target that is not as large as
its source."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from kubeloop.api.core import LimitRange, Pod, ResourceQuotaSpec
from kubeloop.api.quantity import Quantity
from kubeloop.testing.fake.patches import merged
from pkg.api.kubevirt import KubeVirtConfiguration, VirtualMachineInstance
from pkg.util.kubevirt.overhead import rendered_overhead
from pkg.util.kubevirt.profiles import MI, PROFILES
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.kubevirt.target import Side, attachments_usage, launcher_usage, target_usage
from pkg.util.quotacount.pod_resources import apply_limit_ranges
from pkg.util.quotacount.usage import pod_usage
from tests.decisions import sentences
from tests.kinds import edited
from tests.objects import AT_1_5, AT_4_5, BOTH, CPU, attachment, launcher, limit_range, machine, vmi
from tests.pkg.util.vectors import recorded

USUAL = KubeVirtConfiguration()
SEED = vmi()
UNSCOPED = ResourceQuotaSpec()
ALL_MEMORY = ("memory", "requests.memory", "limits.memory")


def shape(limits: Mapping[str, str] | None, requests: Mapping[str, str], **domain: Any) -> VirtualMachineInstance:
    resources: dict[str, Any] = {"requests": dict(requests)}
    if limits is not None:
        resources["limits"] = dict(limits)
    volumes = domain.pop("volumes", None)
    return machine({"cpu": CPU, "resources": resources, **domain}, volumes=volumes)


LIMITED = {"cpu": "2", "memory": "4Gi"}
SHAPES: dict[str, VirtualMachineInstance] = {
    "the seed's VM": vmi(),
    "a VM without memory limit": shape({"cpu": "2"}, {"memory": "2730Mi"}),
    "a VM without any limit": shape(None, {"memory": "2730Mi"}),
    "a VM with huge pages": shape(
        LIMITED, {"memory": "4Gi"}, memory={"guest": "3996Mi", "hugepages": {"pageSize": "2Mi"}}
    ),
    "a VM with huge pages and no limits": shape(
        None, {"memory": "2Gi"}, memory={"guest": "2Gi", "hugepages": {"pageSize": "1Gi"}}
    ),
    "a VM whose request is its limit": shape(LIMITED, {}),
    "a VM that says only its guest's memory": shape(None, {}, memory={"guest": "3Gi"}),
    "a VM with CPUs of its own": shape(
        {"cpu": "2", "memory": "4Gi"}, {"cpu": "2", "memory": "4Gi"}, cpu={**CPU, "dedicatedCpuPlacement": True}
    ),
    "a VM whose overhead is overcommitted": machine(
        {
            "cpu": {"cores": 2},
            "resources": {"limits": LIMITED, "requests": {"memory": "1Gi"}, "overcommitGuestOverhead": True},
        }
    ),
    "a VM with a device and a container disk": shape(
        LIMITED,
        {"memory": "2730Mi"},
        devices={"gpus": [{"name": "g", "deviceName": "nvidia.com/A100"}]},
        volumes=[{"name": "disk", "containerDisk": {"image": "i"}}],
    ),
    "a large VM": shape({"cpu": "32", "memory": "260Gi"}, {"memory": "256Gi"}),
}
shapes = pytest.mark.parametrize("instance", list(SHAPES.values()), ids=list(SHAPES))


def running(name: str) -> Pod:
    return edited(recorded(name, Pod), status={"phase": "Running"})


# ---- recorded pods -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["1.8", "main", "0.54"])
def test_a_recorded_source_tells_its_target_to_the_byte(profile: str) -> None:
    """Whatever release is configured: with the ratio unchanged the observed pod is the answer."""
    instance = recorded("virtualmachineinstance-t1-vm1", VirtualMachineInstance)
    source = running("vm1-t8vc9")
    target = recorded("vm1-hq9zx", Pod)
    predicted = target_usage(instance, Side(source), Rendering("", PROFILES[profile]), UNSCOPED)
    assert predicted == pod_usage(target)
    assert predicted["limits.memory"] == Quantity.parse(4610936833 + 60000000)
    assert predicted["limits.cpu"] == Quantity.parse("2015m")
    assert predicted["requests.devices.kubevirt.io/kvm"] == Quantity.parse(1)


RECORDED_CHANGES = {
    "no ratio, then 1.5, is what the other recorded pod has": ("vm1-t8vc9", "1.5", 473954537 - 315969537),
    "no ratio, then 4.5": ("vm1-t8vc9", "4.5", 1421864537 - 315969537),
    "1.5, then 4.5": ("vm2-gcg5l", "4.5", 1421864537 - 473954537),
    "1.5, then none": ("vm2-gcg5l", "", 315969537 - 473954537),
    "1.5 as ever": ("vm2-gcg5l", "1.5", 0),
}
"""A recorded pod, the ratio now, and the bytes that a pod rendered now has more."""


@pytest.mark.parametrize("profile", ["1.8", "main"])
@sentences(RECORDED_CHANGES, "name, ratio, growth")
def test_a_ratio_changed_since_a_recorded_pod(name: str, ratio: str, growth: int, profile: str) -> None:
    """The pods' constants are those of "main"; it is found out also where the KubeVirt CR says 1.8."""
    instance = recorded("virtualmachineinstance-t1-vm1", VirtualMachineInstance)
    source = running(name)
    usage_before = pod_usage(source)
    usage_after = launcher_usage(instance, Side(source), Rendering(ratio, PROFILES[profile]), UNSCOPED)
    for name in ALL_MEMORY:
        assert usage_after[name] == usage_before[name] + Quantity.parse(growth)
    assert {n: q for n, q in usage_after.items() if n not in ALL_MEMORY} == {
        n: q for n, q in usage_before.items() if n not in ALL_MEMORY
    }


# ---- shapes of VMs, rendered by a release that came after ours -----------------------------------------------


@pytest.mark.parametrize("shift_mib", [-4, 4, 10, 13], ids=lambda mib: f"constants grown by {mib} MiB")
@shapes
@pytest.mark.parametrize("old_ratio", ["1.5", ""], ids=["rendered at 1.5", "rendered without ratio"])
def test_unknown_constants(shift_mib: int, instance: VirtualMachineInstance, old_ratio: str) -> None:
    """A release that came after ours: exact as long as the ratio stays."""
    unknown = replace(PROFILES["main"], processes=PROFILES["main"].processes + shift_mib * MI)
    now = replace(AT_1_5, ratio=old_ratio)
    source = launcher(instance, rendering=now, profile=unknown)
    assert launcher_usage(instance, Side(source), now, UNSCOPED) == pod_usage(source)


def test_a_launcher_of_an_earlier_release_has_a_new_target() -> None:
    """KubeVirt marks the VMIs whose launcher is outdated; migrating them is how workloads are updated."""
    source = launcher(profile=PROFILES["1.1"])
    outdated = edited(vmi(), metadata={"labels": {"kubevirt.io/outdatedLauncherImage": ""}})
    usage = launcher_usage(outdated, Side(source), Rendering("1.5", PROFILES["main"]), UNSCOPED)
    assert usage == pod_usage(launcher(profile=PROFILES["main"]))


# ---- how the overhead of a pod is found ----------------------------------------------------------------------


@shapes
@pytest.mark.parametrize("limited", [BOTH, frozenset()], ids=["limits of cpu and memory", "requests only"])
def test_the_compute_container_tells(instance: VirtualMachineInstance, limited: frozenset[str]) -> None:
    source = launcher(instance, overhead=345678901, limited=limited)
    assert rendered_overhead(instance, source, Rendering(quota_limits=limited)) == 345678901


def test_a_pod_without_compute_container_counts_as_it_is() -> None:
    source = edited(launcher(), spec={"containers": []})
    assert rendered_overhead(vmi(), source, Rendering()) is None
    assert launcher_usage(vmi(), Side(source), AT_4_5, UNSCOPED) == pod_usage(source)


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
    source = Side(edited(pod, spec={"overhead": source_overhead}))
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


def test_a_pod_that_has_only_image_volumes_and_pod_level_requests_does_not_stop_a_decision() -> None:
    """A tenant may write one with a launcher's labels. Its target has no container."""
    level = {"requests": {"memory": "1Gi"}}
    spec = {"containers": [{"name": "volumedisk"}], "initContainers": None, "resources": level}
    source = Side(edited(launcher(SEED), spec=spec))
    assert target_usage(SEED, source, Rendering("1.5", PROFILES["1.9"]), UNSCOPED)["memory"] == Quantity.parse("1Gi")


def test_a_launcher_without_a_source_has_the_vms_priority_class() -> None:
    of_high = {"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}
    spec = msgspec.convert({"scopeSelector": {"matchExpressions": [of_high]}}, ResourceQuotaSpec)
    assert launcher_usage(edited(SEED, spec={"priorityClassName": "high"}), None, AT_1_5, spec)
    assert not launcher_usage(SEED, None, AT_1_5, spec)


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
        ("100m", "80M"), instance=vmi(volumeStatus=[{"name": "dump", "hotplugVolume": {}}])
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
    return edited(instance, status={"conditions": conditions})


def resources(cpu: tuple[str, str], memory: tuple[str, str]) -> dict[str, Any]:
    """(limit, request) of each."""
    return {"limits": {"cpu": cpu[0], "memory": memory[0]}, "requests": {"cpu": cpu[1], "memory": memory[1]}}


LARGE = resources(("2", "125m"), ("4Gi", "2730Mi"))
PINNED = resources(("2", "2"), ("4Gi", "4Gi"))


def with_others(pod: Pod) -> Pod:
    """The pod with what webhooks of others add: a container, and a device of a network."""
    device, sidecar = {"intel.com/sriov": "1"}, {"cpu": "300m"}
    compute, *support_containers = msgspec.to_builtins(pod.spec.containers)
    compute["resources"] = merged(compute["resources"], {"limits": device, "requests": device})
    proxy = {"name": "istio-proxy", "resources": {"limits": sidecar, "requests": sidecar}}
    return edited(pod, spec={"containers": [compute, *support_containers, proxy]})


@sentences({"of a VM with limits": LARGE, "of a pinned VM": PINNED, "of a VM without limits": {}})
@pytest.mark.parametrize("condition", [CPU_CHANGE, MEMORY_CHANGE])
def test_nothing_changes_by_the_condition_alone(case: Mapping[str, Any], condition: str) -> None:
    """The condition stands for a moment before the spec and after the migration."""
    source = with_others(launcher(shaped(case), rendering=MAIN, profile=MAIN.profile))
    usage = launcher_usage(shaped(case, condition=condition), Side(source), MAIN, UNSCOPED)
    assert usage == pod_usage(source)


def test_plugged_memory_and_a_raised_ratio_add_up() -> None:
    enlarged = shaped(resources(("2", "125m"), ("6Gi", "4778Mi")), guest="4Gi", condition=MEMORY_CHANGE)
    raised = replace(MAIN, ratio="4.5")
    source = launcher(shaped(LARGE), rendering=MAIN, profile=MAIN.profile)
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
