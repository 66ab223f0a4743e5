"""Which entries stand: dropped when finished, dropped when no migration explains them, adopted under one key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from pkg.util.kubevirt.migration import Demand, Stage
from pkg.util.names import migrating_key
from pkg.util.resourcequota.journal import (
    Journal,
    drop_finished,
    drop_unexplained,
    explained_keys,
    unexplained,
)
from tests.decisions import by_value, sentences
from tests.objects import ENTRY, LONG_NAME, by_name, by_uid, vmi


def claim(vm: str = "vm1", stage: Stage = Stage.WANTED, *, known: bool = True) -> Demand:
    return Demand(vm, stage, vmi(vm) if known else None)


FINISHED = claim(stage=Stage.FINISHED)
FINISHED_UNKNOWN = claim(stage=Stage.FINISHED, known=False)


@dataclass(frozen=True)
class Dropped:
    """Which keys go when a VM's migrations are over."""

    claim: Demand
    there: Sequence[str]
    gone: Sequence[str]


DROPPED = {
    "every form of its key goes": Dropped(FINISHED, [by_uid(), by_name()], [by_uid(), by_name()]),
    "a hashed key goes": Dropped(
        claim(LONG_NAME, Stage.FINISHED), [migrating_key(LONG_NAME)], [migrating_key(LONG_NAME)]
    ),
    "another VM's keys stay": Dropped(FINISHED, [by_uid("vm2"), by_name("vm2"), by_name("vm11")], []),
    "one that is wanted keeps its keys": Dropped(claim(), [by_uid(), by_name()], []),
    "one that is announced keeps its keys": Dropped(claim(stage=Stage.ANNOUNCED), [by_uid()], []),
    "without its VMI nothing goes, as upstream": Dropped(FINISHED_UNKNOWN, [by_name()], []),
}


@sentences(DROPPED)
def test_drop_finished(case: Dropped) -> None:
    journal = Journal(dict.fromkeys(case.there, ENTRY))
    assert drop_finished(journal, [case.claim]) is bool(case.gone)
    assert journal.changes() == dict.fromkeys(case.gone)


@dataclass(frozen=True)
class Unexplained:
    """Which keys no migration accounts for."""

    there: Sequence[str]
    claims: Sequence[Demand]
    left: Sequence[str]


UNEXPLAINED = {
    "without migrations nothing is explained": Unexplained([by_uid(), by_name()], [], [by_name(), by_uid()]),
    "a VM's own keys are explained": Unexplained([by_uid(), by_name()], [claim()], []),
    "those of another are not": Unexplained(
        [by_uid("vm2"), by_name("vm2")], [claim()], [by_name("vm2"), by_uid("vm2")]
    ),
    "a name that begins alike is another VM": Unexplained([by_name("vm1-2")], [claim()], [by_name("vm1-2")]),
    "a finished migration explains nothing": Unexplained([by_uid()], [FINISHED], [by_uid()]),
    "an announced one explains its keys": Unexplained([by_uid()], [claim(stage=Stage.ANNOUNCED)], []),
    "while a VMI is unknown a uid may be its": Unexplained([by_uid("vm2")], [claim(known=False)], []),
    "while a VMI is unknown another's name key is still not its": Unexplained(
        [by_name("vm2")], [claim(known=False)], [by_name("vm2")]
    ),
    "its own name key is explained without its VMI": Unexplained([by_name()], [claim(known=False)], []),
    "an unknown VMI of a finished migration explains nothing": Unexplained(
        [by_uid("vm2")], [FINISHED_UNKNOWN], [by_uid("vm2")]
    ),
    "other annotations are no entries": Unexplained(["example.com/x"], [], []),
}


@sentences(UNEXPLAINED)
def test_unexplained(case: Unexplained) -> None:
    journal = Journal(dict.fromkeys(case.there, ENTRY))
    uids_unknown = any(claim.vmi is None for claim in case.claims if claim.stage is not Stage.FINISHED)
    found = unexplained(journal, explained_keys(journal, case.claims), uids_unknown=uids_unknown)
    assert [entry.key for entry in found] == list(case.left)
    assert journal.changes() == {}


@dataclass(frozen=True)
class Waiting:
    """Entries that no migration explains, at 100 s with a grace of 60: which go, since when foreign ones are seen."""

    there: Sequence[str]
    gone: Sequence[str]
    seen: dict[str, float]
    since: dict[str, float] = field(default_factory=dict)
    ours: bool = False


WAITING = {
    "a foreign entry that is new begins to wait": Waiting([by_uid()], [], {by_uid(): 100.0}),
    "one that has waited a little goes on waiting": Waiting(
        [by_uid()], [], {by_uid(): 40.1}, {by_uid(): 40.1}
    ),
    "one that has waited long enough goes": Waiting(
        [by_uid()], [by_uid()], {by_uid(): 40.0}, {by_uid(): 40.0}
    ),
    "a name key on a quota that is ours is ours and goes at once": Waiting(
        [by_name()], [by_name()], {}, ours=True
    ),
    "a uid key on a quota that is ours is foreign": Waiting([by_uid()], [], {by_uid(): 100.0}, ours=True),
    "a name key that was there at takeover waits on": Waiting(
        [by_name()], [], {by_name(): 90.0}, {by_name(): 90.0}, ours=True
    ),
    "each waits for itself": Waiting(
        [by_uid(), by_uid("vm2")], [by_uid()], *[{by_uid(): 1.0, by_uid("vm2"): 99.0}] * 2
    ),
    "what has gone meanwhile is not waited for": Waiting([], [], {}, {by_uid(): 90.0}),
}


@sentences(WAITING)
def test_drop_unexplained(case: Waiting) -> None:
    journal = Journal(dict.fromkeys(case.there, ENTRY))
    found = drop_unexplained(journal, journal.entries(), case.since, ours=case.ours, now=100.0, grace=60.0)
    assert found.dropped is bool(case.gone)
    assert found.since == case.seen
    left = [first + 60.0 - 100.0 for key, first in case.seen.items() if key not in case.gone]
    assert found.recheck_after == min(left, default=None)
    assert journal.changes() == dict.fromkeys(case.gone)


@pytest.mark.parametrize("vm", ["vm1", LONG_NAME])
def test_adopting_what_stands_right_changes_nothing(vm: str) -> None:
    journal = Journal({migrating_key(vm): ENTRY, "example.com/other": "kept"})
    journal.adopt(vm, f"uid-{vm}")
    assert journal.changes() == {}


def test_other_forms_of_its_key_go_and_another_vms_stay() -> None:
    journal = Journal({by_name(): ENTRY, by_uid(): ENTRY, by_name("vm2"): ENTRY, by_uid("vm2"): ENTRY})
    journal.adopt("vm1", "uid-vm1")
    assert journal.changes() == {by_uid(): None}


STANDING: dict[str, tuple[dict[str, str], dict[str, str] | None]] = {
    "nothing": ({by_name("vm2"): ENTRY}, None),
    "only garbage is nothing": ({by_name(): "{nope", by_uid(): "[]"}, None),
    "under another key": ({by_uid(): ENTRY}, {"limits.cpu": "2", "limits.memory": "4737464313"}),
    "the greater of two, of each resource by itself": (
        {by_name(): '{"limits.cpu":"3"}', by_uid(): ENTRY},
        {"limits.cpu": "3", "limits.memory": "4737464313"},
    ),
    "garbage beside a readable one is left out": (
        {by_name(): "{nope", by_uid(): ENTRY},
        {"limits.cpu": "2", "limits.memory": "4737464313"},
    ),
}


@sentences(STANDING)
def test_what_stands_for_a_vm(case: tuple[dict[str, str], dict[str, str] | None]) -> None:
    there, stands = case
    found = Journal(there).standing("vm1", "uid-vm1")
    assert found == (None if stands is None else by_value(stands))
