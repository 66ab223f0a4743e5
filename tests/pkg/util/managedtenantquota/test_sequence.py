"""The table: what is observed → the next write; and the whole way, with an end after any step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from pkg.util.constants import ANNOTATION_ORIGINALS
from pkg.util.managedtenantquota.lock import admitted_by
from pkg.util.managedtenantquota.model import Observed, Policy
from pkg.util.managedtenantquota.record import is_in_use
from pkg.util.managedtenantquota.sequence import Wait
from tests.decisions import by_value, sentences
from tests.objects import vmim
from tests.pkg.util.managedtenantquota.objects import (
    ENOUGH,
    FULL,
    GRANTED,
    HOOK,
    NOW,
    RAISED,
    RECORD,
    TWICE,
    after,
    budget,
    lock,
    name_of,
    next_step,
    next_write,
    observed,
    quota,
    refused,
    surroundings,
    walked,
    window,
)

ROW = tuple[Observed, str]
MIRRORED = {"additionalMigrationResources": ENOUGH}
DONE = surroundings([vmim("Scheduling")])
SAVED = {"quota": FULL}


def raised(**more: Any) -> Observed:
    """One quota that is raised for what the budget's status has saved of it."""
    given = {"quotas": [quota(RAISED, annotations=RECORD)], "budgets": [budget(saved=SAVED)], **more}
    return observed(**given)


TWO_BLOCK = [quota(RAISED, annotations=RECORD), quota({"pods": "1"}, {"pods": "1"}, name="pods")]
UNMIRRORED = budget(added={"limits.cpu": "1", "pods": "1"})


@sentences(
    {
        "a refused migration and nothing else: lock": (observed(), "MakeLock"),
        "a lock that another client made: replace it": (
            observed(lock=lock(hook={**HOOK, "clientConfig": {"url": "https://old"}})),
            "UpdateLock",
        ),
        "a lock that was made just now: wait until it holds": (observed(lock=lock(age=0.01)), "Wait"),
        "a lock and an empty status: save": (observed(lock=lock()), "Save"),
        "saved and not raised: raise": (observed(budgets=[budget(saved=SAVED, added=FULL)], lock=lock()), "Raise"),
        "saved, and something else would be added: save": (
            observed(budgets=[budget(saved=SAVED)], lock=lock()),
            "Save",
        ),
        "raised: wait for the target pod": (raised(lock=lock()), "Wait"),
        "raised and the target pod is there: restore": (raised(around=DONE, lock=lock()), "Restore"),
        "raised and the migration went away: restore": (raised(around=surroundings([]), lock=lock()), "Restore"),
        "restored, and admission goes by the raised limits still: wait": (
            raised(quotas=[quota(FULL, enforced=RAISED)], around=DONE, lock=lock()),
            "Wait",
        ),
        "restored: clear": (raised(quotas=[quota()], around=DONE, lock=lock()), "Clear"),
        "cleared: unlock": (observed(around=DONE, lock=lock()), "Unlock"),
        "unlocked: nothing": (observed(around=DONE), "Wait"),
        "saved and nothing to do, without a raise: clear": (
            observed(budgets=[budget(saved=SAVED)], around=DONE, lock=lock()),
            "Clear",
        ),
        "a lock and nothing to do: unlock": (observed(around=surroundings([]), lock=lock()), "Unlock"),
        "raised without a lock, it was deleted: back first": (raised(), "Restore"),
        "saved without a lock: clear, then anew": (observed(budgets=[budget(saved=SAVED)]), "Clear"),
        "what upstream leaves in an idle status is nothing": (
            observed(budgets=[budget(added=ENOUGH)], around=DONE),
            "Wait",
        ),
        "a saved quota that is gone: clear": (raised(quotas=[], around=DONE, lock=lock()), "Clear"),
        "no budget any more, but a lock: unlock": (observed(budgets=[], lock=lock()), "Unlock"),
        "the budget is on its way out, raised: restore": (
            raised(budgets=[budget(saved=SAVED, deletionTimestamp="2026-01-01T00:00:00Z")], lock=lock()),
            "Restore",
        ),
        "the namespace is on its way out: nothing is begun": (observed(exists=False), "Wait"),
        "the namespace is on its way out, locked: unlock": (observed(exists=False, lock=lock()), "Unlock"),
        "it cannot be locked: nothing is touched": (observed(why_not="no webhook"), "Wait"),
        "raised under a lock, while the webhook is away: it stays": (
            raised(lock=lock(), why_not="not reached"),
            "Wait",
        ),
        "raised without a lock, and it cannot be locked: restore": (raised(why_not="not reached"), "Restore"),
        "locked for one, nothing raised yet, the webhook away: unlock": (
            observed([quota()], [budget()], lock=lock(), why_not="not reached"),
            "Unlock",
        ),
        "two budgets: nothing is touched": (observed(budgets=[budget(), budget(name="other")]), "Wait"),
        "two budgets, one of them in use: restore": (
            raised(budgets=[budget(saved=SAVED), budget(name="other")], lock=lock()),
            "Restore",
        ),
        "the limit is reached: restore": (raised(lock=lock(age=120)), "Restore"),
        "the clock was set back by an hour: unlock": (raised(lock=lock(age=-3600)), "Unlock"),
        "a migration that another quota blocks joins: save that": (
            observed(TWO_BLOCK, [budget({**ENOUGH, "pods": "1"}, saved=SAVED)], lock=lock()),
            "Save",
        ),
        "past the limit and its grace: unlock, whatever is raised": (raised(lock=lock(age=130)), "Unlock"),
        "past them, and two budgets: unlock": (
            observed(budgets=[budget(saved=SAVED), budget(name="other")], lock=lock(age=130)),
            "Unlock",
        ),
        "past them, and the status is garbage: unlock": (
            raised(budgets=[budget(saved={"quota": {"limits.cpu": "banana"}})], lock=lock(age=130)),
            "Unlock",
        ),
        "past them, and upstream's controller runs: unlock": (raised(lock=lock(age=130), upstream="it"), "Unlock"),
        "past them, and the lock cannot be deleted: restore": (
            raised(lock=lock(age=130), not_unlocked="no"),
            "Restore",
        ),
        "the same, and a person has changed the quota, which the webhook admits by now: it stays, its record goes": (
            raised(quotas=[quota(TWICE, annotations=RECORD)], lock=lock(age=130), not_unlocked="no"),
            "Restore",
        ),
        "the budget is less than nothing: nothing is lowered by it": (
            observed(budgets=[budget({**ENOUGH, "pods": "-1"})]),
            "Wait",
        ),
        "unlocked past them, still raised: restore": (raised(), "Restore"),
        "a restore was refused: wait": (raised(around=DONE, lock=lock(), not_restored={"quota": "no"}), "Wait"),
        "a restore was refused, the other quota can: restore that": (
            observed(
                [quota(RAISED, annotations=RECORD), quota(RAISED, name="second")],
                [budget(saved={"quota": FULL, "second": FULL})],
                DONE,
                lock=lock(),
                not_restored={"quota": "no"},
            ),
            "Restore",
        ),
        "the status is garbage, the quota has recorded it: go on by that": (
            raised(budgets=[budget(saved={"quota": {"limits.cpu": "banana"}})], around=DONE, lock=lock()),
            "Restore",
        ),
        "the status is garbage and nothing else knows: clear": (
            observed([quota(RAISED)], [budget(saved={"quota": {"limits.cpu": "banana"}})], lock=lock(ours=False)),
            "Clear",
        ),
        "raised and the budget is gone: restore by what the quota has recorded": (
            raised(budgets=[], lock=lock()),
            "Restore",
        ),
        "raised, and nothing says by whom: unlock": (observed([quota(RAISED)], [], lock=lock()), "Unlock"),
        "the budget is gone and the lock had to end: restore by what the quota records": (
            raised(budgets=[]),
            "Restore",
        ),
        "and a person has changed it since: it stays, its record goes": (
            observed([quota(TWICE, annotations=RECORD)], []),
            "Restore",
        ),
        "a record that is garbage says nothing": (
            observed([quota(RAISED, annotations={ANNOTATION_ORIGINALS: "{"})], []),
            "Wait",
        ),
        "the record of another quota says nothing": (
            observed([quota(RAISED, name="other", annotations=RECORD)], []),
            "Wait",
        ),
        "raised, and the budget was made anew: first back to what was": (
            observed([quota(RAISED, used=TWICE, annotations=RECORD)], [budget()]),
            "Restore",
        ),
        "the same under the lock: what it records is not overwritten": (
            observed([quota(RAISED, used=TWICE, annotations=RECORD)], [budget()], lock=lock()),
            "Restore",
        ),
        "what may be added is not in the status: put it there": (observed(budgets=[UNMIRRORED], around=DONE), "Clear"),
        "and no lock waits for that: unlock": (observed(budgets=[UNMIRRORED], around=DONE, lock=lock()), "Unlock"),
        "nothing may be added any more, the status says otherwise: put it there": (
            observed(budgets=[budget({}, added=ENOUGH)], around=DONE),
            "Clear",
        ),
        "nothing may be added, and the status says nothing: nothing": (
            observed(budgets=[budget({})], around=DONE),
            "Wait",
        ),
        "it is not, and the budget or the namespace is on its way out: nothing": (
            observed(budgets=[budget(added={}, deletionTimestamp="2026-01-01T00:00:00Z")], around=DONE),
            "Wait",
        ),
        "the first saved quota is gone: restore the second": (
            observed([quota(RAISED, name="second")], [budget(saved={"gone": FULL, "second": FULL})], DONE),
            "Restore",
        ),
        "under our lock what another client wrote stays: clear": (
            raised(quotas=[quota(TWICE)], around=DONE, lock=lock()),
            "Clear",
        ),
        "it was none at all before: restore": (
            observed([quota({"pods": "1"}, {})], [budget({"pods": "1"}, saved={"quota": {"pods": "0"}})], DONE),
            "Restore",
        ),
        "upstream's controller runs: nothing is begun": (observed(upstream="it"), "Wait"),
        "upstream's controller runs: its window is its own": (
            raised(quotas=[quota(RAISED)], around=DONE, lock=lock(ours=False), upstream="it"),
            "Wait",
        ),
        "upstream's controller is said to run: what we locked is closed": (
            raised(lock=lock(), upstream="it"),
            "Restore",
        ),
        "upstream's controller is said to run: what we raised is restored": (
            raised(budgets=[budget()], upstream="it"),
            "Restore",
        ),
    }
)
def test_the_next_write(case: ROW) -> None:
    seen, step = case
    assert name_of(next_step(seen)) == step


def test_a_lock_holds_as_soon_as_its_time_has_passed() -> None:
    assert name_of(next_step(observed(lock=lock(age=0.125)), Policy(settle=0.125))) == "Save"


def test_what_is_saved_is_the_whole_spec_and_who_is_released_by_it() -> None:
    scoped = quota(scopes=["NotBestEffort"])
    step = next_write(observed([scoped], [budget()], lock=lock()))
    assert step.name == "Save"
    assert step.body == {
        "metadata": {"resourceVersion": "9"},
        "status": {
            "originalBlockingResourceQuotas": [{"name": "quota", "spec": {"hard": FULL, "scopes": ["NotBestEffort"]}}],
            "migrationsToBlockingResourceQuotas": {"migration-of-vm1": ["quota"]},
            "additionalMigrationResources": FULL,
        },
    }


def test_a_budget_that_is_saved_anew_forgets_what_it_once_added() -> None:
    step = next_write(observed(budgets=[budget(added={"pods": "7"})], lock=lock()))
    assert step.name == "Save"
    assert step.body["status"]["additionalMigrationResources"] == {**FULL, "pods": None}


LESS = {"limits.cpu": "-985m", "limits.memory": str(4797464313 - 5 * 2**30)}
"""With what was added, these are the original limits."""


@pytest.mark.parametrize("locked", [True, False])
@pytest.mark.parametrize(
    "wrong",
    [
        {"saved": {"quota": dict.fromkeys(FULL, "0")}},
        {"saved": {"quota": dict.fromkeys(FULL, "-5")}},
        {"saved": {"quota": TWICE}},
        {"saved": {"quota": {}}},
        {"saved": {"quota": LESS}, "added": ENOUGH},
        {"saved": SAVED, "added": {"limits.cpu": "1"}},
    ],
)
def test_a_status_that_is_wrong_is_not_restored_by(wrong: dict[str, Any], locked: bool) -> None:
    """What the raised quota records of itself counts, until the status that says otherwise is cleared."""
    held = lock() if locked else None
    names, end = walked(raised(budgets=[budget(**wrong)], around=surroundings([]), lock=held))
    contradicts = wrong["saved"] != SAVED
    assert names == ["Restore", "Clear", *["Restore"] * contradicts, *["Unlock"] * locked]
    assert by_value(end.quotas[0].hard) == by_value(FULL)
    assert end.lock is None


def test_writes_are_bound_to_the_version_that_was_looked_at() -> None:
    clear = next_write(observed(budgets=[budget(saved=SAVED)], around=DONE, lock=lock()))
    assert clear.name == "Clear"
    assert clear.body["metadata"] == {"resourceVersion": "9"}
    assert clear.body["status"] == {
        "originalBlockingResourceQuotas": None,
        "migrationsToBlockingResourceQuotas": None,
        "additionalMigrationResources": ENOUGH,
    }


def test_the_lock_names_the_vms_it_is_for() -> None:
    step = next_write(observed([quota({"pods": "1"}, {"pods": "1"})], [budget({"pods": "20"})], _many(12)))
    assert step.name == "MakeLock"
    assert step.text.endswith(" of vm00, vm01, vm02, vm03, vm04, vm05, vm06, vm07, vm08, vm09 and 2 more")


def _many(count: int, **more: Any) -> Any:
    return surroundings([refused(f"vm{number:02}") for number in range(count)], **more)


def test_who_comes_soon_joins_and_who_comes_late_waits_for_the_next() -> None:
    quotas = [quota(RAISED, annotations=RECORD)]
    both = surroundings([refused(), refused("vm2")])
    members = budget({"limits.cpu": "9", "limits.memory": "20Gi"}, saved=SAVED, added=ENOUGH)
    soon = observed(quotas, [members], both, lock=lock(age=5))
    joined = after(soon, next_step(soon))
    assert joined.lock is not None
    assert admitted_by(joined.lock) == {"uid-migration-of-vm1/vm1", "uid-migration-of-vm2/vm2"}
    assert name_of(next_step(joined)) == "Save"
    on_its_way = replace(joined, facts=surroundings([vmim("Pending"), refused("vm2")]))
    names, _ = walked(on_its_way)
    assert "UpdateLock" not in names, "the target of one that was let in may be on its way"
    names, _ = walked(observed(quotas, [members], both, lock=lock(age=11)))
    assert names == [], "it is not for the second one"
    late = surroundings([vmim("Scheduling"), refused("vm2")])
    assert name_of(next_step(observed(quotas, [members], late, lock=lock(age=11)))) == "Restore"


class TestTheLimit:
    """A lock that lasts too long is ended and said, and not made again at once."""

    def seen(self, **more: Any) -> Observed:
        return raised(**{"lock": lock(age=121), **more})

    def test_it_is_said_to_both(self) -> None:
        (problem,) = window(self.seen()).problems
        assert problem.reason == "LockLimitReached"
        assert [obj.name for obj in problem.about] == ["migration-of-vm1", "budget"]
        assert "has been locked for 121 s" in problem.message
        assert "the lock ends in 9 s at the latest" in problem.message
        assert problem.message.endswith("the migrations are retried in 600 s")
        (unraised,) = window(self.seen(quotas=[quota()])).problems
        assert "retried" not in unraised.message

    def test_everything_is_undone_and_the_migration_rests(self) -> None:
        names, end = walked(self.seen())
        assert names == ["Restore", "Clear", "Unlock"]
        assert by_value(end.quotas[0].hard) == by_value(FULL)
        assert name_of(next_step(replace(end, now=NOW + 599))) == "Wait"
        assert name_of(next_step(replace(end, now=NOW + 601))) == "MakeLock"

    def test_a_window_without_a_controller_is_opened_anew(self) -> None:
        names, _ = walked(self.seen(quotas=[quota()]), most=50)
        assert names == ["Clear", "Unlock", "MakeLock", "Save", "Raise"]


def test_upstreams_lock_is_looked_at_again_when_it_has_to_end() -> None:
    step = next_step(replace(observed(lock=lock(age=125, ours=False)), upstream="it"))
    assert isinstance(step, Wait)
    assert step.seconds == pytest.approx(5.0)


class TestProblems:
    def test_two_budgets_are_an_error_on_both(self) -> None:
        (problem,) = window(observed(budgets=[budget(), budget(name="other")])).problems
        assert problem.reason == "MultipleMigrationResourceQuotas"
        assert [obj.name for obj in problem.about] == ["budget", "other"]

    def test_a_lock_that_cannot_be_had_is_said_with_the_reason(self) -> None:
        made = window(observed(why_not="no webhook is registered"))
        (problem,) = made.problems
        assert problem.reason == "LockUnavailable"
        assert "no webhook is registered" in problem.message
        assert next_step(observed(why_not="no webhook is registered")) == Wait(2.0, "nothing to do")

    def test_a_problem_is_told_apart_by_its_reason_and_not_by_what_the_api_server_names(self) -> None:
        keys = {
            window(observed(why_not=f"not {how}: events probe-{n} is forbidden")).problems[0].key
            for how, n in (("reached", "a"), ("reached", "b"), ("reached", "c"), ("allowed", "a"))
        }
        assert len(keys) == 2


def test_the_whole_way() -> None:
    names, open_ = walked(observed([quota(), quota(name="second"), quota(TWICE, name="roomy")]))
    assert names == ["MakeLock", "Save", "Raise", "Raise"]
    limits = {q.name: by_value(q.hard) for q in open_.quotas}
    assert limits == {"quota": by_value(GRANTED), "second": by_value(GRANTED), "roomy": by_value(TWICE)}
    names, closed = walked(replace(open_, facts=DONE))
    assert names == ["Restore", "Restore", "Clear", "Unlock"]
    assert closed.lock is None
    assert not is_in_use(closed.budgets[0])
    assert msgspec.to_builtins(closed.budgets[0].status) == MIRRORED
    assert {q.name: by_value(q.hard) for q in closed.quotas} == {
        "quota": by_value(FULL),
        "second": by_value(FULL),
        "roomy": by_value(TWICE),
    }
