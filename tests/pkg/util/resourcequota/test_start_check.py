"""Can this VM start? base − (used − what migrations hold), against what quota will count of its pod."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kubeloop.api.core import Pod
from kubeloop.api.quantity import Quantity
from pkg.api.kubevirt import VirtualMachine, VirtualMachineInstanceMigration
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.start_check import has_pod, need_of, run_strategy, shortage_of, wants_to_run
from tests.decisions import named, observed, sentences
from tests.objects import BASE, ENTRY, by_name, by_uid, limits_text, plain_launcher, pod, quota, vm, vmi, vmim

CPU = "cpu insufficient resources due to resource quota"
MEMORY = "memory insufficient resources due to resource quota"
NEED_MEMORY = 4797464313
"""4Gi, the overhead at ratio 1.5, and 60M for the console log."""


STRATEGIES = [
    ({}, "Halted"),
    ({"runStrategy": "Always"}, "Always"),
    ({"runStrategy": "RerunOnFailure"}, "RerunOnFailure"),
    ({"runStrategy": "Halted"}, "Halted"),
    ({"running": True}, "Always"),
    ({"running": False}, "Halted"),
]


@pytest.mark.parametrize(("spec", "strategy"), STRATEGIES)
def test_the_run_strategy(spec: dict[str, Any], strategy: str) -> None:
    assert run_strategy(vm(spec=spec)) == strategy
    assert wants_to_run(vm(spec=spec)) is (strategy != "Halted")


def test_before_kubevirt_has_said_anything_nothing_is_checked() -> None:
    assert not wants_to_run(vm(status=""))


@pytest.mark.parametrize(
    ("pods", "there"),
    [
        ([], False),
        ([plain_launcher("vm1")], True),
        ([plain_launcher("vm1", phase="Succeeded")], True),
        ([plain_launcher("vm10")], False),
        ([pod(labels={"vm.kubevirt.io/name": "vm1"})], False),
    ],
)
def test_whether_the_vm_has_a_pod(pods: list[Pod], there: bool) -> None:
    assert has_pod(vm(), pods) is there


def test_the_need_is_what_quota_will_count_of_the_whole_template() -> None:
    need = need_of(vm(), observed(quota()))
    assert need["limits.cpu"] == Quantity.parse("2015m")
    assert need["limits.memory"] == Quantity.of(NEED_MEMORY)
    gpu = vm(domain={"devices": {"gpus": [{"name": "g", "deviceName": "nvidia.com/GPU"}]}})
    difference = need_of(gpu, observed(quota()))["limits.memory"] - need["limits.memory"]
    # 1Gi for VFIO at ratio 1.5, which KubeVirt adds in whole kilobytes.
    assert abs(difference.value() - 1536 * 2**20) < 1000


OTHER = [vmi("other", nodeName="node1")]


@dataclass(frozen=True)
class StartCase:
    limits: str = BASE
    used: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    machine: VirtualMachine = field(default_factory=vm)
    pods: tuple[Pod, ...] = ()
    migrations: tuple[VirtualMachineInstanceMigration, ...] = ()

    @property
    def view(self) -> Facts:
        result = observed(
            quota({}, self.annotations, used=self.used),
            [named(migration, self.pods, OTHER) for migration in self.migrations],
            OTHER,
            limits=self.limits,
        )
        return replace(result, pods=self.pods)


BESIDE = (
    plain_launcher("other", node="node1"),
    plain_launcher("other", node="node2", target_of="uid-migration-of-other"),
)
FITS = {
    "into an empty namespace": StartCase(),
    "exactly": StartCase(limits_text("2015m", str(NEED_MEMORY))),
    "beside others": StartCase(limits_text("4", "10Gi"), {"limits.cpu": "1985m", "limits.memory": str(5 * 2**30)}),
    "only memory is limited": StartCase(limits_text(memory="10Gi"), {"limits.cpu": "99"}),
    "only storage is limited": StartCase(limits_text(requestsStorage="1Gi")),
    "nothing that counts is limited": StartCase(limits_text(pods="0")),
    "no annotation": StartCase(""),
    "an annotation that is garbage": StartCase("garbage"),
    "a limit that is garbage": StartCase(limits_text("many")),
    "an entry's room is not used": StartCase(
        limits_text("4", "20Gi"), {"limits.cpu": "3985m"}, {by_name("other"): ENTRY}
    ),
    "entries of every form": StartCase(
        limits_text("4", "20Gi"), {"limits.cpu": "5985m"}, {by_name("a"): ENTRY, by_uid("b"): ENTRY}
    ),
    "a target takes more than its entry says": StartCase(
        limits_text("6", "20Gi"), {"limits.cpu": "5985m"}, {by_name("other"): '{"limits.cpu":"1"}'}, pods=BESIDE,
        migrations=(vmim("Running", "other"),),
    ),
    "a source that is left over, its entry gone": StartCase(
        limits_text("6", "20Gi"), {"limits.cpu": "5985m"}, pods=BESIDE, migrations=(vmim("Succeeded", "other"),)
    ),
    "an entry that is garbage, its pods are there": StartCase(
        limits_text("6", "20Gi"), {"limits.cpu": "5985m"}, {by_name("other"): "x"}, pods=BESIDE,
        migrations=(vmim("Running", "other"),),
    ),
}  # fmt: skip

SHORT = {
    "a thousandth of a CPU": (StartCase(limits_text("2014m", "10Gi")), CPU),
    "a byte": (StartCase(limits_text("3", str(NEED_MEMORY - 1))), MEMORY),
    "both: the cpu is named": (StartCase(limits_text("1", "1")), CPU),
    "beside others": (StartCase(limits_text("4", "10Gi"), {"limits.cpu": "1986m"}), CPU),
    "more is used than there is": (StartCase(limits_text("4", "10Gi"), {"limits.cpu": "5"}), CPU),
    "by its requests": (StartCase(limits_text("9", "20Gi", requestsMemory="2Gi")), MEMORY),
    "its limits alone would fit": (StartCase(limits_text("2", "10Gi")), CPU),
    "beside an entry that is garbage": (
        StartCase(limits_text("4", "20Gi"), {"limits.cpu": "3"}, {by_name(): "x"}),
        CPU,
    ),
    "without the migration too": (
        StartCase(limits_text("4", "20Gi"), {"limits.cpu": "3986m"}, {by_name("other"): ENTRY}),
        CPU,
    ),
}


@sentences(FITS)
def test_it_can_start(case: StartCase) -> None:
    assert shortage_of(case.machine, case.view) is None


@sentences(SHORT)
def test_it_cannot_start(case: tuple[StartCase, str]) -> None:
    start, reason = case
    shortage = shortage_of(start.machine, start.view)
    assert str(shortage) == reason
