"""Which entries stand: dropped when finished, dropped when nobody explains them, adopted under one key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from pkg.util.names import migrating_key
from pkg.util.resourcequota.annotations import Journal
from pkg.util.resourcequota.demand import Demand, Standing
from pkg.util.resourcequota.entry_rules import (
    adopt,
    drop_finished,
    drop_unexplained,
    explained_keys,
    unexplained,
)
from tests.pkg.util.resourcequota.world import ENTRY, LONG_NAME, by_name, by_uid, sentences, vmi


def claim(vm: str = "vm1", standing: Standing = Standing.WANTED, *, known: bool = True) -> Demand:
    return Demand(vm, standing, refused=False, vmi=vmi(vm) if known else None)


FINISHED = claim(standing=Standing.FINISHED)
FINISHED_UNKNOWN = claim(standing=Standing.FINISHED, known=False)


@dataclass(frozen=True)
class Dropped:
    """Which keys go when a VM's migrations are over."""

    claim: Demand
    there: Sequence[str]
    gone: Sequence[str]


DROPPED = {
    "every form of its key goes": Dropped(FINISHED, [by_uid(), by_name()], [by_uid(), by_name()]),
    "a hashed key goes": Dropped(
        claim(LONG_NAME, Standing.FINISHED), [migrating_key(LONG_NAME)], [migrating_key(LONG_NAME)]
    ),
    "another VM's keys stay": Dropped(FINISHED, [by_uid("vm2"), by_name("vm2"), by_name("vm11")], []),
    "one that is wanted keeps its keys": Dropped(claim(), [by_uid(), by_name()], []),
    "one that is announced keeps its keys": Dropped(claim(standing=Standing.ANNOUNCED), [by_uid()], []),
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
    "an announced one explains its keys": Unexplained([by_uid()], [claim(standing=Standing.ANNOUNCED)], []),
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
    uids_unknown = any(claim.vmi is None for claim in case.claims if claim.standing is not Standing.FINISHED)
    found = unexplained(journal, explained_keys(journal, case.claims), uids_unknown=uids_unknown)
    assert [entry.key for entry in found] == list(case.left)
    assert journal.changes() == {}


@dataclass(frozen=True)
class Waiting:
    """Entries that nobody explains, at 100 s with a grace of 60: which go, and since when the others wait."""

    there: Sequence[str]
    gone: Sequence[str]
    waiting: dict[str, float]
    since: dict[str, float] = field(default_factory=dict)
    ours: bool = False


WAITING = {
    "a foreign entry that is new begins to wait": Waiting([by_uid()], [], {by_uid(): 100.0}),
    "one that has waited a little goes on waiting": Waiting(
        [by_uid()], [], {by_uid(): 40.1}, {by_uid(): 40.1}
    ),
    "one that has waited long enough goes": Waiting([by_uid()], [by_uid()], {}, {by_uid(): 40.0}),
    "a name key on a quota that is ours is ours and goes at once": Waiting(
        [by_name()], [by_name()], {}, ours=True
    ),
    "a uid key on a quota that is ours is foreign": Waiting([by_uid()], [], {by_uid(): 100.0}, ours=True),
    "a name key that was there at takeover waits on": Waiting(
        [by_name()], [], {by_name(): 90.0}, {by_name(): 90.0}, ours=True
    ),
    "each waits for itself": Waiting(
        [by_uid(), by_uid("vm2")], [by_uid()], {by_uid("vm2"): 99.0}, {by_uid(): 1.0, by_uid("vm2"): 99.0}
    ),
    "what has gone meanwhile is not waited for": Waiting([], [], {}, {by_uid(): 90.0}),
}


@sentences(WAITING)
def test_drop_unexplained(case: Waiting) -> None:
    journal = Journal(dict.fromkeys(case.there, ENTRY))
    removed, waiting = drop_unexplained(
        journal, journal.entries(), case.since, ours=case.ours, now=100.0, grace=60.0
    )
    assert removed is bool(case.gone)
    assert waiting == case.waiting
    assert journal.changes() == dict.fromkeys(case.gone)


@pytest.mark.parametrize("vm", ["vm1", LONG_NAME])
def test_adopting_what_stands_right_changes_nothing(vm: str) -> None:
    journal = Journal({migrating_key(vm): ENTRY, "example.com/other": "kept"})
    adopt(journal, vm, f"uid-{vm}")
    assert journal.changes() == {}


def test_adopting_nothing_makes_nothing() -> None:
    journal = Journal({by_name("vm2"): ENTRY})
    adopt(journal, "vm1", "uid-vm1")
    assert journal.changes() == {}


def test_adopting_only_garbage_leaves_no_entry() -> None:
    journal = Journal({by_name(): "{nope", by_uid(): "[]"})
    adopt(journal, "vm1", "uid-vm1")
    assert journal.changes() == {by_name(): None, by_uid(): None}


ADOPTED = {
    "the greater of two is kept, of each resource by itself": (
        {by_name(): '{"limits.cpu":"3"}', by_uid(): ENTRY},
        {by_uid(): None, by_name(): '{"limits.cpu":"3","limits.memory":"4737464313"}'},
    ),
    "one under another key is moved": ({by_uid(): ENTRY}, {by_uid(): None, by_name(): ENTRY}),
    "garbage beside a readable one is left out": (
        {by_name(): "{nope", by_uid(): ENTRY},
        {by_uid(): None, by_name(): ENTRY},
    ),
    "another VM's are not touched": ({by_name("vm2"): ENTRY, by_uid("vm2"): ENTRY}, {}),
}


@sentences(ADOPTED)
def test_adopt(case: tuple[dict[str, str], dict[str, str | None]]) -> None:
    there, changes = case
    journal = Journal(there)
    adopt(journal, "vm1", "uid-vm1")
    assert journal.changes() == changes
