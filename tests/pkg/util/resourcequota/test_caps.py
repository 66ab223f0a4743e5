"""Nothing beyond max-extra, nor more annotations than an object may have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from kubeloop.api.core import Pod, ResourceQuota
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.util.resourcequota.draft import MAX_ANNOTATION_BYTES, idle, refuse
from pkg.util.resourcequota.entries import entry_keys, vm_in_key
from pkg.util.resourcequota.facts import Facts
from tests.decisions import after, by_value, namespace, sentences
from tests.kinds import edited
from tests.objects import (
    AT_4_5,
    COMPENSATION,
    HARD,
    MARKS,
    ONE_MORE,
    POD_ENTRY,
    TWO_MORE,
    by_name,
    by_uid,
    launcher,
    quota,
    vmi,
    vmim,
)


@dataclass(frozen=True)
class Capped:
    """The caps, what is added altogether, and a part of the refusal ("" for none)."""

    caps: Sequence[str]
    added: Mapping[str, str]
    refusal: str = ""


ONE_GI = '{"limits.memory":"1Gi"}'
CAPPED = {
    "no cap, no refusal": Capped([], {"limits.memory": "100Ti"}),
    "an empty text is no cap": Capped(["", ""], {"limits.memory": "100Ti"}),
    "an empty list caps nothing": Capped(["{}"], {"limits.memory": "100Ti"}),
    "below the cap": Capped([ONE_GI], {"limits.memory": "1023Mi"}),
    "just the cap": Capped([ONE_GI], {"limits.memory": "1024Mi"}),
    "bytes are shown in units": Capped(
        ['{"limits.memory":"3221225472"}'], {"limits.memory": "4Gi"}, "raised by 4.0Gi, max-extra is 3.0Gi"
    ),
    "one byte above": Capped([ONE_GI], {"limits.memory": "1073741825"}, "max-extra is 1Gi"),
    "what the cap does not name is free": Capped([ONE_GI], {"limits.cpu": "100"}),
    "a cap of zero forbids": Capped(['{"pods":"0"}'], {"pods": "1"}, "pods would be raised by 1, max-extra is 0"),
    "the namespace's cap and the quota's: the smaller counts": Capped(
        ['{"limits.memory":"9Gi"}', ONE_GI], {"limits.memory": "2Gi"}, "max-extra is 1Gi"
    ),
    "each names another resource": Capped(
        ['{"limits.cpu":"1"}', ONE_GI], {"limits.cpu": "2", "limits.memory": "1Gi"}, "limits.cpu"
    ),
    "a cap that is garbage allows nothing": Capped(["{nope"], {"limits.cpu": "1"}, "nothing is added"),
    "nor does it beside one that is not": Capped([ONE_GI, "[]"], {"limits.cpu": "1"}, "nothing is added"),
}


@sentences(CAPPED)
def test_caps(case: Capped) -> None:
    refusal = refuse(case.caps, "migration of VM vm1", by_value(dict(case.added)))
    if not case.refusal:
        assert refusal is None
        return
    assert refusal is not None
    assert refusal.reason == "MaxExtraReached"
    assert str(refusal).startswith("migration of VM vm1 waits: ") is ("nothing" not in case.refusal)
    assert case.refusal in str(refusal)


HARD_HAS = {"limits.memory", "requests.nvidia.com/gpu"}
IDLE = {
    "no cap": ("", "", []),
    "names that spec.hard has": ('{"limits.memory":"1Gi","requests.nvidia.com/gpu":"1"}', "", []),
    "a misspelled name": ('{"limit.memory":"1Gi"}', "", ["limit.memory caps nothing: spec.hard does not have it"]),
    "a name of another quota": ('{"pods":"1"}', "", ["pods caps nothing: spec.hard does not have it"]),
    "on the namespace, a name of another quota": ("", '{"pods":"1","requests.a.b/c":"1","hugepages-2Mi":"2Mi"}', []),
    "on the namespace, names that no quota has": (
        "",
        '{"limit.memory":"1Gi","limits.memry":"1Gi","services":"1"}',
        [
            f"{name} caps nothing: quotas do not count it of pods or claims"
            for name in ("limit.memory", "limits.memry", "services")
        ],
    ),
    "garbage is said elsewhere": ("lots", "[]", []),
}


@sentences(IDLE, "on_quota, on_namespace, texts")
def test_names_that_cap_nothing_are_told(on_quota: str, on_namespace: str, texts: Sequence[str]) -> None:
    result = idle([on_quota, on_namespace], HARD_HAS)
    assert [str(problem) for problem in result] == [f"max-extra of {text}" for text in texts]
    assert {problem.reason for problem in result} <= {"MaxExtraCapsNothing"}
    assert len({problem.key for problem in result}) == len(result)


# ---- which migrations get headroom ---------------------------------------------------------------------------

MAX_EXTRA = "headroom.harvesterhci.io/max-extra"


def migrating_vms(count: int, rq: ResourceQuota, **options: Any) -> Facts:
    """VMs whose migrations began one after another, the last VM's first."""
    names = [f"vm{number}" for number in range(count)]
    migrations = [vmim(vm=name, created=f"2026-01-01T00:00:{count - number:02}Z") for number, name in enumerate(names)]
    instances = [vmi(name, nodeName="node-1") for name in names]
    return namespace(rq, migrations, [launcher(instance) for instance in instances], instances, **options)


ROOM_FOR_ONE = '{"limits.memory":"5Gi"}'
ROOM_FOR_TWO = '{"limits.cpu":"4030m"}'


ENTERED = {
    "no cap": ("", "", ["vm0", "vm1", "vm2"]),
    "the quota's cap: the oldest migration first": (ROOM_FOR_ONE, "", ["vm2"]),
    "the namespace's cap likewise": ("", ROOM_FOR_ONE, ["vm2"]),
    "the smaller of both; room for two, to the milli": ('{"limits.cpu":"5"}', ROOM_FOR_TWO, ["vm1", "vm2"]),
    "a cap of what is not counted": ("", '{"pods":"0"}', ["vm0", "vm1", "vm2"]),
    "a cap that is garbage": ("lots", "", []),
}
"""The caps of the quota and of its namespace, and which of three VMs get an entry."""


@sentences(ENTERED, "on_quota, on_namespace, entered")
def test_max_extra(on_quota: str, on_namespace: str, entered: Sequence[str]) -> None:
    annotations = {**MARKS, **({MAX_EXTRA: on_quota} if on_quota else {})}
    result, new_plan = after(migrating_vms(3, quota(HARD, annotations), max_extra=on_namespace))
    assert sorted(vm_in_key(key) for key in entry_keys(result.annotations)) == entered
    assert [problem.reason for problem in new_plan.problems] == ["MaxExtraReached"] * (3 - len(entered))


PRIORITIES: Mapping[str, tuple[Mapping[str, str], str]] = {
    "an evacuation before what a person asked for earlier": (
        {"vm0": "system-critical", "vm2": "user-triggered"},
        "vm0",
    ),
    "a person before a workload update": ({"vm0": "user-triggered", "vm2": "system-maintenance"}, "vm0"),
    "maintenance before one without a priority": ({"vm1": "system-maintenance"}, "vm1"),
    "a priority that KubeVirt does not have counts as none": ({"vm0": "most-urgent"}, "vm2"),
}


@sentences(PRIORITIES, "priorities, first_vm")
def test_under_a_cap_kubevirts_priority_comes_before_age(priorities: Mapping[str, str], first_vm: str) -> None:
    facts = migrating_vms(3, quota(HARD, MARKS), max_extra=ROOM_FOR_ONE)
    migrations = [edited(move, spec={"priority": priorities.get(move.spec.vmi_name)}) for move in facts.migrations]
    result, _plan = after(replace(facts, migrations=migrations))
    assert [vm_in_key(key) for key in entry_keys(result.annotations)] == [first_vm]


def test_a_resource_without_a_base_fills_no_cap() -> None:
    crowded = quota(HARD, {**MARKS, by_uid("stranger"): '{"pods":"5"}', MAX_EXTRA: '{"pods":"0"}'})
    result, _plan = after(migrating_vms(1, crowded))
    assert by_name("vm0") in result.annotations


def test_an_older_migration_does_not_push_out_one_with_room() -> None:
    with_vm0 = quota(ONE_MORE, {**MARKS, by_name("vm0"): POD_ENTRY})
    result, _plan = after(migrating_vms(2, with_vm0, max_extra=ROOM_FOR_ONE))
    assert [vm_in_key(key) for key in entry_keys(result.annotations)] == ["vm0"]


def arrived() -> tuple[VirtualMachineInstance, Pod]:
    """vm1 lives in its target already, which its migration does not say yet; its source has ended."""
    return vmi("vm1", nodeName="node-2"), launcher(vmi("vm1"), node="node-2", migration=vmim("Running", "vm1"))


STANDING: Mapping[str, tuple[Mapping[str, str], Sequence[str]]] = {
    "that of a VM that has arrived goes": ({by_name("vm1"): POD_ENTRY}, ["vm0"]),
    "a foreign one in its grace": ({by_uid("gone"): POD_ENTRY}, ["gone"]),
    "not one of ours that no migration needs": ({by_name("gone"): POD_ENTRY}, ["vm0"]),
}


@sentences(STANDING, "annotations, names_left")
def test_entries_that_stand_count_for_the_cap(annotations: Mapping[str, str], names_left: Sequence[str]) -> None:
    """vm0 asks for room beside them, and the cap is for one."""
    facts, (instance, target) = migrating_vms(1, quota()), arrived()
    facts = namespace(
        quota(ONE_MORE, {**MARKS, **annotations}),
        [*facts.migrations, vmim("Running", "vm1")],
        [*facts.pods, target],
        [*facts.instances.values(), instance],
        max_extra=ROOM_FOR_ONE,
    )
    result, _plan = after(facts)
    names = [vm_in_key(key).removeprefix("uid-") for key in entry_keys(result.annotations)]
    assert sorted(names) == list(names_left)


def outgrown_vms(count: int) -> tuple[list[VirtualMachineInstance], list[Pod]]:
    """VMs that live at ratio 4.5, where their base was made for 1.5."""
    instances = [vmi(f"vm{number}", nodeName="node-1") for number in range(count)]
    return instances, [launcher(instance, rendering=AT_4_5) for instance in instances]


GROWN = 5622461313 + 60000000
GROWN_POD = '{"limits.cpu":"2015m","limits.memory":"5682461313"}'


def test_a_compensation_that_stands_counts_for_the_cap() -> None:
    instances, pods = outgrown_vms(2)
    with_vm1 = quota(
        {"limits.cpu": "5015m", "limits.memory": str(5000 * 1024**2 + GROWN + 2**30)},
        {**MARKS, by_name("vm1"): GROWN_POD, COMPENSATION: '{"limits.memory":"1Gi"}'},
        used={"limits.cpu": "4015m", "limits.memory": str(6 * 2**30)},
    )
    refused = [vmim(vm="vm0"), vmim(vm="vm1", refused=True)]
    for cap, entered in (("11700Mi", ["vm1"]), ("12000Mi", ["vm0", "vm1"])):
        facts = namespace(
            with_vm1, refused, pods, instances, max_extra=f'{{"limits.memory":"{cap}"}}', rendering=AT_4_5
        )
        result, _plan = after(facts)
        assert [vm_in_key(key) for key in entry_keys(result.annotations)] == entered


def test_a_compensation_keeps_to_the_cap_too() -> None:
    instances, pods = outgrown_vms(1)
    refused = namespace(
        quota(HARD, MARKS),
        [vmim(vm="vm0", refused=True)],
        pods,
        instances,
        max_extra=f'{{"limits.memory":"{GROWN}"}}',
        rendering=AT_4_5,
    )
    result, new_plan = after(refused)
    assert COMPENSATION not in result.annotations
    assert [problem.reason for problem in new_plan.problems] == ["MaxExtraReached"]
    assert "compensation for VM vm0" in str(new_plan.problems[0])
    freed, _plan = after(replace(refused, max_extra='{"limits.memory":"10Gi"}'))
    assert COMPENSATION in freed.annotations


def test_an_entry_that_stands_does_not_grow_past_the_cap() -> None:
    """The ratio was raised after the entry was written."""
    facts = migrating_vms(1, quota(HARD, MARKS), max_extra=ROOM_FOR_ONE)
    raised, _plan = after(facts)
    result, new_plan = after(replace(facts, quota=raised, rendering=AT_4_5))
    assert by_value(result.hard) == by_value(ONE_MORE)
    assert [problem.reason for problem in new_plan.problems] == ["MaxExtraReached"]


# ---- the annotations' size -----------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [0, 1])
def test_past_200_kib_migrations_wait_and_nothing_is_lost(more: int) -> None:
    """Another client's note leaves room for two entries, or for a byte less."""
    entry_size = len(by_name("vm0")) + len(POD_ENTRY)
    size = MAX_ANNOTATION_BYTES - sum(len(k) + len(v) for k, v in MARKS.items()) - len("note") - 2 * entry_size + more
    facts = migrating_vms(3, quota(HARD, {**MARKS, "note": "ü" * (size // 2) + "x" * (size % 2)}))
    result, new_plan = after(facts)
    assert sorted(vm_in_key(key) for key in entry_keys(result.annotations)) == ["vm1", "vm2"][more:]
    assert [problem.reason for problem in new_plan.problems] == ["TooManyMigrations"] * (1 + more)
    assert "migration of VM vm0 waits" in str(new_plan.problems[-1])
    assert by_value(result.hard) == by_value(ONE_MORE if more else TWO_MORE)
    migrations = [*facts.migrations[:2], vmim("Failed", "vm2")]
    later, _plan = after(replace(facts, quota=result, migrations=migrations))
    assert sorted(vm_in_key(key) for key in entry_keys(later.annotations)) == ["vm0", "vm1"][more:]


class Note(str):
    """A text that counts how often it is measured."""

    measured = 0

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        self.measured += 1
        return super().encode(encoding, errors)


def test_the_annotations_are_measured_once_for_all_migrations() -> None:
    note = Note("by another client")
    after(migrating_vms(20, quota(HARD, {**MARKS, "note": note})))
    assert note.measured == 2  # two decisions
