"""Quotas without Rancher, several in one namespace, and caps on what may be added."""

from __future__ import annotations

import json

import pytest

from kubeloop.testing.polling import eventually
from tests.e2e.headroom.amounts import ONE, TWO, hards, plus
from tests.e2e.headroom.environment import Environment
from tests.e2e.headroom.namespace import LASTING, QuotaNamespace
from tests.e2e.tenant import by_value

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cleared")]

REQUESTS = {"requests.cpu": "130m", "requests.memory": "3340109497", "pods": "1"}
"""What quota counts of the seed's VM."""
MANAGED = "headroom.harvesterhci.io/managed"
BASE = "headroom.harvesterhci.io/base"
MAX_EXTRA = "headroom.harvesterhci.io/max-extra"
LOWER = json.dumps({"limits.memory": "5Gi"})
"""Room for one target of 4797464313 bytes, not for two."""


def base_of(namespace: QuotaNamespace, name: str) -> object:
    return by_value(json.loads(namespace.annotations(name).get(BASE, "{}")))


class TestManaged:
    def test_a_quota_without_rancher_is_managed_by_its_label_and_is_refused_without(
        self, on: Environment
    ) -> None:
        on.run()
        namespace = on.namespace().start("vm1")
        namespace.make_quota("team", ONE)
        migration = namespace.migrate("vm1", linger=0.5)
        namespace.stays_refused(migration)
        assert namespace.annotations("team") == {}
        with namespace.watch() as versions:
            namespace.patch_quota({"metadata": {"labels": {MANAGED: "true"}}}, "team")
            namespace.succeed(migration)
            namespace.settle(ONE, "team")
            assert hards(versions, "team") == [by_value(ONE), by_value(TWO), by_value(ONE)]
        assert base_of(namespace, "team") == by_value(ONE)

    def test_a_controller_that_crashes_in_between_still_knows_the_base(self, on: Environment) -> None:
        on.run()
        namespace = on.namespace().start("vm1")
        namespace.make_quota("team", ONE, managed=True)
        migration = namespace.migrate("vm1", phase_seconds=LASTING)
        namespace.wait_phase(migration, "Running")
        on.kill()
        namespace.hurry(migration)
        namespace.succeed(migration)
        eventually(lambda: len(namespace.counting()) == 1)
        assert namespace.hard("team") == by_value(TWO)
        on.run()
        namespace.settle(ONE, "team")
        assert base_of(namespace, "team") == by_value(ONE)

    def test_every_quota_of_a_namespace_is_managed(self, on: Environment) -> None:
        """Rancher's default and two beside it, each with limits of its own."""
        on.run()
        namespace = on.namespace(limits=ONE).start("vm1")
        namespace.make_quota("requests", REQUESTS, managed=True)
        namespace.make_quota("memory", {"limits.memory": "5Gi"}, managed=True)
        bases = {"": ONE, "requests": REQUESTS, "memory": {"limits.memory": "5Gi"}}
        one = by_value(ONE | REQUESTS)
        with namespace.watch() as versions:
            namespace.succeed(namespace.migrate("vm1", linger=0.5))
            for name, base in bases.items():
                namespace.settle(base, name)
                found = by_value(base)
                assert hards(versions, name) == [found, plus(found, one), found], name

    def test_one_quota_that_takes_no_part_refuses_for_all(self, on: Environment) -> None:
        on.run()
        namespace = on.namespace(limits=ONE).start("vm1")
        namespace.make_quota("requests", REQUESTS)
        migration = namespace.migrate("vm1")
        namespace.stays_refused(migration, 1.5)
        assert namespace.hard("requests") == by_value(REQUESTS)


class TestMaxExtra:
    VMS = ("vm1", "vm2")

    def begin(self, namespace: QuotaNamespace) -> tuple[str, str]:
        """The first migration runs, the second has been asked for."""
        namespace.start(*self.VMS)
        first = namespace.migrate("vm1", phase_seconds=LASTING)
        namespace.wait_phase(first, "Running")
        return first, namespace.migrate("vm2")

    @pytest.mark.parametrize("on_namespace", [True, False], ids=["on the namespace", "on the quota"])
    def test_the_second_migration_waits_until_the_first_has_ended(
        self, on: Environment, on_namespace: bool
    ) -> None:
        on.run()
        namespace = on.namespace(limits=TWO, annotations={MAX_EXTRA: LOWER} if on_namespace else {})
        if not on_namespace:
            namespace.patch_quota({"metadata": {"annotations": {MAX_EXTRA: LOWER}}})
        with namespace.watch() as versions:
            first, second = self.begin(namespace)
            event = namespace.wait_event("MaxExtraReached")
            assert (event["type"], event["message"]) == (
                "Warning",
                "migration of VM vm2 waits: limits.memory would be raised by 8.9Gi, max-extra is 5Gi",
            )
            eventually(lambda: namespace.is_refused(second))
            assert namespace.phase_of(first) == "Running"
            namespace.hurry(first)
            namespace.succeed(first, second)
            namespace.settle(TWO)
            raised = plus(by_value(TWO), by_value(ONE))
            assert {tuple(sorted(hard.items())) for hard in hards(versions)} == {
                tuple(sorted(hard.items())) for hard in (by_value(TWO), raised)
            }
