"""Nothing left behind, and nothing beyond the caps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest

from kubeloop.api.core import Pod
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util.names import migrating_key
from pkg.util.resourcequota.entries import entries
from pkg.util.resourcequota.facts import Timers
from pkg.util.resourcequota.planner import plan
from tests.decisions import EXACT, after, by_value, namespace, remembering, sentences
from tests.objects import (
    BASE,
    COMPENSATION,
    ENTRY,
    HARD,
    LONG_NAME,
    MARKS,
    OWNER,
    RESYNC,
    SKIP,
    by_name,
    by_uid,
    launcher,
    quota,
    vmi,
    vmim,
)

MAX_EXTRA = "headroom.harvesterhci.io/max-extra"
HERE = vmi(nodeName="node-1")
SOURCE = launcher()
POD = '{"limits.cpu":"2015m","limits.memory":"4797464313"}'
ONE_MORE = {"limits.cpu": "5015m", "limits.memory": str(5000 * 1024**2 + 4797464313)}
TWO_MORE = {"limits.cpu": "7030m", "limits.memory": str(5000 * 1024**2 + 2 * 4797464313)}


# ---- entries that no migration needs - ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Left:
    """What is found when headroom starts, and whether the entry goes `at_once` or after the grace of 60 s, or
    `stays`."""

    annotations: Mapping[str, str]
    then: str
    migrations: Sequence[VirtualMachineInstanceMigration] = ()
    instances: Sequence[VirtualMachineInstance] = (HERE,)
    pods: Sequence[Pod] = (SOURCE,)


OURS = {**MARKS, by_name(): POD}
LEFT = {
    "our entry of a VM without migration": Left(OURS, "at once"),
    "our entry of a VM that no longer exists": Left(OURS, "at once", instances=(), pods=()),
    "our entry whose migration succeeded while we were down": Left(OURS, "at once", [vmim("Succeeded")]),
    "our entry whose migration failed while we were down": Left(OURS, "at once", [vmim("Failed")]),
    "our entry whose VM is gone and whose migration is over": Left(
        OURS, "at once", [vmim("Failed")], instances=(), pods=()
    ),
    "our entry of a VM with a long name": Left({**MARKS, migrating_key(LONG_NAME): POD}, "at once"),
    "our entry that is garbage": Left({**MARKS, by_name(): "{nope"}, "at once"),
    "an entry by uid that no migration explains": Left({**MARKS, by_uid("gone"): ENTRY}, "after the grace"),
    "an entry by name on a quota that was not ours yet": Left({by_name(): ENTRY}, "after the grace"),
    "an entry by uid on a quota that was not ours yet": Left({by_uid("gone"): ENTRY}, "after the grace"),
    "an entry by uid whose migration is over": Left(
        {**MARKS, by_uid(): ENTRY}, "at once", [vmim("Succeeded")]
    ),
    "an entry by uid while some migration's VMI is gone": Left(
        {**MARKS, by_uid("x"): ENTRY}, "after the grace", [vmim(vm="x")], instances=(), pods=()
    ),
    "our entry of a migration whose VM is gone": Left(OURS, "at once", [vmim()], instances=(), pods=()),
}


@sentences(LEFT)
def test_an_entry_that_is_not_needed_goes(case: Left) -> None:
    seen = namespace(
        quota(HARD, dict(case.annotations)), case.migrations, case.pods, case.instances, now=1000.0
    )
    (key,) = [entry.key for entry in entries(case.annotations)]
    first = plan(seen, EXACT)
    assert (key in first.annotations) is (case.then == "at once")
    if case.then == "at once":
        assert first.annotations[key] is None
        return
    almost = plan(remembering(seen, first.timers, 1059.0), EXACT)
    assert key not in almost.annotations
    late = plan(remembering(seen, almost.timers, 1060.0), EXACT)
    assert (late.annotations.get(key, "there") is None) is (case.then == "after the grace")
    if case.then == "after the grace":
        assert first.recheck_after == pytest.approx(60.0)
        assert almost.recheck_after == pytest.approx(1.0)


def test_while_a_foreign_entry_waits_its_room_stays() -> None:
    found, _made = after(namespace(quota(HARD, {**MARKS, by_uid("gone"): ENTRY}), [], [SOURCE], [HERE]))
    assert by_value(found.hard) == by_value({"limits.cpu": "5", "limits.memory": "9980344313"})


def test_after_the_grace_the_base_comes_back() -> None:
    seen = namespace(
        quota(HARD, {**MARKS, by_uid("gone"): ENTRY}),
        now=1000.0,
        timers=Timers(unexplained={by_uid("gone"): 900.0}),
    )
    found, _made = after(seen)
    assert found.annotations == MARKS
    assert by_value(found.hard) == by_value(HARD)


def test_an_entry_that_is_explained_meanwhile_begins_to_wait_anew() -> None:
    migrating = namespace(
        quota(HARD, {**MARKS, by_uid(): ENTRY}), [vmim()], [SOURCE], [HERE], timers=Timers({by_uid(): 5.0})
    )
    assert plan(migrating, EXACT).timers.unexplained == {}


def test_a_restart_begins_the_grace_anew_and_costs_no_correctness() -> None:
    seen = namespace(quota(HARD, {**MARKS, by_uid("gone"): ENTRY}), now=5.0)
    assert plan(seen, EXACT).timers.unexplained == {by_uid("gone"): 5.0}


# ---- the quota is made again, the namespace loses its annotation ---------------------------------------------


def test_a_quota_that_was_made_again_is_taken_over_and_raised_in_one_patch() -> None:
    found, _made = after(namespace(quota(HARD), [vmim("Running")], [SOURCE], [HERE]))
    assert found.annotations == {**MARKS, by_name(): POD}
    assert by_value(found.hard) == by_value(ONE_MORE)


def test_a_namespace_that_loses_its_annotation_loses_what_was_added() -> None:
    before = quota(TWO_MORE, {**OURS, by_name("vm2"): POD, COMPENSATION: '{"limits.memory":"1Mi"}'})
    before = quota(
        TWO_MORE | {"limits.memory": str(5001 * 1024**2 + 2 * 4797464313)}, dict(before.annotations)
    )
    found, _made = after(namespace(before, [vmim("Running")], [SOURCE], [HERE], limits=""))
    assert found.annotations == MARKS
    assert by_value(found.hard) == by_value(HARD)


def test_a_namespace_without_annotation_whose_quota_was_not_ours_is_left_alone() -> None:
    before = quota(ONE_MORE, {by_name(): POD})
    made = plan(namespace(before, [vmim("Running")], [SOURCE], [HERE], limits=""), EXACT)
    assert not made.hard
    assert made.annotations == MARKS


def test_an_entry_that_is_garbage_goes_with_the_same_patch() -> None:
    before = quota(ONE_MORE, {**OURS, by_name("vm2"): "{nope"})
    found, _made = after(namespace(before, [], [SOURCE], [HERE], limits=""))
    assert found.annotations == MARKS
    assert by_value(found.hard) == by_value(HARD)


def test_nothing_is_taken_below_zero() -> None:
    """Another client has lowered spec.hard already."""
    before = quota({"limits.cpu": "1", "limits.memory": "1Gi"}, OURS)
    found, _made = after(namespace(before, [], [SOURCE], [HERE], limits=""))
    assert found.annotations == MARKS
    assert found.hard == before.hard


def test_an_annotation_that_is_garbage_leaves_spec_hard_alone_and_says_so() -> None:
    made = plan(namespace(quota(ONE_MORE, OURS), [vmim("Running")], [SOURCE], [HERE], limits="{nope"), EXACT)
    assert not made
    assert [problem.reason for problem in made.problems] == ["InvalidResourceQuotaAnnotation"]


def test_an_annotation_that_comes_back_brings_everything_back() -> None:
    found, _made = after(namespace(quota(HARD, MARKS), [vmim("Running")], [SOURCE], [HERE]))
    assert by_value(found.hard) == by_value(ONE_MORE)


def test_garbage_of_harvesters_in_an_entry_leaves_spec_hard_alone_until_it_goes() -> None:
    seen = namespace(quota(ONE_MORE, {**OURS, by_uid("gone"): "{nope"}), [], [SOURCE], [HERE], now=0.0)
    made = plan(seen, EXACT)
    assert not made.hard
    assert [problem.reason for problem in made.problems] == ["InvalidMigratingEntry"]
    late = plan(remembering(seen, made.timers, 60.0), EXACT)
    assert by_value({name: text for name, text in late.hard.items() if text}) == by_value(HARD)


def test_the_resync_flag_is_answered() -> None:
    """Harvester's vmim controller may have set it just before we took over."""
    found, _made = after(namespace(quota(HARD, {**MARKS, RESYNC: "true"}), [], [SOURCE], [HERE]))
    assert found.annotations[RESYNC] == "false"


# ---- base, revert, foreign edits -----------------------------------------------------------------------------

EDITS: Mapping[str, Mapping[str, str]] = {
    "Rancher puts it back to the base": HARD,
    "another client raises it": {"limits.cpu": "50", "limits.memory": "500Gi"},
    "another client lowers it below the base": {"limits.cpu": "1", "limits.memory": "1Gi"},
    "another client removes one limit": {"limits.cpu": "5015m"},
}


@sentences(EDITS)
@pytest.mark.parametrize("during", [True, False], ids=["during a migration", "when all is quiet"])
def test_a_foreign_edit_of_spec_hard_is_repaired(case: Mapping[str, str], during: bool) -> None:
    before = quota(dict(case), OURS if during else MARKS)
    found, made = after(namespace(before, [vmim("Running")] if during else [], [SOURCE], [HERE]))
    assert not made.annotations
    assert by_value(found.hard) == by_value(ONE_MORE if during else HARD)


def test_a_base_that_changes_during_a_migration_reaches_the_quota_at_once() -> None:
    larger = BASE.replace("5000Mi", "9Gi")
    found, _made = after(namespace(quota(ONE_MORE, OURS), [vmim("Running")], [SOURCE], [HERE], limits=larger))
    assert by_value(found.hard) == by_value(
        {"limits.cpu": "5015m", "limits.memory": str(9 * 1024**3 + 4797464313)}
    )


@pytest.mark.parametrize("removed", [SKIP, OWNER])
def test_our_marks_come_back(removed: str) -> None:
    left = {key: text for key, text in MARKS.items() if key != removed}
    made = plan(namespace(quota(HARD, left), [], [SOURCE], [HERE]), EXACT)
    if removed == OWNER:  # a person's skip is an off switch
        assert not made
    else:
        assert made.annotations == {removed: MARKS[removed]}
