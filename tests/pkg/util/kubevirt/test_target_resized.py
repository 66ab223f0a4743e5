"""Targets that are not as large as their source: CPUs and memory plugged in since, limits by a namespace's label.

Every number here was charged for the target pod that KubeVirt's own virt-controller (its main branch) made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from kubeloop.api.core import ResourceQuotaSpec
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.util.kubevirt.profiles import PROFILES
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.kubevirt.target import Side, is_resized, launcher_usage
from pkg.util.quantity import Quantity
from pkg.util.quotacount.usage import pod_usage
from tests.decisions import sentences
from tests.objects import BOTH, launcher, machine

MAIN = Rendering("1.5", PROFILES["main"], quota_limits=BOTH)
UNSCOPED = ResourceQuotaSpec()
CPU_CHANGE, MEMORY_CHANGE = "HotVCPUChange", "HotMemoryChange"


def shaped(
    resources: Mapping[str, Any], sockets: int = 1, guest: str = "2Gi", condition: str = "", **cpu: Any
) -> VirtualMachineInstance:
    """A VM with two cores a socket; `condition` is True on it."""
    instance = machine(
        {
            "cpu": {"cores": 2, "sockets": sockets, "threads": 1, **cpu},
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
    return {
        "limits": {"cpu": cpu[0], "memory": memory[0]},
        "requests": {"cpu": cpu[1], "memory": memory[1]},
    }


SEED = resources(("2", "125m"), ("4Gi", "2730Mi"))
PINNED = resources(("2", "2"), ("4Gi", "4Gi"))


@dataclass(frozen=True)
class Plugged:
    """A VM before, and with what was plugged in; what the target counts then."""

    before: VirtualMachineInstance
    now: VirtualMachineInstance
    counts: Mapping[str, str]


PLUGGED = {
    "a socket more": Plugged(
        shaped(SEED),
        shaped(resources(("4", "250m"), ("4Gi", "2730Mi")), sockets=2, condition=CPU_CHANGE),
        {
            "limits.cpu": "4015m",
            "limits.memory": "4854087049",
            "requests.cpu": "255m",
            "requests.memory": "3396732233",
        },
    ),
    "a socket more with dedicated CPUs": Plugged(
        shaped(PINNED, guest="4Gi", dedicatedCpuPlacement=True),
        shaped(
            resources(("4", "4"), ("4Gi", "4Gi")),
            sockets=2,
            guest="4Gi",
            condition=CPU_CHANGE,
            dedicatedCpuPlacement=True,
        ),
        {
            "limits.cpu": "4015m",
            "limits.memory": "5015570217",
            "requests.cpu": "4015m",
            "requests.memory": "5015570217",
        },
    ),
    "two gigabytes more": Plugged(
        shaped(SEED),
        shaped(resources(("2", "125m"), ("6Gi", "4778Mi")), guest="4Gi", condition=MEMORY_CHANGE),
        {
            "limits.cpu": "2015m",
            "limits.memory": "6982696785",
            "requests.cpu": "130m",
            "requests.memory": "5525341969",
        },
    ),
    "both, of a VM without limits": Plugged(
        shaped({}),
        shaped({}, sockets=2, guest="4Gi", condition=MEMORY_CHANGE),
        {
            "limits.cpu": "4015m",
            "limits.memory": "9631402016",
            "requests.cpu": "405m",
            "requests.memory": "4820701008",
        },
    ),
}


@sentences(PLUGGED)
@pytest.mark.parametrize("annotated", [True, False])
def test_what_was_plugged_in_is_in_the_target(case: Plugged, annotated: bool) -> None:
    source = launcher(case.before, rendering=MAIN, profile=MAIN.profile, annotated=annotated)
    found = launcher_usage(case.now, Side(source), MAIN, UNSCOPED)
    assert {name: found[name] for name in case.counts} == {
        name: Quantity.parse(text) for name, text in case.counts.items()
    }
    assert found["requests.devices.kubevirt.io/kvm"] == Quantity.parse(1)


@sentences(PLUGGED)
def test_nothing_else_changes_by_the_condition(case: Plugged) -> None:
    """The condition stands for a moment before the spec and after the migration."""
    before = msgspec.structs.replace(case.before, status=case.now.status)
    source = launcher(case.before, rendering=MAIN, profile=MAIN.profile)
    assert launcher_usage(before, Side(source), MAIN, UNSCOPED) == pod_usage(source)


def test_plugged_memory_and_a_raised_ratio_add_up() -> None:
    case = PLUGGED["two gigabytes more"]
    raised = replace(MAIN, ratio="4.5")
    source = launcher(case.before, rendering=MAIN, profile=MAIN.profile)
    target = launcher(case.now, rendering=raised, profile=raised.profile)
    assert launcher_usage(case.now, Side(source), raised, UNSCOPED) == pod_usage(target)


@pytest.mark.parametrize(
    ("condition", "status", "resized"),
    [
        (CPU_CHANGE, "True", True),
        (MEMORY_CHANGE, "True", True),
        (CPU_CHANGE, "False", False),
        ("Ready", "True", False),
    ],
)
def test_what_says_that_a_vm_was_resized(condition: str, status: str, resized: bool) -> None:
    body = {"status": {"conditions": [{"type": condition, "status": status}]}}
    assert is_resized(msgspec.convert(body, VirtualMachineInstance)) is resized


@pytest.mark.parametrize(
    ("then", "now", "counts"), [("1.5", "1.5", "2620950837"), ("1.5", "4.5", "3842855937")]
)
def test_a_namespaces_label_sizes_the_limit_that_a_quota_asks_for(then: str, now: str, counts: str) -> None:
    """Its ratio is of the whole request, the overhead in it included."""
    vm = shaped({"requests": {"memory": "1500M"}})
    at_first = replace(MAIN, ratio=then, memory_limits_ratio=1.3)
    source = launcher_usage(vm, None, at_first, UNSCOPED)
    assert source["limits.memory"] == Quantity.parse("2620950837")
    today = replace(at_first, ratio=now)
    side = Side(launcher(vm, rendering=at_first, profile=MAIN.profile))
    assert launcher_usage(vm, side, today, UNSCOPED)["limits.memory"] == Quantity.parse(counts)
