"""Targets that are not as large as their source, beside KubeVirt's own renderings of resized VMs (test_rendered)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from kubeloop.api.core import ResourceQuotaSpec
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.util.kubevirt.observed_overhead import is_resized
from pkg.util.kubevirt.profiles import PROFILES
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.kubevirt.target import Side, launcher_usage
from pkg.util.quantity import Quantity
from pkg.util.quotacount.usage import pod_usage
from tests.decisions import sentences
from tests.objects import BOTH, launcher, machine

MAIN = Rendering("1.5", PROFILES["main"], quota_limits=BOTH)
UNSCOPED = ResourceQuotaSpec()
CPU_CHANGE, MEMORY_CHANGE = "HotVCPUChange", "HotMemoryChange"


def shaped(resources: Mapping[str, Any], guest: str = "2Gi", condition: str = "") -> VirtualMachineInstance:
    """A VM with two cores; `condition` is True on it."""
    instance = machine(
        {
            "cpu": {"cores": 2, "sockets": 1, "threads": 1},
            "memory": {"guest": guest},
            "resources": resources,
            "devices": {"interfaces": [{"name": "default"}]},
        }
    )
    conditions = [{"type": condition, "status": "True"}] if condition else []
    status = msgspec.convert({"conditions": conditions}, type(instance.status))
    return msgspec.structs.replace(instance, status=status)


def resources(cpu: tuple[str, str], memory: tuple[str, str]) -> dict[str, Any]:
    """(limit, request) of each."""
    return {"limits": {"cpu": cpu[0], "memory": memory[0]}, "requests": {"cpu": cpu[1], "memory": memory[1]}}


SEED = resources(("2", "125m"), ("4Gi", "2730Mi"))
PINNED = resources(("2", "2"), ("4Gi", "4Gi"))


@sentences({"of a VM with limits": SEED, "of a pinned VM": PINNED, "of a VM without limits": {}})
@pytest.mark.parametrize("condition", [CPU_CHANGE, MEMORY_CHANGE])
def test_nothing_changes_by_the_condition_alone(case: Mapping[str, Any], condition: str) -> None:
    """The condition stands for a moment before the spec and after the migration."""
    source = launcher(shaped(case), rendering=MAIN, profile=MAIN.profile)
    found = launcher_usage(shaped(case, condition=condition), Side(source), MAIN, UNSCOPED)
    assert found == pod_usage(source)


@pytest.mark.parametrize("annotated", [True, False])
def test_plugged_memory_and_a_raised_ratio_add_up(annotated: bool) -> None:
    more = shaped(resources(("2", "125m"), ("6Gi", "4778Mi")), guest="4Gi", condition=MEMORY_CHANGE)
    raised = replace(MAIN, ratio="4.5")
    source = launcher(shaped(SEED), rendering=MAIN, profile=MAIN.profile, annotated=annotated)
    target = launcher(more, rendering=raised, profile=raised.profile)
    assert launcher_usage(more, Side(source), raised, UNSCOPED) == pod_usage(target)


@pytest.mark.parametrize(
    ("condition", "status", "resized"),
    [(CPU_CHANGE, "True", True), (MEMORY_CHANGE, "True", True), (CPU_CHANGE, "False", False), ("Ready", "True", False)],
)
def test_what_says_that_a_vm_was_resized(condition: str, status: str, resized: bool) -> None:
    body = {"status": {"conditions": [{"type": condition, "status": status}]}}
    assert is_resized(msgspec.convert(body, VirtualMachineInstance)) is resized


@pytest.mark.parametrize(("then", "now", "counts"), [("1.5", "1.5", "2620950837"), ("1.5", "4.5", "3842855937")])
def test_a_namespaces_label_sizes_the_limit_that_a_quota_asks_for(then: str, now: str, counts: str) -> None:
    """Its ratio is of the whole request, the overhead in it included."""
    vm = shaped({"requests": {"memory": "1500M"}})
    at_first = replace(MAIN, ratio=then, memory_limits_ratio=1.3)
    source = launcher_usage(vm, None, at_first, UNSCOPED)
    assert source["limits.memory"] == Quantity.parse("2620950837")
    today = replace(at_first, ratio=now)
    side = Side(launcher(vm, rendering=at_first, profile=MAIN.profile))
    assert launcher_usage(vm, side, today, UNSCOPED)["limits.memory"] == Quantity.parse(counts)
