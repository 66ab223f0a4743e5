"""A target pod as quota will count it, against recorded pods and, beside KubeVirt's own renderings (test_rendered),
against pods of a release that is not known."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from kubeloop.api.core import Pod
from kubeloop.api.quantity import Quantity, QuantityError
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.util.kubevirt.overhead import rendered_overhead
from pkg.util.kubevirt.profiles import MI, PROFILES
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.kubevirt.target import Side, launcher_usage, target_usage
from pkg.util.quotacount.usage import pod_usage
from tests.decisions import sentences
from tests.objects import AT_1_5, AT_4_5, BOTH, launcher, vmi
from tests.pkg.util.kubevirt.vm_shapes import ALL_MEMORY, UNSCOPED, shapes
from tests.pkg.util.vectors import recorded


def running(pod: Pod) -> Pod:
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase="Running"))


# ---- recorded pods -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["1.8", "main", "0.54"])
def test_a_recorded_source_tells_its_target_to_the_byte(profile: str) -> None:
    """Whatever release is configured: with the ratio unchanged the observed pod is the answer."""
    instance = recorded("virtualmachineinstance-t1-vm1", VirtualMachineInstance)
    source = running(recorded("vm1-t8vc9", Pod))
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
@sentences(RECORDED_CHANGES)
def test_a_ratio_changed_since_a_recorded_pod(case: tuple[str, str, int], profile: str) -> None:
    """The pods' constants are those of "main"; it is found out also where the KubeVirt CR says 1.8."""
    name, ratio, growth = case
    instance = recorded("virtualmachineinstance-t1-vm1", VirtualMachineInstance)
    source = running(recorded(name, Pod))
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
@pytest.mark.parametrize("annotated", [True, False], ids=["overhead annotated", "overhead not annotated"])
def test_unknown_constants(shift_mib: int, instance: VirtualMachineInstance, old_ratio: str, annotated: bool) -> None:
    """A release that came after ours: exact as long as the ratio stays, near to it afterwards."""
    unknown = replace(PROFILES["main"], processes=PROFILES["main"].processes + shift_mib * MI)
    now = replace(AT_1_5, ratio=old_ratio)
    source = launcher(instance, rendering=now, profile=unknown, annotated=annotated)
    assert launcher_usage(instance, Side(source), now, UNSCOPED) == pod_usage(source)
    real = pod_usage(launcher(instance, rendering=AT_4_5, profile=unknown))
    predicted = launcher_usage(instance, Side(source), AT_4_5, UNSCOPED)
    allowed = Quantity.parse("128Mi")
    if "memory" not in (instance.spec.domain.resources.limits or {}):
        allowed += allowed  # KubeVirt's own limit is twice the request
    for name in ALL_MEMORY:
        assert real[name] <= predicted[name] <= real[name] + allowed


def test_a_launcher_of_an_earlier_release_has_a_new_target() -> None:
    """KubeVirt marks the VMIs whose launcher is outdated; migrating them is how workloads are updated."""
    source = launcher(profile=PROFILES["1.1"])
    outdated = vmi()
    labels = {"kubevirt.io/outdatedLauncherImage": ""}
    outdated = msgspec.structs.replace(outdated, metadata=msgspec.structs.replace(outdated.metadata, labels=labels))
    usage = launcher_usage(outdated, Side(source), Rendering("1.5", PROFILES["main"]), UNSCOPED)
    assert usage == pod_usage(launcher(profile=PROFILES["main"]))


# ---- how the overhead of a pod is found ----------------------------------------------------------------------


@shapes
@pytest.mark.parametrize("limited", [BOTH, frozenset()], ids=["limits of cpu and memory", "requests only"])
def test_without_annotation_the_compute_container_tells(
    instance: VirtualMachineInstance, limited: frozenset[str]
) -> None:
    source = launcher(instance, overhead=345678901, annotated=False, limited=limited)
    assert rendered_overhead(instance, source, Rendering(quota_limits=limited)) == 345678901


def test_a_pod_without_compute_container_counts_as_it_is() -> None:
    source = msgspec.structs.replace(
        launcher(annotated=False),
        spec=msgspec.structs.replace(launcher().spec, containers=launcher().spec.init_containers or []),
    )
    assert rendered_overhead(vmi(), source, Rendering()) is None
    assert launcher_usage(vmi(), Side(source), AT_4_5, UNSCOPED) == pod_usage(source)


def test_a_vmi_whose_quantities_are_garbage_is_an_error() -> None:
    with pytest.raises(QuantityError, match="memory"):
        target_usage(vmi(limits={"memory": "lots"}), None, AT_1_5, UNSCOPED)
