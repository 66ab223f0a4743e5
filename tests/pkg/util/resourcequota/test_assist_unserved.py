"""Mode assist tells which migrations Harvester's rules do not serve, and what does."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import NamedTuple

import pytest

from pkg.api.kubevirt import VirtualMachineInstance
from pkg.util.resourcequota.errors import NotServed
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from tests.decisions import charged, namespace, sentences
from tests.objects import by_uid, launcher, quota, vmi, vmim

ASSIST = Policy(Mode.ASSIST, EstimateKind.HARVESTER, settle=0.0)
HERE, SOURCE = vmi(nodeName="node-1", phase="Running"), launcher(node="node-1")
LIMITS = '{"limit":{"limitsCpu":"2015m","limitsMemory":"5000Mi"}}'
FULL = {"limits.cpu": "2015m", "limits.memory": "5000Mi"}


class Case(NamedTuple):
    hard: Mapping[str, str]
    lacks: str
    limits: str = LIMITS
    vm: VirtualMachineInstance = HERE
    labels: Mapping[str, str] | None = None


CASES = {
    "the console log's CPU": Case(FULL, "limits.cpu 15m"),
    "another resource": Case(
        {**FULL, "limits.cpu": "10", "pods": "1"},
        "pods 1",
        '{"limit":{"limitsCpu":"10","limitsMemory":"50Gi"}}',
    ),
    "a quota without limits": Case({"pods": "1"}, "pods 1", '{"limit":{"pods":"1"}}'),
    "memory of a VM that limits CPU alone": Case(
        {"limits.cpu": "10", "limits.memory": "7Gi"},
        "limits.memory",
        '{"limit":{"limitsCpu":"10","limitsMemory":"7Gi"}}',
        vmi(limits={"cpu": "2"}, nodeName="node-1"),
    ),
    "memory of a VM without limits": Case(
        {"limits.cpu": "10", "limits.memory": "7Gi"},
        "limits.memory",
        '{"limit":{"limitsCpu":"10","limitsMemory":"7Gi"}}',
        vmi(limits={}, nodeName="node-1"),
    ),
    "what a label has managed": Case(
        {"limits.cpu": "10", "pods": "1"}, "pods 1", "", labels={"headroom.harvesterhci.io/managed": "true"}
    ),
}


def said(case: Case, *, refused: bool = True, policy: Policy = ASSIST) -> list[NotServed]:
    source = launcher(case.vm, node="node-1")
    found = charged(quota(case.hard, labels=case.labels), [source])
    made = plan(namespace(found, [vmim(refused=refused)], [source], [case.vm], limits=case.limits), policy)
    return [problem for problem in made.problems if isinstance(problem, NotServed)]


@sentences(CASES)
def test_a_refused_migration_that_assist_cannot_serve_is_told_with_the_resource(case: Case) -> None:
    (problem,) = said(case)
    assert problem.vm == "vm1"
    assert case.lacks in str(problem)
    assert "--mode takeover" in str(problem)


@pytest.mark.parametrize("estimate", EstimateKind)
def test_nothing_is_said_before_a_refusal_or_where_harvesters_rules_suffice(estimate: EstimateKind) -> None:
    policy = dataclasses.replace(ASSIST, estimate=estimate, settle=1.0)
    assert not said(CASES["the console log's CPU"], refused=False, policy=policy)
    for memory in (
        "5000Mi",
        "4600M",
    ):  # of the second, a compensation will make up for what is used beyond it
        limits = json.dumps({"limit": {"limitsCpu": "3", "limitsMemory": memory}})
        assert not said(Case({"limits.cpu": "3", "limits.memory": memory}, "", limits), policy=policy)


def test_takeover_is_no_promise_where_it_does_not_suffice() -> None:
    """The namespace's annotation does not grant the resource."""
    (problem,) = said(Case({"pods": "1", "limits.cpu": "10"}, "", '{"limit":{"limitsCpu":"10"}}'))
    assert "--mode takeover does not add enough either" in str(problem)


def test_a_migration_that_was_not_refused_does_not_hide_another_that_was() -> None:
    first, second = vmi("vm0", nodeName="node-1", phase="Running"), HERE
    pods = [launcher(first, node="node-1"), SOURCE]
    waiting = [vmim(refused=False, vm="vm0"), vmim(refused=True)]
    found = charged(quota(CASES["a quota without limits"].hard), pods)
    made = plan(namespace(found, waiting, pods, [first, second], limits='{"limit":{"pods":"1"}}'), ASSIST)
    assert [problem.vm for problem in made.problems if isinstance(problem, NotServed)] == ["vm1"]


def test_a_garbage_entry_leaves_a_standing_compensation_as_it_is() -> None:
    """As Harvester does: it stops at the entry that it cannot read."""
    standing = {
        "harvesterhci.io/migrating-other": "{nope",
        by_uid(): '{"limits.cpu":"2","limits.memory":"4737464313"}',
        "harvesterhci.io/migratingCompensation": '{"limits.memory":"100Mi"}',
    }
    found = charged(quota({"limits.cpu": "30", "limits.memory": "50Gi"}, standing), [SOURCE])
    made = plan(
        namespace(found, [vmim(refused=True), vmim(vm="other")], [SOURCE], [HERE, vmi("other")]), ASSIST
    )
    assert not made
