"""Scale: which migrations get an entry, what it says and what spec.hard becomes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kubeloop.api.core import ResourceQuota
from pkg.util.resourcequota.managed import is_managed
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import Mode, Policy
from tests.decisions import Case, after, by_value, entries_by_value, observed, sentences
from tests.objects import ENTRY, HARD, MARKS, RAISED, SKIP, Resources, by_name, by_uid, quota, vmi, vmim

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
    "a namespace without the annotation is left alone": nothing(limits=""),
    "an annotation without cpu and memory grants nothing": nothing(limits='{"limit":{"pods":"10","requestsCpu":"4"}}'),
    "an annotation with empty limits grants nothing": nothing(limits='{"limit":{"limitsCpu":"","limitsMemory":""}}'),
    "an annotation with zero limits grants nothing": nothing(limits='{"limit":{"limitsCpu":"0","limitsMemory":"0"}}'),
    "an annotation without limit grants nothing": nothing(limits="{}"),
    "an annotation that is null grants nothing": nothing(limits="null"),
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


def test_one_patch_is_bound_to_what_was_decided_from() -> None:
    rq = quota(version="4711")
    patch = plan(observed(rq, [vmim()]), Policy(Mode.ASSIST)).patch(rq)
    tests = {op["path"]: op["value"] for op in patch if op["op"] == "test"}
    assert tests == {
        "/metadata/uid": rq.uid,
        "/metadata/labels": dict(rq.labels),
        "/metadata/annotations": rq.metadata.annotations,
        "/spec/hard": rq.hard,
    }
    assert [op for op in patch if op["op"] != "test"] == [
        {"op": "add", "path": "/metadata/annotations/" + by_uid().replace("/", "~1"), "value": ENTRY},
        *({"op": "add", "path": f"/spec/hard/{name}", "value": value} for name, value in RAISED.items()),
    ]


def test_the_first_annotations_conflict_with_anothers_first() -> None:
    rq = msgspec.structs.replace(quota(), metadata=msgspec.structs.replace(quota().metadata, annotations=None))
    patch = plan(observed(rq, [vmim()]), Policy(Mode.ASSIST)).patch(rq)
    assert {"op": "test", "path": "/metadata/annotations", "value": None} in patch
    assert {"op": "add", "path": "/metadata/annotations", "value": {}} in patch


def test_a_vm_without_limits_does_not_hold_up_the_others() -> None:
    both = [vmi(), vmi("free", limits={})]
    new_plan = plan(observed(quota(), [vmim(vm="free"), vmim()], both), Policy(Mode.ASSIST))
    assert new_plan.hard == RAISED
    assert [str(problem) for problem in new_plan.problems] == ["VM free has neither a cpu nor a memory limit"]
