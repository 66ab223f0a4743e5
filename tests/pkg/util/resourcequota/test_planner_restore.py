"""Restore, the resync flag, and the repair of what other clients did to spec.hard."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from pkg.util.names import migrating_key
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import Mode, Policy
from pkg.util.resourcequota.timers import Timers
from tests.decisions import Case, applied, by_value, observed, sentences, settled
from tests.objects import (
    COMPENSATION,
    ENTRY,
    HARD,
    LONG_NAME,
    MARKS,
    RAISED,
    RESYNC,
    SKIP,
    Resources,
    by_name,
    by_uid,
    quota,
    uid_of,
    vmi,
    vmim,
)

OTHER = by_uid("other")
TWICE = {"limits.cpu": "7", "limits.memory": str(5242880000 + 2 * 4737464313)}
COMPENSATED = '{"limits.memory":"1Gi"}'


over = partial(Case, migrations=[vmim("Succeeded")])
RESTORED = {
    "the entry by uid goes": over({by_uid(): ENTRY}, {}),
    "the entry by name goes": over({by_name(): ENTRY}, {}),
    "both forms of one VM go": over({by_uid(): ENTRY, by_name(): ENTRY}, {}, raised=TWICE),
    "the hashed entry of a long name goes": over(
        {migrating_key(LONG_NAME): ENTRY}, {}, migrations=[vmim("Succeeded", vm=LONG_NAME)]
    ),
    "a failed migration's entry goes": over({by_uid(): ENTRY}, {}, migrations=[vmim("Failed")]),
    "an entry that is garbage goes": over({by_uid(): "{nope"}, {}),
    "with the entry goes the compensation": over(
        {by_uid(): ENTRY, COMPENSATION: COMPENSATED},
        {},
        raised={"limits.cpu": "5", "limits.memory": str(9980344313 + 2**30)},
    ),
    "another VM's entry stays": over(
        {by_uid(): ENTRY, OTHER: ENTRY},
        {OTHER: ENTRY},
        RAISED,
        raised=TWICE,
        migrations=[vmim("Succeeded"), vmim("Running", vm="other")],
    ),
    "annotations that are not an entry stay": over(
        {by_uid(): ENTRY, "example.com/other": "kept"}, {"example.com/other": "kept"}
    ),
    "nothing to remove is nothing to do": over({}, {}, raised=HARD),
    "the resync flag of the others is answered": over({by_uid(): ENTRY, RESYNC: "true"}, {RESYNC: "false"}),
}


@pytest.mark.parametrize("mode", Mode)
@sentences(RESTORED)
def test_restore(case: Case, mode: Mode) -> None:
    after = settled(case.seen().quota, case.migrations, mode=mode)
    left = {by_name("other") if key == OTHER else key: text for key, text in case.left.items()}
    expected = case if mode is Mode.ASSIST else replace(case, left={**MARKS, **left})
    expected.check(after)


def test_a_quota_with_a_persons_skip_loses_the_entry_but_keeps_its_hard() -> None:
    before = quota(RAISED, {SKIP: "true", by_uid(): ENTRY, COMPENSATION: COMPENSATED})
    for mode in Mode:
        after = settled(before, [vmim("Succeeded")], mode=mode)
        assert after.hard == RAISED
        assert after.annotations == {SKIP: "true", RESYNC: "true"}


@pytest.mark.parametrize("mode", Mode)
def test_the_entry_of_a_vmi_that_is_gone_goes_with_its_migration(mode: Mode) -> None:
    marks = MARKS if mode is Mode.TAKEOVER else {}
    before = quota(RAISED, {**marks, by_name(): ENTRY})
    after = settled(before, [vmim("Succeeded")], [], mode=mode)
    assert by_value(after.hard) == by_value(HARD)
    assert by_name() not in after.annotations


@pytest.mark.parametrize("mode", Mode)
def test_a_finished_and_a_running_migration_of_one_vm_keep_the_entry(mode: Mode) -> None:
    before = settled(quota(), [vmim()], mode=mode)
    after = settled(before, [vmim("Succeeded"), vmim("Scheduling", name="next")], mode=mode)
    assert (after.annotations, after.hard) == (before.annotations, before.hard)


FLAG = {
    "an order to compute again is answered": ({RESYNC: "true"}, HARD, "false"),
    "the answer is given in the patch that repairs spec.hard": ({RESYNC: "true"}, RAISED, "false"),
    "an answered order is not written again": ({RESYNC: "false"}, HARD, "false"),
    "no order, no answer": ({}, HARD, None),
}


@pytest.mark.parametrize("mode", Mode)
@sentences(FLAG)
def test_the_resync_flag(case: tuple[dict[str, str], Resources, str | None], mode: Mode) -> None:
    annotations, hard, flag = case
    after = settled(quota(hard, annotations), mode=mode)
    assert after.annotations.get(RESYNC) == flag
    assert by_value(after.hard) == by_value(HARD)


DRIFT = {
    "Rancher puts spec.hard back to the base": HARD,
    "a person lowers it to nothing useful": {"limits.cpu": "1", "limits.memory": "1Gi"},
    "a person raises it": {"limits.cpu": "500", "limits.memory": "1Ti"},
    "a person changes only one limit": {"limits.cpu": "5", "limits.memory": "1Gi"},
    "another client removes one limit": {"limits.cpu": "5"},
}


@pytest.mark.parametrize("mode", Mode)
@sentences(DRIFT)
def test_spec_hard_is_repaired_under_way(case: Resources, mode: Mode) -> None:
    raised = settled(quota(), [vmim("Running")], mode=mode)
    drifted = quota(case, raised.annotations)
    made = plan(observed(drifted, [vmim("Running")]), Policy(mode))
    assert not made.annotations
    assert by_value(applied(drifted, made).hard) == by_value(RAISED)


@pytest.mark.parametrize("mode", Mode)
@sentences(DRIFT)
def test_spec_hard_is_repaired_without_migrations(case: Resources, mode: Mode) -> None:
    after = settled(quota(case), mode=mode)
    assert by_value(after.hard) == by_value(HARD)


BASES = {
    "a raised base raises": (
        '{"limit":{"limitsCpu":"10","limitsMemory":"6000Mi"}}',
        12,
        6000 * 2**20 + 4737464313,
    ),
    "a lowered base lowers, not below the delta": (
        '{"limit":{"limitsCpu":"1","limitsMemory":"1Gi"}}',
        3,
        2**30 + 4737464313,
    ),
    "the base's spelling does not matter": (
        '{"limit":{"limitsCpu":"3e3m","limitsMemory":"1.5Gi"}}',
        None,
        None,
    ),
    "a base of one limit leaves the other": ('{"limit":{"limitsCpu":"4"}}', 6, 9980344313),
}


@pytest.mark.parametrize("mode", Mode)
@sentences({name: case for name, case in BASES.items() if case[1] is not None})
def test_a_change_of_the_base_under_way(case: tuple[str, int, int], mode: Mode) -> None:
    limits, cpu, memory = case
    before = settled(quota(), [vmim()], mode=mode)
    after = settled(before, [vmim()], mode=mode, limits=limits)
    assert by_value(after.hard) == by_value({"limits.cpu": cpu, "limits.memory": memory})


GARBAGE_BASE = {
    "a cpu limit that is no quantity": '{"limit":{"limitsCpu":"three","limitsMemory":"5000Mi"}}',
    "a memory limit that is no quantity": '{"limit":{"limitsCpu":"3","limitsMemory":"5000MiB"}}',
    "the base's odd exponent": BASES["the base's spelling does not matter"][0],
}


@pytest.mark.parametrize("mode", Mode)
@sentences(GARBAGE_BASE)
def test_a_base_that_does_not_parse_leaves_hard_alone_and_warns(case: str, mode: Mode) -> None:
    """Beside Harvester the order to compute again is answered, as upstream does."""
    before = quota(RAISED, {by_uid(): ENTRY, RESYNC: "true"})
    made = plan(observed(before, [vmim()], limits=case), Policy(mode))
    assert not made.hard
    assert by_uid() not in made.annotations
    assert made.annotations.get(RESYNC) == ("false" if mode is Mode.ASSIST else None)
    assert [problem.reason for problem in made.problems] == ["InvalidResourceQuotaAnnotation"]
    assert "limits." in str(made.problems[0])


NOT_JSON = {
    "no JSON at all": "{nope",
    "a list": "[]",
    "a number": "3",
    "limits in a list": '{"limit":[]}',
    "a limit that is a number": '{"limit":{"limitsCpu":3}}',
}


@pytest.mark.parametrize("mode", Mode)
@sentences(NOT_JSON)
def test_an_annotation_that_is_not_ranchers_leaves_hard_and_flag_alone_and_warns(
    case: str, mode: Mode
) -> None:
    before = quota(RAISED, {by_uid(): ENTRY, RESYNC: "true"})
    made = plan(observed(before, [vmim()], limits=case), Policy(mode))
    assert not made.hard
    assert RESYNC not in made.annotations
    assert by_uid() not in made.annotations
    assert [problem.reason for problem in made.problems] == ["InvalidResourceQuotaAnnotation"]
    assert str(made.problems[0]).startswith("field.cattle.io/resourceQuota")


@pytest.mark.parametrize("mode", Mode)
def test_a_base_that_is_garbage_still_lets_finished_entries_go(mode: Mode) -> None:
    before = quota(RAISED, {by_uid(): ENTRY})
    made = plan(observed(before, [vmim("Succeeded")], limits="{nope"), Policy(mode))
    assert made.annotations[by_uid()] is None
    assert not made.hard
    if mode is Mode.ASSIST:  # Harvester is to look once the base can be read again
        assert made.annotations[RESYNC] == "true"


GARBAGE_ENTRIES = {
    "not JSON": "{nope",
    "a list": '["limits.cpu"]',
    "a quantity that does not parse": '{"limits.cpu":"two"}',
    "nothing at all": "",
}


@pytest.mark.parametrize("key", [OTHER, by_name("other")])
@sentences(GARBAGE_ENTRIES)
def test_beside_harvester_a_garbage_entry_stops_scaling_and_is_not_overwritten(case: str, key: str) -> None:
    before = quota(RAISED, {key: case, RESYNC: "true"})
    made = plan(observed(before, [vmim("Running", vm="other")]), Policy(Mode.ASSIST))
    assert not made.hard
    assert made.annotations == {RESYNC: "false"}
    assert [problem.reason for problem in made.problems] == ["InvalidMigratingEntry"]
    assert key in str(made.problems[0])


@sentences(GARBAGE_ENTRIES)
def test_in_takeover_a_migrating_vms_garbage_is_made_afresh(case: str) -> None:
    after = settled(quota(HARD, {**MARKS, by_name(): case}), [vmim("Running")], mode=Mode.TAKEOVER)
    assert after.annotations == {**MARKS, by_name(): ENTRY}
    assert by_value(after.hard) == by_value(RAISED)


@pytest.mark.parametrize("mode", Mode)
@sentences(GARBAGE_ENTRIES)
def test_an_unexplained_garbage_entry_holds_scaling_up_only_for_its_grace(case: str, mode: Mode) -> None:
    before = quota(HARD, {by_uid("stranger"): case})
    policy = Policy(mode, foreign_grace=60.0)
    first = plan(observed(before, [vmim()]), policy)
    assert not first.hard
    assert first.problems
    assert by_uid("stranger") not in first.annotations
    later = plan(observed(applied(before, first), [vmim()], now=60.0, timers=first.timers), policy)
    assert later.annotations[by_uid("stranger")] is None
    assert later.hard == RAISED


def test_garbage_in_the_compensation_stops_scaling_and_is_told() -> None:
    before = quota(HARD, {by_uid(): ENTRY, COMPENSATION: "{nope"})
    made = plan(observed(before, [vmim("Running")]), Policy(Mode.ASSIST))
    assert not made.hard
    assert not made.annotations
    assert [problem.reason for problem in made.problems] == ["InvalidMigratingEntry"]


UNEXPLAINED = {
    "beside Harvester an entry by uid": (Mode.ASSIST, {}, by_uid("gone"), 60.0),
    "beside Harvester an entry by name": (Mode.ASSIST, {}, by_name("gone"), 60.0),
    "an entry by name found at takeover": (Mode.TAKEOVER, {}, by_name("gone"), 60.0),
    "our own entry, after a restart, goes at once": (Mode.TAKEOVER, MARKS, by_name("gone"), 0.0),
}


@sentences(UNEXPLAINED)
def test_an_entry_that_no_migration_explains(case: tuple[Mode, dict[str, str], str, float]) -> None:
    mode, marks, key, grace = case
    policy = Policy(mode, foreign_grace=60.0)
    quota_now, memory, began = quota(RAISED, {**marks, key: ENTRY}), Timers(), 1000.0
    for passed in (0.0, 20.0, 59.9, 60.0):
        made = plan(observed(quota_now, now=began + passed, timers=memory), policy)
        quota_now, memory = applied(quota_now, made), made.timers
        there = passed < grace
        assert (key in quota_now.annotations) is there
        assert by_value(quota_now.hard) == by_value(RAISED if there else HARD)
        assert made.recheck_after == (pytest.approx(grace - passed) if there else None)


def test_the_grace_begins_anew_when_a_migration_explained_the_entry_in_between() -> None:
    policy = Policy(Mode.ASSIST, foreign_grace=60.0)
    before = quota(RAISED, {by_uid(): ENTRY})
    alone = plan(observed(before, now=0.0), policy)
    explained = plan(observed(before, [vmim()], now=50.0, timers=alone.timers), policy)
    again = plan(observed(before, now=70.0, timers=explained.timers), policy)
    assert not again
    assert again.recheck_after == 60.0


def test_while_a_migrations_vmi_is_unknown_a_uid_entry_may_be_its_own() -> None:
    before = quota(RAISED, {by_uid(): ENTRY})
    policy = Policy(Mode.ASSIST, foreign_grace=0.0)
    assert not plan(observed(before, [vmim("Running")], []), policy)
    assert plan(observed(before, [vmim("Running", vm="other")]), policy).annotations[by_uid()] is None


def test_an_unexplained_entry_of_a_vm_that_another_one_explains_is_counted_until_it_goes() -> None:
    before = quota(TWICE, {by_uid(): ENTRY, by_name("stranger"): ENTRY})
    assert not plan(observed(before, [vmim()]), Policy(Mode.ASSIST))


def test_a_vmi_that_was_made_anew_has_no_claim_to_the_old_ones_uid() -> None:
    """The VM was restarted: another uid. The old one's entry belongs to no VM."""
    old = by_uid()
    new = vmi()
    renewed = vmi("renamed")
    assert uid_of("vm1") == new.uid
    made = plan(
        observed(quota(RAISED, {old: ENTRY}), [vmim(vm="renamed")], [renewed]),
        Policy(Mode.ASSIST, foreign_grace=0),
    )
    assert made.annotations == {old: None, by_uid("renamed"): ENTRY}
    assert not made.hard


def test_beside_harvester_a_namespace_that_lost_its_annotation_keeps_its_hard_as_upstream_leaves_it() -> None:
    before = quota(RAISED, {by_uid(): ENTRY})
    assert not plan(observed(before, [vmim()], limits=""), Policy(Mode.ASSIST))


def test_in_takeover_a_namespace_that_lost_its_annotation_loses_what_we_added() -> None:
    before = settled(quota(), [vmim()], mode=Mode.TAKEOVER)
    after = settled(before, [vmim()], mode=Mode.TAKEOVER, limits="")
    assert (after.annotations, by_value(after.hard)) == (MARKS, by_value(HARD))


def test_in_takeover_an_entry_that_was_never_ours_is_not_subtracted_from_hard() -> None:
    """Found at takeover, in a namespace without annotation: whether it was ever added is unknown."""
    policy = Policy(Mode.TAKEOVER)
    first = plan(observed(quota(HARD, {by_name(): ENTRY}), limits=""), policy)
    marked = applied(quota(HARD, {by_name(): ENTRY}), first)
    second = plan(observed(marked, limits="", timers=first.timers), policy)
    assert not second
    assert second.recheck_after == 60.0
