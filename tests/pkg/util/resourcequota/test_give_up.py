"""A namespace gets a migration budget of its own: the annotation strategy gives its quotas back and keeps away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from kubeloop.api.meta import RawResourceList
from pkg.util import constants
from pkg.util.resourcequota.plan import Plan
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from tests.decisions import applied, by_value, namespace, observed, sentences
from tests.objects import (
    BASE,
    COMPENSATION,
    ENTRY,
    HARD,
    MARKS,
    RAISED,
    RESYNC,
    by_name,
    by_uid,
    launcher,
    quota,
    vmi,
    vmim,
)

TAKEOVER = Policy(Mode.TAKEOVER, EstimateKind.HARVESTER)
ASSIST = Policy(Mode.ASSIST)
TOUCHED = "headroom.harvesterhci.io/touched"
MANAGED = {"headroom.harvesterhci.io/managed": "true"}


@dataclass
class Case:
    hard: RawResourceList
    annotations: Mapping[str, str]
    after: RawResourceList
    left: Mapping[str, str]
    limits: str = BASE


@sentences(
    {
        "an entry under way goes, with what it added": Case(
            RAISED, {**MARKS, by_name(): ENTRY, RESYNC: "false", TOUCHED: "{}"}, HARD, {}
        ),
        "so do several, and the compensation": Case(
            {"limits.cpu": "7", "limits.memory": "16Gi"},
            {
                **MARKS,
                by_name("vm1"): ENTRY,
                by_name("vm2"): ENTRY,
                COMPENSATION: '{"limits.memory":"1Gi"}',
            },
            HARD,
            {},
        ),
        "a quota that holds nothing loses the marks": Case(HARD, MARKS, HARD, {}),
        "one that was reverted meanwhile is not lowered below its base": Case(
            HARD, {**MARKS, by_name(): ENTRY}, HARD, {}
        ),
        "what else people wrote on it stays": Case(
            RAISED, {**MARKS, by_name(): ENTRY, "people/note": "hello"}, HARD, {"people/note": "hello"}
        ),
        "without a base what was added is taken off": Case(
            RAISED, {**MARKS, by_name(): ENTRY}, HARD, {}, limits=""
        ),
        "an entry that is garbage goes, and spec.hard is the base": Case(
            RAISED, {**MARKS, by_name(): "{"}, HARD, {}
        ),
        "without a base what an entry that is garbage added cannot be told": Case(
            RAISED, {**MARKS, by_name(): "{"}, RAISED, {}, limits=""
        ),
        "a quota that was never ours is not touched": Case(
            RAISED, {by_uid(): ENTRY}, RAISED, {by_uid(): ENTRY}
        ),
        "nor one that a person switched off": Case(
            HARD,
            {"harvesterhci.io/skipResourceQuotaAutoScaling": "true"},
            HARD,
            {"harvesterhci.io/skipResourceQuotaAutoScaling": "true"},
        ),
    }
)
@pytest.mark.parametrize("policy", [TAKEOVER, ASSIST], ids=["takeover", "assist"])
def test_a_default_quota_is_given_back(case: Case, policy: Policy) -> None:
    if policy is ASSIST and by_uid() in case.annotations:
        pytest.skip("Harvester's own entries run out, below")
    seen = observed(quota(case.hard, case.annotations), [vmim("Running")], limits=case.limits)
    made = plan(replace(seen, mtq=True), policy)
    after = applied(seen.quota, made)
    assert by_value(after.hard) == by_value(case.after)
    assert after.annotations == case.left
    assert not plan(replace(seen, quota=after, mtq=True), policy), "it does not come to rest"


def test_no_migration_is_entered_any_more() -> None:
    seen = replace(observed(quota(), [vmim("Pending", refused=True)]), mtq=True)
    for policy in (TAKEOVER, ASSIST):
        assert not plan(seen, policy)


def test_limits_that_the_other_strategy_has_raised_are_not_lowered() -> None:
    seen = replace(observed(quota(RAISED), [vmim("Pending", refused=True)]), mtq=True)
    for policy in (TAKEOVER, ASSIST, Policy(Mode.TAKEOVER, EstimateKind.EXACT, render=True)):
        assert not plan(seen, policy)


def test_a_quota_without_rancher_is_given_back_whole() -> None:
    here = vmi(nodeName="node-1")
    seen = namespace(
        quota({"limits.cpu": "3"}, labels=MANAGED), [vmim("Pending")], [launcher(here)], limits=""
    )
    exact = Policy(Mode.TAKEOVER, EstimateKind.EXACT)
    raised = applied(seen.quota, plan(seen, exact))
    assert by_value(raised.hard) != by_value({"limits.cpu": "3"})
    back = applied(raised, plan(replace(seen, quota=raised, mtq=True), exact))
    assert by_value(back.hard) == by_value({"limits.cpu": "3"})
    assert back.annotations == {}


def test_without_the_budget_it_is_taken_over_again() -> None:
    seen = observed(quota(HARD), [vmim("Pending")])
    again = applied(seen.quota, plan(seen, TAKEOVER))
    assert by_value(again.hard) == by_value(RAISED)


class TestBesideHarvester:
    """Entries of Harvester's, or those that were left to it when a person switched headroom off, run out."""

    @pytest.mark.parametrize("policy", [TAKEOVER, ASSIST], ids=["takeover", "assist"])
    def test_an_entry_stays_until_its_migration_ends(self, policy: Policy) -> None:
        standing = quota(RAISED, {by_uid(): ENTRY})
        running = replace(observed(standing, [vmim("Running")]), mtq=True)
        assert not plan(running, policy)
        over = replace(observed(standing, [vmim("Succeeded")]), mtq=True)
        after = applied(standing, plan(over, policy))
        assert by_uid() not in after.annotations
        assert by_value(after.hard) == by_value(HARD)
        off = quota(RAISED, {by_uid(): ENTRY}, labels={**standing.labels, constants.LABEL_MANAGED: "false"})
        assert not plan(replace(over, quota=off), policy), "it is Harvester's"

    def test_another_vms_migration_is_not_added(self) -> None:
        standing = quota(RAISED, {by_uid(): ENTRY})
        both = replace(observed(standing, [vmim("Running"), vmim("Pending", "vm2")]), mtq=True)
        assert not plan(both, ASSIST)


def test_a_quota_on_its_way_out_is_left_alone() -> None:
    seen = observed(quota(RAISED, {**MARKS, by_name(): ENTRY}, deleting=True), [vmim("Running")])
    assert plan(replace(seen, mtq=True), TAKEOVER) == Plan()
