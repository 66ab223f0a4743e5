"""The rules beside a Rancher that validates, and one that lets nobody else write: what is granted, requested, given
back."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from pkg.util import constants
from pkg.util.resourcequota.base import base_of
from pkg.util.resourcequota.entries import LONGEST
from pkg.util.resourcequota.errors import EVENT_NO_ANSWER, EVENT_NOT_GRANTED, EVENT_PROJECT_FULL
from pkg.util.resourcequota.facts import Plan
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from pkg.util.resourcequota.rancher import annotation_of, parse_request, request_of, with_limits, with_request
from tests.decisions import HARVESTER, by_value, sentences
from tests.objects import BASE, ENTRY, HARD, MARKS, RAISED, by_name, quota
from tests.pkg.util.resourcequota.rancher_model import KEY, RancherNamespace, amounts

ADDED = {"limits.cpu": "2", "limits.memory": "4737464313"}
BIG = '{"limit":{"limitsCpu":"60","limitsMemory":"500Gi"}}'
ASSIST = Policy(Mode.ASSIST, EstimateKind.HARVESTER)


def reasons(new_plan: Plan) -> list[str]:
    return [problem.reason for problem in new_plan.problems]


# ---- what Rancher has not granted is no base (headroom writes the quota itself) --------------------------------


@pytest.mark.parametrize("policy", [HARVESTER, ASSIST], ids=["takeover", "beside Harvester"])
@pytest.mark.parametrize(
    ("annotation", "hard", "base"),
    [
        pytest.param(BIG, HARD, HARD, id="a request beyond the project is no base"),
        pytest.param(
            BIG, {"limits.cpu": "0", "limits.memory": "5000Mi"}, {"limits.memory": "5000Mi"}, id="a zero stays"
        ),
        pytest.param(BIG, {"limits.cpu": "0", "limits.memory": "0"}, {}, id="zeros stay"),
        pytest.param(BASE, HARD, HARD, id="a granted request is the base"),
        pytest.param(
            '{"limit":{"limitsCpu":"1","limitsMemory":"5000Mi"}}', HARD, HARD | {"limits.cpu": "1"}, id="lower"
        ),
    ],
)
def test_the_grant_bounds_the_base(annotation: str, hard: dict[str, str], base: dict[str, str], policy: Policy) -> None:
    ns1 = RancherNamespace(annotation, hard, asks=False, policy=policy)
    ns1.look()
    assert by_value(ns1.quota.hard) == by_value({**hard, **base})
    ns1.migrate("vm1")
    ns1.look()
    assert {n: q for n, q in ns1.hard.items() if n in base} == amounts(base, [ADDED])
    for _ in range(3):  # what was added does not become the base of what is added next
        ns1.look()
    ns1.migrate("vm1", phase="Succeeded")
    ns1.look()
    assert {n: q for n, q in ns1.hard.items() if n in base} == amounts(base)


@pytest.mark.parametrize("validated", [True, False])
def test_without_project_and_condition_the_request_is_the_base(validated: bool) -> None:
    ns1 = RancherNamespace(BIG, HARD, asks=False, in_project=False)
    status = '{"Conditions":[{"Type":"ResourceQuotaValidated","Status":"True"}]}' if validated else None
    ns1.annotate({constants.ANNOTATION_RANCHER_STATUS: status})
    ns1.look()
    assert ns1.hard == amounts(HARD if validated else {"limits.cpu": "60", "limits.memory": "500Gi"})


@pytest.mark.parametrize("migrates", [False, True])
def test_a_grant_of_a_later_moment_is_the_base_at_once(migrates: bool) -> None:
    ns1 = RancherNamespace(BASE, HARD, asks=False)
    if migrates:
        ns1.migrate("vm1")
    ns1.look()
    ns1.edit(limitsCpu="60")
    ns1.look()
    assert ns1.hard == amounts(HARD, [ADDED] if migrates else [])
    ns1.sync()
    ns1.look()
    assert ns1.hard == amounts(HARD | {"limits.cpu": "60"}, [ADDED] if migrates else [])


def test_ranchers_revert_is_repaired_and_grants_nothing() -> None:
    ns1 = RancherNamespace(BIG, HARD, asks=False, project={"limits.cpu": "10", "limits.memory": "10Gi"})
    ns1.migrate("vm1")
    ns1.look()
    ns1.quota = quota(HARD, ns1.quota.annotations)
    ns1.look()
    assert ns1.hard == amounts(HARD, [ADDED])


GARBAGE = {
    "no JSON": "{",
    "a quantity that is none": '{"limit":{"limitsCpu":"x","limitsMemory":"5000Mi"}}',
    "a text without an end": '{"limit":{"limitsCpu":"3"}}' + " " * LONGEST,
}


@sentences({**GARBAGE, "an annotation without limits": '{"limit":{}}', "none": None})
def test_what_is_written_under_a_migration_keeps_nothing_raised(case: str | None) -> None:
    ns1 = RancherNamespace(asks=False)
    ns1.migrate("vm1")
    ns1.look()
    ns1.annotate({KEY: case})
    ns1.look()
    assert ns1.hard == amounts(HARD, [ADDED])
    ns1.migrate("vm1", phase="Succeeded")
    ns1.look()
    assert ns1.hard == amounts(HARD)


def test_a_denied_request_is_told_once_rancher_answered() -> None:
    ns1 = RancherNamespace(BIG, HARD, asks=False, project={"limits.cpu": "10"})
    new_plan = ns1.look()
    assert (reasons(new_plan), new_plan.recheck_after) == ([], 10.0)
    ns1.sync()
    new_plan = ns1.look()
    assert reasons(new_plan) == [EVENT_NOT_GRANTED]
    assert "limits.cpu 60 of which 3 are granted" in str(new_plan.problems[0])
    assert "Oversubscribed resource quota [limits.cpu=60]" in str(new_plan.problems[0])
    unanswered = RancherNamespace(BIG, HARD, asks=False)
    unanswered.look()
    unanswered.now += 10.0
    assert reasons(unanswered.look()) == [EVENT_NOT_GRANTED]


# ---- a quota that only Rancher may write -----------------------------------------------------------------------


def test_a_migration_is_raised_and_given_back_by_rancher() -> None:
    ns1 = RancherNamespace()
    assert not ns1.look()
    ns1.migrate("vm1")
    ns1.look()
    assert ns1.requested == amounts(HARD, [ADDED])
    assert ns1.quota == quota(HARD)  # headroom writes the namespace alone
    for _ in range(3):  # Rancher's agent reverts nothing
        ns1.sync()
        assert by_value(ns1.quota.hard) == by_value(RAISED)
    ns1.settle()
    facts = ns1.observe()
    assert facts.limits == BASE  # the base is the person's number while it is raised
    assert base_of(facts.quota, facts.limits, HARVESTER, facts.rancher.granted).limits == amounts(HARD)
    ns1.migrate("vm1", phase="Succeeded")
    ns1.settle()
    assert (ns1.requested, ns1.record, ns1.hard) == (amounts(HARD), None, amounts(HARD))
    assert ns1.writes == 2


def test_the_record_names_the_request_and_the_vm() -> None:
    ns1 = RancherNamespace()
    ns1.migrate("vm1")
    ns1.look()
    record = json.loads(ns1.record or "")
    assert record["annotation"] == BASE
    assert record["entries"] == {"migrating-vm1": json.loads(ENTRY)}
    request = request_of(ns1.namespace)
    assert request is not None
    assert request.entries == {by_name(): ENTRY}


def edited_up(ns1: RancherNamespace) -> None:
    ns1.edit(limitsCpu="20")


def edited_down(ns1: RancherNamespace) -> None:
    ns1.edit(limitsCpu="2500m")


def saved_unchanged(ns1: RancherNamespace) -> None:
    ns1.annotate({KEY: json.dumps(json.loads(ns1.annotation), indent=1)})


@pytest.mark.parametrize(
    ("edit", "cpu"),
    [
        pytest.param(edited_up, "20", id="a larger number is the base once Rancher has granted it"),
        pytest.param(edited_down, "2500m", id="a smaller number is the base at once"),
        pytest.param(saved_unchanged, "3", id="a form that saves the raised numbers changes nothing"),
    ],
)
@pytest.mark.parametrize("synced", [False, True], ids=["before Rancher has seen it", "after Rancher has written it"])
def test_a_persons_edit_under_a_migration(edit: Callable[[RancherNamespace], None], cpu: str, synced: bool) -> None:
    ns1 = RancherNamespace()
    ns1.migrate("vm1")
    ns1.settle()
    edit(ns1)
    if synced:
        ns1.sync()
    ns1.settle()
    assert ns1.hard == amounts(HARD | {"limits.cpu": cpu}, [ADDED])
    ns1.migrate("vm1", phase="Succeeded")
    ns1.settle()
    assert ns1.hard == amounts(HARD | {"limits.cpu": cpu})
    assert ns1.record is None
    assert ns1.requested == ns1.hard


@sentences(GARBAGE)
def test_garbage_under_a_request_is_no_request(case: str) -> None:
    ns1 = RancherNamespace()
    ns1.migrate("vm1")
    ns1.settle()
    ns1.annotate({KEY: case})
    ns1.migrate("vm1", phase="Succeeded")
    ns1.look()
    ns1.settle()
    assert (ns1.requested, ns1.record, ns1.hard) == (amounts(HARD), None, amounts(HARD))


def test_a_full_project_leaves_everything_as_it_was() -> None:
    ns1 = RancherNamespace(project={"limits.cpu": "10"}, others={"limits.cpu": "6"})
    ns1.migrate("vm1")
    ns1.settle()
    assert (ns1.annotation, ns1.record, ns1.hard) == (BASE, None, amounts(HARD))
    new_plan = ns1.look()
    assert reasons(new_plan) == [EVENT_PROJECT_FULL]
    message = str(new_plan.problems[0])
    assert "c-1:p-1" in message
    assert "2 of limits.cpu" in message
    assert "limits.cpu=11" in message
    assert ns1.writes == 2
    ns1.now += 20.0
    ns1.settle()
    assert ns1.writes == 2  # not in a loop


def test_a_full_project_is_asked_again_after_a_change() -> None:
    ns1 = RancherNamespace(project={"limits.cpu": "10"}, others={"limits.cpu": "6"})
    ns1.migrate("vm1")
    ns1.settle()
    ns1.others = {"limits.cpu": "1"}
    ns1.settle()
    assert ns1.writes == 2
    ns1.now += 31.0
    ns1.settle()
    assert by_value(ns1.quota.hard) == by_value(RAISED)


@pytest.mark.parametrize("together", [True, False])
def test_the_first_in_line_gets_the_room_that_there_is(together: bool) -> None:
    ns1 = RancherNamespace(project={"limits.cpu": "10"}, others={"limits.cpu": "4"})
    for names in [("vm1", "vm2")] if together else [("vm1",), ("vm2",)]:
        ns1.migrate(*names)
        ns1.settle()
    assert ns1.hard == ns1.requested == amounts(HARD, [ADDED])
    request = request_of(ns1.namespace)
    assert request is not None
    assert list(request.entries) == [by_name("vm1")]
    assert reasons(ns1.look()) == [EVENT_PROJECT_FULL]


def test_a_denied_request_costs_a_migration_nothing() -> None:
    ns1 = RancherNamespace(BIG, HARD, project={"limits.cpu": "10", "limits.memory": "20Gi"})
    ns1.sync()
    ns1.settle()
    assert ns1.hard == amounts(HARD)
    ns1.migrate("vm1")
    ns1.settle()
    assert ns1.hard == amounts(HARD, [ADDED])
    ns1.migrate("vm1", phase="Succeeded")
    ns1.settle()
    assert ns1.hard == amounts(HARD)  # Rancher was asked for the grant first: it leaves what does not fit
    assert json.loads(ns1.annotation) == json.loads(BIG)
    assert ns1.record is None


def test_a_rancher_that_does_not_run_is_said_by_name() -> None:
    ns1 = RancherNamespace()
    ns1.migrate("vm1")
    ns1.look()
    new_plan = ns1.look()
    assert (bool(new_plan), new_plan.recheck_after) == (False, 10.0)
    ns1.now += 10.0
    new_plan = ns1.look()
    assert reasons(new_plan) == [EVENT_NO_ANSWER]
    assert "Rancher has not written resource quota default-abc within 10 s" in str(new_plan.problems[0])
    ns1.sync()
    assert reasons(ns1.look()) == []


def test_stuck_entries_are_ignored_until_the_last_is_gone() -> None:
    ns1 = RancherNamespace(hard=RAISED, annotations={**MARKS, by_name(): ENTRY})
    ns1.migrate("vm1")
    ns1.settle()
    assert ns1.hard == amounts(RAISED)
    assert ns1.requested == amounts(RAISED)
    ns1.migrate("vm1", phase="Succeeded")
    ns1.settle()
    assert (ns1.requested, ns1.hard) == (amounts(HARD), amounts(HARD))
    request = request_of(ns1.namespace)
    assert request is not None
    assert not request.entries
    assert by_name() not in with_request(ns1.quota, ns1.namespace).annotations


def test_a_quota_that_was_left_raised_is_lowered_by_rancher() -> None:
    ns1 = RancherNamespace(asks=False)
    ns1.migrate("vm1")
    ns1.look()
    ns1.asks = True  # Rancher is upgraded, and an administrator removes the entries at once
    ns1.quota = quota(ns1.quota.hard, {k: v for k, v in ns1.quota.annotations.items() if k != by_name()})
    ns1.migrate("vm1", phase="Succeeded")
    assert ns1.look().namespace  # Rancher works off events of the namespace alone
    ns1.settle()
    assert (ns1.requested, ns1.hard, ns1.record) == (amounts(HARD), amounts(HARD), None)


def test_the_way_back_to_own_writes_ends_the_request() -> None:
    ns1 = RancherNamespace()
    ns1.migrate("vm1")
    ns1.settle()
    ns1.asks = False
    ns1.look()
    assert (ns1.annotation, ns1.record) == (BASE, None)
    assert by_value(ns1.quota.hard) == by_value(RAISED)
    assert by_name() in ns1.quota.annotations


def test_a_kill_after_each_write_is_repaired() -> None:
    def story(stop: int) -> RancherNamespace:
        ns1 = RancherNamespace(BIG, HARD, project={"limits.cpu": "10", "limits.memory": "20Gi"})
        steps = [
            lambda: ns1.migrate("vm1"),
            ns1.look,
            ns1.sync,
            lambda: ns1.edit(limitsCpu="4"),
            ns1.look,
            ns1.sync,
            lambda: ns1.migrate("vm1", phase="Failed"),
            ns1.look,
            ns1.sync,
            ns1.look,
        ]
        for step in steps[:stop]:
            step()
        return ns1

    for stop in range(11):
        ns1 = story(stop)
        ns1.timers = type(ns1.timers)()
        ns1.migrate("vm1", phase="Succeeded")
        ns1.settle()
        assert ns1.record is None
        assert ns1.hard["limits.cpu"] in (amounts(HARD)["limits.cpu"], amounts({"limits.cpu": "4"})["limits.cpu"])
        assert ns1.hard["limits.memory"] == amounts(HARD)["limits.memory"]


# ---- the record ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "no JSON", "[]", "{}", '{"annotation":1,"asked":{}}', '{"annotation":"","asked":{"a":"x"}}']
)
def test_what_is_no_record_is_none(text: str) -> None:
    assert parse_request(text) is None


def test_limits_are_replaced_where_they_are() -> None:
    text = '{"limit":{"limitsCpu":"3","extended":{"requests.nvidia.com/gpu":"1"},"secrets":"9"},"other":true}'
    changed = with_limits(text, {"limits.cpu": "5", "requests.nvidia.com/gpu": "2", "limits.memory": "1Gi"})
    assert json.loads(changed) == {
        "limit": {"limitsCpu": "5", "extended": {"requests.nvidia.com/gpu": "2"}, "secrets": "9"},
        "other": True,
    }


def test_without_a_record_the_annotation_is_the_persons() -> None:
    assert annotation_of(RancherNamespace().namespace) == BASE
