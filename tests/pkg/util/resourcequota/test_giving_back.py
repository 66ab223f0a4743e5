"""A quota is given back: to Harvester by `headroom release` or a change of mode, for good where a person switches
headroom off or a namespace gets a migration budget of its own."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import msgspec
import pytest

from kubeloop.api.core import Namespace, ResourceQuota
from pkg.util.constants import LABEL_DEFAULT_RESOURCE_QUOTA, LABEL_MANAGED
from pkg.util.resourcequota.entries import migrating_key
from pkg.util.resourcequota.facts import Facts, Plan
from pkg.util.resourcequota.managed import is_managed, switched_off
from pkg.util.resourcequota.planner import give_back, plan
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from tests.decisions import EXACT, HARVESTER, Case, after, applied, by_value, charged, namespace, observed, sentences
from tests.objects import (
    COMPENSATION,
    DEFAULT_LABELS,
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
    launcher,
    quota,
    vmi,
    vmim,
)

ASSIST, TAKEOVER = Policy(Mode.ASSIST), HARVESTER
both = pytest.mark.parametrize("policy", [TAKEOVER, ASSIST], ids=["takeover", "assist"])
TOUCHED = {"headroom.harvesterhci.io/touched": '{"at":"2026-01-01T00:00:00Z","next":"2026-01-01T00:00:01Z"}'}


# ---- `headroom release` --------------------------------------------------------------------------------------

raised_case = partial(Case, hard=RAISED)
LENT = '{"limits.memory":"1Gi"}'
RELEASED = {
    "a quiet quota loses the marks": Case({}, {}, raised=HARD, migrations=[]),
    "a migration's entry gets Harvester's key": raised_case({by_name(): ENTRY}, {by_uid(): ENTRY}),
    "a long name's too": raised_case(
        {migrating_key(LONG_NAME): ENTRY}, {by_uid(LONG_NAME): ENTRY}, migrations=[vmim("Running", vm=LONG_NAME)]
    ),
    "an entry that has Harvester's key already stays": raised_case({by_uid(): ENTRY}, {by_uid(): ENTRY}),
    "two forms of one VM become one": raised_case({by_uid(): ENTRY, by_name(): ENTRY}, {by_uid(): ENTRY}),
    "two migrations of one VM keep one": raised_case(
        {by_name(): ENTRY}, {by_uid(): ENTRY}, migrations=[vmim("Running"), vmim(name="second")]
    ),
    "a finished migration's entry goes": Case({by_name(): ENTRY}, {}, migrations=[vmim("Succeeded")]),
    "an earlier migration that is finished does not take it": raised_case(
        {by_name(): ENTRY}, {by_uid(): ENTRY}, migrations=[vmim("Succeeded", name="earlier"), vmim("Running")]
    ),
    "an entry that no migration explains goes": Case({by_name("gone"): ENTRY}, {}, migrations=[]),
    "an entry whose VMI is not known stays as it is": raised_case({by_name(): ENTRY}, {by_name(): ENTRY}, instances=[]),
    "other annotations stay": Case(
        {"example.com/other": "kept"}, {"example.com/other": "kept"}, raised=HARD, migrations=[]
    ),
    "a refused migration keeps its compensation": Case(
        {by_name(): ENTRY, COMPENSATION: LENT},
        {by_uid(): ENTRY, COMPENSATION: LENT},
        {"limits.cpu": "5", "limits.memory": str(9980344313 + 2**30)},
        migrations=[vmim(refused=True)],
    ),
    "a compensation that no migration needs any more goes": Case(
        {by_name(): ENTRY, COMPENSATION: LENT}, {}, migrations=[vmim("Failed")]
    ),
    "spec.hard that Rancher reverted is repaired": raised_case({by_name(): ENTRY}, {by_uid(): ENTRY}, raised=HARD),
    "garbage in the base leaves spec.hard alone": raised_case({by_name(): ENTRY}, {by_uid(): ENTRY}, limits="{nope"),
    "without a base spec.hard is left alone": raised_case({by_name(): ENTRY}, {by_uid(): ENTRY}, limits=""),
    "garbage in an entry leaves spec.hard alone": raised_case({by_name(): "{nope"}, {by_uid(): "{nope"}),
}


@sentences(RELEASED)
def test_release(case: Case) -> None:
    facts = case.seen(MARKS)
    replace(case, left={**case.left, RESYNC: "true"}).check(applied(facts.quota, give_back(facts, to_harvester=True)))


@pytest.mark.parametrize("marks", [{}, {SKIP: "true"}, {by_uid(): ENTRY, RESYNC: "true"}])
def test_what_is_not_ours_is_not_given_back(marks: dict[str, str]) -> None:
    assert not give_back(observed(quota(RAISED, marks), [vmim()]), to_harvester=True)


# ---- a change of mode, without a release: each goes on from what the other one left --------------------------

SOURCE, MOVE = launcher(node="node-1"), vmim("Running")
TARGET = launcher(node="node-2", migration=MOVE)
HARD_OF_PODS = {**HARD, "pods": "1", "requests.memory": "5000Mi"}
LIMITS = '{"limit":{"limitsCpu":"3","limitsMemory":"5000Mi","pods":"1","requestsMemory":"5000Mi"}}'


def facts_of(rq: ResourceQuota, *, over: bool = False) -> Facts:
    pods = [TARGET] if over else [SOURCE, TARGET]
    here = vmi(nodeName="node-2" if over else "node-1", phase="Running")
    return namespace(charged(rq, pods), [vmim("Succeeded") if over else MOVE], pods, [here], limits=LIMITS)


def settle(rq: ResourceQuota, policy: Policy, *, over: bool = False) -> ResourceQuota:
    return after(facts_of(rq, over=over), policy)[0]


@pytest.mark.parametrize("takeover", [EXACT, TAKEOVER], ids=lambda policy: policy.estimate.value)
@pytest.mark.parametrize("over", [False, True], ids=["it goes on", "it ended meanwhile"])
def test_takeover_becomes_assist_and_takeover_again(takeover: Policy, over: bool) -> None:
    raised = settle(quota(dict(HARD_OF_PODS)), takeover)
    assert {OWNER, SKIP, by_name()} <= raised.annotations.keys()
    assert by_value(raised.hard)["limits.cpu"] > by_value(HARD)["limits.cpu"]

    assisted = settle(raised, ASSIST, over=over)
    assert not {OWNER, SKIP, by_name()} & assisted.annotations.keys()
    assert (by_uid() in assisted.annotations) is not over
    for name in ("pods", "requests.memory"):  # Harvester would never lower them again
        assert by_value(assisted.hard)[name] == by_value(HARD_OF_PODS)[name]
    for name in HARD:
        assert by_value(assisted.hard)[name] == by_value(HARD if over else raised.hard)[name]

    again = settle(assisted, takeover, over=over)
    assert again.annotations[OWNER] == "headroom"
    final = settle(again, takeover, over=True)
    assert by_value(final.hard) == by_value(HARD_OF_PODS)
    assert not {by_name(), by_uid()} & final.annotations.keys()


def test_an_entry_lost_before_the_mode_changes_comes_back() -> None:
    case = raised_case({}, {by_uid(): ENTRY})
    facts = case.seen(MARKS)
    case.check(applied(facts.quota, plan(facts, ASSIST)))


# ---- `headroom.harvesterhci.io/managed: "false"` -------------------------------------------------------------

OFF, ON = {LABEL_MANAGED: "false"}, {LABEL_MANAGED: "true"}
RECORD = {"headroom.harvesterhci.io/base": '{"limits.cpu":"3","limits.memory":"5000Mi"}'}
APPLIED = {"headroom.harvesterhci.io/applied": '{"limits.cpu":"5","limits.memory":"9980344313"}'}


class Switch(NamedTuple):
    quota: ResourceQuota
    around: Mapping[str, Any] = {"namespace_off": False}


def of_rancher(labels: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None) -> ResourceQuota:
    """Raised for a migration, ours."""
    marks = {**MARKS, by_name(): ENTRY, **(annotations or {})}
    return quota(dict(RAISED), marks, labels={**DEFAULT_LABELS, **(labels or {})})


def by_label(annotations: Mapping[str, str] | None = None, *, record: bool = True) -> ResourceQuota:
    marks = {**(RECORD if record else {}), **APPLIED, by_name(): ENTRY, **(annotations or {})}
    return quota(dict(RAISED), marks, labels=dict(ON))


NAMESPACE = {"namespace_off": True}
SWITCHED_OFF = {
    "a label on the quota": Switch(of_rancher(OFF)),
    "an annotation on the quota": Switch(of_rancher(annotations=OFF)),
    "the namespace": Switch(of_rancher(), NAMESPACE),
    "false as an annotation beside true as a label": Switch(of_rancher(ON, OFF)),
    "false on the namespace, true on the quota": Switch(of_rancher(ON), NAMESPACE),
    "a quota that is managed by label": Switch(by_label(OFF)),
    "a quota that was touched": Switch(of_rancher(OFF, TOUCHED)),
    "a quota that is managed by label, and was touched": Switch(by_label({**OFF, **TOUCHED})),
    "a labelled quota, whose record goes with the edit": Switch(by_label(OFF, record=False)),
    "a labelled quota, in a namespace that is off": Switch(by_label(), NAMESPACE),
    "a labelled quota, beside a migration budget": Switch(by_label(), {"mtq": True}),
}


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("estimate", list(EstimateKind))
@sentences(SWITCHED_OFF)
def test_switched_off_it_is_given_back_as_by_release(case: Switch, mode: Mode, estimate: EstimateKind) -> None:
    facts = replace(observed(case.quota, [vmim("Running")]), **case.around)
    expected = give_back(facts, to_harvester=True)
    assert expected
    if case.quota.labels.get(LABEL_DEFAULT_RESOURCE_QUOTA) is None:
        assert by_value(applied(case.quota, expected).hard) == by_value(HARD)
    _result, new_plan = after(facts, Policy(mode, estimate))
    assert new_plan.patch(case.quota) == expected.patch(case.quota)


@pytest.mark.parametrize("mode", list(Mode))
def test_one_that_never_was_ours_is_never_written(mode: Mode) -> None:
    untouched = quota(dict(HARD), labels={**DEFAULT_LABELS, **OFF})
    assert not plan(observed(untouched, [vmim("Pending", refused=True)]), Policy(mode))


@pytest.mark.parametrize("value", ["true", "False", "no", ""])
def test_only_false_switches_off(value: str) -> None:
    marked = quota(dict(HARD), labels={LABEL_DEFAULT_RESOURCE_QUOTA: "true", LABEL_MANAGED: value})
    assert is_managed(marked)
    assert not switched_off(marked)


def test_a_namespace_says_so_by_label_or_annotation() -> None:
    for marks in ({"labels": OFF}, {"annotations": OFF}, {"labels": ON, "annotations": OFF}):
        assert switched_off(msgspec.convert({"metadata": {"name": "ns1", **marks}}, Namespace))
    assert not switched_off(msgspec.convert({"metadata": {"name": "ns1", "labels": ON}}, Namespace))


# ---- a namespace with a migration budget of its own ----------------------------------------------------------

OURS = {**MARKS, by_name(): ENTRY}
LEFT_TO_MTQ = {
    "an entry under way goes, with what it added": Case({**OURS, RESYNC: "false", **TOUCHED}, {}),
    "so do several, and the compensation": Case(
        {**OURS, by_name("vm2"): ENTRY, COMPENSATION: LENT}, {}, raised={"limits.cpu": "7", "limits.memory": "16Gi"}
    ),
    "a quota that holds nothing loses the marks": Case(MARKS, {}, raised=HARD),
    "a reverted one is not lowered below its base": Case(OURS, {}, raised=HARD),
    "what else people wrote on it stays": Case({**OURS, "people/note": "hello"}, {"people/note": "hello"}),
    "without a base what was added is taken off": Case(OURS, {}, limits=""),
    "an entry that is garbage goes, and spec.hard is the base": Case({**MARKS, by_name(): "{"}, {}),
    "without a base a garbage entry cannot be subtracted": raised_case({**MARKS, by_name(): "{"}, {}, limits=""),
    "one that a person switched off is not touched": Case({SKIP: "true"}, {SKIP: "true"}, raised=HARD),
    "no migration is entered any more": Case({}, {}, raised=HARD, migrations=[vmim(refused=True)]),
    "limits that the budget has raised are not lowered": raised_case({}, {}, migrations=[vmim(refused=True)]),
    "an entry of Harvester's stays until its migration ends": raised_case(
        {by_uid(): ENTRY}, {by_uid(): ENTRY}, migrations=[vmim("Running"), vmim(vm="vm2")]
    ),
    "and goes then": Case({by_uid(): ENTRY}, {}, migrations=[vmim("Succeeded")]),
}


@sentences(LEFT_TO_MTQ)
@both
def test_a_default_quota_is_left_to_the_budget(case: Case, policy: Policy) -> None:
    case.check(after(replace(case.seen(), mtq=True), policy)[0])


@pytest.mark.parametrize("why", [{"mtq": True}, {"namespace_off": True}, {}], ids=["budget", "off", "taken"])
def test_a_quota_on_its_way_out_is_left_alone(why: dict[str, Any]) -> None:
    facts = observed(quota(RAISED, OURS, deleting=True), [vmim("Running")])
    assert plan(replace(facts, **why), TAKEOVER) == Plan()
