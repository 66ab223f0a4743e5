"""Plans: which migrations get an entry, what it says and what spec.hard becomes; what is adopted in takeover,
restored, repaired, or gone after a grace."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from kubeloop.api.core import ResourceQuota
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util.resourcequota.entries import entry_keys, migrating_key
from pkg.util.resourcequota.facts import Timers
from pkg.util.resourcequota.managed import is_managed
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import Mode, Policy
from tests.decisions import (
    EXACT,
    HARVESTER,
    Case,
    after,
    applied,
    by_value,
    entries_by_value,
    namespace,
    observed,
    sentences,
)
from tests.kinds import edited
from tests.objects import (
    COMPENSATION,
    ENTRY,
    HARD,
    LONG_NAME,
    MARKS,
    OWNER,
    POD_ENTRY,
    RAISED,
    RESYNC,
    SKIP,
    TWO_MORE,
    Resources,
    by_name,
    by_uid,
    launcher,
    quota,
    vmi,
    vmim,
)

ONLY_CPU = '{"limits.cpu":"2"}'
ONLY_MEMORY = '{"limits.memory":"4737464313"}'


def nothing(hard: Resources = HARD, **fields: Any) -> Case:
    """A migration adds nothing: spec.hard stays and no entry appears."""
    return Case({}, {}, hard, hard, **{"migrations": [vmim()], **fields})


def room(entry: str = ENTRY, hard: Resources = RAISED, hard_before: Resources = HARD, **fields: Any) -> Case:
    """A migration gets its room: the entry and spec.hard afterwards."""
    return Case({}, {by_uid(): entry}, hard, hard_before, **{"migrations": [vmim()], **fields})


SCALED = {
    "a quota without cpu and memory limits is not scaled": nothing({"pods": "10"}),
    "a quota whose cpu and memory limits are zero is not scaled": nothing(
        {"limits.cpu": "0", "limits.memory": "0", "pods": "10"}
    ),
    "a quota without spec.hard is not scaled": nothing({}),
    "a VMI without cpu and memory limit has no delta": nothing(instances=[vmi(limits={})]),
    "a VMI without a limit that quota names has no delta": nothing(
        instances=[vmi(limits={"devices.kubevirt.io/kvm": "1"})]
    ),
    "a person's skip is an off switch": Case({SKIP: "true"}, {SKIP: "true"}, raised=HARD, taken={SKIP: "true"}),
    "a namespace without the annotation is left alone": nothing(limits="", taken={}),
    "an annotation without cpu and memory grants nothing": nothing(limits='{"limit":{"pods":"10","requestsCpu":"4"}}'),
    "an annotation with zero limits grants nothing": nothing(limits='{"limit":{"limitsCpu":"0","limitsMemory":"0"}}'),
    "a migration whose VMI is not known yet waits for it": nothing(instances=[]),
    "a VM that does not run": nothing(instances=[vmi(phase="Pending")]),
    "a migration that KubeVirt has not looked at adds nothing": nothing(migrations=[vmim(None)]),
    "a migration with an empty phase adds nothing": nothing(migrations=[vmim("")]),
    "a pending migration that is being aborted adds nothing": nothing(migrations=[vmim(abort=True)]),
    "a migration that succeeded adds nothing": nothing(migrations=[vmim("Succeeded")]),
    "a migration that failed adds nothing": nothing(migrations=[vmim("Failed")]),
    "a namespace without migrations adds nothing": nothing(migrations=[]),
    "the seed's VM at ratio 4.5 raises 5000Mi to 10865341313": room(
        '{"limits.cpu":"2","limits.memory":"5622461313"}',
        {"limits.cpu": "5", "limits.memory": 10865341313},
        ratio="4.5",
    ),
    "the seed's VM at ratio 4.5 raises 6000Mi to 11913917313": room(
        '{"limits.cpu":"2","limits.memory":"5622461313"}',
        {"limits.cpu": "5", "limits.memory": 11913917313},
        {"limits.cpu": "3", "limits.memory": "6000Mi"},
        limits='{"limit":{"limitsCpu":"3000m","limitsMemory":"6000Mi"}}',
        ratio="4.5",
    ),
    "only memory is added where the quota has no cpu limit": room(
        ONLY_MEMORY,
        {"limits.memory": 9980344313},
        {"limits.memory": "5000Mi"},
        limits='{"limit":{"limitsMemory":"5000Mi"}}',
    ),
    "only cpu is added where the quota has no memory limit": room(
        ONLY_CPU, {"limits.cpu": "5"}, {"limits.cpu": "3"}, limits='{"limit":{"limitsCpu":"3"}}'
    ),
    "only cpu is added for a VMI without memory limit": room(
        ONLY_CPU, {**HARD, "limits.cpu": "5"}, instances=[vmi(limits={"cpu": "2"})]
    ),
    "only memory is added for a VMI without cpu limit": room(
        ONLY_MEMORY, {**HARD, "limits.memory": 9980344313}, instances=[vmi(limits={"memory": "4Gi"})]
    ),
    "a limit without a base is not raised by Harvester's entry": room(
        hard={**HARD, "limits.cpu": "5"}, limits='{"limit":{"limitsCpu":"3"}}', taken={**MARKS, by_name(): ONLY_CPU}
    ),
    "other resources of spec.hard stay": room(
        hard={**RAISED, "pods": "10", "requests.cpu": "1"}, hard_before={**HARD, "pods": "10", "requests.cpu": "1"}
    ),
    "milli-CPU add up exactly": room(
        '{"limits.cpu":"1500m","limits.memory":"4737464313"}',
        {**RAISED, "limits.cpu": "4500m"},
        instances=[vmi(limits={"cpu": "1500m", "memory": "4Gi"})],
    ),
} | {
    f"a migration in phase {phase} that has no entry gets one": room(migrations=[vmim(phase)])
    for phase in ("Pending", "Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running", "WaitingForSync")
}  # the last one: a phase that newer KubeVirt adds


@pytest.mark.parametrize("mode", Mode)
@sentences(SCALED)
def test_scale(case: Case, mode: Mode) -> None:
    case.settles(mode)


NOT_OURS = {
    "a quota without labels": quota(labels={}),
    "a quota whose label says false": quota(
        labels={"resourcequota.management.cattle.io/default-resource-quota": "false"}
    ),
    "a quota with another's label": quota(labels={"app": "true"}),
    "a quota that is being deleted": quota(deleting=True),
}


@pytest.mark.parametrize("mode", Mode)
@sentences(NOT_OURS)
def test_not_written_at_all(case: ResourceQuota, mode: Mode) -> None:
    assert not is_managed(case)
    assert not plan(observed(case, [vmim()]), Policy(mode))


def test_beside_harvester_a_lost_limit_is_put_back_plain() -> None:
    result, _plan = after(observed(quota({"limits.cpu": "3"}), [vmim()]), Policy(Mode.ASSIST))
    assert entries_by_value(result.annotations) == {by_uid(): by_value({"limits.cpu": "2"})}
    assert by_value(result.hard) == by_value({"limits.cpu": "5", "limits.memory": "5000Mi"})


def test_the_first_annotations_conflict_with_anothers_first() -> None:
    rq = edited(quota(), metadata={"annotations": None})
    patch = plan(observed(rq, [vmim()]), Policy(Mode.ASSIST)).patch(rq)
    assert {"op": "test", "path": "/metadata/annotations", "value": None} in patch
    assert {"op": "add", "path": "/metadata/annotations", "value": {}} in patch


def test_a_vm_without_limits_does_not_hold_up_the_others() -> None:
    both = [vmi(), vmi("free", limits={})]
    new_plan = plan(observed(quota(), [vmim(vm="free"), vmim()], both), Policy(Mode.ASSIST))
    assert new_plan.hard == RAISED
    assert [str(problem) for problem in new_plan.problems] == ["VM free has neither a cpu nor a memory limit"]


# ---- restoring a quota: entries and limits are adopted, restored, repaired, or gone after a grace ------------

OTHER = by_uid("other")
TWICE = {"limits.cpu": "7", "limits.memory": str(5242880000 + 2 * 4737464313)}
COMPENSATED = '{"limits.memory":"1Gi"}'


finished_case = partial(Case, migrations=[vmim("Succeeded")])
RESTORED = {
    "the entry by uid goes": finished_case({by_uid(): ENTRY}, {}),
    "the entry by name goes": finished_case({by_name(): ENTRY}, {}),
    "both forms of one VM go": finished_case({by_uid(): ENTRY, by_name(): ENTRY}, {}, raised=TWICE),
    "the hashed entry of a long name goes": finished_case(
        {migrating_key(LONG_NAME): ENTRY}, {}, migrations=[vmim("Succeeded", vm=LONG_NAME)]
    ),
    "a failed migration's entry goes": finished_case({by_uid(): ENTRY}, {}, migrations=[vmim("Failed")]),
    "an entry that is garbage goes": finished_case({by_uid(): "{nope"}, {}),
    "with the entry goes the compensation": finished_case(
        {by_uid(): ENTRY, COMPENSATION: COMPENSATED},
        {},
        raised={"limits.cpu": "5", "limits.memory": str(9980344313 + 2**30)},
    ),
    "another VM's entry stays": finished_case(
        {by_uid(): ENTRY, OTHER: ENTRY},
        {OTHER: ENTRY},
        RAISED,
        raised=TWICE,
        migrations=[vmim("Succeeded"), vmim("Running", vm="other")],
    ),
    "annotations that are not an entry stay": finished_case(
        {by_uid(): ENTRY, "example.com/other": "kept"}, {"example.com/other": "kept"}
    ),
    "nothing to remove is nothing to do": finished_case({}, {}, raised=HARD),
    "the resync flag of the others is answered": finished_case({by_uid(): ENTRY, RESYNC: "true"}, {RESYNC: "false"}),
}


@pytest.mark.parametrize("mode", Mode)
@sentences(RESTORED)
def test_restore(case: Case, mode: Mode) -> None:
    case.settles(mode)


def test_with_a_persons_skip_the_entry_goes_and_hard_stays() -> None:
    rq = quota(RAISED, {SKIP: "true", by_uid(): ENTRY, COMPENSATION: COMPENSATED})
    for mode in Mode:
        result, _plan = after(observed(rq, [vmim("Succeeded")]), Policy(mode))
        assert result.hard == RAISED
        assert result.annotations == {SKIP: "true", RESYNC: "true"}


FLAG = {
    "an order to compute again is answered": ({RESYNC: "true"}, HARD, "false"),
    "the answer is given in the patch that repairs spec.hard": ({RESYNC: "true"}, RAISED, "false"),
    "an answered order is not written again": ({RESYNC: "false"}, HARD, "false"),
    "no order, no answer": ({}, HARD, None),
}


@pytest.mark.parametrize("mode", Mode)
@sentences(FLAG, "annotations, hard, flag")
def test_the_resync_flag(annotations: dict[str, str], hard: Resources, flag: str | None, mode: Mode) -> None:
    result, _plan = after(observed(quota(hard, annotations)), Policy(mode))
    assert result.annotations.get(RESYNC) == flag
    assert by_value(result.hard) == by_value(HARD)


GARBAGE_BASES = {
    "a cpu limit that is no quantity": '{"limit":{"limitsCpu":"three","limitsMemory":"5000Mi"}}',
    "a memory limit that is no quantity": '{"limit":{"limitsCpu":"3","limitsMemory":"5000MiB"}}',
    "no JSON": "{nope",
}


@pytest.mark.parametrize("mode", Mode)
@sentences(GARBAGE_BASES)
def test_a_garbage_base_leaves_hard_alone_and_warns(case: str, mode: Mode) -> None:
    """Harvester's order to compute again is answered beside it only where a quantity is garbage, as upstream does."""
    rq = quota(RAISED, {by_uid(): ENTRY, RESYNC: "true"})
    new_plan = plan(observed(rq, [vmim()], limits=case), Policy(mode))
    assert (new_plan.hard, by_uid() in new_plan.annotations) == ({}, False)
    answered = mode is Mode.ASSIST and "limitsMemory" in case
    assert new_plan.annotations.get(RESYNC) == ("false" if answered else None)
    assert [problem.reason for problem in new_plan.problems] == ["InvalidResourceQuotaAnnotation"]
    assert str(new_plan.problems[0]).startswith("field.cattle.io/resourceQuota")
    finished_case = plan(observed(rq, [vmim("Succeeded")], limits=case), Policy(mode))
    assert (finished_case.hard, finished_case.annotations[by_uid()]) == ({}, None)


GARBAGE_ENTRIES = {
    "not JSON": "{nope",
    "a list": '["limits.cpu"]',
    "a quantity that does not parse": '{"limits.cpu":"two"}',
    "nothing at all": "",
}


@pytest.mark.parametrize("key", [OTHER, by_name("other")])
@sentences(GARBAGE_ENTRIES)
def test_beside_harvester_a_garbage_entry_stops_scaling(case: str, key: str) -> None:
    rq = quota(RAISED, {key: case, RESYNC: "true"})
    new_plan = plan(observed(rq, [vmim("Running", vm="other")]), Policy(Mode.ASSIST))
    assert not new_plan.hard
    assert new_plan.annotations == {RESYNC: "false"}
    assert [problem.reason for problem in new_plan.problems] == ["InvalidMigratingEntry"]
    assert key in str(new_plan.problems[0])


@dataclass(frozen=True)
class Left:
    """The state in which headroom starts, and for how many seconds its entry stays."""

    annotations: Mapping[str, str]
    stays: float
    migrations: Sequence[VirtualMachineInstanceMigration] = ()
    instances: Sequence[VirtualMachineInstance] = (vmi(nodeName="node-1"),)
    policy: Policy = EXACT


ASSIST = Policy(Mode.ASSIST)
OURS = {**MARKS, by_name(): POD_ENTRY}
LEFT = {
    "our entry of a VM without migration": Left(OURS, 0.0),
    "our entry of a VM that no longer exists": Left(OURS, 0.0, instances=()),
    "our entry whose migration succeeded while we were down": Left(OURS, 0.0, [vmim("Succeeded")]),
    "our entry of a VM with a long name": Left({**MARKS, migrating_key(LONG_NAME): POD_ENTRY}, 0.0),
    "our entry that is garbage": Left({**MARKS, by_name(): "{nope"}, 0.0),
    "our entry by Harvester's formula": Left({**MARKS, by_name("gone"): ENTRY}, 0.0, policy=HARVESTER),
    "our entry of a migration whose VM is gone": Left(OURS, 0.0, [vmim()], instances=()),
    "an entry by uid whose migration is over": Left({**MARKS, by_uid(): ENTRY}, 0.0, [vmim("Succeeded")]),
    "an entry by uid that no migration explains": Left({**MARKS, by_uid("gone"): ENTRY}, 60.0),
    "an entry by uid while some migration's VMI is gone": Left(
        {**MARKS, by_uid("x"): ENTRY}, 60.0, [vmim(vm="x")], instances=()
    ),
    "an entry by name found at takeover": Left({by_name("gone"): ENTRY}, 60.0),
    "beside Harvester an entry by uid": Left({by_uid("gone"): ENTRY}, 60.0, policy=ASSIST),
    "beside Harvester an entry by name": Left({by_name("gone"): ENTRY}, 60.0, policy=ASSIST),
}


@sentences(LEFT)
def test_an_entry_that_is_not_needed_goes(case: Left) -> None:
    pods = [launcher()] if case.instances else []
    facts = namespace(quota(RAISED, case.annotations), case.migrations, pods, case.instances)
    (key,) = entry_keys(case.annotations)
    for passed in (0.0, 20.0, 59.9, 60.0):
        new_plan = plan(replace(facts, now=1000.0 + passed), case.policy)
        facts = replace(facts, quota=applied(facts.quota, new_plan), timers=new_plan.timers)
        has_entry = passed < case.stays
        assert (key in facts.quota.annotations) is has_entry
        assert by_value(facts.quota.hard) == by_value(RAISED if has_entry else HARD)
        assert new_plan.recheck_after == (pytest.approx(case.stays - passed) if has_entry else None)


def test_a_new_vmi_has_no_claim_to_the_old_ones_uid() -> None:
    """The VM was restarted: another uid. The old one's entry belongs to no VM."""
    facts = observed(quota(RAISED, {by_uid(): ENTRY}), [vmim(vm="renamed")])
    new_plan = plan(facts, Policy(Mode.ASSIST, foreign_grace=0))
    assert new_plan.annotations == {by_uid(): None, by_uid("renamed"): ENTRY}
    assert not new_plan.hard


@pytest.mark.parametrize("migrations", [[], [vmim("Running")]], ids=["unexplained", "under way"])
@pytest.mark.parametrize("key", [by_name(), by_uid(), COMPENSATION])
def test_what_was_never_ours_is_not_subtracted(key: str, migrations: list[VirtualMachineInstanceMigration]) -> None:
    """Found in a namespace without annotation: whether it was ever added is unknown. It goes, an entry with its
    migration or after the grace, and then nothing is left to do."""
    first = plan(observed(quota(HARD, {key: ENTRY}), migrations, limits=""), HARVESTER)
    found = applied(quota(HARD, {key: ENTRY}), first)
    assert (key in found.annotations, not first.hard) == (key != COMPENSATION, True)
    assert first.recheck_after == (60.0 if key != COMPENSATION and not migrations else None)
    ends = [vmim("Failed")] if migrations else []
    last, _plan = after(observed(found, ends, limits="", timers=first.timers, now=61.0), HARVESTER, patches=1)
    assert (last.annotations, last.hard) == ({}, HARD)


@pytest.mark.parametrize("key", [by_name(), by_uid(), by_name("vm2")])
def test_what_is_ours_is_subtracted_where_the_annotation_goes(key: str) -> None:
    facts = observed(quota(RAISED, {**MARKS, key: ENTRY}), [vmim("Running")], limits="")
    last, _plan = after(facts, HARVESTER)
    assert (last.annotations, by_value(last.hard)) == ({}, by_value(HARD))


def test_no_grace_lasts_longer_where_the_clock_is_set_back() -> None:
    timers = Timers({by_name(): 9000.0})
    first = plan(observed(quota(HARD, {by_name(): ENTRY}), limits="", timers=timers), HARVESTER)
    assert (first.recheck_after, first.timers.unexplained) == (60.0, {by_name(): 0.0})


# ---- the namespace loses its annotation ----------------------------------------------------------------------


def test_without_the_annotation_what_was_added_goes() -> None:
    rq = quota(
        TWO_MORE | {"limits.memory": str(5001 * 1024**2 + 2 * 4797464313)},
        {**OURS, by_name("vm2"): POD_ENTRY, COMPENSATION: '{"limits.memory":"1Mi"}'},
    )
    result, _plan = after(namespace(rq, [vmim("Running")], [launcher()], limits=""))
    assert not result.annotations
    assert by_value(result.hard) == by_value(HARD)


def test_nothing_is_taken_below_zero() -> None:
    """Another client has lowered spec.hard already."""
    rq = quota({"limits.cpu": "1", "limits.memory": "1Gi"}, OURS)
    result, _plan = after(namespace(rq, [], [launcher()], limits=""))
    assert not result.annotations
    assert result.hard == rq.hard


# ---- takeover ------------------------------------------------------------------------------------------------

LARGER = '{"limits.cpu":"2","limits.memory":"5622461313"}'
SMALLER = '{"limits.cpu":"1","limits.memory":"1Gi"}'
SMALLER_CPU = '{"limits.cpu":"1","limits.memory":"4737464313"}'
RAISED_SMALLER = {"limits.cpu": "4", "limits.memory": "6024Mi"}
MIXED = '{"limits.cpu":"3","limits.memory":"1Gi"}'
adopted = partial(Case, raised=HARD)
LONG, ABORTED = [vmim("Running", vm=LONG_NAME)], [vmim("Running", abort=True)]
ADOPTED = {
    "our skip is put back when it alone is removed": adopted({OWNER: "headroom"}, {}, migrations=[]),
    "an entry by uid goes under the name": adopted({by_uid(): ENTRY}, {by_name(): ENTRY}, RAISED),
    "an entry by name stays where it is": adopted({by_name(): ENTRY}, {by_name(): ENTRY}, RAISED),
    "a VM under both forms counts once": adopted({by_name(): ENTRY, by_uid(): ENTRY}, {by_name(): ENTRY}, RAISED),
    "an entry that is too large follows what the VM needs": adopted({by_uid(): LARGER}, {by_name(): ENTRY}, RAISED),
    "an entry that is too small follows what the VM needs": adopted({by_uid(): SMALLER}, {by_name(): ENTRY}, RAISED),
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
    "aborted: no more stays than it would be granted": adopted(
        {by_name(): ENTRY, by_uid(): LARGER}, {by_name(): ENTRY}, RAISED, migrations=ABORTED
    ),
    "aborted: nothing is added to the entry": adopted(
        {by_uid(): SMALLER}, {by_name(): SMALLER}, RAISED_SMALLER, migrations=ABORTED
    ),
    "aborted: of each resource the greater": adopted(
        {by_name(): MIXED, by_uid(): SMALLER_CPU},
        {by_name(): '{"limits.cpu":"2","limits.memory":"4737464313"}'},
        RAISED,
        migrations=ABORTED,
    ),
    "once its VM is over nothing stays": adopted(
        {by_name(): ENTRY}, {}, HARD, instances=[vmi(phase="Succeeded")], migrations=[vmim()]
    ),
    "once its VM is gone nothing stays": adopted({by_name(): ENTRY}, {}, HARD, instances=[], migrations=ABORTED),
}


@sentences(ADOPTED)
def test_adoption(case: Case) -> None:
    case.settles(Mode.TAKEOVER)
