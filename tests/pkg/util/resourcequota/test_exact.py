"""What quota will count of a target pod, against recorded pods and against pods rendered anew (issue: exact)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from pkg.api.core import LimitRange, Pod, ResourceQuotaSpec
from pkg.api.kubevirt import KubeVirtConfiguration, VirtualMachineInstance
from pkg.util.memory_overhead import MI, PROFILES, OverheadProfile, memory_overhead
from pkg.util.quantity import Quantity, QuantityError
from pkg.util.resource_list import ResourceList
from pkg.util.resourcequota.exact import (
    attachments_usage,
    launcher_usage,
    overhead_difference,
    rendered_overhead,
    target_usage,
)
from pkg.util.resourcequota.limit_ranges import apply_limit_ranges
from pkg.util.resourcequota.model import Rendering
from pkg.util.resourcequota.sides import Side
from pkg.util.resourcequota.usage import pod_usage
from tests.pkg.util.resourcequota.pods import (
    AT_1_5,
    AT_4_5,
    attachment,
    launcher,
    limit_range,
    machine,
    recorded,
)
from tests.pkg.util.resourcequota.world import sentences, vmi

USUAL = KubeVirtConfiguration()
SEED = vmi()
UNSCOPED = ResourceQuotaSpec(hard={"limits.cpu": "10", "limits.memory": "100Gi"})
REQUESTS_ONLY = ResourceQuotaSpec(hard={"requests.memory": "100Gi"})
ALL_MEMORY = ("memory", "requests.memory", "limits.memory")


def running(pod: Pod) -> Pod:
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase="Running"))


# ---- recorded pods -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["1.8", "main", "0.54"])
def test_a_recorded_source_tells_what_its_recorded_target_counts_to_the_byte(profile: str) -> None:
    """Whatever release is configured: with the ratio unchanged the observed pod is the answer."""
    instance = recorded("virtualmachineinstance-t1-vm1", VirtualMachineInstance)
    source = running(recorded("vm1-t8vc9", Pod))
    target = recorded("vm1-hq9zx", Pod)
    predicted = target_usage(instance, Side(source), Rendering("", PROFILES[profile]), UNSCOPED)
    assert predicted == pod_usage(target)
    assert predicted["limits.memory"] == Quantity.parse(4610936833 + 60000000)
    assert predicted["limits.cpu"] == Quantity.parse("2015m")
    assert predicted["requests.devices.kubevirt.io/kvm"] == Quantity.parse(1)


@dataclass(frozen=True)
class Changed:
    """A recorded pod, the ratio now, and the bytes that a pod rendered now has more."""

    pod: str
    ratio: str
    more: int


RECORDED_CHANGES = {
    "no ratio, then 1.5, is what the other recorded pod has": Changed(
        "vm1-t8vc9", "1.5", 473954537 - 315969537
    ),
    "no ratio, then 4.5": Changed("vm1-t8vc9", "4.5", 1421864537 - 315969537),
    "1.5, then 4.5": Changed("vm2-gcg5l", "4.5", 1421864537 - 473954537),
    "1.5, then none": Changed("vm2-gcg5l", "", 315969537 - 473954537),
    "1.5 as ever": Changed("vm2-gcg5l", "1.5", 0),
}


@pytest.mark.parametrize("profile", ["1.8", "main"])
@sentences(RECORDED_CHANGES)
def test_a_ratio_changed_since_a_recorded_pod(case: Changed, profile: str) -> None:
    """The pods' constants are those of "main"; it is found out also where the KubeVirt CR says 1.8."""
    instance = recorded("virtualmachineinstance-t1-vm1", VirtualMachineInstance)
    source = running(recorded(case.pod, Pod))
    before = pod_usage(source)
    after = launcher_usage(instance, Side(source), Rendering(case.ratio, PROFILES[profile]), UNSCOPED)
    for name in ALL_MEMORY:
        assert after[name] == before[name] + Quantity.parse(case.more)
    assert {n: q for n, q in after.items() if n not in ALL_MEMORY} == {
        n: q for n, q in before.items() if n not in ALL_MEMORY
    }


# ---- shapes of VMs, rendered before and after ----------------------------------------------------------------


def shape(
    limits: Mapping[str, str] | None, requests: Mapping[str, str], **domain: Any
) -> VirtualMachineInstance:
    resources: dict[str, Any] = {"requests": dict(requests)}
    if limits is not None:
        resources["limits"] = dict(limits)
    cpu = {"cores": 2, "sockets": 1, "threads": 1}
    more = {key: domain.pop(key) for key in ("volumes", "priorityClassName") if key in domain}
    return machine({"cpu": cpu, "resources": resources, **domain}, **more)


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
        {"cpu": "2", "memory": "4Gi"},
        {"cpu": "2", "memory": "4Gi"},
        cpu={"cores": 2, "sockets": 1, "threads": 1, "dedicatedCpuPlacement": True},
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
QUOTAS = {"limits of cpu and memory": UNSCOPED, "requests only": REQUESTS_ONLY}


def limited_of(spec: ResourceQuotaSpec) -> Collection[str]:
    return [name for name in ("cpu", "memory") if f"limits.{name}" in (spec.hard or {})]


shapes = pytest.mark.parametrize("instance", list(SHAPES.values()), ids=list(SHAPES))
quotas = pytest.mark.parametrize("spec", list(QUOTAS.values()), ids=list(QUOTAS))


@shapes
@quotas
@pytest.mark.parametrize("annotated", [True, False], ids=["overhead annotated", "overhead not annotated"])
@pytest.mark.parametrize("profile", list(PROFILES))
def test_with_the_ratio_unchanged_the_source_is_the_answer_to_the_byte(
    instance: VirtualMachineInstance, spec: ResourceQuotaSpec, annotated: bool, profile: str
) -> None:
    """Whichever release the KubeVirt CR says; one that knows no ratio must be said."""
    rendered = PROFILES[profile]
    source = launcher(instance, profile=rendered, annotated=annotated, limited=limited_of(spec))
    now = AT_1_5 if rendered.has_ratio else Rendering("1.5", rendered)
    assert launcher_usage(instance, Side(source), now, spec) == pod_usage(source)


@dataclass(frozen=True)
class Ratios:
    """The ratio when the source was rendered, and now."""

    then: str
    now: str


CHANGES = {
    "1.5 to 4.5": Ratios("1.5", "4.5"),
    "none to 1.5": Ratios("", "1.5"),
    "1.25 to 2.75": Ratios("1.25", "2.75"),
    "4.5 back to 1.5": Ratios("4.5", "1.5"),
}


@shapes
@quotas
@sentences(CHANGES)
@pytest.mark.parametrize("annotated", [True, False], ids=["overhead annotated", "overhead not annotated"])
@pytest.mark.parametrize("profile", ["1.0", "1.7", "1.8", "main"])
def test_a_changed_ratio_is_never_below_and_at_most_128_mi_above(
    case: Ratios, instance: VirtualMachineInstance, spec: ResourceQuotaSpec, annotated: bool, profile: str
) -> None:
    """Of every known release, whichever the KubeVirt CR says; under every name that quota counts."""
    render = {"profile": PROFILES[profile], "limited": limited_of(spec)}
    source = launcher(instance, rendering=Rendering(case.then), annotated=annotated, **render)
    real = pod_usage(launcher(instance, rendering=Rendering(case.now), **render))
    predicted = launcher_usage(instance, Side(source), Rendering(case.now), spec)
    assert predicted.keys() == real.keys()
    for name, amount in real.items():
        assert amount <= predicted[name] <= amount + Quantity.parse("128Mi" if "memory" in name else 0), name


@pytest.mark.parametrize("grown", [-4, 4, 10, 13], ids=lambda mib: f"constants grown by {mib} MiB")
@shapes
@pytest.mark.parametrize("then", ["1.5", ""], ids=["rendered at 1.5", "rendered without ratio"])
@pytest.mark.parametrize("annotated", [True, False], ids=["overhead annotated", "overhead not annotated"])
def test_constants_that_nobody_knows(
    grown: int, instance: VirtualMachineInstance, then: str, annotated: bool
) -> None:
    """A release that came after ours: exact as long as the ratio stays, near to it afterwards."""
    unknown = replace(PROFILES["main"], qemu=PROFILES["main"].qemu + grown * MI)
    source = launcher(instance, rendering=Rendering(then), profile=unknown, annotated=annotated)
    assert launcher_usage(instance, Side(source), Rendering(then), UNSCOPED) == pod_usage(source)
    real = pod_usage(launcher(instance, rendering=AT_4_5, profile=unknown))
    predicted = launcher_usage(instance, Side(source), AT_4_5, UNSCOPED)
    allowed = Quantity.parse("128Mi")
    if "memory" not in (instance.spec.domain.resources.limits or {}):
        allowed += allowed  # KubeVirt's own limit is twice the request
    for name in ALL_MEMORY:
        assert real[name] <= predicted[name] <= real[name] + allowed


def test_constants_far_from_all_that_is_known_are_rather_too_large() -> None:
    instance = vmi()
    strange = OverheadProfile(launcher=900 * MI)
    source = launcher(instance, profile=strange)
    real = memory_overhead(instance.spec, ratio="4.5", profile=strange)
    assert overhead_difference(instance, source, AT_4_5) >= real - memory_overhead(
        instance.spec, ratio="1.5", profile=strange
    )


def test_a_launcher_of_an_earlier_release_is_followed_by_one_of_the_installed_release() -> None:
    """KubeVirt marks the VMIs whose launcher is outdated; migrating them is how workloads are updated."""
    source = launcher(profile=PROFILES["1.1"])
    outdated = vmi()
    labels = {"kubevirt.io/outdatedLauncherImage": ""}
    outdated = msgspec.structs.replace(
        outdated, metadata=msgspec.structs.replace(outdated.metadata, labels=labels)
    )
    found = launcher_usage(outdated, Side(source), Rendering("1.5", PROFILES["main"]), UNSCOPED)
    assert found == pod_usage(launcher(profile=PROFILES["main"]))


# ---- how the overhead of a pod is found ----------------------------------------------------------------------


def test_the_annotation_beats_what_the_container_says() -> None:
    source = launcher(overhead=300000000)
    assert rendered_overhead(vmi(), source, KubeVirtConfiguration()) == 300000000


def test_an_annotation_that_is_no_number_is_not_believed() -> None:
    source = launcher(overhead=300000000)
    metadata = msgspec.structs.replace(
        source.metadata, annotations={"kubevirt.io/memory-overhead-bytes": "lots"}
    )
    source = msgspec.structs.replace(source, metadata=metadata)
    assert rendered_overhead(vmi(), source, KubeVirtConfiguration()) == 300000000


@shapes
@quotas
def test_without_annotation_the_compute_container_tells(
    instance: VirtualMachineInstance, spec: ResourceQuotaSpec
) -> None:
    source = launcher(instance, overhead=345678901, annotated=False, limited=limited_of(spec))
    assert rendered_overhead(instance, source, KubeVirtConfiguration()) == 345678901


def test_a_pod_without_compute_container_does_not_tell_and_counts_as_it_is() -> None:
    source = msgspec.structs.replace(
        launcher(annotated=False),
        spec=msgspec.structs.replace(launcher().spec, containers=launcher().spec.init_containers or []),
    )
    assert rendered_overhead(vmi(), source, KubeVirtConfiguration()) is None
    assert launcher_usage(vmi(), Side(source), AT_4_5, UNSCOPED) == pod_usage(source)


# ---- without a source pod ------------------------------------------------------------------------------------


@shapes
@quotas
@pytest.mark.parametrize("ratio", ["", "1.5", "4.5"])
def test_without_a_source_pod_the_formula_and_the_support_containers_are_the_answer(
    instance: VirtualMachineInstance, spec: ResourceQuotaSpec, ratio: str
) -> None:
    real = launcher(instance, rendering=Rendering(ratio), limited=limited_of(spec))
    assert target_usage(instance, None, Rendering(ratio), spec) == pod_usage(real)


def test_without_a_source_pod_the_console_log_container_counts() -> None:
    """The seed's real pod is 15m and 60M more than Harvester's delta of 2 and 4737464313."""
    found = target_usage(vmi(), None, AT_1_5, UNSCOPED)
    assert found["limits.cpu"] == Quantity.parse("2015m")
    assert found["limits.memory"] == Quantity.parse(4797464313)


def test_without_a_source_pod_the_configured_release_decides() -> None:
    found = target_usage(vmi(), None, Rendering("", PROFILES["main"]), UNSCOPED)
    assert found["limits.memory"] == Quantity.parse(4294967296 + 315969537 + 60000000)


def test_the_kubevirt_cr_sizes_the_support_containers() -> None:
    resources = {"limits": {"cpu": "1", "memory": "1G"}}
    configuration = msgspec.convert(
        {"supportContainerResources": [{"type": "guest-console-log", "resources": resources}]},
        KubeVirtConfiguration,
    )
    found = target_usage(vmi(), None, Rendering("1.5", kubevirt=configuration), UNSCOPED)
    assert found["limits.cpu"] == Quantity.parse("3")
    assert found["limits.memory"] == Quantity.parse(4737464313 + 10**9)


def sized(*types: str) -> KubeVirtConfiguration:
    """A KubeVirt CR that sizes these kinds of support containers otherwise than KubeVirt does."""
    resources = {"limits": {"cpu": "33m", "memory": "123M"}, "requests": {"cpu": "7m", "memory": "77M"}}
    return msgspec.convert(
        {"supportContainerResources": [{"type": kind, "resources": resources} for kind in types]},
        KubeVirtConfiguration,
    )


WITH_SUPPORT = shape(
    LIMITED,
    {"memory": "2730Mi"},
    devices={"filesystems": [{"name": "shared"}]},
    volumes=[{"name": "root", "containerDisk": {}}, {"name": "shared", "persistentVolumeClaim": {}}],
)
SIZED: Mapping[str, tuple[KubeVirtConfiguration, KubeVirtConfiguration]] = {
    "the CR sizes the console log since the source started": (USUAL, sized("guest-console-log")),
    "the CR sizes the container disks since": (USUAL, sized("container-disk")),
    "the CR sizes everything since": (
        USUAL,
        sized("guest-console-log", "container-disk", "virtiofs", "sidecar"),
    ),
    "the CR sized it all the time": (sized("guest-console-log"), sized("guest-console-log")),
    "the CR sizes what the VM has not": (USUAL, sized("vmexport", "")),
}


@sentences(SIZED)
@pytest.mark.parametrize("ratio", ["1.5", "4.5"])
def test_support_containers_are_as_the_kubevirt_cr_sizes_them_now(
    case: tuple[KubeVirtConfiguration, KubeVirtConfiguration], ratio: str
) -> None:
    then, now = (Rendering("1.5", kubevirt=case[0]), Rendering(ratio, kubevirt=case[1]))
    source = Side(launcher(WITH_SUPPORT, rendering=then))
    found = launcher_usage(WITH_SUPPORT, source, now, UNSCOPED)
    assert found == pod_usage(launcher(WITH_SUPPORT, rendering=now))


def test_a_source_of_unusual_size_tells_more_than_the_defaults() -> None:
    source = Side(launcher(rendering=Rendering("1.5", kubevirt=sized("guest-console-log"))))
    found = launcher_usage(SEED, source, AT_1_5, UNSCOPED)
    assert found == pod_usage(source.launcher)


def test_a_vmi_whose_quantities_are_garbage_is_an_error() -> None:
    with pytest.raises(QuantityError, match="memory"):
        target_usage(vmi(limits={"memory": "lots"}), None, AT_1_5, UNSCOPED)


# ---- LimitRanges ---------------------------------------------------------------------------------------------

NO_LIMITS = SHAPES["a VM without any limit"]


@dataclass(frozen=True)
class Ranged:
    """LimitRanges, and the ratio when the source was made and now; the quota counts requests only."""

    ranges: Sequence[LimitRange]
    then: str = "1.5"
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
@pytest.mark.parametrize("made", ["before the source", "after the source", "there is no source"])
def test_limit_ranges_count_as_admission_applies_them(case: Ranged, made: str) -> None:
    target = launcher(NO_LIMITS, rendering=Rendering(case.now), limited=())
    real = pod_usage(apply_limit_ranges(target, case.ranges))
    source = launcher(NO_LIMITS, rendering=Rendering(case.then), limited=())
    if made == "before the source":
        source = apply_limit_ranges(source, case.ranges)
    side = None if made == "there is no source" else Side(source)
    found = launcher_usage(NO_LIMITS, side, Rendering(case.now, limit_ranges=case.ranges), REQUESTS_ONLY)
    assert found == real


def test_a_limit_that_a_quota_asks_for_since_the_source_started_is_foreseen() -> None:
    """KubeVirt gives the target limits as soon as a quota of the namespace limits them."""
    source = launcher(NO_LIMITS, limited=())
    assert pod_usage(source)["limits.memory"] == Quantity.parse("60M")  # the support container's alone
    found = launcher_usage(NO_LIMITS, Side(source), AT_1_5, UNSCOPED)
    assert found == pod_usage(launcher(NO_LIMITS))


# ---- hotplugged volumes --------------------------------------------------------------------------------------

PLUGGED = shape(
    LIMITED,
    {"memory": "2730Mi"},
    volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "c", "hotpluggable": True}}],
)
SMALL = msgspec.convert(
    {
        "supportContainerResources": [
            {"type": "hotplug-disk", "resources": {"limits": {"cpu": "1m", "memory": "1M"}}}
        ]
    },
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
        None,
        instance=shape(LIMITED, {}, volumes=[{"name": "d", "persistentVolumeClaim": {"claimName": "c"}}]),
    ),
    "an attachment pod as KubeVirt sizes it": Plugged(("100m", "80M")),
    "a hotplugged DataVolume likewise": Plugged(
        ("100m", "80M"),
        instance=shape(
            LIMITED, {}, volumes=[{"name": "d", "dataVolume": {"name": "c", "hotpluggable": True}}]
        ),
    ),
    "an attachment pod as the KubeVirt CR sizes it": Plugged(("1m", "1M"), kubevirt=SMALL),
    "one like the source's": Plugged(
        ("1m", "1M"), source=Side(launcher(PLUGGED), (attachment(launcher(PLUGGED), SMALL),))
    ),
    "one as the KubeVirt CR sizes it since the source got its own": Plugged(
        ("1m", "1M"), source=Side(launcher(PLUGGED), (attachment(launcher(PLUGGED)),)), kubevirt=SMALL
    ),
    "a source whose attachment pod is not there yet": Plugged(
        ("100m", "80M"), source=Side(launcher(PLUGGED))
    ),
}


@sentences(ATTACHMENTS)
def test_attachment_pods(case: Plugged) -> None:
    rendering = Rendering("1.5", kubevirt=case.kubevirt)
    found = attachments_usage(case.instance, case.source, rendering, UNSCOPED)
    if case.limits is None:
        assert found == {}
        return
    assert (found["limits.cpu"], found["limits.memory"]) == tuple(map(Quantity.parse, case.limits))
    assert found["pods"] == Quantity.parse(1)


def test_the_target_side_is_launcher_and_attachment_pod_together() -> None:
    source = Side(launcher(PLUGGED), (attachment(launcher(PLUGGED)),))
    found = target_usage(PLUGGED, source, AT_1_5, UNSCOPED)
    assert found["pods"] == Quantity.parse(2)
    assert found["limits.cpu"] == Quantity.parse("2115m")
    assert found["limits.memory"] == Quantity.parse(4797464313 + 80000000)


# ---- scopes --------------------------------------------------------------------------------------------------


def scoped(*scopes: str, **selector: Any) -> ResourceQuotaSpec:
    spec: dict[str, Any] = {"hard": {"limits.memory": "1Gi"}, "scopes": list(scopes)}
    if selector:
        spec["scopeSelector"] = {"matchExpressions": [selector]}
    return msgspec.convert(spec, ResourceQuotaSpec)


IMPORTANT = shape(LIMITED, {"memory": "2730Mi"}, priorityClassName="important")
PRIORITY = {"scopeName": "PriorityClass", "operator": "In", "values": ["important"]}


@dataclass(frozen=True)
class Scoped:
    """A scoped quota and a VM, and whether the quota counts the VM's launcher pods."""

    spec: ResourceQuotaSpec
    counts: bool
    instance: VirtualMachineInstance = SEED


SCOPED = {
    "a launcher pod is not terminating": Scoped(scoped("NotTerminating"), True),
    "so a quota for terminating pods leaves it out": Scoped(scoped("Terminating"), False),
    "a launcher pod is not best effort": Scoped(scoped("NotBestEffort"), True),
    "so a quota for best effort pods leaves it out": Scoped(scoped("BestEffort"), False),
    "a quota for a priority class leaves out a VM without one": Scoped(scoped(**PRIORITY), False),
    "a quota for a priority class counts a VM that has it": Scoped(scoped(**PRIORITY), True, IMPORTANT),
    "all scopes must match": Scoped(scoped("Terminating", "NotBestEffort"), False),
}


@sentences(SCOPED)
@pytest.mark.parametrize("source", [True, False], ids=["with a source pod", "without"])
def test_a_scoped_quota_counts_only_pods_that_match(case: Scoped, source: bool) -> None:
    side = Side(launcher(case.instance)) if source else None
    found = target_usage(case.instance, side, AT_1_5, case.spec)
    assert bool(found) is case.counts


def usage_without_attachments(spec: ResourceQuotaSpec) -> ResourceList:
    return target_usage(vmi(), Side(launcher()), AT_1_5, spec)


def test_the_formula_of_the_ratio_is_kubevirts() -> None:
    """The seed's numbers, so that the pods above are rendered right."""
    assert memory_overhead(vmi().spec, ratio="1.5") == 442497017
    assert memory_overhead(vmi().spec, ratio="4.5") == 5622461313 - 4294967296
    assert usage_without_attachments(UNSCOPED)["limits.memory"] == Quantity.parse(4797464313)
