"""Quotas without Rancher, several in one namespace, and caps on what may be added."""

from __future__ import annotations

import json
import time

import pytest

from tests.e2e.headroom.amounts import ONE, TWO, hards, plus
from tests.e2e.headroom.environment import Environment
from tests.e2e.headroom.namespace import LASTING, QuotaNamespace
from tests.e2e.tenant import by_value
from tests.polling import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cleared")]

REQUESTS = {"requests.cpu": "130m", "requests.memory": "3340109497", "pods": "1"}
"""What quota counts of the seed's VM."""
MANAGED = "headroom.harvesterhci.io/managed"
BASE = "headroom.harvesterhci.io/base"
MAX_EXTRA = "headroom.harvesterhci.io/max-extra"
LOWER = json.dumps({"limits.memory": "5Gi"})
"""Room for one target of 4797464313 bytes, not for two."""


def base_of(space: QuotaNamespace, name: str) -> object:
    return by_value(json.loads(space.annotations(name).get(BASE, "{}")))


class TestManaged:
    def test_a_quota_without_rancher_is_managed_by_its_label_and_is_refused_without(
        self, on: Environment
    ) -> None:
        on.run()
        space = on.space().start("vm1")
        space.make_quota("team", ONE)
        migration = space.migrate("vm1", linger=0.5)
        space.stays_refused(migration)
        assert space.annotations("team") == {}
        with space.watch() as versions:
            space.patch_quota({"metadata": {"labels": {MANAGED: "true"}}}, "team")
            space.succeed(migration)
            space.settle(ONE, "team")
            assert hards(versions, "team") == [by_value(ONE), by_value(TWO), by_value(ONE)]
        assert base_of(space, "team") == by_value(ONE)

    def test_the_recorded_base_follows_what_people_write(self, on: Environment) -> None:
        on.run()
        space = on.space().start("vm1")
        space.make_quota("team", TWO, managed=True)
        eventually(lambda: base_of(space, "team") == by_value(TWO))
        space.patch_quota({"spec": {"hard": ONE}}, "team")
        eventually(lambda: base_of(space, "team") == by_value(ONE))
        space.wait_counted("team")
        migration = space.migrate("vm1", phase_seconds=LASTING)
        space.wait_phase(migration, "Running")
        assert space.hard("team") == by_value(TWO)
        assert base_of(space, "team") == by_value(ONE), "what is raised is not the base"
        space.hurry(migration)
        space.succeed(migration)
        space.settle(ONE, "team")
        space.patch_quota({"spec": {"hard": TWO | {"services": "3"}}}, "team")
        eventually(lambda: base_of(space, "team") == by_value(TWO | {"services": "3"}))
        space.wait_hard(TWO | {"services": "3"}, "team")

    def test_a_controller_that_crashes_in_between_still_knows_the_base(self, on: Environment) -> None:
        on.run()
        space = on.space().start("vm1")
        space.make_quota("team", ONE, managed=True)
        migration = space.migrate("vm1", phase_seconds=LASTING)
        space.wait_phase(migration, "Running")
        on.kill()
        space.hurry(migration)
        space.succeed(migration)
        eventually(lambda: len(space.counting()) == 1, 30)
        assert space.hard("team") == by_value(TWO)
        on.run()
        space.settle(ONE, "team")
        assert base_of(space, "team") == by_value(ONE)

    def test_every_quota_of_a_namespace_is_managed(self, on: Environment) -> None:
        """Rancher's default and two beside it, each with limits of its own."""
        on.run()
        space = on.space(limits=ONE).start("vm1")
        space.make_quota("requests", REQUESTS, managed=True)
        space.make_quota("memory", {"limits.memory": "5Gi"}, managed=True)
        bases = {"": ONE, "requests": REQUESTS, "memory": {"limits.memory": "5Gi"}}
        one = by_value(ONE | REQUESTS)
        with space.watch() as versions:
            space.succeed(space.migrate("vm1", linger=0.5))
            for name, base in bases.items():
                space.settle(base, name)
                found = by_value(base)
                assert hards(versions, name) == [found, plus(found, one), found], name

    def test_one_quota_that_takes_no_part_refuses_for_all(self, on: Environment) -> None:
        on.run()
        space = on.space(limits=ONE).start("vm1")
        space.make_quota("requests", REQUESTS)
        migration = space.migrate("vm1")
        space.stays_refused(migration, 1.5)
        assert space.hard("requests") == by_value(REQUESTS)


class TestMaxExtra:
    VMS = ("vm1", "vm2")

    def begin(self, space: QuotaNamespace) -> tuple[str, str]:
        """The first migration runs, the second has been asked for."""
        space.start(*self.VMS)
        first = space.migrate("vm1", phase_seconds=LASTING)
        space.wait_phase(first, "Running")
        return first, space.migrate("vm2")

    @pytest.mark.parametrize("on_namespace", [True, False], ids=["on the namespace", "on the quota"])
    def test_the_second_migration_waits_until_the_first_has_ended(
        self, on: Environment, on_namespace: bool
    ) -> None:
        on.run()
        space = on.space(limits=TWO, annotations={MAX_EXTRA: LOWER} if on_namespace else {})
        if not on_namespace:
            space.patch_quota({"metadata": {"annotations": {MAX_EXTRA: LOWER}}})
        with space.watch() as versions:
            first, second = self.begin(space)
            event = space.wait_event("MaxExtraReached")
            assert (event["type"], event["message"]) == (
                "Warning",
                "migration of VM vm2 waits: limits.memory would be raised by 8.9Gi, max-extra is 5Gi",
            )
            eventually(lambda: space.is_refused(second))
            assert space.phase_of(first) == "Running"
            space.hurry(first)
            space.succeed(first, second)
            space.settle(TWO)
            raised = plus(by_value(TWO), by_value(ONE))
            assert {tuple(sorted(hard.items())) for hard in hards(versions)} == {
                tuple(sorted(hard.items())) for hard in (by_value(TWO), raised)
            }

    def test_without_a_cap_both_run_at_once(self, on: Environment) -> None:
        on.run()
        space = on.space(limits=TWO)
        first, second = self.begin(space)
        space.wait_phase(second, "Succeeded")
        assert space.phase_of(first) == "Running"
        assert space.events("MaxExtraReached") == []
        space.hurry(first)
        space.succeed(first)
        space.settle(TWO)

    def test_a_cap_that_is_raised_lets_the_waiting_one_go(self, on: Environment) -> None:
        on.run()
        space = on.space(limits=ONE, annotations={MAX_EXTRA: json.dumps({"limits.cpu": "2"})}).start("vm1")
        migration = space.migrate("vm1")
        space.stays_refused(migration, 1.0)
        assert space.hard() == by_value(ONE)
        began = time.monotonic()
        on.api.patch(space.path, {"metadata": {"annotations": {MAX_EXTRA: json.dumps({"limits.cpu": "3"})}}})
        space.succeed(migration)
        assert time.monotonic() - began < 10.0
        space.settle(ONE)
