"""Quotas without Rancher: adopted by label, with a recorded base that follows people."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from msgspec import structs

from kubeloop.api.core import ResourceQuota
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.planner import give_back, plan
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from tests.decisions import EXACT, after, applied, by_value, entry, namespace, remembering, sentences
from tests.objects import COMPENSATION, ENTRY, MARKS, by_name, by_uid, launcher, quota, vmi, vmim

RECORD = "headroom.harvesterhci.io/base"
APPLIED = "headroom.harvesterhci.io/applied"
BASE = {"limits.cpu": "3", "pods": "5", "services": "2"}
SAID = '{"limits.cpu":"3","pods":"5","services":"2"}'
QUIET = {RECORD: SAID}
POD = '{"limits.cpu":"2015m","pods":"1"}'
RAISED = {"limits.cpu": "5015m", "pods": "6", "services": "2"}
MIGRATING = {RECORD: SAID, APPLIED: '{"limits.cpu":"5015m","pods":"6"}', by_name(): POD}
HERE = vmi(nodeName="node-1")
SOURCE = launcher(node="node-1")
RUNNING = [vmim("Running")]
OVER: list[VirtualMachineInstanceMigration] = []


def managed(
    hard: Mapping[str, str] = BASE, annotations: Mapping[str, str] | None = None, label: str = "true"
) -> ResourceQuota:
    labels = {"headroom.harvesterhci.io/managed": label} if label else {"app": "x"}
    return quota(dict(hard), annotations, labels=labels)


def facts_of(rq: ResourceQuota, migrations: Sequence[VirtualMachineInstanceMigration] = OVER) -> Facts:
    """No Rancher, no annotation on the namespace."""
    return namespace(rq, migrations, [SOURCE], [HERE], limits="")


@dataclass(frozen=True)
class Edited:
    """Another client's edit of the quota, and the result."""

    hard: Mapping[str, str]
    annotations: Mapping[str, str]
    migrations: Sequence[VirtualMachineInstanceMigration]
    then: Mapping[str, str]
    record: str = SAID


MORE = {"limits.cpu": "7", "pods": "5", "services": "2"}
MORE_RAISED = {"limits.cpu": "9015m", "pods": "6", "services": "2"}
SAID_MORE = '{"limits.cpu":"7","pods":"5","services":"2"}'
WITH_SECRETS = {**BASE, "secrets": "9"}
SAID_WITH_SECRETS = '{"limits.cpu":"3","pods":"5","secrets":"9","services":"2"}'
WITHOUT_CPU, WITHOUT_PODS = {"pods": "6", "services": "2"}, {"limits.cpu": "5015m", "services": "2"}
WITHOUT_ENTRY = {key: text for key, text in MIGRATING.items() if key != by_name()}
EDITED = {
    "outside migrations the record follows spec.hard": Edited(MORE, QUIET, OVER, MORE, SAID_MORE),
    "a resource that is new becomes part of the base": Edited(
        WITH_SECRETS, QUIET, OVER, WITH_SECRETS, SAID_WITH_SECRETS
    ),
    "a resource that is gone leaves the base": Edited(
        {"limits.cpu": "3"}, QUIET, OVER, {"limits.cpu": "3"}, '{"limits.cpu":"3"}'
    ),
    "a record that was overwritten with garbage is written again": Edited(BASE, {RECORD: "{nope"}, OVER, BASE),
    "a record that was removed is written again": Edited(BASE, {}, OVER, BASE),
    "an edit while a VM migrates is the new base as written": Edited(MORE, MIGRATING, RUNNING, MORE_RAISED, SAID_MORE),
    "so is one that lowers it": Edited(
        {"limits.cpu": "1", "pods": "6", "services": "2"},
        MIGRATING,
        RUNNING,
        {"limits.cpu": "3015m", "pods": "6", "services": "2"},
        '{"limits.cpu":"1","pods":"5","services":"2"}',
    ),
    "spec.hard lowered to the base is raised again": Edited(BASE, MIGRATING, RUNNING, RAISED),
    "a removed entry comes back, spec.hard is no base": Edited(RAISED, WITHOUT_ENTRY, RUNNING, RAISED),
    "a removed entry that no migration needs": Edited(RAISED, WITHOUT_ENTRY, OVER, BASE),
    "an entry that was removed together with the raise": Edited(BASE, WITHOUT_ENTRY, RUNNING, RAISED),
    "a person replaced the whole quota during a migration": Edited(MORE, {}, RUNNING, MORE_RAISED, SAID_MORE),
    "an edit seen when the next migration has begun already": Edited(MORE, QUIET, RUNNING, MORE_RAISED, SAID_MORE),
    "a limit of what pods do not use is followed at once": Edited(
        {**RAISED, "services": "4"},
        MIGRATING,
        RUNNING,
        {**RAISED, "services": "4"},
        '{"limits.cpu":"3","pods":"5","services":"4"}',
    ),
    "a resource that is new while a VM migrates": Edited(
        {**RAISED, "count/pods": "4"},
        MIGRATING,
        RUNNING,
        {**RAISED, "count/pods": "5"},
        '{"count/pods":"4","limits.cpu":"3","pods":"5","services":"2"}',
    ),
    "a resource that is gone while a VM migrates": Edited(
        WITHOUT_PODS, MIGRATING, RUNNING, WITHOUT_PODS, '{"limits.cpu":"3","services":"2"}'
    ),
    "so does a limit of cpu": Edited(WITHOUT_CPU, MIGRATING, RUNNING, WITHOUT_CPU, '{"pods":"5","services":"2"}'),
    "Git writes the base with an entry and no record": Edited(BASE, {by_name(): POD}, RUNNING, RAISED),
    "Harvester's form of an entry is adopted": Edited(BASE, {**QUIET, by_uid(): ENTRY}, RUNNING, RAISED),
    "a compensation counts as something added": Edited(
        RAISED, {**QUIET, COMPENSATION: '{"limits.cpu":"1"}'}, OVER, BASE
    ),
    "a spoiled record of what was applied, and an entry": Edited(
        RAISED, {**MIGRATING, APPLIED: "{nope"}, RUNNING, RAISED
    ),
}


@sentences(EDITED)
def test_what_people_write(case: Edited) -> None:
    result, _plan = after(facts_of(managed(case.hard, case.annotations), case.migrations))
    assert by_value(result.hard) == by_value(dict(case.then))
    assert result.annotations[RECORD] == case.record
    assert result.annotations.keys() == (MIGRATING.keys() if case.migrations else QUIET.keys())
    if case.migrations:
        raised = {name: limit for name, limit in result.hard.items() if name != "services"}
        assert by_value(entry(result.annotations[APPLIED])) == by_value(raised)
    quiet, _plan = after(facts_of(result))
    assert by_value(quiet.hard) == by_value(json.loads(case.record))
    assert set(quiet.annotations) == {RECORD}


BROUGHT_BACK = {
    "a backup that was made while it was raised": Edited(RAISED, MIGRATING, OVER, BASE),
    "the same without what was applied": Edited(RAISED, {RECORD: SAID, by_name(): POD}, OVER, BASE),
    "the same without base": Edited(RAISED, {APPLIED: MIGRATING[APPLIED], by_name(): POD}, OVER, BASE),
    "the same without its entry": Edited(RAISED, WITHOUT_ENTRY, OVER, BASE),
    "a backup with an entry alone: its limits are the base": Edited(
        RAISED, {by_name(): POD}, OVER, RAISED, '{"limits.cpu":"5015m","pods":"6","services":"2"}'
    ),
    "the base of before with an entry": Edited(BASE, {RECORD: SAID, by_name(): POD}, OVER, BASE),
    "Git writes the base over a raised quota, entries and all": Edited(BASE, MIGRATING, OVER, BASE),
    "Git writes other limits, and a base of before": Edited(MORE, MIGRATING, OVER, MORE, SAID_MORE),
}


@sentences(BROUGHT_BACK)
def test_what_git_or_a_backup_writes_settles_on_what_it_says(case: Edited) -> None:
    """An entry that headroom did not write itself is kept for a minute: its migration may show yet."""
    marked, new_plan = after(facts_of(managed(case.hard, case.annotations)))
    result, _plan = after(remembering(facts_of(marked), new_plan.timers, EXACT.foreign_grace + 1.0))
    assert by_value(result.hard) == by_value(dict(case.then))
    assert result.annotations == {RECORD: case.record}


def test_an_edit_while_a_vm_migrates_is_said_once() -> None:
    raised = {APPLIED: '{"limits.cpu":"5015m","limits.memory":"9Gi","pods":"6"}'}
    edited = managed({**RAISED, "limits.cpu": "7", "limits.memory": str(16 * 1024**3)}, {**MIGRATING, **raised})
    result, new_plan = after(facts_of(edited, RUNNING))
    (problem,) = new_plan.problems
    assert (problem.kind, problem.reason) == ("Normal", "BaseChanged")
    assert "limits.cpu from 5015m to 7, limits.memory from 9.0Gi to 16.0Gi" in str(problem)
    assert not plan(facts_of(result, RUNNING), EXACT).problems


def test_a_garbage_record_leaves_spec_hard_alone() -> None:
    spoiled = managed(RAISED, {**MIGRATING, RECORD: "{nope"})
    new_plan = plan(facts_of(spoiled, RUNNING), EXACT)
    assert not new_plan.hard
    assert [problem.reason for problem in new_plan.problems] == ["InvalidResourceQuotaAnnotation"]


@pytest.mark.parametrize("label", ["", "false", "True"])
def test_without_the_label_it_is_not_managed(label: str) -> None:
    assert not plan(facts_of(managed(label=label), RUNNING), EXACT)


@sentences(
    {
        "raised": (RAISED, MIGRATING, BASE),
        "quiet": (BASE, QUIET, BASE),
        "edited during a migration": (MORE, MIGRATING, MORE),
    },
    "hard, annotations, limits",
)
def test_released_or_without_its_label_it_gets_its_base_back(
    hard: Mapping[str, str], annotations: Mapping[str, str], limits: Mapping[str, str]
) -> None:
    rq = managed(hard, annotations)
    result = applied(rq, give_back(facts_of(rq, RUNNING), to_harvester=True))
    assert result.annotations == {}
    assert by_value(result.hard) == by_value(dict(limits))
    without = managed(hard, annotations, label="")
    for mode in Mode:
        given_back = applied(without, plan(facts_of(without, RUNNING), Policy(mode)))
        assert (given_back.annotations, given_back.hard) == (result.annotations, result.hard)


@pytest.mark.parametrize("estimate", list(EstimateKind))
def test_beside_harvester_it_is_raised_as_in_takeover(estimate: EstimateKind) -> None:
    """Harvester's controllers know default quotas only."""
    for migrations in (OVER, RUNNING):
        facts = facts_of(managed(annotations=QUIET), migrations)
        assist, takeover = (plan(facts, Policy(mode, estimate)) for mode in (Mode.ASSIST, Mode.TAKEOVER))
        assert (assist.annotations, assist.hard) == (takeover.annotations, takeover.hard)
        assert bool(assist) is bool(migrations)


DEFAULT = {"resourcequota.management.cattle.io/default-resource-quota": "true"}
BY_LABEL = {"headroom.harvesterhci.io/managed": "true"}
RANCHERS = '{"limit":{"limitsCpu":"3","pods":"5"}}'


@sentences(
    {
        "it is managed by label now": (BY_LABEL, RANCHERS),
        "the same, and the annotation is gone too": (BY_LABEL, ""),
        "nobody manages it": ({}, RANCHERS),
        "the same without the annotation": ({}, ""),
    },
    "labels, limits",
)
def test_a_default_quota_that_loses_its_label_while_a_vm_migrates_keeps_its_base(
    labels: Mapping[str, str], limits: str
) -> None:
    taken, _plan = after(namespace(quota(dict(BASE), labels=DEFAULT), RUNNING, [SOURCE], [HERE], limits=RANCHERS))
    assert by_value(taken.hard) == by_value(RAISED)
    result = structs.replace(taken, metadata=structs.replace(taken.metadata, labels=dict(labels)))
    for migrations, then in ((RUNNING, RAISED if labels else BASE), (OVER, BASE)):
        facts = namespace(result, migrations, [SOURCE], [HERE], limits=limits)
        result, _plan = after(facts, patches=2)
        assert by_value(result.hard) == by_value(then)
    assert result.annotations == (QUIET if labels else {})
    edited, _plan = after(namespace(quota(MORE, MARKS, labels=dict(labels)), limits=limits), patches=2)
    assert edited.hard == MORE  # nothing was added to it


@pytest.mark.parametrize("hard", [RAISED, BASE, MORE], ids=["as raised", "reverted before", "edited by a person"])
def test_a_default_quota_that_loses_its_label_goes_back_to_the_annotation(hard: Mapping[str, str]) -> None:
    """It has no record: its entries tell what was added, not to which limits."""
    lost = quota(dict(hard), {**MARKS, by_name(): POD}, labels={})
    result, _plan = after(namespace(lost, OVER, [SOURCE], [HERE], limits=RANCHERS))
    assert (by_value(result.hard), result.annotations) == (by_value(BASE), {})


def test_a_quota_with_hundreds_of_limits_gets_its_base_back() -> None:
    """Its records are longer than what is read of anybody else's annotation."""
    base = {**BASE, **{f"requests.example.com/a-device-with-a-long-name-{number}": "1" for number in range(250)}}
    raised, _plan = after(facts_of(managed(base), RUNNING))
    assert raised.hard["limits.cpu"] == "5015m"
    assert by_value(after(facts_of(raised))[0].hard) == by_value(base)
