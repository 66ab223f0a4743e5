"""Giving a quota back: Harvester finds its own keys, its switch, and the numbers that it would compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from kubeloop.api.meta import RawResourceList
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util.names import migrating_key
from pkg.util.resourcequota.give_back import give_back
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import Mode, Policy
from tests.decisions import applied, by_value, observed, sentences, settled
from tests.objects import (
    BASE,
    COMPENSATION,
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


@dataclass(frozen=True)
class Given:
    """A quota that is ours, and what Harvester gets."""

    before: dict[str, str]
    after: dict[str, str]
    raised: RawResourceList = field(default_factory=lambda: dict(RAISED))
    hard: RawResourceList = field(default_factory=lambda: dict(RAISED))
    migrations: Sequence[VirtualMachineInstanceMigration] = (vmim("Running"),)
    instances: Sequence[VirtualMachineInstance] | None = None
    limits: str = BASE


GIVEN = {
    "a quiet quota loses the marks": Given({}, {}, HARD, HARD, []),
    "a migration's entry goes under the key that Harvester restores by": Given(
        {by_name(): ENTRY}, {by_uid(): ENTRY}
    ),
    "a long name's too": Given(
        {migrating_key(LONG_NAME): ENTRY},
        {by_uid(LONG_NAME): ENTRY},
        migrations=[vmim("Running", vm=LONG_NAME)],
    ),
    "an entry that has Harvester's key already stays": Given({by_uid(): ENTRY}, {by_uid(): ENTRY}),
    "two forms of one VM become one": Given({by_uid(): ENTRY, by_name(): ENTRY}, {by_uid(): ENTRY}),
    "a finished migration's entry goes": Given(
        {by_name(): ENTRY}, {}, hard=HARD, migrations=[vmim("Succeeded")]
    ),
    "an entry that no migration explains goes": Given({by_name("gone"): ENTRY}, {}, hard=HARD, migrations=[]),
    "an entry whose VMI is not known stays as it is": Given(
        {by_name(): ENTRY}, {by_name(): ENTRY}, instances=[]
    ),
    "other annotations stay": Given(
        {"example.com/other": "kept"}, {"example.com/other": "kept"}, HARD, HARD, []
    ),
    "a refused migration keeps its compensation": Given(
        {by_name(): ENTRY, COMPENSATION: '{"limits.memory":"1Gi"}'},
        {by_uid(): ENTRY, COMPENSATION: '{"limits.memory":"1Gi"}'},
        hard={"limits.cpu": "5", "limits.memory": str(9980344313 + 2**30)},
        migrations=[vmim(refused=True)],
    ),
    "a compensation that no migration needs any more goes": Given(
        {by_name(): ENTRY, COMPENSATION: '{"limits.memory":"1Gi"}'},
        {},
        hard=HARD,
        migrations=[vmim("Failed")],
    ),
    "spec.hard that Rancher reverted is repaired": Given({by_name(): ENTRY}, {by_uid(): ENTRY}, raised=HARD),
    "garbage in the base leaves spec.hard alone": Given(
        {by_name(): ENTRY}, {by_uid(): ENTRY}, limits="{nope"
    ),
    "without a base spec.hard is left alone": Given({by_name(): ENTRY}, {by_uid(): ENTRY}, limits=""),
    "garbage in an entry leaves spec.hard alone": Given({by_name(): "{nope"}, {by_uid(): "{nope"}),
}


@sentences(GIVEN)
def test_release(case: Given) -> None:
    before = quota(case.raised, MARKS | case.before)
    looked = observed(before, case.migrations, case.instances, limits=case.limits)
    after = applied(before, give_back(looked, to_harvester=True))
    assert after.annotations == {**case.after, RESYNC: "true"}
    assert by_value(after.hard) == by_value(case.hard)


NOT_OURS = {
    "a quota that was never raised": {},
    "a quota that a person switched off": {SKIP: "true"},
    "a quota that Harvester scales": {by_uid(): ENTRY, RESYNC: "true"},
}


@sentences(NOT_OURS)
def test_what_is_not_ours_is_not_given_back(case: dict[str, str]) -> None:
    assert not give_back(observed(quota(RAISED, case), [vmim()]), to_harvester=True)


def test_giving_back_twice_writes_once() -> None:
    before = quota(RAISED, {**MARKS, by_name(): ENTRY})
    once = applied(before, give_back(observed(before, [vmim()]), to_harvester=True))
    assert OWNER not in once.annotations
    assert not give_back(observed(once, [vmim()]), to_harvester=True)


@pytest.mark.parametrize("phase", ["Pending", "Running"])
def test_beside_harvester_nothing_is_left_to_do_but_to_answer_the_flag(phase: str) -> None:
    taken = settled(quota(), [vmim(phase)], mode=Mode.TAKEOVER)
    given = applied(taken, give_back(observed(taken, [vmim(phase)]), to_harvester=True))
    made = plan(observed(given, [vmim(phase)]), Policy(Mode.ASSIST))
    assert made.annotations == {RESYNC: "false"}
    assert not made.hard


def test_taken_given_back_and_taken_again_the_numbers_are_the_same() -> None:
    taken = settled(quota(), [vmim()], mode=Mode.TAKEOVER)
    given = applied(taken, give_back(observed(taken, [vmim()]), to_harvester=True))
    again = settled(given, [vmim()], mode=Mode.TAKEOVER)
    assert by_value(again.hard) == by_value(taken.hard)
    assert set(again.annotations) == {*MARKS, by_name(), RESYNC}
