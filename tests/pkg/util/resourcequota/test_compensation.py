"""A migration that is refused although its entry is applied gets exactly what is missing, and gives it back."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.api.core import Pod, ResourceQuota
from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.resource_list import ResourceList
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.resourcequota import compensation
from pkg.util.resourcequota.compensation import compensation_for
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.policy import Mode, Policy
from tests.decisions import EXACT, HARVESTER, after, by_value, charged, drawn, entry, namespace, sentences
from tests.kinds import edited
from tests.objects import AT_1_5, AT_4_5, COMPENSATION, ENTRY, HARD, MARKS, by_name, launcher, quota, running_vmi, vmim

POD_4_5 = 5622461313 + 60000000
MEMORY = "limits.memory"


def launcher_of(
    name: str, node: str = "node-1", move: VirtualMachineInstanceMigration | None = None, rendering: Rendering = AT_1_5
) -> Pod:
    return launcher(running_vmi(name), node=node, migration=move, rendering=rendering)


# ---- when, and how much --------------------------------------------------------------------------------------

A = vmim(vm="a")
REFUSED_A, REFUSED_B = vmim(vm="a", refused=True), vmim(vm="b", refused=True)
TIGHT = '{"limit":{"limitsCpu":"100","limitsMemory":"5000Mi"}}'
"""Room for one launcher pod at ratio 1.5. All that run here live at 4.5."""
BASE_MEMORY = 5000 * 1024**2
SHORT = POD_4_5 - BASE_MEMORY
GROWTH = 5622461313 - 4737464313
"""By how much the overhead of one VM has grown."""


outgrown = partial(launcher_of, rendering=AT_4_5)


@dataclass(frozen=True)
class Short:
    """A namespace whose base is 5000Mi, and the compensation of its memory (None: none)."""

    migrations: Sequence[VirtualMachineInstanceMigration]
    pods: Sequence[Pod]
    compensation: int | None
    stands: str | None = None
    ratio: Rendering = AT_4_5


SHORTAGES = {
    "nothing is refused": Short([A], [outgrown("a")], None),
    "refused: what the VM has outgrown its base by": Short([REFUSED_A], [outgrown("a")], SHORT),
    "two are refused: no more than both have grown": Short(
        [REFUSED_A, REFUSED_B], [outgrown("a"), outgrown("b")], 2 * GROWTH
    ),
    "another VM that has grown uses up the base": Short([REFUSED_A], [outgrown("a"), outgrown("b")], 2 * GROWTH),
    "one that is not refused may come first": Short(
        [REFUSED_A, vmim(vm="b")], [outgrown("a"), outgrown("b")], 2 * GROWTH
    ),
    "at the ratio of the installation no VM has grown": Short(
        [REFUSED_A], [launcher_of("a"), launcher_of("b")], None, ratio=AT_1_5
    ),
    "the target exists, the condition is old": Short(
        [REFUSED_A], [outgrown("a"), outgrown("a", "node-2", move=REFUSED_A)], None
    ),
    "refused and being aborted": Short([vmim(vm="a", refused=True, abort=True)], [outgrown("a")], None),
    "refused once, and going on": Short([vmim("Scheduling", vm="a", refused=True)], [outgrown("a")], None),
    "refused and over": Short([vmim("Failed", vm="a", refused=True)], [outgrown("a")], None),
    "what stands is enough": Short([REFUSED_A], [outgrown("a")], 2**29, stands='{"limits.memory":"512Mi"}'),
    "what stands is more than can be missing": Short(
        [REFUSED_A], [outgrown("a")], GROWTH, stands='{"limits.memory":"6Gi"}'
    ),
    "what stands is too little": Short([REFUSED_A], [outgrown("a")], SHORT, stands='{"limits.memory":"1"}'),
    "what stands is of another resource": Short([REFUSED_A], [outgrown("a")], SHORT, stands='{"limits.cpu":"1"}'),
    "what stands is garbage": Short([REFUSED_A], [outgrown("a")], SHORT, stands="{nope"),
    "given back when nothing is refused any longer": Short(
        [A], [outgrown("a")], None, stands='{"limits.memory":"6Gi"}'
    ),
    "given back when no VM migrates": Short([], [outgrown("a")], None, stands='{"limits.memory":"6Gi"}'),
}


def facts_of(case: Short) -> Facts:
    annotations = dict(MARKS) | ({COMPENSATION: case.stands} if case.stands else {})
    names = {pod.annotations["kubevirt.io/domain"] for pod in case.pods}
    return namespace(
        quota({"limits.cpu": "100", MEMORY: "5000Mi"}, annotations),
        case.migrations,
        case.pods,
        [running_vmi(name) for name in sorted(names)],
        limits=TIGHT,
        rendering=case.ratio,
    )


@sentences(SHORTAGES)
def test_compensation(case: Short) -> None:
    result, _plan = after(facts_of(case))
    if case.compensation is None:
        assert COMPENSATION not in result.annotations
    else:
        assert by_value(entry(result.annotations[COMPENSATION])) == {MEMORY: Quantity.parse(case.compensation)}


def test_growth_that_is_not_understood_is_its_vms_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    growth = compensation._growth

    def broken(instance: VirtualMachineInstance, rendering: Rendering) -> ResourceList:
        if instance.name == "b":
            raise KeyError(MEMORY)
        return growth(instance, rendering)

    monkeypatch.setattr(compensation, "_growth", broken)
    result, new_plan = after(facts_of(SHORTAGES["two are refused: no more than both have grown"]))
    assert by_value(entry(result.annotations[COMPENSATION])) == {MEMORY: Quantity.parse(GROWTH)}
    (problem,) = new_plan.problems
    assert (problem.vm, str(problem)) == ("b", "VM b: KeyError: 'limits.memory'")
    assert isinstance(problem.cause, KeyError)


def test_room_that_other_pods_take_is_not_made_up_for() -> None:
    """Without the webhook a tenant takes whatever is added: after the first time nothing more is. A VM without a pod
    has not grown."""
    facts = facts_of(SHORTAGES["refused: what the VM has outgrown its base by"])
    facts = replace(facts, instances={**facts.instances, "b": running_vmi("b")})
    hard = []
    for _ in range(6):
        result, new_plan = after(facts)
        hard.append(by_value(result.hard)[MEMORY])
        full = edited(result, status={"used": result.hard})
        facts = replace(facts, quota=full, timers=new_plan.timers, now=facts.now + 1)
    assert max(hard) == Quantity.parse(BASE_MEMORY + POD_4_5 + GROWTH)


def test_with_compensation_switched_off_nothing_is_compensated() -> None:
    result, _plan = after(facts_of(SHORTAGES["what stands is too little"]), replace(EXACT, compensate=False))
    assert COMPENSATION not in result.annotations


# ---- a whole life --------------------------------------------------------------------------------------------


def test_the_seeds_second_migration_from_refusal_to_the_base() -> None:
    """Ratio 1.5 → 4.5, 5000Mi: the VM has grown by its first migration, so its second is refused at first."""
    move = vmim(refused=True)
    source, target = outgrown("vm1"), outgrown("vm1", "node-2", move)

    def step(
        rq: ResourceQuota, migration: VirtualMachineInstanceMigration, pods: Sequence[Pod], node: str
    ) -> tuple[ResourceQuota, dict[str, Any]]:
        facts = namespace(charged(rq, pods), [migration], pods, [running_vmi(node=node)], rendering=AT_4_5)
        result, _plan = after(facts)
        return result, by_value(result.hard)

    rq, hard = step(quota(HARD, MARKS), vmim(), [source], "node-1")
    assert hard[MEMORY] == Quantity.parse(5000 * 1024**2 + POD_4_5)
    assert hard[MEMORY] < Quantity.parse(2 * POD_4_5)  # refused
    rq, hard = step(rq, move, [source], "node-1")
    assert hard[MEMORY] == Quantity.parse(2 * POD_4_5)  # not a byte more
    rq, hard = step(rq, move, [source, target], "node-1")
    assert hard[MEMORY] == Quantity.parse(5000 * 1024**2 + POD_4_5)  # given back
    rq, hard = step(rq, vmim("Running"), [source, target], "node-1")
    rq, hard = step(rq, vmim("Succeeded"), [source, target], "node-2")
    assert hard[MEMORY] == Quantity.parse(5000 * 1024**2 + POD_4_5)  # held
    rq, hard = step(rq, vmim("Succeeded"), [target], "node-2")
    assert hard == by_value(HARD)
    assert rq.annotations == MARKS


def test_a_limit_outside_harvesters_estimate_is_left() -> None:
    """It adds no CPU for a VM without a CPU limit, though quota counts one for its pod."""
    unlimited = running_vmi("a", limits={"memory": "4Gi"})
    facts = namespace(
        quota({"limits.cpu": "2", MEMORY: "100Gi"}, MARKS),
        [REFUSED_A],
        [launcher(unlimited)],
        [unlimited],
        limits='{"limit":{"limitsCpu":"2","limitsMemory":"100Gi"}}',
    )
    result, _plan = after(facts, HARVESTER)
    assert result.hard["limits.cpu"] == "2"


def test_beside_harvester_memory_without_a_base_is_left() -> None:
    entries = {by_name("a"): ENTRY}
    facts = namespace(
        charged(quota({"limits.cpu": "100", MEMORY: "1Gi"}, entries), [launcher_of("a")]),
        [REFUSED_A],
        [launcher_of("a")],
        [running_vmi("a")],
        limits='{"limit":{"limitsCpu":"100"}}',
    )
    result, _plan = after(facts, Policy(Mode.ASSIST))
    assert COMPENSATION not in result.annotations


# ---- beside Harvester: enough room, settles at once, never swings --------------------------------------------

MARGIN = 128 * 2**20
amounts = st.integers(min_value=0, max_value=2**45)
"""Bytes, up to 32Ti."""
State = tuple[Quantity, Quantity, Quantity, Quantity]
"""Used, the limit without a compensation, the one that stands, the pod's need."""
close = st.integers(min_value=-3 * MARGIN, max_value=3 * MARGIN)


@st.composite
def states(draw: st.DrawFn) -> State:
    """Used and need anywhere, often near the limit, where the decision turns."""
    without, present, need = draw(amounts), draw(amounts), draw(amounts)
    used = max(0, without + present - need + draw(close)) if draw(st.booleans()) else draw(amounts)
    return Quantity.of(used), Quantity.of(without), Quantity.of(present), Quantity.of(need)


@drawn
@given(states())
def test_it_is_enough_and_no_more_and_never_swings(case: State) -> None:
    used, without, present, need = case
    answer, missing = compensation_for(*case), used + need - without
    assert used + need <= without + answer, "the pod fits afterwards"
    assert compensation_for(used, without, answer, need) == answer, "it settles at once"
    assert missing > present or answer == present, "what is enough is not touched"
    assert answer <= max(present, max(missing, ZERO) + Quantity.of(MARGIN)), "no more than what is missing"


@drawn
@given(states())
def test_where_upstream_settles_it_is_upstreams_value(case: State) -> None:
    """Upstream: missing of the limit that stands, plus 128Mi, replaces what stands, until nothing is missing."""
    used, without, present, need = case
    for _ in range(2):
        missing = used + need - without - present
        if missing <= ZERO:
            assert compensation_for(*case) == present
            return
        present = missing + Quantity.of(MARGIN)
