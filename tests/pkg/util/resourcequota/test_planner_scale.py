"""Scale: which migrations get an entry, what it says and what spec.hard becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import pytest

from kubeloop.api.core import ResourceQuota
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util.names import migrating_key
from pkg.util.resourcequota.managed import is_managed
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import Mode, Policy
from tests.decisions import by_value, entries_by_value, observed, sentences, settled
from tests.objects import (
    BASE,
    ENTRY,
    HARD,
    LONG_NAME,
    MARKS,
    OWNER,
    RAISED,
    RESYNC,
    SKIP,
    Resources,
    by_name,
    by_uid,
    quota,
    vmi,
    vmim,
)


@dataclass(frozen=True)
class Nothing:
    """A namespace in which a migration adds nothing: spec.hard stays and no entry appears."""

    quota: ResourceQuota = field(default_factory=quota)
    limits: str = BASE
    migrations: Sequence[VirtualMachineInstanceMigration] = (vmim(),)
    instances: Sequence[VirtualMachineInstance] | None = None


NOTHING_TO_SCALE = {
    "a quota without cpu and memory limits is not scaled": Nothing(quota({"pods": "10"})),
    "a quota whose cpu and memory limits are zero is not scaled": Nothing(
        quota({"limits.cpu": "0", "limits.memory": "0", "pods": "10"})
    ),
    "a quota without spec.hard is not scaled": Nothing(quota({})),
    "a VMI without cpu and memory limit has no delta": Nothing(instances=[vmi(limits={})]),
    "a VMI with only a limit that quota does not name has no delta": Nothing(
        instances=[vmi(limits={"devices.kubevirt.io/kvm": "1"})]
    ),
    "a person's skip is an off switch": Nothing(quota(annotations={SKIP: "true"})),
    "a namespace without the annotation is left alone": Nothing(limits=""),
    "an annotation without cpu and memory limit grants nothing to add to": Nothing(
        limits='{"limit":{"pods":"10","requestsCpu":"4"}}'
    ),
    "an annotation with empty limits grants nothing to add to": Nothing(
        limits='{"limit":{"limitsCpu":"","limitsMemory":""}}'
    ),
    "an annotation with zero limits grants nothing to add to": Nothing(
        limits='{"limit":{"limitsCpu":"0","limitsMemory":"0"}}'
    ),
    "an annotation without limit grants nothing to add to": Nothing(limits="{}"),
    "an annotation that is null grants nothing to add to": Nothing(limits="null"),
    "a migration whose VMI is not known yet waits for it": Nothing(instances=[]),
    "a migration that KubeVirt has not looked at adds nothing": Nothing(migrations=[vmim(None)]),
    "a migration with an empty phase adds nothing": Nothing(migrations=[vmim("")]),
    "a pending migration that is being aborted adds nothing": Nothing(migrations=[vmim(abort=True)]),
    "a migration that succeeded adds nothing": Nothing(migrations=[vmim("Succeeded")]),
    "a migration that failed adds nothing": Nothing(migrations=[vmim("Failed")]),
    "a namespace without migrations adds nothing": Nothing(migrations=[]),
}


@pytest.mark.parametrize("mode", Mode)
@sentences(NOTHING_TO_SCALE)
def test_skipped(case: Nothing, mode: Mode) -> None:
    after = settled(case.quota, case.migrations, case.instances, mode=mode, limits=case.limits)
    assert after.hard == case.quota.hard
    added = {key: text for key, text in after.annotations.items() if key not in case.quota.annotations}
    owned = mode is Mode.TAKEOVER and case.quota.annotations.get(SKIP) != "true"
    assert added == (MARKS if owned else {})


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


@dataclass(frozen=True)
class Raised:
    """A migration that gets room: the entry's value and spec.hard afterwards."""

    entry: Resources
    hard: Resources
    before: Resources = field(default_factory=lambda: dict(HARD))
    limits: str = BASE
    migration: VirtualMachineInstanceMigration = field(default_factory=vmim)
    instance: VirtualMachineInstance = field(default_factory=vmi)
    ratio: str = "1.5"
    taken: Resources | None = None
    """The entry's value in takeover mode, where that differs: there it names only what the base limits."""


SEED: Resources = {"limits.cpu": "2", "limits.memory": 4737464313}
ROOM = {
    "the seed's VM at ratio 1.5 raises 3 CPU / 5000Mi to 5 CPU / 9980344313": Raised(SEED, dict(RAISED)),
    "the seed's VM at ratio 4.5 raises 5000Mi to 10865341313": Raised(
        {"limits.cpu": "2", "limits.memory": 5622461313},
        {"limits.cpu": "5", "limits.memory": 10865341313},
        ratio="4.5",
    ),
    "the seed's VM at ratio 4.5 raises 6000Mi to 11913917313": Raised(
        {"limits.cpu": "2", "limits.memory": 5622461313},
        {"limits.cpu": "5", "limits.memory": 11913917313},
        before={"limits.cpu": "3", "limits.memory": "6000Mi"},
        limits='{"limit":{"limitsCpu":"3000m","limitsMemory":"6000Mi"}}',
        ratio="4.5",
    ),
    "only memory is added where the quota has no cpu limit": Raised(
        {"limits.memory": 4737464313},
        {"limits.memory": 9980344313},
        before={"limits.memory": "5000Mi"},
        limits='{"limit":{"limitsMemory":"5000Mi"}}',
    ),
    "only cpu is added where the quota has no memory limit": Raised(
        {"limits.cpu": "2"},
        {"limits.cpu": "5"},
        before={"limits.cpu": "3"},
        limits='{"limit":{"limitsCpu":"3"}}',
    ),
    "only cpu is added for a VMI without memory limit": Raised(
        {"limits.cpu": "2"},
        {"limits.cpu": "5", "limits.memory": "5000Mi"},
        instance=vmi(limits={"cpu": "2"}),
    ),
    "only memory is added for a VMI without cpu limit": Raised(
        {"limits.memory": 4737464313},
        {"limits.cpu": "3", "limits.memory": 9980344313},
        instance=vmi(limits={"memory": "4Gi"}),
    ),
    "a limit that the base does not name is not raised although the entry has it": Raised(
        SEED,
        {"limits.cpu": "5", "limits.memory": "5000Mi"},
        limits='{"limit":{"limitsCpu":"3"}}',
        taken={"limits.cpu": "2"},
    ),
    "other resources of spec.hard stay": Raised(
        SEED,
        {**RAISED, "pods": "10", "requests.cpu": "1"},
        before={**HARD, "pods": "10", "requests.cpu": "1"},
    ),
    "milli-CPU add up exactly": Raised(
        {"limits.cpu": "1500m", "limits.memory": 4737464313},
        {"limits.cpu": "4500m", "limits.memory": 9980344313},
        instance=vmi(limits={"cpu": "1500m", "memory": "4Gi"}),
    ),
    "a migration of an unknown phase counts as migrating": Raised(
        SEED, dict(RAISED), migration=vmim("WaitingForSync")
    ),
} | {
    f"a migration in phase {phase} that has no entry gets one": Raised(
        SEED, dict(RAISED), migration=vmim(phase)
    )
    for phase in ("Pending", "Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running")
}


@pytest.mark.parametrize("mode", Mode)
@sentences(ROOM)
def test_room_is_made(case: Raised, mode: Mode) -> None:
    after = settled(
        quota(case.before), [case.migration], [case.instance], mode=mode, limits=case.limits, ratio=case.ratio
    )
    key = by_uid() if mode is Mode.ASSIST else by_name()
    marks = {} if mode is Mode.ASSIST else MARKS
    entry = case.taken if mode is Mode.TAKEOVER and case.taken is not None else case.entry
    assert entries_by_value(after.annotations) == {key: by_value(entry), **marks}
    assert by_value(after.hard) == by_value(case.hard)


def test_beside_harvester_a_limit_that_the_quota_lacks_is_put_back_without_room_as_upstream() -> None:
    after = settled(quota({"limits.cpu": "3"}), [vmim()], mode=Mode.ASSIST)
    assert entries_by_value(after.annotations) == {by_uid(): by_value({"limits.cpu": "2"})}
    assert by_value(after.hard) == by_value({"limits.cpu": "5", "limits.memory": "5000Mi"})


def test_in_takeover_a_limit_that_the_quota_lacks_is_put_back_with_room() -> None:
    after = settled(quota({"limits.cpu": "3"}), [vmim()], mode=Mode.TAKEOVER)
    assert after.annotations == {**MARKS, by_name(): ENTRY}
    assert by_value(after.hard) == by_value(RAISED)


def test_the_entry_is_written_as_go_marshals_it() -> None:
    made = plan(observed(quota(), [vmim()]), Policy(Mode.TAKEOVER))
    assert made.annotations == {by_name(): ENTRY, SKIP: "true", OWNER: "headroom"}
    assert made.hard == RAISED


def test_annotations_and_hard_change_in_one_patch_bound_to_what_was_decided_from() -> None:
    before = quota(version="4711")
    patch = plan(observed(before, [vmim()]), Policy(Mode.ASSIST)).patch(before)
    tests = {op["path"]: op["value"] for op in patch if op["op"] == "test"}
    assert tests == {
        "/metadata/uid": before.uid,
        "/metadata/labels": dict(before.labels),
        "/metadata/annotations": before.metadata.annotations,
        "/spec/hard": before.hard,
    }
    assert [op for op in patch if op["op"] != "test"] == [
        {"op": "add", "path": "/metadata/annotations/" + by_uid().replace("/", "~1"), "value": ENTRY},
        *({"op": "add", "path": f"/spec/hard/{name}", "value": value} for name, value in RAISED.items()),
    ]


def test_a_patch_without_a_change_of_hard_changes_annotations_alone() -> None:
    before = quota(annotations={RESYNC: "true"})
    patch = plan(observed(before), Policy(Mode.ASSIST)).patch(before)
    changed = [op for op in patch if op["op"] != "test"]
    assert changed == [
        {"op": "add", "path": "/metadata/annotations/" + RESYNC.replace("/", "~1"), "value": "false"}
    ]


def test_a_quota_without_annotations_gets_some_and_one_that_got_some_meanwhile_is_a_conflict() -> None:
    before = msgspec.structs.replace(
        quota(), metadata=msgspec.structs.replace(quota().metadata, annotations=None)
    )
    patch = plan(observed(before, [vmim()]), Policy(Mode.ASSIST)).patch(before)
    assert {"op": "test", "path": "/metadata/annotations", "value": None} in patch
    assert {"op": "add", "path": "/metadata/annotations", "value": {}} in patch


def test_an_entry_keeps_its_value_when_the_ratio_changes_under_way() -> None:
    before = quota(RAISED, {by_uid(): ENTRY})
    assert not plan(observed(before, [vmim("Running")], ratio="4.5"), Policy(Mode.ASSIST))


@pytest.mark.parametrize("mode", Mode)
def test_an_entry_stays_while_an_abort_is_asked_for(mode: Mode) -> None:
    before = settled(quota(), [vmim()], mode=mode)
    for phase in ("Pending", "Scheduling", "Running"):
        assert not plan(observed(before, [vmim(phase, abort=True)]), Policy(mode))


@pytest.mark.parametrize("mode", Mode)
def test_an_entry_stays_while_a_second_migration_of_the_vm_is_announced(mode: Mode) -> None:
    before = settled(quota(), [vmim()], mode=mode)
    after = settled(before, [vmim("Failed"), vmim(None, name="second")], mode=mode)
    assert after.hard == before.hard
    assert after.annotations == before.annotations


def test_a_long_name_is_hashed_into_a_key_that_the_api_server_takes() -> None:
    after = settled(quota(), [vmim(vm=LONG_NAME)], mode=Mode.TAKEOVER)
    (key,) = set(after.annotations) - set(MARKS)
    assert key == migrating_key(LONG_NAME)
    assert len(key.partition("/")[2]) <= 63
    assert key.startswith("harvesterhci.io/migrating-a-very-long-name-exceeds")
    assert by_value(after.hard) == by_value(RAISED)


def test_a_vm_without_limits_is_told_and_does_not_hold_up_the_others() -> None:
    made = plan(
        observed(quota(), [vmim(), vmim(vm="free")], [vmi(), vmi("free", limits={})]), Policy(Mode.ASSIST)
    )
    assert made.hard == RAISED
    assert [str(problem) for problem in made.problems] == ["VM free has neither a cpu nor a memory limit"]
    assert [problem.reason for problem in made.problems] == ["MigrationNotScaled"]


SPELLINGS = {
    "the annotation's own spelling": {"limits.cpu": "3000m", "limits.memory": "5000Mi"},
    "the canonical spelling": {"limits.cpu": "3", "limits.memory": "5000Mi"},
    "bytes": {"limits.cpu": "3", "limits.memory": "5242880000"},
    "an exponent": {"limits.cpu": "3e0", "limits.memory": "524288e4"},
}


@sentences(SPELLINGS)
def test_the_same_amount_in_another_spelling_is_no_change(case: Mapping[str, str]) -> None:
    assert not plan(observed(quota(dict(case))), Policy(Mode.ASSIST))
