"""Nothing beyond the caps, nor more annotations than an object may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kubeloop.api.core import Pod
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util.resourcequota.entries import entries
from tests.decisions import after, by_value, namespace, sentences
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

MAX_EXTRA = "headroom.harvesterhci.io/max-extra"


# ---- max-extra -----------------------------------------------------------------------------------------------


def moving(count: int) -> tuple[list[VirtualMachineInstanceMigration], list[VirtualMachineInstance], list[Pod]]:
    """VMs whose migrations began one after another, the last VM's first."""
    names = [f"vm{number}" for number in range(count)]
    migrations = [vmim(vm=name, created=f"2026-01-01T00:00:{count - number:02}Z") for number, name in enumerate(names)]
    instances = [vmi(name, nodeName="node-1") for name in names]
    return migrations, instances, [launcher(instance) for instance in instances]


ROOM_FOR_ONE = '{"limits.memory":"5Gi"}'
ROOM_FOR_TWO = '{"limits.cpu":"4030m"}'


@dataclass(frozen=True)
class Capped:
    """The caps of the quota and of its namespace, and which of three VMs get an entry."""

    quota: str
    namespace: str
    entered: Sequence[str]


CAPPED = {
    "no cap": Capped("", "", ["vm0", "vm1", "vm2"]),
    "the quota's cap: the oldest migration first": Capped(ROOM_FOR_ONE, "", ["vm2"]),
    "the namespace's cap likewise": Capped("", ROOM_FOR_ONE, ["vm2"]),
    "room for two, to the milli": Capped(ROOM_FOR_TWO, "", ["vm1", "vm2"]),
    "the smaller of both": Capped(ROOM_FOR_TWO, ROOM_FOR_ONE, ["vm2"]),
    "no room at all": Capped('{"limits.memory":"0"}', "", []),
    "a cap of what is not counted": Capped("", '{"pods":"0"}', ["vm0", "vm1", "vm2"]),
    "a cap that is garbage": Capped("lots", "", []),
}


@sentences(CAPPED)
def test_max_extra(case: Capped) -> None:
    migrations, instances, pods = moving(3)
    annotations = {**MARKS, **({MAX_EXTRA: case.quota} if case.quota else {})}
    found, made = after(namespace(quota(HARD, annotations), migrations, pods, instances, max_extra=case.namespace))
    assert sorted(entry.vm for entry in entries(found.annotations)) == list(case.entered)
    assert [problem.reason for problem in made.problems] == ["MaxExtraReached"] * (3 - len(case.entered))


def test_what_an_entry_says_of_a_resource_that_the_base_does_not_limit_fills_no_cap() -> None:
    migrations, instances, pods = moving(1)
    before = quota(HARD, {**MARKS, by_uid("stranger"): '{"pods":"5"}', MAX_EXTRA: '{"pods":"0"}'})
    found, _made = after(namespace(before, migrations, pods, instances))
    assert by_name("vm0") in found.annotations


def test_an_older_migration_does_not_push_out_one_that_has_its_room() -> None:
    migrations, instances, pods = moving(2)
    with_vm0 = quota(ONE_MORE, {**MARKS, by_name("vm0"): POD_ENTRY})
    found, _made = after(namespace(with_vm0, migrations, pods, instances, max_extra=ROOM_FOR_ONE))
    assert [entry.vm for entry in entries(found.annotations)] == ["vm0"]


def arrived() -> tuple[VirtualMachineInstance, Pod]:
    """vm1 lives in its target already, which its migration does not say yet; its source has ended."""
    return vmi("vm1", nodeName="node-2"), launcher(vmi("vm1"), node="node-2", migration=vmim("Running", "vm1"))


STANDING: Mapping[str, tuple[Mapping[str, str], Sequence[str]]] = {
    "that of a VM which has arrived goes, whatever its migration says": ({by_name("vm1"): POD_ENTRY}, ["vm0"]),
    "a foreign one in its grace": ({by_uid("gone"): POD_ENTRY}, ["gone"]),
    "not one of ours that no migration needs": ({by_name("gone"): POD_ENTRY}, ["vm0"]),
}


@sentences(STANDING)
def test_entries_that_stand_count_for_the_cap(case: tuple[Mapping[str, str], Sequence[str]]) -> None:
    """vm0 asks for room beside them, and the cap is for one."""
    annotations, left = case
    migrations, instances, pods = moving(1)
    there, target = arrived()
    seen = namespace(
        quota(ONE_MORE, {**MARKS, **annotations}),
        [*migrations, vmim("Running", "vm1")],
        [*pods, target],
        [*instances, there],
        max_extra=ROOM_FOR_ONE,
    )
    found, _made = after(seen)
    names = [entry.vm.removeprefix("uid-") for entry in entries(found.annotations)]
    assert sorted(names) == list(left)


def grown(count: int) -> tuple[list[VirtualMachineInstance], list[Pod]]:
    """VMs that live at ratio 4.5, where their base was made for 1.5."""
    instances = [vmi(f"vm{number}", nodeName="node-1") for number in range(count)]
    return instances, [launcher(instance, rendering=AT_4_5) for instance in instances]


GROWN = 5622461313 + 60000000
GROWN_POD = '{"limits.cpu":"2015m","limits.memory":"5682461313"}'


def test_a_compensation_that_stands_counts_for_the_cap() -> None:
    instances, pods = grown(2)
    with_vm1 = quota(
        {"limits.cpu": "5015m", "limits.memory": str(5000 * 1024**2 + GROWN + 2**30)},
        {**MARKS, by_name("vm1"): GROWN_POD, COMPENSATION: '{"limits.memory":"1Gi"}'},
        used={"limits.cpu": "4015m", "limits.memory": str(6 * 2**30)},
    )
    refused = [vmim(vm="vm0"), vmim(vm="vm1", refused=True)]
    for cap, entered in (("11700Mi", ["vm1"]), ("12000Mi", ["vm0", "vm1"])):
        seen = namespace(with_vm1, refused, pods, instances, max_extra=f'{{"limits.memory":"{cap}"}}', rendering=AT_4_5)
        found, _made = after(seen)
        assert [entry.vm for entry in entries(found.annotations)] == entered


def test_a_compensation_keeps_to_the_cap_too() -> None:
    instances, pods = grown(1)
    refused = namespace(
        quota(HARD, MARKS),
        [vmim(vm="vm0", refused=True)],
        pods,
        instances,
        max_extra=f'{{"limits.memory":"{GROWN}"}}',
        rendering=AT_4_5,
    )
    found, made = after(refused)
    assert COMPENSATION not in found.annotations
    assert [problem.reason for problem in made.problems] == ["MaxExtraReached"]
    assert "compensation for VM vm0" in str(made.problems[0])
    freed, _made = after(replace(refused, max_extra='{"limits.memory":"10Gi"}'))
    assert COMPENSATION in freed.annotations


def test_an_entry_that_stands_does_not_grow_past_the_cap() -> None:
    """The ratio was raised after the entry was written."""
    migrations, instances, pods = moving(1)
    seen = namespace(quota(HARD, MARKS), migrations, pods, instances, max_extra=ROOM_FOR_ONE)
    first, _made = after(seen)
    found, made = after(replace(seen, quota=first, rendering=AT_4_5))
    assert by_value(found.hard) == by_value(ONE_MORE)
    assert [problem.reason for problem in made.problems] == ["MaxExtraReached"]


# ---- the annotations' size -----------------------------------------------------------------------------------


def test_past_200_kib_migrations_wait_and_nothing_is_lost() -> None:
    """Another client's annotation leaves room for two entries."""
    migrations, instances, pods = moving(3)
    entry_size = len(by_name("vm0")) + len(POD_ENTRY)
    others = 200 * 1024 - sum(len(k) + len(v) for k, v in MARKS.items()) - len("note") - 2 * entry_size
    crowded = quota(HARD, {**MARKS, "note": "x" * others})
    found, made = after(namespace(crowded, migrations, pods, instances))
    assert sorted(entry.vm for entry in entries(found.annotations)) == ["vm1", "vm2"]
    assert [problem.reason for problem in made.problems] == ["TooManyMigrations"]
    assert "migration of VM vm0 waits" in str(made.problems[0])
    assert by_value(found.hard) == by_value(TWO_MORE)
    then, _made = after(namespace(found, [*migrations[:2], vmim("Failed", "vm2")], pods, instances))
    assert sorted(entry.vm for entry in entries(then.annotations)) == ["vm0", "vm1"]
