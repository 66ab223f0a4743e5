"""The usage of each VM of a namespace beyond the base: leftover, target, and still to come."""

from dataclasses import replace

import msgspec
import pytest

from kubeloop.api.core import Pod
from kubeloop.api.meta import from_rfc3339
from kubeloop.api.quantity import Quantity
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.util.kubevirt.migration import Stage
from pkg.util.problems import Problem
from pkg.util.quotacount.usage import pod_usage
from pkg.util.resourcequota.base import base_of
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.policy import Policy
from pkg.util.resourcequota.vm import VmUsage, vms_of
from tests.decisions import EXACT, HARVESTER, namespace, sentences
from tests.kinds import edited
from tests.objects import AT_1_5, AT_4_5, EARLIER, attachment, ended, launcher, machine, plugged, quota, vmi, vmim

HERE = vmi(nodeName="node-1")
PLUGGED = plugged()
SOURCE = launcher()


def usages_of(facts: Facts, policy: Policy) -> tuple[dict[str, VmUsage], list[Problem]]:
    result, problems = vms_of(facts, policy, base_of(facts.quota, facts.limits, policy))
    return {vm.name: vm for vm in result}, problems


@pytest.mark.parametrize(("policy", "said"), [(HARVESTER, ["MigrationNotScaled"]), (EXACT, [])])
def test_a_vm_without_limits_is_harvesters_problem_only(policy: Policy, said: list[str]) -> None:
    bare = machine({"resources": {"requests": {"memory": "1Gi"}}})
    _result, problems = usages_of(namespace(quota(), [vmim()], [], [bare]), policy)
    assert [problem.reason for problem in problems] == said


MOVED = vmi(nodeName="node-2")
TARGETS = {
    phase: launcher(HERE, node="node-2", migration=vmim(phase), created="2026-01-01T00:01:00Z")
    for phase in ("Pending", "Scheduled", "Running", "Succeeded")
}
SIDE = pod_usage(SOURCE)
AMOUNTS: dict[str, tuple[Facts, Stage, str]] = {
    "not migrating: nothing": (namespace(quota(), [vmim("Succeeded")], [SOURCE], [HERE]), Stage.FINISHED, ""),
    "announced without a target: nothing is wanted": (
        namespace(quota(), [vmim(abort=True)], [SOURCE], [HERE]),
        Stage.WITHOUT_TARGET,
        "pending_usage target_limit need",
    ),
    "announced with a target: what that was granted": (
        namespace(quota(), [vmim("Scheduled", abort=True)], [SOURCE, TARGETS["Scheduled"]], [HERE]),
        Stage.WITHOUT_TARGET,
        "target target_limit need used_headroom wanted_entry",
    ),
    "a target is wanted": (
        namespace(quota(), [vmim()], [SOURCE], [HERE]),
        Stage.ACTIVE,
        "pending_usage target_limit need wanted_entry",
    ),
    "it was refused": (
        namespace(quota(), [vmim(refused=True)], [SOURCE], [HERE]),
        Stage.REFUSED,
        "pending_usage target_limit need wanted_entry",
    ),
    "both run": (
        namespace(quota(), [vmim("Running")], [SOURCE, TARGETS["Running"]], [HERE]),
        Stage.ACTIVE,
        "target target_limit need used_headroom wanted_entry",
    ),
    "it has arrived: the source is left over": (
        namespace(quota(), [vmim("Running")], [SOURCE, TARGETS["Running"]], [MOVED]),
        Stage.ARRIVED,
        "used_headroom wanted_entry",
    ),
    "its migration has ended: the source is left over": (
        namespace(quota(), [vmim("Succeeded")], [SOURCE, TARGETS["Succeeded"]], [MOVED]),
        Stage.FINISHED,
        "used_headroom wanted_entry",
    ),
}


@sentences(AMOUNTS, "facts, stage, amounts")
def test_each_amount_is_one_side_or_nothing(facts: Facts, stage: Stage, amounts: str) -> None:
    vm = usages_of(facts, EXACT)[0].get("vm1")
    assert vm is not None
    assert vm.stage is stage
    names = ("target", "pending_usage", "target_limit", "need", "used_headroom", "wanted_entry")
    assert {name: getattr(vm, name) or {} for name in names} == {
        name: SIDE if name in amounts.split() else {} for name in names
    }


STAYS: dict[str, tuple[list[Pod], list[VirtualMachineInstance]]] = {
    "its VMI is not known": ([SOURCE], []),
    "its pod is not known": ([], [HERE]),
    "its pod is over": ([ended(SOURCE)], [HERE]),
    "it is over": ([SOURCE], [vmi(nodeName="node-1", phase="Succeeded")]),
}


@sentences(STAYS)
def test_a_vm_that_cannot_migrate_is_not_asked_for_more(case: tuple[list[Pod], list[VirtualMachineInstance]]) -> None:
    result, problems = usages_of(namespace(quota(), [vmim()], *case), EXACT)
    assert (result["vm1"].stage, problems) == (Stage.WITHOUT_TARGET, [])


def test_nothing_is_to_come_once_the_target_is_whole() -> None:
    move, source = vmim("Scheduled"), launcher(PLUGGED)
    target = launcher(PLUGGED, node="node-2", migration=move, created="2026-01-01T00:01:00Z")
    pods = [source, attachment(source), target, attachment(target)]
    assert not usages_of(namespace(quota(), [move], pods, [PLUGGED]), EXACT)[0]["vm1"].pending_usage


GARBAGE = ["lots", "1e" + "9" * 5000, "", "٣", "x" * 200_000]


@pytest.mark.parametrize("text", GARBAGE, ids=lambda text: text[:12])
@pytest.mark.parametrize("policy", [EXACT, HARVESTER], ids=["exact", "harvester"])
def test_whatever_a_vm_says_of_itself_is_that_vms_problem(policy: Policy, text: str) -> None:
    broken, honest = vmi(limits={"memory": text}, nodeName="node-1"), vmi("vm2", nodeName="node-1")
    facts = namespace(quota(), [vmim(), vmim(vm="vm2")], [launcher(HERE), launcher(honest)], [broken, honest])
    result, problems = usages_of(facts, policy)
    assert result["vm2"].wanted_entry["limits.cpu"] > Quantity.of(1)
    (problem,) = problems
    assert problem.vm == "vm1"
    assert "VM vm1" in str(problem)
    assert len(str(problem)) < 300


@pytest.mark.parametrize("text", [*GARBAGE, "473954537", "0", "1", "1" + "0" * 14, "9" * 5000, "²", "1.5", "0x1"])
@pytest.mark.parametrize("ratio", ["1.5", "4.5"])
def test_a_forged_overhead_annotation_adds_nothing(text: str, ratio: str) -> None:
    forged = edited(SOURCE, metadata={"annotations": {"kubevirt.io/memory-overhead-bytes": text}})
    rendering = AT_1_5 if ratio == "1.5" else AT_4_5
    honest, _ = usages_of(namespace(quota(), [vmim()], [SOURCE], [HERE], rendering=rendering), EXACT)
    result, problems = usages_of(namespace(quota(), [vmim()], [forged], [HERE], rendering=rendering), EXACT)
    assert not problems
    least, most = (usages["vm1"].target_limit["limits.memory"] for usages in (result, honest))
    assert least <= most


def test_a_forged_attachment_counts_no_more_than_kubevirts() -> None:
    real = attachment(SOURCE)
    resources = {"limits": {"cpu": "10", "memory": "50Gi"}, "requests": {"cpu": "10", "memory": "50Gi"}}
    forged = edited(real, spec={"containers": [{"name": "x", "resources": resources}]})
    honest, _ = usages_of(namespace(quota(), [vmim()], [SOURCE, real], [PLUGGED]), EXACT)
    result, problems = usages_of(namespace(quota(), [vmim()], [SOURCE, forged], [PLUGGED]), EXACT)
    assert result["vm1"].target_limit == honest["vm1"].target_limit
    assert [problem.reason for problem in problems] == ["PodExceedsVirtualMachine"]


def test_a_pod_that_cannot_be_read_is_its_vms_problem() -> None:
    move, target = vmim("Running"), launcher(HERE, node="node-2", migration=vmim("Running"))
    unread = edited(target, spec={"containers": [{"name": "compute", "resources": {"limits": {"cpu": "lots"}}}]})
    facts = replace(namespace(quota(), [move], [SOURCE, target], [HERE]), pods=[SOURCE, unread])
    result, problems = usages_of(facts, EXACT)
    assert not result
    assert [(problem.reason, problem.vm) for problem in problems] == [("MigrationNotScaled", "vm1")]


def test_a_terminating_pod_counts_until_its_grace_is_over() -> None:
    source = edited(SOURCE, metadata={"deletionTimestamp": EARLIER, "deletionGracePeriodSeconds": 60})
    facts = namespace(quota(), [vmim()], [source], [HERE])
    allowed = [
        bool(usages_of(replace(facts, now=from_rfc3339(EARLIER) + later), EXACT)[0]["vm1"].target_limit)
        for later in (59, 61)
    ]
    assert allowed == [True, False]


INJECTED = {
    "a mesh's sidecar": ({"cpu": "2", "memory": "1Gi"}, {"cpu": "100m", "memory": "128Mi"}),
    "a container of another's webhook, without limits": ({}, {"cpu": "3", "memory": "9Gi", "example.com/device": "1"}),
}


def with_container(pod: Pod, resources: tuple[dict[str, str], dict[str, str]]) -> Pod:
    limits, requests = resources
    proxy = {"name": "proxy", "resources": {"limits": limits, "requests": requests}}
    return edited(pod, spec={"containers": [*msgspec.to_builtins(pod.spec.containers), proxy]})


@pytest.mark.parametrize("resources", INJECTED.values(), ids=INJECTED)
def test_under_the_policy_the_source_as_it_is_is_the_bound(resources: tuple[dict[str, str], dict[str, str]]) -> None:
    source = with_container(SOURCE, resources)
    result = {}
    for in_force in (True, False):
        rendering = replace(AT_1_5, policy_in_force=in_force)
        vms, problems = usages_of(namespace(quota(), [vmim()], [source], [HERE], rendering=rendering), EXACT)
        result[in_force] = vms["vm1"].target_limit
        assert [problem.reason for problem in problems] == ([] if in_force else ["PodExceedsVirtualMachine"])
    assert result[True] == pod_usage(source)
    assert result[False]["requests.cpu"] < result[True]["requests.cpu"]


def test_a_trusted_source_still_gets_a_raised_ratios_share() -> None:
    sidecar = INJECTED["a mesh's sidecar"]
    rendering = replace(AT_4_5, policy_in_force=True)
    facts = namespace(quota(), [vmim()], [with_container(SOURCE, sidecar)], [HERE], rendering=rendering)
    rendered = with_container(launcher(HERE, rendering=AT_4_5), sidecar)
    assert usages_of(facts, EXACT)[0]["vm1"].target_limit == pod_usage(rendered)


def test_a_target_has_no_more_than_its_source() -> None:
    move = vmim("Scheduled")
    target = launcher(HERE, node="node-2", migration=move, created="2026-01-01T00:01:00Z")
    injected = with_container(target, INJECTED["a mesh's sidecar"])
    rendering = replace(AT_1_5, policy_in_force=True)
    facts = namespace(quota(), [move], [SOURCE, injected], [HERE], rendering=rendering)
    assert usages_of(facts, EXACT)[0]["vm1"].target_limit == pod_usage(SOURCE)


def test_since_is_the_oldest_migration_under_way() -> None:
    migrations = [
        vmim("Succeeded", name="a", created="2026-01-01T00:00:00Z"),
        vmim(name="b", created="2026-01-03T00:00:00Z"),
        vmim("Running", name="c", created="2026-01-02T00:00:00Z"),
    ]
    claim = usages_of(namespace(quota(), migrations, [SOURCE], [HERE]), EXACT)[0]["vm1"]
    assert claim.since == "2026-01-02T00:00:00Z"


def test_an_older_target_counts_as_far_as_its_source() -> None:
    """Its attachment pod, still to come, has room."""
    move = vmim("Scheduling")
    target = launcher(PLUGGED, node="node-2", migration=move, created="2026-01-01T00:01:00Z")
    pods = [launcher(PLUGGED), attachment(launcher(PLUGGED)), target]
    facts = namespace(quota(), [move], pods, [PLUGGED], rendering=replace(AT_1_5, ratio=""))
    room = usages_of(facts, EXACT)[0]["vm1"].target_limit
    assert room["limits.memory"] == Quantity.parse(4797464313) + Quantity.parse("80M")


BARE = machine({"resources": {"requests": {"memory": "1Gi"}}})


def test_another_quotas_limits_make_no_pod_too_large() -> None:
    facts = namespace(quota({"requests.memory": "9Gi"}), [vmim()], [launcher(BARE)], [BARE])
    result, problems = usages_of(facts, EXACT)
    assert not problems
    assert result["vm1"].target_limit["limits.cpu"] == Quantity.parse("1015m")


def test_a_limit_that_spec_hard_has_just_lost_still_counts() -> None:
    """The base has it, and the same patch puts it back."""
    without = replace(AT_1_5, quota_limits=frozenset())
    facts = namespace(quota({"limits.memory": "9Gi"}), [vmim()], [launcher(BARE)], [BARE], rendering=without)
    assert usages_of(facts, EXACT)[0]["vm1"].target_limit["limits.cpu"] == Quantity.parse("1015m")
