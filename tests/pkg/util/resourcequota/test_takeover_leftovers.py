"""Nothing left behind, and nothing beyond the caps (issue 5: nothing left behind, max-extra)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest

from pkg.api.core import Pod
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util.names import migrating_key
from pkg.util.resourcequota.annotations import entries
from pkg.util.resourcequota.model import Memory
from pkg.util.resourcequota.planner import plan
from tests.pkg.util.resourcequota.pods import EXACT, after, launcher, namespace, remembering
from tests.pkg.util.resourcequota.world import (
    BASE,
    COMPENSATION,
    ENTRY,
    HARD,
    LONG_NAME,
    MARKS,
    OWNER,
    RESYNC,
    SKIP,
    by_name,
    by_uid,
    by_value,
    quota,
    sentences,
    vmi,
    vmim,
)

MAX_EXTRA = "headroom.harvesterhci.io/max-extra"
HERE = vmi(nodeName="node-1")
SOURCE = launcher()
POD = '{"limits.cpu":"2015m","limits.memory":"4797464313"}'
ONE_MORE = {"limits.cpu": "5015m", "limits.memory": str(5000 * 1024**2 + 4797464313)}
TWO_MORE = {"limits.cpu": "7030m", "limits.memory": str(5000 * 1024**2 + 2 * 4797464313)}


# ---- entries that nobody needs -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Left:
    """What is found when headroom starts, and whether the entry goes `at_once` or after the grace of 60 s, or
    `stays`."""

    annotations: Mapping[str, str]
    then: str
    migrations: Sequence[VirtualMachineInstanceMigration] = ()
    instances: Sequence[VirtualMachineInstance] = (HERE,)
    pods: Sequence[Pod] = (SOURCE,)


OURS = {**MARKS, by_name(): POD}
LEFT = {
    "our entry of a VM without migration": Left(OURS, "at once"),
    "our entry of a VM that no longer exists": Left(OURS, "at once", instances=(), pods=()),
    "our entry whose migration succeeded while we were down": Left(OURS, "at once", [vmim("Succeeded")]),
    "our entry whose migration failed while we were down": Left(OURS, "at once", [vmim("Failed")]),
    "our entry whose VM is gone and whose migration is over": Left(
        OURS, "at once", [vmim("Failed")], instances=(), pods=()
    ),
    "our entry of a VM with a long name": Left({**MARKS, migrating_key(LONG_NAME): POD}, "at once"),
    "our entry that is garbage": Left({**MARKS, by_name(): "{nope"}, "at once"),
    "an entry by uid that no migration explains": Left({**MARKS, by_uid("gone"): ENTRY}, "after the grace"),
    "an entry by name on a quota that was not ours yet": Left({by_name(): ENTRY}, "after the grace"),
    "an entry by uid on a quota that was not ours yet": Left({by_uid("gone"): ENTRY}, "after the grace"),
    "an entry by uid whose migration is over": Left(
        {**MARKS, by_uid(): ENTRY}, "at once", [vmim("Succeeded")]
    ),
    "an entry by uid while some migration's VMI is not known": Left(
        {**MARKS, by_uid("x"): ENTRY}, "stays", [vmim(vm="x")], instances=(), pods=()
    ),
    "our entry while its VMI is not known": Left(OURS, "stays", [vmim()], instances=(), pods=()),
}


@sentences(LEFT)
def test_an_entry_that_nobody_needs_goes(case: Left) -> None:
    seen = namespace(
        quota(HARD, dict(case.annotations)), case.migrations, case.pods, case.instances, now=1000.0
    )
    (key,) = [entry.key for entry in entries(case.annotations)]
    first = plan(seen, EXACT)
    assert (key in first.annotations) is (case.then == "at once")
    if case.then == "at once":
        assert first.annotations[key] is None
        return
    almost = plan(remembering(seen, first.memory, 1059.0), EXACT)
    assert key not in almost.annotations
    late = plan(remembering(seen, almost.memory, 1060.0), EXACT)
    assert (late.annotations.get(key, "there") is None) is (case.then == "after the grace")
    if case.then == "after the grace":
        assert first.look_again == pytest.approx(60.0)
        assert almost.look_again == pytest.approx(1.0)


def test_while_a_foreign_entry_waits_its_room_stays() -> None:
    found, _made = after(namespace(quota(HARD, {**MARKS, by_uid("gone"): ENTRY}), [], [SOURCE], [HERE]))
    assert by_value(found.hard) == by_value({"limits.cpu": "5", "limits.memory": "9980344313"})


def test_after_the_grace_the_base_comes_back() -> None:
    seen = namespace(
        quota(HARD, {**MARKS, by_uid("gone"): ENTRY}),
        now=1000.0,
        memory=Memory(unexplained={by_uid("gone"): 900.0}),
    )
    found, _made = after(seen)
    assert found.annotations == MARKS
    assert by_value(found.hard) == by_value(HARD)


def test_an_entry_that_is_explained_meanwhile_begins_to_wait_anew() -> None:
    migrating = namespace(
        quota(HARD, {**MARKS, by_uid(): ENTRY}), [vmim()], [SOURCE], [HERE], memory=Memory({by_uid(): 5.0})
    )
    assert plan(migrating, EXACT).memory.unexplained == {}


def test_a_restart_begins_the_grace_anew_and_costs_no_correctness() -> None:
    seen = namespace(quota(HARD, {**MARKS, by_uid("gone"): ENTRY}), now=5.0)
    assert plan(seen, EXACT).memory.unexplained == {by_uid("gone"): 5.0}


# ---- the quota is made again, the namespace loses its annotation ---------------------------------------------


def test_a_quota_that_was_made_again_is_taken_over_and_raised_in_one_patch() -> None:
    found, _made = after(namespace(quota(HARD), [vmim("Running")], [SOURCE], [HERE]))
    assert found.annotations == {**MARKS, by_name(): POD}
    assert by_value(found.hard) == by_value(ONE_MORE)


def test_a_namespace_that_loses_its_annotation_loses_what_was_added() -> None:
    before = quota(TWO_MORE, {**OURS, by_name("vm2"): POD, COMPENSATION: '{"limits.memory":"1Mi"}'})
    before = quota(
        TWO_MORE | {"limits.memory": str(5001 * 1024**2 + 2 * 4797464313)}, dict(before.annotations)
    )
    found, _made = after(namespace(before, [vmim("Running")], [SOURCE], [HERE], limits=""))
    assert found.annotations == MARKS
    assert by_value(found.hard) == by_value(HARD)


def test_a_namespace_without_annotation_whose_quota_was_not_ours_is_left_alone() -> None:
    before = quota(ONE_MORE, {by_name(): POD})
    made = plan(namespace(before, [vmim("Running")], [SOURCE], [HERE], limits=""), EXACT)
    assert not made.hard
    assert made.annotations == MARKS


def test_nothing_is_taken_below_zero() -> None:
    """Somebody else has lowered spec.hard already."""
    before = quota({"limits.cpu": "1", "limits.memory": "1Gi"}, OURS)
    found, _made = after(namespace(before, [], [SOURCE], [HERE], limits=""))
    assert found.annotations == MARKS
    assert found.hard == before.hard


def test_an_annotation_that_is_garbage_leaves_spec_hard_alone_and_says_so() -> None:
    made = plan(namespace(quota(ONE_MORE, OURS), [vmim("Running")], [SOURCE], [HERE], limits="{nope"), EXACT)
    assert not made
    assert [problem.reason for problem in made.problems] == ["InvalidResourceQuotaAnnotation"]


def test_an_annotation_that_comes_back_brings_everything_back() -> None:
    found, _made = after(namespace(quota(HARD, MARKS), [vmim("Running")], [SOURCE], [HERE]))
    assert by_value(found.hard) == by_value(ONE_MORE)


def test_garbage_of_harvesters_in_an_entry_leaves_spec_hard_alone_until_it_goes() -> None:
    seen = namespace(quota(ONE_MORE, {**OURS, by_uid("gone"): "{nope"}), [], [SOURCE], [HERE], now=0.0)
    made = plan(seen, EXACT)
    assert not made.hard
    assert [problem.reason for problem in made.problems] == ["InvalidMigratingEntry"]
    late = plan(remembering(seen, made.memory, 60.0), EXACT)
    assert by_value({name: text for name, text in late.hard.items() if text}) == by_value(HARD)


def test_the_resync_flag_is_answered() -> None:
    """Harvester's vmim controller may have set it just before we took over."""
    found, _made = after(namespace(quota(HARD, {**MARKS, RESYNC: "true"}), [], [SOURCE], [HERE]))
    assert found.annotations[RESYNC] == "false"


# ---- base, revert, foreign edits -----------------------------------------------------------------------------

EDITS: Mapping[str, Mapping[str, str]] = {
    "Rancher puts it back to the base": HARD,
    "somebody raises it": {"limits.cpu": "50", "limits.memory": "500Gi"},
    "somebody lowers it below the base": {"limits.cpu": "1", "limits.memory": "1Gi"},
    "somebody removes one limit": {"limits.cpu": "5015m"},
}


@sentences(EDITS)
@pytest.mark.parametrize("during", [True, False], ids=["during a migration", "when all is quiet"])
def test_a_foreign_edit_of_spec_hard_is_repaired(case: Mapping[str, str], during: bool) -> None:
    before = quota(dict(case), OURS if during else MARKS)
    found, made = after(namespace(before, [vmim("Running")] if during else [], [SOURCE], [HERE]))
    assert not made.annotations
    assert by_value(found.hard) == by_value(ONE_MORE if during else HARD)


def test_a_base_that_changes_during_a_migration_reaches_the_quota_at_once() -> None:
    larger = BASE.replace("5000Mi", "9Gi")
    found, _made = after(namespace(quota(ONE_MORE, OURS), [vmim("Running")], [SOURCE], [HERE], limits=larger))
    assert by_value(found.hard) == by_value(
        {"limits.cpu": "5015m", "limits.memory": str(9 * 1024**3 + 4797464313)}
    )


@pytest.mark.parametrize("removed", [SKIP, OWNER])
def test_our_marks_come_back(removed: str) -> None:
    left = {key: text for key, text in MARKS.items() if key != removed}
    made = plan(namespace(quota(HARD, left), [], [SOURCE], [HERE]), EXACT)
    if removed == OWNER:  # a person's skip is an off switch
        assert not made
    else:
        assert made.annotations == {removed: MARKS[removed]}


# ---- max-extra -----------------------------------------------------------------------------------------------


def moving(
    count: int,
) -> tuple[list[VirtualMachineInstanceMigration], list[VirtualMachineInstance], list[Pod]]:
    """VMs whose migrations began one after another, the last VM's first."""
    names = [f"vm{number}" for number in range(count)]
    migrations = [
        vmim(vm=name, created=f"2026-01-01T00:00:{count - number:02}Z") for number, name in enumerate(names)
    ]
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
    "a cap of what is not counted": Capped('{"pods":"0"}', "", ["vm0", "vm1", "vm2"]),
    "a cap that is garbage": Capped("lots", "", []),
}


@sentences(CAPPED)
def test_max_extra(case: Capped) -> None:
    migrations, instances, pods = moving(3)
    annotations = {**MARKS, **({MAX_EXTRA: case.quota} if case.quota else {})}
    found, made = after(
        namespace(quota(HARD, annotations), migrations, pods, instances, max_extra=case.namespace)
    )
    assert sorted(entry.target.value for entry in entries(found.annotations)) == list(case.entered)
    assert [problem.reason for problem in made.problems] == ["MaxExtraReached"] * (3 - len(case.entered))


def test_a_migration_that_waits_for_a_cap_gets_its_room_when_another_is_over() -> None:
    migrations, instances, pods = moving(2)
    first, made = after(namespace(quota(HARD, MARKS), migrations, pods, instances, max_extra=ROOM_FOR_ONE))
    assert "VM vm0 waits: limits.memory would be raised by 9594928626, max-extra is 5Gi" in str(
        made.problems[0]
    )
    second, _made = after(
        namespace(first, [migrations[0], vmim("Succeeded", "vm1")], pods, instances, max_extra=ROOM_FOR_ONE)
    )
    assert [entry.target.value for entry in entries(second.annotations)] == ["vm0"]


def test_a_cap_that_comes_later_takes_nothing_away_from_who_has_it() -> None:
    migrations, instances, pods = moving(2)
    first, _made = after(namespace(quota(HARD, MARKS), migrations, pods, instances))
    assert not plan(namespace(first, migrations, pods, instances, max_extra=ROOM_FOR_ONE), EXACT)


def test_an_older_migration_does_not_push_out_one_that_has_its_room() -> None:
    migrations, instances, pods = moving(2)
    with_vm0 = quota(ONE_MORE, {**MARKS, by_name("vm0"): POD})
    found, _made = after(namespace(with_vm0, migrations, pods, instances, max_extra=ROOM_FOR_ONE))
    assert [entry.target.value for entry in entries(found.annotations)] == ["vm0"]


def arrived() -> tuple[VirtualMachineInstance, Pod]:
    """vm1 lives in its target already, which its migration does not say yet; its source has ended."""
    return vmi("vm1", nodeName="node-2"), launcher(
        vmi("vm1"), node="node-2", migration=vmim("Running", "vm1")
    )


STANDING: Mapping[str, tuple[Mapping[str, str], Sequence[str]]] = {
    "that of a VM which has arrived": ({by_name("vm1"): POD}, ["vm1"]),
    "a foreign one in its grace": ({by_name("vm1"): POD, by_uid("gone"): POD}, ["gone", "vm1"]),
    "not one of ours that nobody needs": ({by_name("gone"): POD}, ["vm0"]),
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
    names = [entry.target.value.removeprefix("uid-") for entry in entries(found.annotations)]
    assert sorted(names) == list(left)


def test_a_compensation_that_stands_counts_for_the_cap() -> None:
    _migrations, instances, pods = moving(2)
    with_vm1 = quota(
        {"limits.cpu": "5015m", "limits.memory": str(5000 * 1024**2 + 4797464313 + 2**30)},
        {**MARKS, by_name("vm1"): POD, COMPENSATION: '{"limits.memory":"1Gi"}'},
        used={"limits.cpu": "4015m", "limits.memory": str(6 * 2**30)},
    )
    refused = [vmim(vm="vm0"), vmim(vm="vm1", refused=True)]
    for cap, entered in (("9900Mi", ["vm1"]), ("10300Mi", ["vm0", "vm1"])):
        found, _made = after(
            namespace(with_vm1, refused, pods, instances, max_extra=f'{{"limits.memory":"{cap}"}}')
        )
        assert [entry.target.value for entry in entries(found.annotations)] == entered


def test_a_compensation_keeps_to_the_cap_too() -> None:
    tight = '{"limit":{"limitsCpu":"100","limitsMemory":"4Gi"}}'
    refused = namespace(
        quota({"limits.cpu": "100", "limits.memory": "4Gi"}, MARKS),
        [vmim(refused=True)],
        [SOURCE],
        [HERE],
        limits=tight,
        max_extra='{"limits.memory":"4797464313"}',
    )
    found, made = after(refused)
    assert COMPENSATION not in found.annotations
    assert [problem.reason for problem in made.problems] == ["MaxExtraReached"]
    assert "compensation for vm1" in str(made.problems[0])
    freed, _made = after(replace(refused, max_extra='{"limits.memory":"10Gi"}'))
    assert COMPENSATION in freed.annotations


# ---- the annotations' size -----------------------------------------------------------------------------------


def test_past_200_kib_migrations_wait_and_nothing_is_lost() -> None:
    """Somebody else's annotation leaves room for two entries."""
    migrations, instances, pods = moving(3)
    entry_size = len(by_name("vm0")) + len(POD)
    others = 200 * 1024 - sum(len(k) + len(v) for k, v in MARKS.items()) - len("note") - 2 * entry_size
    crowded = quota(HARD, {**MARKS, "note": "x" * others})
    found, made = after(namespace(crowded, migrations, pods, instances))
    assert sorted(entry.target.value for entry in entries(found.annotations)) == ["vm1", "vm2"]
    assert [problem.reason for problem in made.problems] == ["TooManyMigrations"]
    assert "migration of VM vm0 waits" in str(made.problems[0])
    assert by_value(found.hard) == by_value(TWO_MORE)
    then, _made = after(namespace(found, [*migrations[:2], vmim("Failed", "vm2")], pods, instances))
    assert sorted(entry.target.value for entry in entries(then.annotations)) == ["vm0", "vm1"]


def test_an_entry_that_stands_stays_although_the_annotations_are_too_large() -> None:
    huge = quota(ONE_MORE, {**OURS, "note": "x" * 210 * 1024})
    assert not plan(namespace(huge, [vmim("Running")], [SOURCE], [HERE]), EXACT)
