"""Which refused migrations a budget releases, and which quotas are in their way."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest

from kubeloop.api.core import Pod, ResourceQuota
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.managedtenantquota.missing_targets import with_largest_defaults, with_running
from pkg.util.managedtenantquota.model import Policy, Timers
from pkg.util.managedtenantquota.releases import Releases, is_taken
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.observe import Listed, Source
from tests.decisions import sentences
from tests.objects import Resources, attachment, claim, ended, launcher, limit_range, running_vmi, vmim, with_state
from tests.pkg.util.managedtenantquota.objects import (
    AT_ONCE,
    ENOUGH,
    FULL,
    NOW,
    SIDE,
    TWICE,
    look,
    quota,
    refused,
    source,
    surroundings,
    target,
)

BEST_EFFORT: dict[str, Any] = {"scopes": ["BestEffort"]}
NOT_BEST_EFFORT: dict[str, Any] = {"scopes": ["NotBestEffort"]}
OF_HIGH_PRIORITY: dict[str, Any] = {
    "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["high"]}]}
}


def full(hard: Resources, **more: Any) -> ResourceQuota:
    """A quota without anything left."""
    return quota(hard, hard, **more)


VOLUME = {"name": "v", "persistentVolumeClaim": {"claimName": "c", "hotpluggable": True}}


@dataclass
class Case:
    """`blocking`: by migration; None: nothing is said of it. `short`: the resources that are told about."""

    quotas: Sequence[ResourceQuota]
    blocking: tuple[str, ...] = ()
    short: tuple[str, ...] = ()
    additional: Resources = field(default_factory=lambda: ENOUGH)


@sentences(
    {
        "a full quota blocks": Case([quota()], ("quota",)),
        "one with room does not": Case([quota(TWICE)]),
        "of several quotas only the full ones block": Case(
            [quota(name="a"), quota(TWICE, name="b"), quota(name="c")], ("a", "c")
        ),
        "a quota for other pods never blocks": Case([quota({"pods": "0"}, {}, **BEST_EFFORT)]),
        "one for pods of a priority class that the VM has not neither": Case(
            [quota({"pods": "0"}, {}, **OF_HIGH_PRIORITY)]
        ),
        "one for pods that ask for something does": Case([quota(**NOT_BEST_EFFORT)], ("quota",)),
        "a budget that is too small releases nothing, and says in what": Case(
            [quota()], (), ("limits.memory",), additional={"limits.cpu": "3", "limits.memory": "1Gi"}
        ),
        "it need not name what has room": Case(
            [quota({"limits.cpu": "9", "limits.memory": FULL["limits.memory"]})],
            ("quota",),
            additional={"limits.memory": "5Gi"},
        ),
        "a quota that is full of something the budget does not name cannot be released": Case(
            [full({**FULL, "pods": "1"})], (), ("pods",)
        ),
        "one quota that cannot be raised enough keeps all of them as they are": Case(
            [quota(name="a"), full({"pods": "1"}, name="b")], (), ("pods",)
        ),
        "a budget that names nothing of a resource is none": Case(
            [quota()], ("quota",), additional={**ENOUGH, "pods": "0"}
        ),
        "exactly enough is enough": Case([quota()], ("quota",), additional=FULL),
        "a byte less is not": Case(
            [quota()], (), ("limits.memory",), additional={**FULL, "limits.memory": "4797464312"}
        ),
        "a quota that limits nothing does nothing": Case([full({})]),
    }
    | {
        f"{name} counts": Case([full({name: SIDE[name]})], ("quota",), additional={name: SIDE[name]})
        for name in ("requests.memory", "requests.devices.kubevirt.io/kvm", "pods", "count/pods")
    }
)
def test_which_quotas_block(case: Case) -> None:
    found = look(case.quotas, additional=case.additional)
    assert found.added.keys() == set(case.blocking)
    assert len(found.releasable) == bool(case.blocking)
    assert len(found.problems) == bool(case.short)
    for name in case.short:
        assert f"{name} of quota" in found.problems[0].message


def test_a_budget_that_does_not_name_storage_says_so() -> None:
    instance = with_state(running_vmi())
    around = surroundings([refused()], instances=[instance], pods=[launcher(instance)])
    around = replace(around, claims={"state-1": claim("state-1")})
    found = look([full({"requests.storage": "10Mi"})], around)
    assert "requests.storage of quota" in found.problems[0].message


def test_a_quota_that_is_raised_is_judged_by_what_it_was() -> None:
    raised = quota({"limits.cpu": "9", "limits.memory": "20Gi"})
    assert look([raised]).added.keys() == set()
    assert look([raised], originals={"quota": FULL}).added.keys() == {"quota"}


class TestWhoIsRefused:
    """Everything but the plain case keeps the namespace unlocked."""

    def found(self, *migrations: VirtualMachineInstanceMigration, **more: Any) -> list[str]:
        around = surroundings(list(migrations), **more)
        return [
            each.migration.spec.vmi_name
            for each in look([quota({"pods": "0"}, {})], around, additional={"pods": "9"}).releasable
        ]

    def test_oldest_first(self) -> None:
        late, soon = refused("late", created="2026-01-02T00:00:00Z"), refused("soon")
        assert self.found(late, soon) == ["soon", "late"]

    @pytest.mark.parametrize(
        "migration",
        [
            vmim("Pending"),
            vmim(""),
            vmim(None),
            vmim("Scheduling", refused=True),
            vmim("Running", refused=True),
            vmim("Failed", refused=True),
            refused(abort=True),
            refused(deleting=True),
        ],
        ids=["not refused", "new", "unset", "past it", "runs", "failed", "being aborted", "being deleted"],
    )
    def test_none_of_the_others(self, migration: VirtualMachineInstanceMigration) -> None:
        assert self.found(migration) == []

    def test_not_without_its_vmi(self) -> None:
        assert self.found(refused(), instances=[]) == []

    @pytest.mark.parametrize("phase", ["Pending", "Running", "Failed"])
    def test_not_when_its_target_pod_was_created(self, phase: str) -> None:
        migration = refused()
        assert self.found(migration, pods=[source(), target(migration, phase)]) == []

    def test_not_while_kubevirt_waits_for_an_earlier_pod_to_end(self) -> None:
        before = target(refused(name="before"), "Running")
        assert self.found(refused(), pods=[source(), before]) == []

    @pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
    def test_but_when_it_has_ended(self, phase: str) -> None:
        before = target(refused(name="before"), "Running")
        vmi = running_vmi(node="node-2", activePods={"a": "node-1", "b": "node-2"})
        assert self.found(refused(), instances=[vmi], pods=[ended(source(), phase), before]) == ["vm1"]

    def test_not_while_its_source_pod_is_not_known(self) -> None:
        assert self.found(refused(), pods=[]) == []


class TestParallelLimits:
    def waits(self, **more: Any) -> bool:
        found = look([quota()], surroundings(**more))
        assert (found.recheck_after == AT_ONCE.recheck) is not bool(found.releasable)
        return not found.releasable

    def test_kubevirts_defaults(self) -> None:
        assert not self.waits(running=["a", "b", "c", "d"])
        assert self.waits(running=["a", "b", "c", "d", "e"])
        assert not self.waits(running=["node-1"])
        assert self.waits(running=["node-1", "node-1"])

    def test_the_cr_says_otherwise(self) -> None:
        more = {"parallelMigrationsPerCluster": 6, "parallelOutboundMigrationsPerNode": 3}
        assert not self.waits(running=["a", "b", "c", "node-1", "node-1"], parallel=more)
        assert self.waits(running=["node-1"], parallel={"parallelOutboundMigrationsPerNode": 1})
        assert self.waits(parallel={"parallelMigrationsPerCluster": 0})

    def test_who_runs(self) -> None:
        migrations = [
            vmim("Pending", "waits"),
            vmim("Pending", "has-its-pod"),
            vmim("Running", "runs"),
            vmim("Succeeded", "over"),
            vmim("WaitingForSync", "new-phase"),
            vmim("", "new"),
        ]
        vmis = [running_vmi(m.spec.vmi_name, m.spec.vmi_name) for m in migrations]
        found = running(migrations, vmis, [target(migrations[1]), target(migrations[3])])
        assert sorted(map(sorted, found)) == [["has-its-pod"], ["new-phase"], ["runs"]]

    def test_the_node_it_left_and_the_node_it_is_on(self) -> None:
        moved = running_vmi(node="new", migrationState={"sourceNode": "old"})
        assert running([vmim("Running")], [moved]) == [{"old", "new"}]

    def test_a_migration_of_an_unknown_vmi_counts(self) -> None:
        assert running([vmim("Running")], []) == [frozenset()]


def running(
    migrations: Sequence[VirtualMachineInstanceMigration],
    instances: Sequence[VirtualMachineInstance],
    pods: Sequence[Pod] = (),
) -> Sequence[Collection[str]]:
    listed = Source(migrations=Listed(migrations), instances=Listed(instances), pods=Listed(pods))
    own = Facts(ResourceQuota(), migrations=[vmim("Pending", "own")])
    return with_running(own, listed).running


@pytest.mark.parametrize("added", ["much", "-2"])
def test_an_invalid_budget_is_reported_and_releases_nothing(added: str) -> None:
    found = look([quota()], additional={**ENOUGH, "limits.cpu": added})
    assert [problem.reason for problem in found.problems] == ["InvalidMigrationResourceQuota"]
    assert not found.releasable


def test_a_migration_that_rests_is_left_alone_until_its_time() -> None:
    timers = Timers(paused={"uid-migration-of-vm1": NOW + 9})
    found = look([quota()], timers=timers)
    assert not found.releasable
    assert found.recheck_after == 9
    assert look([quota()], timers=timers, now=NOW + 9).releasable


@pytest.mark.parametrize(
    "annotations",
    [
        {"harvesterhci.io/migrating-vm1": "{}"},
        {"harvesterhci.io/migratingUID-uid": "{}"},
        {"harvesterhci.io/migratingCompensation": "{}"},
        {"headroom.harvesterhci.io/owner": "headroom"},
    ],
    ids=["an entry by name", "an entry by uid", "a compensation", "our mark"],
)
def test_a_quota_that_the_other_strategy_has_its_hands_on_is_left_alone(annotations: dict[str, str]) -> None:
    busy = quota(annotations=annotations)
    assert is_taken(busy)
    found = look([busy])
    assert not found.releasable
    assert not found.problems


class TestHotpluggedVolumes:
    """The target has a second pod, which KubeVirt creates once the first runs."""

    def around(self, *pods: Pod, migration: VirtualMachineInstanceMigration | None = None) -> Facts:
        spec = {**msgspec.to_builtins(running_vmi().spec), "volumes": [VOLUME]}
        vmi = msgspec.structs.replace(running_vmi(), spec=msgspec.convert(spec, type(running_vmi().spec)))
        return surroundings([migration or refused()], instances=[vmi], pods=[source(), attachment(source()), *pods])

    def test_a_budget_without_room_for_both_pods_starts_nothing(self) -> None:
        one = full({"pods": "2"})
        assert look([one], self.around(), additional={"pods": "1"}).problems
        assert look([one], self.around(), additional={"pods": "2"}).added.keys() == {"quota"}

    def test_the_second_pod_is_released_by_itself(self) -> None:
        migration = vmim("Pending")
        there = full({"pods": "3"})
        waits = self.around(target(migration, "Pending"), migration=migration)
        assert look([there], waits, additional={"pods": "1"}).added.keys() == set()
        runs = self.around(target(migration, "Running"), migration=migration)
        assert look([there], runs, additional={"pods": "1"}).added.keys() == {"quota"}

    def test_and_not_when_it_is_there(self) -> None:
        migration = vmim("Pending")
        running = target(migration, "Running")
        around = self.around(running, attachment(running), migration=migration)
        assert look([full({"pods": "4"})], around, additional={"pods": "1"}).added.keys() == set()


class TestLimitRanges:
    def test_of_several_the_largest_default_is_reckoned_with(self) -> None:
        ranges = (
            limit_range({"cpu": "1", "memory": "3Gi"}),
            limit_range({"cpu": "1500m", "memory": "2Gi"}, {"cpu": "5m"}),
        )
        for order in (ranges, ranges[::-1]):
            (merged,) = with_largest_defaults(Rendering(limit_ranges=order)).limit_ranges
            (item,) = merged.spec.limits
            assert item.default == {"cpu": "1500m", "memory": "3Gi"}
            assert item.default_request == {"cpu": "5m"}

    def test_a_single_one_is_taken_as_it_is(self) -> None:
        rendering = Rendering(limit_ranges=(limit_range({"cpu": "1"}),))
        assert with_largest_defaults(rendering) is rendering


class TestShortage:
    """status.used may count a target pod already that the cache does not show yet: that passes by itself."""

    def test_it_is_told_once_it_lasts(self) -> None:
        policy = Policy(shortage=0.5)
        first = look([quota()], additional={}, policy=policy)
        assert not first.problems
        assert first.recheck_after == 0.5
        timers = Timers(short_since=first.short_since or {})
        later = look([quota()], additional={}, policy=policy, timers=timers, now=NOW + 0.5)
        assert [problem.reason for problem in later.problems] == ["NotEnoughResourceToRelease"]
        assert later.short_since == first.short_since


class TestWhatAWindowGrants:
    """min(source, target) of every VM that migrates: what a VM has grown by, the base pays."""

    def grown(self, cpu: str = "4", vm: str = "vm1") -> VirtualMachineInstance:
        """CPUs are plugged into it: the target has them."""
        condition = {"type": "HotVCPUChange", "status": "True"}
        return running_vmi(vm, limits={"cpu": cpu, "memory": "4Gi"}, conditions=[condition])

    def cpu(self, hard: str, used: str, *vms: VirtualMachineInstance, **more: Any) -> Releases:
        around = surroundings([refused(vm.name) for vm in vms], instances=vms, **more)
        quotas = [quota({"limits.cpu": hard}, {"limits.cpu": used})]
        return look(quotas, around, additional={"limits.cpu": "47"})

    def test_what_it_has_grown_by_has_to_fit_the_base(self) -> None:
        found = self.cpu("3", "2015m", self.grown("4"))
        assert not found.releasable
        assert "limited 3, with what may be added 5015m" in found.problems[0].message

    def test_not_what_is_added_for_another_vm(self) -> None:
        found = self.cpu("6", "5930m", self.grown("4"), running_vmi("vm2"))
        assert [each.migration.spec.vmi_name for each in found.releasable] == ["vm2"]
        assert found.added == {"quota": {"limits.cpu": "2015m"}}

    def test_no_more_than_the_budget(self) -> None:
        vms = [running_vmi("vm1"), running_vmi("vm2")]
        around = surroundings([refused(vm.name) for vm in vms], instances=vms)
        there = full({"limits.cpu": "4030m"})
        found = look([there], around, additional={"limits.cpu": "3"})
        assert [each.migration.spec.vmi_name for each in found.releasable] == ["vm1"]
        assert found.added == {"quota": {"limits.cpu": "2015m"}}

    def beside_one_that_moves(self, hard: str, used: str, *instances: VirtualMachineInstance) -> Releases:
        migration = vmim("Running")
        around = surroundings(
            [migration, refused("vm2")],
            instances=[running_vmi("vm1"), *instances],
            pods=[source("vm1"), target(migration, "Running"), source("vm2")],
        )
        there = quota({"limits.cpu": hard}, {"limits.cpu": used})
        return look([there], around, additional={"limits.cpu": "47"})

    def test_vms_whose_sides_both_run_keep_theirs(self) -> None:
        found = self.beside_one_that_moves("4030m", "6045m", running_vmi("vm2"))
        assert found.added == {"quota": {"limits.cpu": "4030m"}}

    def test_what_a_vm_has_grown_by_does_not_fit_into_what_another_s_target_leaves(self) -> None:
        """It has just ended: status.used shows it, and the cache does not."""
        assert not self.beside_one_that_moves("5", "4030m", self.grown("4", "vm2")).releasable
        assert self.beside_one_that_moves("6030m", "4030m", self.grown("4", "vm2")).releasable
