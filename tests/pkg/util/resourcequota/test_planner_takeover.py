"""Takeover: the marks, adoption of what Harvester wrote, and a person's off switch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import pytest

from pkg.util.names import migrating_key
from pkg.util.resourcequota.managed import is_off
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import Mode, Policy
from tests.decisions import Case, by_value, observed, sentences, settled
from tests.objects import (
    ENTRY,
    HARD,
    LONG_NAME,
    MARKS,
    OWNER,
    RAISED,
    RESYNC,
    SKIP,
    by_name,
    by_uid,
    quota,
    vmim,
)

TAKEOVER = Policy(Mode.TAKEOVER)


@dataclass(frozen=True)
class Switch:
    """Annotations of a quota, and in which modes auto-scaling is off there."""

    annotations: dict[str, str]
    off: bool


SWITCHES = {
    "no skip": Switch({}, False),
    "a person's skip": Switch({SKIP: "true"}, True),
    "a skip that says false": Switch({SKIP: "false"}, False),
    "a skip in capitals is not Harvester's word": Switch({SKIP: "True"}, False),
    "our own skip": Switch(MARKS, False),
    "our mark alone is no switch": Switch({OWNER: "headroom"}, False),
}


@sentences(SWITCHES)
def test_the_off_switch(case: Switch) -> None:
    assert is_off(case.annotations) is case.off


@pytest.mark.parametrize("mode", Mode)
def test_a_persons_skip_is_never_marked_as_ours(mode: Mode) -> None:
    before = quota(RAISED, {SKIP: "true", by_uid(): ENTRY, by_name("other"): ENTRY})
    assert not plan(observed(before, [vmim("Running"), vmim(vm="vm2")]), Policy(mode))


def test_our_skip_is_put_back_when_it_alone_is_removed() -> None:
    made = plan(observed(quota(annotations={OWNER: "headroom"})), TAKEOVER)
    assert made.annotations == {SKIP: "true"}


def test_a_person_who_removes_our_mark_and_leaves_the_skip_switches_off() -> None:
    raised = settled(quota(), [vmim()], mode=Mode.TAKEOVER)
    kept = {key: text for key, text in raised.annotations.items() if key != OWNER}
    assert not plan(observed(quota(raised.hard, kept), [vmim("Running")]), TAKEOVER)


LARGER = '{"limits.cpu":"2","limits.memory":"5622461313"}'
SMALLER = '{"limits.cpu":"1","limits.memory":"1Gi"}'
SMALLER_CPU = '{"limits.cpu":"1","limits.memory":"4737464313"}'
RAISED_SMALLER = {"limits.cpu": "4", "limits.memory": "6024Mi"}
MIXED = '{"limits.cpu":"3","limits.memory":"1Gi"}'
adopted = partial(Case, raised=HARD)
LONG, ABORTED = [vmim("Running", vm=LONG_NAME)], [vmim("Running", abort=True)]
ADOPTED = {
    "an entry by uid goes under the name": adopted({by_uid(): ENTRY}, {by_name(): ENTRY}, RAISED),
    "an entry by name stays where it is": adopted({by_name(): ENTRY}, {by_name(): ENTRY}, RAISED),
    "a VM under both forms counts once": adopted(
        {by_name(): ENTRY, by_uid(): ENTRY}, {by_name(): ENTRY}, RAISED
    ),
    "an entry that is too large follows what the VM needs": adopted(
        {by_uid(): LARGER}, {by_name(): ENTRY}, RAISED
    ),
    "an entry that is too small follows what the VM needs": adopted(
        {by_uid(): SMALLER}, {by_name(): ENTRY}, RAISED
    ),
    "a long name's entry by uid goes under its hashed key": adopted(
        {by_uid(LONG_NAME): ENTRY}, {migrating_key(LONG_NAME): ENTRY}, RAISED, migrations=LONG
    ),
    "a long name's unhashed key cannot be": adopted(
        {migrating_key(LONG_NAME): ENTRY, by_uid(LONG_NAME): ENTRY},
        {migrating_key(LONG_NAME): ENTRY},
        RAISED,
        migrations=LONG,
    ),
    "garbage beside a readable entry is left out": adopted(
        {by_name(): "{nope", by_uid(): LARGER}, {by_name(): ENTRY}, RAISED
    ),
    "while it is aborted, no more stays than it would be granted": adopted(
        {by_name(): ENTRY, by_uid(): LARGER}, {by_name(): ENTRY}, RAISED, migrations=ABORTED
    ),
    "while it is aborted, nothing is added to what stands": adopted(
        {by_uid(): SMALLER}, {by_name(): SMALLER}, RAISED_SMALLER, migrations=ABORTED
    ),
    "while it is aborted, the greater is taken of each resource by itself": adopted(
        {by_name(): MIXED, by_uid(): SMALLER_CPU},
        {by_name(): '{"limits.cpu":"2","limits.memory":"4737464313"}'},
        RAISED,
        migrations=ABORTED,
    ),
    "once its VM is gone nothing stays": adopted(
        {by_name(): ENTRY}, {}, HARD, instances=[], migrations=ABORTED
    ),
}


@sentences(ADOPTED)
def test_adoption(case: Case) -> None:
    after = settled(case.seen().quota, case.migrations, case.instances, mode=Mode.TAKEOVER)
    replace(case, left={**MARKS, **case.left}).check(after)


def test_an_entry_harvester_writes_beside_ours_does_not_count_twice() -> None:
    """Harvester's vmim controller skips a taken quota, but one of its workers may have been about to write."""
    during = settled(quota(), [vmim()], mode=Mode.TAKEOVER)
    both = quota(during.hard, {**during.annotations, by_uid(): ENTRY, RESYNC: "true"})
    after = settled(both, [vmim()], mode=Mode.TAKEOVER)
    assert after.annotations == {**MARKS, by_name(): ENTRY, RESYNC: "false"}
    assert by_value(after.hard) == by_value(RAISED)


@sentences({"Pending": "Pending", "unset": None, "Running": "Running"})
def test_an_entry_whose_vmi_is_gone_goes_at_once(case: str | None) -> None:
    """Its migration may hang for ever: KubeVirt removes no finalizer of one without VMI."""
    before = quota(RAISED, {**MARKS, by_name(): ENTRY})
    made = plan(observed(before, [vmim(case)], []), TAKEOVER)
    assert made.annotations == {by_name(): None}
    assert by_value(made.hard) == by_value(HARD)


def test_from_assist_to_takeover_and_back_nothing_is_lost() -> None:
    beside = settled(quota(), [vmim()], mode=Mode.ASSIST)
    taken = settled(beside, [vmim("Running")], mode=Mode.TAKEOVER)
    assert taken.annotations == {**MARKS, by_name(): ENTRY}
    assert by_value(taken.hard) == by_value(RAISED)
    # Without a release our own skip is an off switch for assist mode: only the restore is done.
    back = settled(taken, [vmim("Succeeded")], mode=Mode.ASSIST)
    assert by_name() not in back.annotations
