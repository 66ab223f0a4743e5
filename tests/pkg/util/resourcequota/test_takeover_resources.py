"""Whatever spec.hard counts of a pod and the base names is scaled."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from kubeloop.api.core import LimitRange, Pod, ResourceQuota
from kubeloop.api.quantity import Quantity
from kubeloop.api.resource_list import add, minimum, parse_resource_list
from pkg.api.kubevirt import KubeVirtConfiguration, VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.quotacount.pod_resources import apply_limit_ranges
from pkg.util.quotacount.usage import pod_usage
from pkg.util.resourcequota.entries import entry_keys, vm_in_key
from tests.decisions import after, by_value, charged, entry, named, namespace, sentences
from tests.kinds import edited
from tests.objects import (
    AT_1_5,
    AT_4_5,
    HARD,
    MARKS,
    attachment,
    by_name,
    launcher,
    limit_range,
    limits_text,
    machine,
    plugged,
    quota,
    vmi,
    vmim,
)
from tests.pkg.util.vectors import recorded

SEED = vmi(nodeName="node-1")
RESIZED = vmi(nodeName="node-1", conditions=[{"type": "HotVCPUChange", "status": "True"}])
HUGE = machine(
    {
        "cpu": {"cores": 2},
        "memory": {"guest": "4Gi", "hugepages": {"pageSize": "2Mi"}},
        "resources": {"limits": {"memory": "4Gi"}, "requests": {"memory": "4Gi"}},
    }
)
DEVICE = machine(
    {"resources": {"limits": {"memory": "1Gi"}}, "devices": {"gpus": [{"name": "g", "deviceName": "nvidia.com/A100"}]}}
)
DEVICES = machine(
    {
        "resources": {"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}},
        "devices": {
            "gpus": [{"name": "g", "deviceName": "nvidia.com/GRID_T4-1Q"}],
            "hostDevices": [{"name": f"q{n}", "deviceName": "intel.com/qat"} for n in (1, 2)],
        },
    }
)
PLUGGED = plugged()


@dataclass(frozen=True)
class Counted:
    """The base under Rancher's names, spec.hard, and the entry that the VM's migration gets."""

    limit: Mapping[str, Any]
    hard: Mapping[str, str]
    entry: Mapping[str, str]
    instance: VirtualMachineInstance = SEED
    rendering: Rendering = AT_1_5


# 2730Mi and the overhead of 442497017, and the support container's 35M; 2 of the VM's vCPUs, allocated 1:10, and 5m.
REQUESTED_MEMORY = str(2730 * 1024**2 + 442497017 + 35000000)
COUNTED = {
    "the two limits": Counted(
        {"limitsCpu": "3000m", "limitsMemory": "5000Mi"}, HARD, {"limits.cpu": "2015m", "limits.memory": "4797464313"}
    ),
    "requests, which refused the seed's reproduction": Counted(
        {"requestsCpu": "1", "requestsMemory": "4Gi"},
        {"requests.cpu": "1", "requests.memory": "4Gi"},
        {"requests.cpu": "205m", "requests.memory": REQUESTED_MEMORY},
    ),
    "requests under their short names": Counted(
        {"requestsCpu": "1", "requestsMemory": "4Gi"},
        {"cpu": "1", "memory": "4Gi"},
        {"cpu": "205m", "memory": REQUESTED_MEMORY},
    ),
    "requests under both names at once": Counted(
        {"requestsCpu": "1"}, {"requests.cpu": "1", "cpu": "1"}, {"requests.cpu": "205m", "cpu": "205m"}
    ),
    "pods": Counted({"pods": "10"}, {"pods": "10"}, {"pods": "1"}),
    "pods as objects": Counted({"extended": {"count/pods": "10"}}, {"count/pods": "10"}, {"count/pods": "1"}),
    "ephemeral storage": Counted(
        {"extended": {"requests.ephemeral-storage": "1Gi", "limits.ephemeral-storage": "1Gi"}},
        {"requests.ephemeral-storage": "1Gi", "limits.ephemeral-storage": "1Gi"},
        {"requests.ephemeral-storage": "50M"},
    ),
    "ephemeral storage under its short name": Counted(
        {"extended": {"requests.ephemeral-storage": "1Gi"}}, {"ephemeral-storage": "1Gi"}, {"ephemeral-storage": "50M"}
    ),
    "requests under their long names": Counted(
        {"extended": {"cpu": "1"}}, {"requests.cpu": "1"}, {"requests.cpu": "205m"}
    ),
    "KubeVirt's devices": Counted(
        {"extended": {"requests.devices.kubevirt.io/kvm": "3", "requests.devices.kubevirt.io/tun": "3"}},
        {"requests.devices.kubevirt.io/kvm": "3", "requests.devices.kubevirt.io/tun": "3"},
        {"requests.devices.kubevirt.io/kvm": "1", "requests.devices.kubevirt.io/tun": "1"},
    ),
    "a GPU": Counted(
        {"extended": {"requests.nvidia.com/A100": "2"}},
        {"requests.nvidia.com/A100": "2"},
        {"requests.nvidia.com/A100": "1"},
        DEVICE,
    ),
    "a vGPU and host devices": Counted(
        {"extended": {"requests.nvidia.com/GRID_T4-1Q": "2", "requests.intel.com/qat": "4"}},
        {"requests.nvidia.com/GRID_T4-1Q": "2", "requests.intel.com/qat": "4"},
        {"requests.nvidia.com/GRID_T4-1Q": "1", "requests.intel.com/qat": "2"},
        DEVICES,
    ),
    "huge pages are not counted as memory": Counted(
        {"limitsMemory": "5000Mi", "extended": {"hugepages-2Mi": "8Gi"}},
        {"limits.memory": "5000Mi", "hugepages-2Mi": "8Gi"},
        {"limits.memory": str(446693585 + 60000000), "hugepages-2Mi": "4Gi"},
        HUGE,
    ),
    "huge pages under their long name": Counted(
        {"extended": {"requests.hugepages-2Mi": "8Gi"}},
        {"requests.hugepages-2Mi": "8Gi"},
        {"requests.hugepages-2Mi": "4Gi"},
        HUGE,
    ),
    "the attachment pod of a hotplugged volume": Counted(
        {"limitsCpu": "3", "pods": "10"},
        {"limits.cpu": "3", "pods": "10"},
        {"limits.cpu": "2115m", "pods": "2"},
        PLUGGED,
    ),
    "what the base does not name is left alone": Counted(
        {"limitsCpu": "3"}, {"limits.cpu": "3", "limits.memory": "5000Mi", "pods": "2"}, {"limits.cpu": "2015m"}
    ),
    "what pods do not use up is left alone": Counted(
        {"limitsCpu": "3", "services": "5", "requestsStorage": "1Ti"},
        {"limits.cpu": "3", "services": "5", "requests.storage": "1Ti"},
        {"limits.cpu": "2015m"},
    ),
}


def annotation(limit: Mapping[str, Any]) -> str:
    return json.dumps({"limit": limit})


@sentences(COUNTED)
def test_every_counted_resource(case: Counted) -> None:
    pods = [launcher(case.instance, rendering=case.rendering)]
    pods += [attachment(pods[0])] if case.instance is PLUGGED else []
    facts = namespace(
        quota(dict(case.hard), MARKS),
        [vmim()],
        pods,
        [case.instance],
        limits=annotation(case.limit),
        rendering=case.rendering,
    )
    result, _plan = after(facts)
    value = entry(result.annotations[by_name()])
    assert by_value(value) == by_value(dict(case.entry))
    raised = add(parse_resource_list(dict(case.hard)), parse_resource_list(value))
    assert parse_resource_list(result.hard) == raised


def test_a_recorded_migration_raises_by_its_target() -> None:
    instance = recorded("virtualmachineinstance-t1-vm1", VirtualMachineInstance)
    source, target = recorded("vm1-t8vc9", Pod), recorded("vm1-hq9zx", Pod)
    source, at_home = edited(source, status={"phase": "Running"}), edited(instance, status={"nodeName": "node-1"})
    rq = recorded("resourcequota-t1-default-abc", ResourceQuota)
    facts = namespace(rq, [vmim(created="2026-11-21T16:30:40Z")], [source], [at_home], rendering=Rendering(""))
    result, _plan = after(facts)
    assert by_value(entry(result.annotations[by_name()])) == by_value(
        {"limits.cpu": "2015m", "limits.memory": str(4610936833 + 60000000)}
    )
    room = {n: by_value(result.hard)[n] - by_value(HARD)[n] for n in HARD}
    assert room == {n: by_value(charged(rq, [target]).used)[n] for n in HARD}


# ---- LimitRanges, the KubeVirt CR, no source pod -------------------------------------------------------------


DEFAULTED = {
    "a default under which the source was created counts": ("1Gi", "1Gi", "2Gi"),
    "the source tells, whatever the default is now": ("1Gi", "2560Gi", "2Gi"),
    "where there is none any longer the target has none": ("1Gi", "", None),
    "what comes after the source the base pays for": ("", "2560Gi", None),
}
"""What the source pod was created with under a LimitRange ("" for none), the default when its VM migrates, and what the
entry has of it: the launcher and its support container."""


@sentences(DEFAULTED, "before_start, now, expected")
@pytest.mark.parametrize("instance", [SEED, RESIZED], ids=["as it was", "with a plugged cpu"])
def test_a_limit_ranges_default_counts_as_in_the_source(
    instance: VirtualMachineInstance, before_start: str, now: str, expected: str | None
) -> None:
    name = "limits.ephemeral-storage"
    base = annotation({"requestsMemory": "8Gi", "extended": {name: "10Gi"}})

    def ranges(default: str) -> list[LimitRange]:
        return [limit_range({"ephemeral-storage": default})] if default else []

    source = apply_limit_ranges(launcher(SEED), ranges(before_start))
    rq = quota({"requests.memory": "8Gi", name: "10Gi"}, MARKS)
    rendering = Rendering("1.5", limit_ranges=ranges(now))
    result, _plan = after(namespace(rq, [vmim()], [source], [instance], limits=base, rendering=rendering))
    assert entry(result.annotations[by_name()]).get(name) == expected


# ---- scopes --------------------------------------------------------------------------------------------------


def of_class(*names: str) -> dict[str, Any]:
    expression = {"scopeName": "PriorityClass", "operator": "In", "values": list(names)}
    return {"scopeSelector": {"matchExpressions": [expression]}}


HIGH = machine({"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}, "high", priorityClassName="high")
LOW = machine({"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}, "low")
SCOPES = {
    "no scopes count both": ({}, ["high", "low"]),
    "the priority class of one": (of_class("high"), ["high"]),
    "a priority class of neither": (of_class("other"), []),
    "not best effort are both": ({"scopes": ["NotBestEffort"]}, ["high", "low"]),
    "terminating is neither": ({"scopes": ["Terminating"]}, []),
}
"""A quota's scopes, and for which of two VMs that migrate it gets an entry."""


@sentences(SCOPES, "spec, scaled_for")
def test_a_scoped_quota_is_scaled_for_the_pods_that_it_counts(spec: Mapping[str, Any], scaled_for: list[str]) -> None:
    rq = edited(quota(annotations=MARKS), spec=spec)
    result, _plan = after(
        namespace(rq, [vmim(vm="high"), vmim(vm="low")], [launcher(HIGH), launcher(LOW)], [HIGH, LOW])
    )
    assert sorted(vm_in_key(key) for key in entry_keys(result.annotations)) == scaled_for
    assert by_value(result.hard)["limits.cpu"] == Quantity.parse(f"{3000 + 1015 * len(scaled_for)}m")


def test_quotas_with_other_scopes_share_a_cache_but_no_answer() -> None:
    facts = namespace(quota(), [vmim(vm="high"), vmim(vm="low")], [launcher(HIGH), launcher(LOW)], [HIGH, LOW])
    for spec, scaled_for in [*SCOPES.values(), *SCOPES.values()]:
        result, _plan = after(replace(facts, quota=edited(facts.quota, spec=spec)))
        assert sorted(vm_in_key(key) for key in entry_keys(result.annotations)) == scaled_for


def test_only_kubevirts_runtime_class_adds_overhead() -> None:
    """The API server sets a pod's overhead from its RuntimeClass; KubeVirt asks for the one that its CR names."""
    rendering = replace(AT_1_5, kubevirt=KubeVirtConfiguration(default_runtime_class="kata"))
    plain = launcher(SEED, rendering=rendering)

    def entry_with(runtime_class: str) -> Mapping[str, Quantity]:
        spec = {"runtimeClassName": runtime_class, "overhead": {"cpu": "250m", "memory": "160Mi"}}
        facts = namespace(quota(), [vmim()], [edited(plain, spec=spec)], [SEED], rendering=rendering)
        return by_value(entry(after(facts)[0].annotations.get(by_name())))

    without = by_value(entry(after(namespace(quota(), [vmim()], [plain], [SEED]))[0].annotations[by_name()]))
    kata = entry_with("kata")
    assert kata["limits.cpu"] - without["limits.cpu"] == Quantity.parse("250m")
    assert kata["limits.memory"] - without["limits.memory"] == Quantity.parse("160Mi")
    assert entry_with("mine")["limits.cpu"] == without["limits.cpu"]


@dataclass(frozen=True)
class Ended:
    """A launcher that an earlier migration left behind and that is over, and how many pods the next one's entry has."""

    source_named: str
    pods: str
    abort: bool = False


ENDED = {
    "KubeVirt names it as the source": Ended("virt-launcher-vm1-first", "2"),
    "no migration names it: the base pays for it": Ended("virt-launcher-vm1-other", "1"),
    "the next one is to be aborted: it gets nothing": Ended("virt-launcher-vm1-first", "0", abort=True),
}


def with_source(source: str, migration: VirtualMachineInstanceMigration) -> VirtualMachineInstanceMigration:
    return edited(migration, status={"migrationState": {"sourcePod": source}})


def finished_launcher(instance: VirtualMachineInstance, name: str) -> Pod:
    return edited(launcher(instance, phase="Succeeded"), metadata={"name": name, "uid": name})


@sentences(ENDED)
def test_a_finished_launcher_counts_as_an_object(case: Ended) -> None:
    earlier = with_source(case.source_named, vmim("Succeeded", name="first", created="2026-01-01T00:01:00Z"))
    finished = finished_launcher(SEED, "virt-launcher-vm1-first")
    now = launcher(SEED, created="2026-01-01T00:01:00Z")
    migration = with_source("virt-launcher-vm1-source", vmim(created="2026-01-01T00:02:00Z", abort=case.abort))
    limits = '{"limit":{"limitsCpu":"3000m","limitsMemory":"5000Mi","extended":{"count/pods":"1"}}}'
    rq = quota({**HARD, "count/pods": "1"}, used={"count/pods": "2"})
    facts = namespace(rq, [earlier, migration], [finished, now], [SEED], limits=limits)
    result, _ = after(facts)
    assert entry(result.annotations.get(by_name(), "{}")).get("count/pods", "0") == case.pods


@pytest.mark.parametrize("targets", [0, 1, 2])
def test_what_ended_launchers_lack_is_added_once(targets: int) -> None:
    """Two VMs each have a finished launcher; the base has room for one of them."""
    instances = [vmi(name, nodeName="node-1") for name in ("vm1", "vm2")]
    pods, migrations = [], []
    for number, instance in enumerate(instances):
        name, launcher_name = instance.name, f"virt-launcher-{instance.name}-first"
        finished = vmim("Succeeded", name, name=f"{name}-first", created="2026-01-01T00:01:00Z")
        now = vmim("Running" if number < targets else "Pending", name, created="2026-01-01T00:02:00Z")
        its = [launcher(instance, created="2026-01-01T00:01:00Z")]
        if number < targets:
            its.append(launcher(instance, node="node-2", migration=now, created="2026-01-01T00:03:00Z"))
        pods += [finished_launcher(instance, launcher_name), *its]
        migrations += [with_source(launcher_name, finished), named(now, its, instances)]
    limits = annotation({"limitsCpu": "9", "extended": {"count/pods": "3"}})
    rq = quota({"limits.cpu": "9", "count/pods": "3"}, used={"count/pods": str(len(pods))})
    result, _ = after(namespace(rq, migrations, pods, instances, limits=limits))
    assert result.hard["count/pods"] == "6"


# ---- a quota gets limits after its VMs have started ----------------------------------------------------------

SINCE_HARD = {"requests.memory": "30Gi", "limits.cpu": "20", "limits.memory": "40Gi"}
BASE = limits_text("20", "40Gi", requestsMemory="30Gi")
SHAPE = {"cpu": {"cores": 2}, "memory": {"guest": "2Gi"}}
HOME, MOVED = machine(SHAPE), machine(SHAPE, node="node-2")
MOVE = vmim("Running")
BEFORE, SINCE = launcher(HOME, limited=()), launcher(HOME)
TARGET = launcher(HOME, migration=MOVE, node="node-2", created="2026-01-01T00:01:00Z")
THEN = launcher(HOME, limited=(), rendering=AT_4_5)


@dataclass(frozen=True)
class SinceCase:
    """The entry is what these two pods count both."""

    pods: Sequence[Pod]
    counts: tuple[Pod, Pod]
    migration: VirtualMachineInstanceMigration = vmim()  # noqa: RUF009
    instance: VirtualMachineInstance = HOME
    rendering: Rendering = AT_1_5


SINCE_CASES = {
    "before the first migration": SinceCase([BEFORE], (BEFORE, TARGET)),
    "while its target is there": SinceCase([BEFORE, TARGET], (BEFORE, TARGET), MOVE),
    "while its source is left": SinceCase([BEFORE, TARGET], (BEFORE, TARGET), vmim("Succeeded"), MOVED),
    "before the second migration": SinceCase([SINCE], (SINCE, TARGET)),
    "the overhead has grown too, but no missing limit": SinceCase(
        [BEFORE], (THEN, launcher(HOME, rendering=AT_4_5)), rendering=AT_4_5
    ),
}


@sentences(SINCE_CASES)
def test_an_entry_has_no_limit_that_the_source_lacks(case: SinceCase) -> None:
    facts = namespace(
        quota(SINCE_HARD, MARKS), [case.migration], case.pods, [case.instance], limits=BASE, rendering=case.rendering
    )
    result, _plan = after(facts)
    both = minimum(*map(pod_usage, case.counts))
    assert by_value(entry(result.annotations[by_name()])) == {name: both[name] for name in SINCE_HARD}
