"""The table: what is observed → the next write; and the whole way, with an end after any step."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import pytest

from pkg.util.constants import ANNOTATION_ORIGINALS
from pkg.util.managedtenantquota.lock import admitted_by, lock_body
from pkg.util.managedtenantquota.model import Observed, Record, WindowPolicy, WindowTimers
from pkg.util.managedtenantquota.sequence import Wait, Write
from tests.decisions import by_value, sentences
from tests.objects import vmim
from tests.pkg.util.managedtenantquota.objects import (
    ENOUGH,
    FOR_VM1,
    FULL,
    GRANTED,
    HOOK,
    HOOKS,
    NOW,
    RAISED,
    RECORD,
    TWICE,
    after,
    budget,
    lock,
    next_step,
    observed,
    quota,
    refused,
    surroundings,
    walked,
    window,
)

DONE = surroundings([vmim("Scheduling")])
SAVED = {"quota": FULL}


def raised(**fields: Any) -> Observed:
    """Returns the observation of a quota that is raised, with what the budget's status has saved of it."""
    defaults = {"quotas": [quota(RAISED, annotations=RECORD)], "budgets": [budget(saved=SAVED)], **fields}
    return observed(**defaults)


TWO_BLOCK = [quota(RAISED, annotations=RECORD), quota({"pods": "1"}, {"pods": "1"}, name="pods")]


UNMIRRORED = budget(added={"limits.cpu": "1", "pods": "1"})


NEXT: Mapping[str | float, Mapping[str, Observed]] = {
    0.09: {"a lock that was made just now": observed(budgets=[budget(saved=SAVED, added=FULL)], lock=lock(age=0.01))},
    "Save": {
        "a lock that was made just now, and nothing is saved": observed(lock=lock(age=0.01)),
        "saved, and the quota was lowered meanwhile": observed(
            budgets=[budget(saved={"quota": TWICE}, added=FULL)], lock=lock()
        ),
        "saved, and something else would be added": observed(budgets=[budget(saved=SAVED)], lock=lock()),
        "a migration that another quota blocks joins": observed(
            TWO_BLOCK, [budget({**ENOUGH, "pods": "1"}, saved=SAVED)], lock=lock()
        ),
    },
    30.0: {"raised": raised(lock=lock())},
    "Restore": {
        "a second quota refuses it by now, which may not be raised": raised(quotas=TWO_BLOCK, lock=lock()),
        "raised and the migration went away": raised(around=surroundings([]), lock=lock()),
        "the same, behind a quota that is not": raised(
            quotas=[quota(name="another"), quota(RAISED, annotations=RECORD)], around=surroundings([]), lock=lock()
        ),
        "raised without a lock, it was deleted": raised(),
        "the budget is on its way out, raised": raised(
            budgets=[budget(saved=SAVED, deletionTimestamp="2026-01-01T00:00:00Z")], lock=lock()
        ),
        "raised without a lock, and it cannot be locked": raised(why_not="not reached"),
        "two budgets, one of them in use": raised(budgets=[budget(saved=SAVED), budget(name="other")], lock=lock()),
        "the limit is reached": raised(lock=lock(age=120)),
        "past them, and the lock cannot be deleted": raised(lock=lock(age=130), refused_writes=["lock.ns1.com"]),
        "the same, edited by a person: its record goes": raised(
            quotas=[quota(TWICE, annotations=RECORD)], lock=lock(age=130), refused_writes=["lock.ns1.com"]
        ),
        "a restore was refused, the other quota can": observed(
            [quota(RAISED, annotations=RECORD), quota(RAISED, name="second")],
            [budget(saved={"quota": FULL, "second": FULL})],
            DONE,
            lock=lock(),
            refused_writes=["ns1/quota"],
        ),
        "the status is garbage: the quota's record counts": raised(
            budgets=[budget(saved={"quota": {"limits.cpu": "banana"}})], around=DONE, lock=lock()
        ),
        "raised and the budget is gone": raised(budgets=[], lock=lock()),
        "the budget is gone and the lock had to end": raised(budgets=[]),
        "and edited by a person since: its record goes": observed([quota(TWICE, annotations=RECORD)], []),
        "raised, and the budget was made anew: first back to what was": observed(
            [quota(RAISED, used=TWICE, annotations=RECORD)], [budget()]
        ),
        "the same under the lock: what it records is not overwritten": observed(
            [quota(RAISED, used=TWICE, annotations=RECORD)], [budget()], lock=lock()
        ),
        "the first saved quota is gone": observed(
            [quota(RAISED, name="second")], [budget(saved={"gone": FULL, "second": FULL})], DONE
        ),
        "it was none at all before": observed(
            [quota({"pods": "1"}, {})], [budget({"pods": "1"}, saved={"quota": {"pods": "0"}})], DONE
        ),
        "upstream's window, its migration is over": raised(quotas=[quota(RAISED)], around=DONE, lock=lock(ours=False)),
    },
    1.0: {
        "restored, and admission goes by the raised limits still": raised(
            quotas=[quota(FULL, enforced=RAISED)], budgets=[budget()], around=DONE, lock=lock()
        )
    },
    "Clear": {
        "restored": raised(quotas=[quota()], around=DONE, lock=lock()),
        "saved without a lock: clear, then anew": observed(budgets=[budget(saved=SAVED)]),
        "a saved quota that is gone": raised(quotas=[], around=DONE, lock=lock()),
        "the status is garbage and nothing else knows": observed(
            [quota(RAISED)], [budget(saved={"quota": {"limits.cpu": "banana"}})], lock=lock(ours=False)
        ),
        "what may be added is not in the status": observed(budgets=[UNMIRRORED], around=DONE),
        "nothing may be added any more, the status says otherwise": observed(
            budgets=[budget({}, added=ENOUGH)], around=DONE
        ),
        "under our lock what another client wrote stays": raised(quotas=[quota(TWICE)], around=DONE, lock=lock()),
    },
    math.inf: {
        "unlocked": observed(around=DONE),
        "the namespace is on its way out: nothing is begun": observed(exists=False),
        "two budgets": observed(budgets=[budget(), budget(name="other")]),
        "a restore was refused": raised(around=DONE, lock=lock(), refused_writes=["ns1/quota"]),
        "nothing may be added, and the status says nothing": observed(budgets=[budget({})], around=DONE),
        "it is not, and the budget or namespace is being deleted": observed(
            budgets=[budget(added={}, deletionTimestamp="2026-01-01T00:00:00Z")], around=DONE
        ),
    },
    "Unlock": {
        "a lock and nothing to do": observed(around=surroundings([]), lock=lock()),
        "no budget any more, but a lock": observed(budgets=[], lock=lock()),
        "the namespace is on its way out, locked": observed(exists=False, lock=lock()),
        "locked for one, nothing raised yet, the webhook away": observed(
            [quota()], [budget()], lock=lock(), why_not="not reached"
        ),
        "the clock was set back by an hour": raised(lock=lock(age=-3600)),
        "past them, and two budgets": observed(budgets=[budget(saved=SAVED), budget(name="other")], lock=lock(age=130)),
        "past them, and the status is garbage": raised(
            budgets=[budget(saved={"quota": {"limits.cpu": "banana"}})], lock=lock(age=130)
        ),
        "past them, and a quota cannot be read": observed([quota({"limits.cpu": "much"}, {})], lock=lock(age=130)),
        "past them, and a second quota may not be raised": raised(quotas=TWO_BLOCK, lock=lock(age=130)),
        "raised, and nothing says by whom": observed([quota(RAISED)], [], lock=lock()),
        "and no lock waits for that": observed(budgets=[UNMIRRORED], around=DONE, lock=lock()),
    },
    2.0: {
        "it cannot be locked": observed(why_not="no webhook"),
        "raised under a lock, while the webhook is away": raised(lock=lock(), why_not="not reached"),
    },
}
"""By the next write, or for how many seconds it waits: what is observed."""


@sentences(
    {f"{sentence}: {step}": (state, step) for step, rows in NEXT.items() for sentence, state in rows.items()},
    "state, expected",
)
def test_the_next_write(state: Observed, expected: str | float) -> None:
    step = next_step(state)
    assert (step.name if isinstance(step, Write) else pytest.approx(step.seconds)) == expected


def test_a_lock_holds_as_soon_as_its_time_has_passed() -> None:
    saved = budget(saved=SAVED, added=FULL)
    step = next_step(observed(budgets=[saved], lock=lock(age=0.125)), WindowPolicy(settle=0.125))
    assert isinstance(step, Write)
    assert step.name == "Raise"


class Bodies(NamedTuple):
    state: Observed
    name: str
    body: Mapping[str, Any]
    text: str = ""


def status(saved: Any, members: Any, added: Any) -> dict[str, Any]:
    """A patch that is bound to the version that was looked at."""
    names = ("originalBlockingResourceQuotas", "migrationsToBlockingResourceQuotas", "additionalMigrationResources")
    return {"metadata": {"resourceVersion": "9"}, "status": dict(zip(names, (saved, members, added), strict=True))}


def hard(limits: Any, record: str | None) -> dict[str, Any]:
    metadata = {"resourceVersion": "7", "annotations": {ANNOTATION_ORIGINALS: record}}
    return {"metadata": metadata, "spec": {"hard": limits}}


ORIGINAL = {"name": "quota", "spec": {"hard": FULL}}
OTHERS_LOCK = lock(hook={**HOOK, "clientConfig": {"url": "https://old"}})
BOTH = HOOKS(admitted=[f"uid-migration-of-{vm}/{vm}" for vm in ("vm1", "vm2")])
JOINED = observed(
    [quota(RAISED, annotations=RECORD)],
    [budget({"limits.cpu": "9", "limits.memory": "20Gi"}, saved=SAVED, added=ENOUGH)],
    surroundings([refused(), refused("vm2")]),
    lock=lock(age=5),
)


@sentences(
    {
        "the lock is for whom and until when": Bodies(
            observed(lock_owner="me"),
            "MakeLock",
            lock_body("ns1", FOR_VM1, now=NOW, owner="me", reason="vm1", longest=130.0),
            "locked for the migration of vm1",
        ),
        "another's lock becomes ours": Bodies(
            observed(lock=OTHERS_LOCK, lock_owner="me"),
            "UpdateLock",
            {
                "metadata": {
                    "resourceVersion": "11",
                    "labels": {"mtq-lock-server": "mtq-lock-server"},
                    "annotations": {"headroom.harvesterhci.io/locked-by": "me"},
                },
                "webhooks": [FOR_VM1],
            },
            "lock lock.ns1.com updated",
        ),
        "the whole spec is saved, and who is released by it": Bodies(
            observed([quota(name="b"), quota(name="a", scopes=["NotBestEffort"])], lock=lock()),
            "Save",
            status(
                [
                    {"name": "a", "spec": {"hard": FULL, "scopes": ["NotBestEffort"]}},
                    {"name": "b", "spec": {"hard": FULL}},
                ],
                {"migration-of-vm1": ["a", "b"]},
                FULL,
            ),
        ),
        "what was once added is forgotten": Bodies(
            observed(budgets=[budget(added={"pods": "7"})], lock=lock()),
            "Save",
            status(
                [{"name": "quota", "spec": {"hard": FULL}}], {"migration-of-vm1": ["quota"]}, {**FULL, "pods": None}
            ),
        ),
        "a second one joins: the record stays, more is added": Bodies(
            replace(JOINED, lock=lock(age=5, hook=BOTH)),
            "Save",
            status(
                [ORIGINAL],
                {"migration-of-vm1": ["quota"], "migration-of-vm2": ["quota"]},
                {"limits.cpu": "4030m", "limits.memory": str(2 * 4797464313)},
            ),
        ),
        "a quota is raised and records how it was": Bodies(
            observed(budgets=[budget(saved=SAVED, added=FULL)], lock=lock()),
            "Raise",
            hard(TWICE, Record(FULL, FULL).text("quota")),
            "resource quota quota raised until the target pods exist: limits.cpu 2015m -> 4030m, limits.memory "
            "4797464313 -> 9594928626",
        ),
        "restored, it records nothing": Bodies(
            raised(around=DONE, lock=lock()), "Restore", hard(FULL, None), "resource quota quota restored: limits.cpu"
        ),
        "as long as a status says otherwise, it does": Bodies(
            raised(budgets=[budget(saved={"quota": TWICE})], around=DONE), "Restore", hard(FULL, *RECORD.values())
        ),
        "nothing is raised any more": Bodies(
            observed(budgets=[budget(saved=SAVED)], around=DONE, lock=lock()), "Clear", status(None, None, ENOUGH)
        ),
        "nothing may be added": Bodies(
            observed(budgets=[budget({}, saved=SAVED)], around=DONE), "Clear", status(None, None, dict.fromkeys(ENOUGH))
        ),
        "unlocked": Bodies(
            observed(around=DONE, lock=lock()), "Unlock", {}, "unlocked, the resource quotas are as before"
        ),
        "unlocked, although one is raised": Bodies(
            raised(lock=lock(age=130)), "Unlock", {}, "unlocked, the resource quotas are still to be restored: quota"
        ),
    }
)
def test_what_is_written(case: Bodies) -> None:
    step = next_step(case.state)
    assert isinstance(step, Write)
    assert (step.name, step.body) == (case.name, case.body)
    assert step.text.startswith(case.text)


LESS = {"limits.cpu": "-985m", "limits.memory": str(4797464313 - 5 * 2**30)}
"""With what was added, these are the original limits."""


@pytest.mark.parametrize("locked", [True, False])
@sentences(
    {
        "nothing": {"saved": {"quota": dict.fromkeys(FULL, "0")}},
        "less than nothing": {"saved": {"quota": dict.fromkeys(FULL, "-5")}},
        "more": {"saved": {"quota": TWICE}},
        "no limits": {"saved": {"quota": {}}},
        "less, and more was added": {"saved": {"quota": LESS}, "added": ENOUGH},
        "less was added": {"saved": SAVED, "added": {"limits.cpu": "1"}},
    }
)
def test_a_status_that_is_wrong_is_not_restored_by(case: dict[str, Any], locked: bool) -> None:
    """The record of the raised quota counts, until the status that contradicts it is cleared."""
    owned = lock() if locked else None
    names, end = walked(raised(budgets=[budget(**case)], around=surroundings([]), lock=owned))
    contradicts = case["saved"] != SAVED
    assert names == ["Restore", "Clear", *["Restore"] * contradicts, *["Unlock"] * locked]
    assert by_value(end.quotas[0].hard) == by_value(FULL)
    assert end.lock is None


@sentences({"twelve": (12, "vm08, vm09 and 2 more"), "ten": (10, "vm08, vm09"), "two": (2, "of vm00, vm01")})
def test_the_lock_names_the_vms_it_is_for(case: tuple[int, str]) -> None:
    around = surroundings([refused(f"vm{number:02}") for number in range(case[0])])
    step = next_step(observed([quota({"pods": "1"}, {"pods": "1"})], [budget({"pods": "20"})], around))
    assert isinstance(step, Write)
    assert step.text.endswith(case[1])


def test_a_migration_joins_early_and_waits_if_it_comes_late() -> None:
    joined = after(JOINED, next_step(JOINED))
    assert joined.lock is not None
    assert admitted_by(joined.lock) == {"uid-migration-of-vm1/vm1", "uid-migration-of-vm2/vm2"}
    names, _ = walked(replace(joined, facts=surroundings([vmim("Pending"), refused("vm2")])))
    assert names == ["Save"], "the target of one that was let in may be on its way"
    names, _ = walked(replace(JOINED, lock=lock(age=10)))
    assert names == [], "it is not for the second one"
    joined_late = surroundings([vmim("Scheduling"), refused("vm2")])
    assert walked(replace(JOINED, lock=lock(age=11), facts=joined_late), most=50)[0][0] == "Restore"
    held_up = replace(joined, timers=WindowTimers(paused={"uid-migration-of-vm2": NOW + 9}))
    step = next_step(held_up)
    assert isinstance(step, Write)
    assert admitted_by(after(held_up, step).lock or lock()) == {"uid-migration-of-vm1/vm1"}


class Said(NamedTuple):
    state: Observed
    reason: str
    message: str
    subject: str = "budget"
    again: float = math.inf


LIMIT = (
    "namespace ns1 has been locked for {} s and no target pod has appeared for migration-of-vm1: the quotas are being "
    "restored, the lock ends {}"
)
OTHER = [budget(), budget(name="other")]


@sentences(
    {
        "two budgets": Said(
            observed(budgets=OTHER),
            "MultipleMigrationResourceQuotas",
            "namespace ns1 has more than one (budget, other): none of them is used until one is left",
            "budget other",
        ),
        "no lock": Said(
            observed(why_not="no webhook"),
            "LockUnavailable",
            "namespace ns1 cannot be locked, its quotas are not raised: no webhook",
            again=2.0,
        ),
        "the limit, everything was raised": Said(
            raised(lock=lock(age=121)),
            "LockLimitReached",
            LIMIT.format(121, "in 9 s at the latest; the migrations are retried in 600 s"),
            "migration-of-vm1 budget",
            600.0,
        ),
        "the limit, it was not": Said(
            raised(quotas=[quota()], lock=lock(age=129.25)),
            "LockLimitReached",
            LIMIT.format(129, "in 1 s at the latest"),
            "migration-of-vm1 budget",
        ),
        "the end": Said(
            raised(quotas=[quota()], lock=lock(age=130)),
            "LockLimitReached",
            LIMIT.format(130, "now"),
            "migration-of-vm1 budget",
        ),
    }
)
def test_what_people_are_told(case: Said) -> None:
    current = window(case.state)
    (problem,) = current.problems
    assert (problem.reason, problem.message) == (case.reason, case.message)
    assert [obj.name for obj in problem.objects] == case.subject.split()
    assert current.recheck_after == case.again
    assert not current.targets


def test_a_problems_key_does_not_depend_on_names_in_its_text() -> None:
    whys = [
        f"not {outcome}: events probe-{n} is forbidden"
        for outcome, n in (("reached", 1), ("reached", 2), ("allowed", 1))
    ]
    locks = [lock(age=121, uid=uid) for uid in ("a", "a", "b")]
    for state in ([observed(why_not=reason) for reason in whys], [raised(lock=stale_lock) for stale_lock in locks]):
        first_key, second_key, other_key = (window(namespace).problems[0].key for namespace in state)
        assert first_key == second_key != other_key


def test_at_the_limit_all_is_undone_and_the_migration_is_paused() -> None:
    names, end = walked(raised(lock=lock(age=121)))
    assert names == ["Restore", "Clear", "Unlock"]
    assert by_value(end.quotas[0].hard) == by_value(FULL)
    assert isinstance(next_step(replace(end, now=NOW + 599)), Wait)
    assert walked(replace(end, now=NOW + 600))[0][0] == "MakeLock"
    # A window during which we did not run says nothing about the migration.
    names, _ = walked(raised(quotas=[quota()], lock=lock(age=121)))
    assert names == ["Clear", "Unlock", "MakeLock", "Save", "Raise"]


@sentences(
    {
        "at first": (0, None, 0.5),
        "the second time": (1, None, 1.0),
        "ever after": (6, None, 30.0),
        "a thousand times": (2000, None, 30.0),
        "the lock stood for long": (0, 12.0, 12.0),
        "again": (1, 12.0, 24.0),
        "and again": (9, 12.0, 600.0),
    },
    "refusals, age, seconds",
)
def test_a_write_that_is_refused(refusals: int, age: float | None, seconds: float) -> None:
    """Its window is closed, and the migration left alone for ever longer."""
    owned = None if age is None else lock(age=age - 8)
    current = window(observed(lock=owned, timers=WindowTimers(refusals=refusals, paused={"another": NOW + 5})))
    current.close_after_refusal("no: because", NOW + 8)
    assert current.timers.paused == {"another": NOW + 5, "uid-migration-of-vm1": NOW + 8 + seconds}
    assert current.timers.refusals == refusals + 1
    assert (current.targets, current.recheck_after) == ((), seconds)
    (problem,) = current.problems
    assert problem.message.endswith(f"the migrations are retried in {seconds:.1f} s: no: because")
    assert (problem.reason, problem.key) == ("LockUnavailable", "LockUnavailable/no")


def test_once_everything_is_raised_refusals_are_forgotten() -> None:
    refusals = WindowTimers(refusals=3)
    assert window(raised(lock=lock(), timers=refusals)).timers.refusals == 0
    assert window(observed(lock=lock(), timers=refusals)).timers.refusals == 3
    assert window(observed(around=DONE, timers=refusals)).timers.refusals == 3


def test_the_whole_way() -> None:
    names, open_ = walked(observed([quota(), quota(name="second"), quota(TWICE, name="roomy")]))
    assert names == ["MakeLock", "Save", "Raise", "Raise"]
    limits = {q.name: by_value(q.hard) for q in open_.quotas}
    assert limits == {"quota": by_value(GRANTED), "second": by_value(GRANTED), "roomy": by_value(TWICE)}
    names, closed = walked(replace(open_, facts=DONE))
    assert names == ["Restore", "Restore", "Clear", "Unlock"]
    assert closed.lock is None
    assert msgspec.to_builtins(closed.budgets[0].status) == {"additionalMigrationResources": ENOUGH}
    limits = {q.name: by_value(q.hard) for q in closed.quotas}
    assert limits == {"quota": by_value(FULL), "second": by_value(FULL), "roomy": by_value(TWICE)}
