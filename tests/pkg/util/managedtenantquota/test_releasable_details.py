"""Hotplugged volumes, LimitRanges, and a shortage that passes."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from pkg.api.core import Pod
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.managedtenantquota.missing_targets import with_largest_defaults
from pkg.util.managedtenantquota.model import Memory, Policy, Surroundings
from tests.objects import attachment, limit_range, running_vmi, vmim
from tests.pkg.util.managedtenantquota.objects import (
    NOW,
    TWICE,
    look,
    quota,
    refused,
    source,
    surroundings,
    target,
)

VOLUME = {"name": "v", "persistentVolumeClaim": {"claimName": "c", "hotpluggable": True}}


class TestHotpluggedVolumes:
    """The target has a second pod, which KubeVirt creates once the first runs."""

    def around(self, *pods: Pod, migration: VirtualMachineInstanceMigration | None = None) -> Surroundings:
        spec = {**msgspec.to_builtins(running_vmi().spec), "volumes": [VOLUME]}
        vmi = msgspec.structs.replace(running_vmi(), spec=msgspec.convert(spec, type(running_vmi().spec)))
        return surroundings(
            [migration or refused()], instances=[vmi], pods=[source(), attachment(source()), *pods]
        )

    def test_a_budget_without_room_for_both_pods_starts_nothing(self) -> None:
        one = quota({"pods": "2"}, {"pods": "2"})
        assert look([one], self.around(), additional={"pods": "1"}).problems
        assert look([one], self.around(), additional={"pods": "2"}).blocking == {"quota"}

    def test_the_second_pod_is_released_by_itself(self) -> None:
        migration = vmim("Pending")
        full = quota({"pods": "3"}, {"pods": "3"})
        waits = self.around(target(migration, "Pending"), migration=migration)
        assert look([full], waits, additional={"pods": "1"}).blocking == set()
        runs = self.around(target(migration, "Running"), migration=migration)
        assert look([full], runs, additional={"pods": "1"}).blocking == {"quota"}

    def test_and_not_when_it_is_there(self) -> None:
        migration = vmim("Pending")
        running = target(migration, "Running")
        around = self.around(running, attachment(running), migration=migration)
        assert look([quota({"pods": "4"}, {"pods": "4"})], around, additional={"pods": "1"}).blocking == set()

    def test_nor_held_up_by_the_parallel_limits_it_counts_in(self) -> None:
        migration = vmim("Pending")
        around = replace(
            self.around(target(migration, "Running"), migration=migration), running=[{"node-1"}] * 5
        )
        assert look([quota({"pods": "3"}, {"pods": "3"})], around, additional={"pods": "1"}).blocking == {
            "quota"
        }


class TestLimitRanges:
    def test_defaults_that_came_after_the_source_pod_count(self) -> None:
        name = "requests.ephemeral-storage"
        full = quota({name: "60M"}, {name: "50M"})
        assert look([full], additional={name: "50M"}).blocking == {"quota"}
        rendering = Rendering("1.5", limit_ranges=(limit_range({"ephemeral-storage": "1Gi"}),))
        found = look([full], surroundings(rendering=rendering), additional={name: "50M"})
        assert name in found.problems[0].message

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
        memory = Memory(short_since=first.short_since or {})
        later = look([quota()], additional={}, policy=policy, memory=memory, now=NOW + 0.5)
        assert [problem.reason for problem in later.problems] == ["NotEnoughResourceToRelease"]
        assert later.short_since == first.short_since

    def test_it_begins_anew_when_it_was_gone(self) -> None:
        memory = Memory(short_since={"uid-migration-of-vm1": NOW - 9})
        assert look([quota(TWICE)], memory=memory).short_since == {}

    def test_the_migration_and_the_budget_are_told(self) -> None:
        (problem,) = look([quota()], additional={}).problems
        assert [obj.name for obj in problem.about] == ["migration-of-vm1", "budget"]

    def test_other_numbers_are_the_same_problem(self) -> None:
        one, other = quota(), quota(used={"limits.cpu": "2014m", "limits.memory": "4797464312"})
        (first,), (second,) = (look([each], additional={}).problems for each in (one, other))
        assert first.message != second.message
        assert first.key == second.key
