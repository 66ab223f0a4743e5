"""Restore, the resync flag, and the repair of what other clients did to spec.hard."""

from __future__ import annotations

from functools import partial

import pytest

from pkg.util.resourcequota.entries import migrating_key
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
    case.settles(mode)


def test_a_quota_with_a_persons_skip_loses_the_entry_but_keeps_its_hard() -> None:
    before = quota(RAISED, {SKIP: "true", by_uid(): ENTRY, COMPENSATION: COMPENSATED})
    for mode in Mode:
        after = settled(before, [vmim("Succeeded")], mode=mode)
        assert after.hard == RAISED
        assert after.annotations == {SKIP: "true", RESYNC: "true"}


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


GARBAGE_BASES = {
    "a cpu limit that is no quantity": '{"limit":{"limitsCpu":"three","limitsMemory":"5000Mi"}}',
    "a memory limit that is no quantity": '{"limit":{"limitsCpu":"3","limitsMemory":"5000MiB"}}',
    "an odd exponent": '{"limit":{"limitsCpu":"3e3m","limitsMemory":"1.5Gi"}}',
    "no JSON": "{nope",
    "limits in a list": '{"limit":[]}',
    "a limit that is a number": '{"limit":{"limitsCpu":3}}',
}


@pytest.mark.parametrize("mode", Mode)
@sentences(GARBAGE_BASES)
def test_a_base_that_is_garbage_leaves_hard_alone_and_warns_but_what_is_over_goes(case: str, mode: Mode) -> None:
    """Beside Harvester the order to compute again is answered where only a quantity is garbage, as upstream does."""
    before = quota(RAISED, {by_uid(): ENTRY, RESYNC: "true"})
    made = plan(observed(before, [vmim()], limits=case), Policy(mode))
    assert (made.hard, by_uid() in made.annotations) == ({}, False)
    answered = mode is Mode.ASSIST and "limitsMemory" in case
    assert made.annotations.get(RESYNC) == ("false" if answered else None)
    assert [problem.reason for problem in made.problems] == ["InvalidResourceQuotaAnnotation"]
    assert str(made.problems[0]).startswith("field.cattle.io/resourceQuota")
    over = plan(observed(before, [vmim("Succeeded")], limits=case), Policy(mode))
    assert (over.hard, over.annotations[by_uid()]) == ({}, None)


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


def test_a_vmi_that_was_made_anew_has_no_claim_to_the_old_ones_uid() -> None:
    """The VM was restarted: another uid. The old one's entry belongs to no VM."""
    old = by_uid()
    new = vmi()
    renewed = vmi("renamed")
    assert uid_of("vm1") == new.uid
    made = plan(
        observed(quota(RAISED, {old: ENTRY}), [vmim(vm="renamed")], [renewed]), Policy(Mode.ASSIST, foreign_grace=0)
    )
    assert made.annotations == {old: None, by_uid("renamed"): ENTRY}
    assert not made.hard


def test_in_takeover_an_entry_that_was_never_ours_is_not_subtracted_from_hard() -> None:
    """Found at takeover, in a namespace without annotation: whether it was ever added is unknown."""
    policy = Policy(Mode.TAKEOVER)
    first = plan(observed(quota(HARD, {by_name(): ENTRY}), limits=""), policy)
    marked = applied(quota(HARD, {by_name(): ENTRY}), first)
    second = plan(observed(marked, limits="", timers=first.timers), policy)
    assert not second
    assert second.recheck_after == 60.0
