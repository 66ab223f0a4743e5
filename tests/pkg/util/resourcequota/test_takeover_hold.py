"""An entry stays until no pod of the old side is left that quota counts."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from kubeloop.api.core import Pod
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util.resourcequota.entries import entry_keys
from pkg.util.resourcequota.facts import Facts, Timers
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import Mode, Policy
from tests.decisions import EXACT, after, by_value, entry, namespace, remembering, sentences
from tests.kinds import edited
from tests.objects import (
    AT_4_5,
    ENTRY,
    HARD,
    MARKS,
    ONE_MORE,
    POD_ENTRY,
    RAISED,
    RESYNC,
    attachment,
    by_name,
    by_uid,
    ended,
    launcher,
    plugged,
    quota,
    vmi,
    vmim,
)

BEFORE, MOVED = vmi(nodeName="node-1"), vmi(nodeName="node-2")
MIGRATION = vmim("Running")
SOURCE = launcher(node="node-1")
TARGET = launcher(node="node-2", migration=MIGRATION, created="2026-01-01T00:01:00Z")
POD = entry(POD_ENTRY)


def finished_vmim(phase: str = "Succeeded", ended_at: str | None = None) -> VirtualMachineInstanceMigration:
    state = {"endTimestamp": ended_at} if ended_at else None
    return edited(vmim(phase), status={"migrationState": state})


TOLD = edited(
    MOVED,
    status={"migrationState": {"migrationUid": MIGRATION.uid, "sourcePod": SOURCE.name, "targetPod": TARGET.name}},
)
"""The VMI with the pods of its last migration in its status, where they stay."""


@dataclass(frozen=True)
class Step:
    """A moment of a migration; the entry's value, None for no entry."""

    migrations: Sequence[VirtualMachineInstanceMigration]
    pods: Sequence[Pod]
    instance: VirtualMachineInstance | None
    entry: dict[str, str] | None
    kept: bool = False
    """An entry that stands stays until the migration is over."""


SECOND = vmim("Succeeded", name="second")
TWICE = {"limits.cpu": "4030m", "limits.memory": str(2 * 4797464313)}
BOTH_PODS = {"limits.cpu": "2115m", "limits.memory": str(4797464313 + 80 * 10**6)}


LIFE = {
    "phase unset: virt-controller asks for the target next": Step([vmim(None)], [SOURCE], BEFORE, POD),
    "phase unset, and deleted already": Step([vmim(None, deleting=True)], [SOURCE], BEFORE, None, kept=True),
    "Pending: room for the target to come": Step([vmim()], [SOURCE], BEFORE, POD),
    "Scheduling: the target is there": Step([vmim("Scheduling")], [SOURCE, TARGET], BEFORE, POD),
    "Running": Step([MIGRATION], [SOURCE, TARGET], BEFORE, POD),
    "a phase that newer KubeVirt adds": Step([vmim("WaitingForSync")], [SOURCE, TARGET], BEFORE, POD),
    "Running, the VM has moved": Step([MIGRATION], [SOURCE, TARGET], MOVED, POD),
    "Succeeded, the source still counts": Step([finished_vmim()], [SOURCE, TARGET], MOVED, POD),
    "Succeeded, the VMI does not say so yet": Step([finished_vmim()], [SOURCE, TARGET], BEFORE, POD),
    "Succeeded, the source has succeeded too": Step([finished_vmim()], [ended(SOURCE), TARGET], MOVED, None),
    "Succeeded, the source has failed": Step([finished_vmim()], [ended(SOURCE, "Failed"), TARGET], MOVED, None),
    "Succeeded, the source is gone": Step([finished_vmim()], [TARGET], MOVED, None),
    "the migration was deleted, its VMI names both pods": Step([], [SOURCE, TARGET], TOLD, POD),
    "the migration was deleted, and nothing names the source": Step([], [SOURCE, TARGET], MOVED, None),
    "the migration and the source are gone": Step([], [TARGET], TOLD, None),
    "Failed, the target still counts": Step([finished_vmim("Failed")], [SOURCE, TARGET], BEFORE, POD),
    "Failed, the target has failed": Step([finished_vmim("Failed")], [SOURCE, ended(TARGET, "Failed")], BEFORE, None),
    "Failed before there was a target": Step([finished_vmim("Failed")], [SOURCE], BEFORE, None),
    "it has arrived and the source is gone": Step([MIGRATION], [TARGET], MOVED, None),
    "the source is gone and nothing has arrived": Step([MIGRATION], [TARGET], BEFORE, None),
    "an abort is asked for, the target is there": Step([vmim("Running", abort=True)], [SOURCE, TARGET], BEFORE, POD),
    "the VM was deleted, both pods still count": Step([finished_vmim("Failed")], [SOURCE, TARGET], None, POD),
    "the VM was deleted, and nothing names its pods": Step([], [SOURCE, TARGET], None, None),
    "the VM was deleted, its migration hangs": Step([vmim(deleting=True)], [SOURCE], None, None),
    "the VM was deleted, its last pod still counts": Step([], [TARGET], None, None),
    "two sources are left": Step(
        [finished_vmim(), SECOND],
        [SOURCE, TARGET, launcher(node="node-3", migration=SECOND, created="2026-01-01T00:02:00Z")],
        vmi(nodeName="node-3"),
        TWICE,
    ),
    "one is left, the next target takes its place": Step(
        [finished_vmim(), vmim(name="second")], [SOURCE, TARGET], MOVED, POD
    ),
    "a failed target is left, the next takes its place": Step(
        [finished_vmim("Failed"), vmim(name="second")], [SOURCE, TARGET], BEFORE, POD
    ),
    "a volume is plugged: its attachment pod is to come": Step(
        [vmim()], [SOURCE, attachment(SOURCE)], plugged("node-1"), BOTH_PODS
    ),
    "and after it": Step([vmim("Scheduling")], [SOURCE, attachment(SOURCE), TARGET], plugged("node-1"), BOTH_PODS),
    "it runs without one: none will come": Step([MIGRATION], [SOURCE, TARGET], plugged("node-1"), POD),
    "the source's attachment pod outlives it": Step(
        [finished_vmim()],
        [ended(SOURCE), attachment(SOURCE), TARGET, attachment(TARGET)],
        plugged("node-2"),
        {"limits.cpu": "100m", "limits.memory": "80M"},
    ),
    "a whole side is left, the next target takes its place": Step(
        [finished_vmim(), vmim(name="second")],
        [SOURCE, attachment(SOURCE), TARGET, attachment(TARGET)],
        plugged("node-2"),
        BOTH_PODS,
    ),
    "an attachment is left, the next target comes beside it": Step(
        [finished_vmim(), vmim(name="second")],
        [ended(SOURCE), attachment(SOURCE), TARGET, attachment(TARGET)],
        plugged("node-2"),
        {"limits.cpu": "2215m", "limits.memory": str(4797464313 + 160 * 10**6)},
    ),
}


@sentences(LIFE)
@pytest.mark.parametrize("stands", [False, True], ids=["from nothing", "after the entry was written"])
def test_the_entry_follows_the_pods(case: Step, stands: bool) -> None:
    raised = quota(ONE_MORE, {**MARKS, by_name(): POD_ENTRY})
    rq = raised if stands else quota(HARD, MARKS)
    instances = [case.instance] if case.instance else []
    result, _plan = after(namespace(rq, case.migrations, case.pods, instances))
    if case.entry is None and not (case.kept and stands):
        assert result.annotations == MARKS
        assert by_value(result.hard) == by_value(HARD)
    else:
        headroom = by_value(case.entry or POD)
        assert by_value(entry(result.annotations[by_name()])) == headroom
        assert by_value(result.hard) == {name: base + headroom[name] for name, base in by_value(HARD).items()}


def test_a_held_entry_is_the_sources_usage() -> None:
    """The ratio was raised from 1.5 to 4.5: while Pending the entry is the larger target's, then the source's."""
    larger = launcher(node="node-2", migration=MIGRATION, rendering=AT_4_5, created="2026-01-01T00:01:00Z")
    pending, _plan = after(namespace(quota(HARD, MARKS), [vmim()], [SOURCE], [BEFORE], rendering=AT_4_5))
    assert entry(pending.annotations[by_name()])["limits.memory"] == str(5622461313 + 60000000)
    holding_rq, _plan = after(namespace(pending, [finished_vmim()], [SOURCE, larger], [MOVED], rendering=AT_4_5))
    assert entry(holding_rq.annotations[by_name()])["limits.memory"] == "4797464313"


def test_beside_harvester_an_entry_stays_until_the_end() -> None:
    for migration, keys in ((MIGRATION, {by_uid()}), (finished_vmim(), set())):
        facts = namespace(quota(RAISED, {by_uid(): ENTRY}), [migration], [TARGET], [MOVED])
        assert {*entry_keys(after(facts, Policy(Mode.ASSIST))[0].annotations)} == keys


# ---- the entry is removed - -----------------------------------------------------------------------------

ROBBED = {
    "of a migration that is pending": Step([vmim()], [SOURCE], BEFORE, POD),
    "of a migration that runs": Step([MIGRATION], [SOURCE, TARGET], BEFORE, POD),
    "of a source that is held": Step([finished_vmim()], [SOURCE, TARGET], MOVED, POD),
    "of a source that is held, its migration is deleted": Step([], [SOURCE, TARGET], TOLD, POD),
}


@sentences(ROBBED)
@pytest.mark.parametrize("hard", [ONE_MORE, HARD], ids=["spec.hard stands", "spec.hard was lowered too"])
def test_an_entry_that_is_removed_comes_back_in_the_same_patch(case: Step, hard: dict[str, str]) -> None:
    """Harvester's restore removes keys also from quotas that it leaves alone, and orders to compute again."""
    assert case.instance is not None
    facts = namespace(quota(hard, {**MARKS, RESYNC: "true"}), case.migrations, case.pods, [case.instance])
    result, new_plan = after(facts)
    assert new_plan.annotations.keys() == {by_name(), RESYNC}
    assert set(new_plan.hard) == (set() if hard is ONE_MORE else set(HARD))
    assert by_value(result.hard) == by_value(ONE_MORE)


# ---- the limit -----------------------------------------------------------------------------------------------

NOON = 1767268800.0  # 2026-01-01T12:00:00Z


def hold_facts(ended_at: str | None = None, source: Pod = SOURCE, **fields: Any) -> Facts:
    rq = quota(ONE_MORE, {**MARKS, by_name(): POD_ENTRY})
    return namespace(rq, [finished_vmim(ended_at=ended_at)], [source, TARGET], [MOVED], **fields)


ENDING = edited(SOURCE, metadata={"deletionTimestamp": "2026-01-01T12:00:00Z", "deletionGracePeriodSeconds": 30})


@dataclass(frozen=True)
class Limit:
    """The end of the migration (None: KubeVirt does not report it), since when the hold is remembered, and how many
    seconds it has left at noon; None: it is over."""

    ended_at: str | None
    remembered: float | None
    left: float | None
    limit: float = 600.0
    source: Pod = SOURCE


LIMITS = {
    "counted from the end that KubeVirt reports": Limit("2026-01-01T11:59:00Z", None, 540.0),
    "over ten minutes after it": Limit("2026-01-01T11:50:00Z", None, None),
    "one second before that": Limit("2026-01-01T11:50:01Z", None, 1.0),
    "without a reported end from when it was first seen": Limit(None, None, 600.0),
    "and what was first seen is remembered": Limit(None, NOON - 100, 500.0),
    "over ten minutes after that": Limit(None, NOON - 600, None),
    "the earlier of both counts": Limit("2026-01-01T11:55:00Z", NOON - 100, 300.0),
    "an end that is not a time does not count": Limit("yesterday", NOON - 100, 500.0),
    "the operator's limit": Limit("2026-01-01T11:59:00Z", None, 30.0, limit=90.0),
    "a limit of zero holds nothing": Limit("2026-01-01T12:00:00Z", None, None, limit=0.0),
    "a pod that ends is counted a moment longer than its grace": Limit(None, None, 30.05, source=ENDING),
}


@sentences(LIMITS)
def test_the_hold_has_a_limit(case: Limit) -> None:
    since = {} if case.remembered is None else {SOURCE.uid: case.remembered}
    facts = hold_facts(case.ended_at, case.source, now=NOON, timers=Timers(held_since=since))
    new_plan = plan(facts, replace(EXACT, hold_limit=case.limit))
    if case.left is not None:
        assert not new_plan
        assert not new_plan.problems
        assert new_plan.recheck_after == pytest.approx(case.left)
        return
    assert new_plan.annotations == {by_name(): None}
    assert new_plan.recheck_after is None
    assert by_value({n: t for n, t in new_plan.hard.items() if t}) == by_value(HARD)
    (problem,) = new_plan.problems
    assert problem.reason == "HoldLimitReached"
    assert re.search(r"VM vm1: pod \S+ still counts \S+ .*after the migration", str(problem))


def test_the_end_of_another_migration_does_not_count() -> None:
    """The source is left over since a moment ago; yesterday's migration named other pods."""
    state = {"endTimestamp": "2025-12-31T12:00:00Z", "sourcePod": "elsewhere", "targetPod": SOURCE.name}
    earlier = edited(vmim("Succeeded", name="earlier"), status={"migrationState": state})
    facts = namespace(quota(HARD, MARKS), [earlier, finished_vmim()], [SOURCE, TARGET], [MOVED], now=NOON)
    result, new_plan = after(facts)
    assert by_value(entry(result.annotations[by_name()])) == by_value(POD)
    assert not new_plan.problems


def test_a_hold_that_is_over_stays_over() -> None:
    facts = hold_facts("2026-01-01T11:00:00Z", now=NOON)
    result, new_plan = after(facts)
    again = plan(remembering(replace(facts, quota=result), new_plan.timers, NOON + 1), EXACT)
    assert not again
    assert [problem.reason for problem in again.problems] == ["HoldLimitReached"]


def test_the_limit_counts_also_while_the_vm_migrates_again() -> None:
    facts = namespace(
        quota(HARD, MARKS),
        [finished_vmim(ended_at="2026-01-01T01:00:00Z"), vmim(name="second")],
        [SOURCE, TARGET],
        [MOVED],
        now=NOON,
    )
    result, new_plan = after(facts)
    assert entry(result.annotations[by_name()])["limits.memory"] == "4797464313"
    assert [problem.reason for problem in new_plan.problems] == ["HoldLimitReached"]


def test_a_pod_that_never_goes_is_not_looked_at_all_the_time() -> None:
    """Its node is lost: it counts no more, its attachment pod still does."""
    old = attachment(ENDING)
    facts = replace(
        namespace(quota(ONE_MORE, {**MARKS, by_name(): POD_ENTRY}), [vmim("Succeeded")], [ENDING, old, TARGET], [TOLD]),
        now=NOON + 3600.0,
    )
    new_plan = plan(facts, EXACT)
    assert new_plan.recheck_after is None or new_plan.recheck_after > 1.0
