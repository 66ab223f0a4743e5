"""Quotas without Rancher, several in one namespace, and caps on what may be added."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from pkg.testcluster.cluster import Cluster
from tests.e2e.api import Api, eventually
from tests.e2e.conftest import StartController
from tests.e2e.headroom.amounts import hards, plus
from tests.e2e.headroom.scene import LASTING, Scene
from tests.e2e.headroom.stage import Stage, stage
from tests.e2e.tenant import by_value

pytestmark = pytest.mark.cluster

ONE = {"limits.cpu": "2015m", "limits.memory": "4797464313"}
TWO = {"limits.cpu": "4030m", "limits.memory": "9594928626"}
REQUESTS = {"requests.cpu": "130m", "requests.memory": "3340109497", "pods": "1"}
"""What quota counts of the seed's VM."""
MANAGED = "headroom.harvesterhci.io/managed"
BASE = "headroom.harvesterhci.io/base"
MAX_EXTRA = "headroom.harvesterhci.io/max-extra"
LOWER = json.dumps({"limits.memory": "5Gi"})
"""Room for one target of 4797464313 bytes, not for two."""


@pytest.fixture(scope="module")
def on(cluster: Cluster, api: Api, shared_controller: StartController) -> Iterator[Stage]:
    with stage(cluster, api, shared_controller) as made:
        yield made


@pytest.fixture(autouse=True)
def clear(on: Stage) -> Iterator[None]:
    yield
    on.clear()


def base_of(scene: Scene, name: str) -> object:
    return by_value(json.loads(scene.annotations(name).get(BASE, "{}")))


class TestManaged:
    def test_a_quota_without_rancher_takes_part_by_its_label_and_is_refused_without(self, on: Stage) -> None:
        on.run()
        scene = on.scene().start("vm1")
        scene.make_quota("team", ONE)
        migration = scene.migrate("vm1", linger=0.5)
        scene.stays_refused(migration)
        assert scene.annotations("team") == {}
        with scene.watch() as versions:
            scene.patch_quota({"metadata": {"labels": {MANAGED: "true"}}}, "team")
            scene.succeed(migration)
            scene.settle(ONE, "team")
            assert hards(versions, "team") == [by_value(ONE), by_value(TWO), by_value(ONE)]
        assert base_of(scene, "team") == by_value(ONE)

    def test_the_recorded_base_follows_what_people_write(self, on: Stage) -> None:
        on.run()
        scene = on.scene().start("vm1")
        scene.make_quota("team", TWO, managed=True)
        eventually(lambda: base_of(scene, "team") == by_value(TWO))
        scene.patch_quota({"spec": {"hard": ONE}}, "team")
        eventually(lambda: base_of(scene, "team") == by_value(ONE))
        scene.wait_counted("team")
        migration = scene.migrate("vm1", phase_seconds=LASTING)
        scene.wait_phase(migration, "Running")
        assert scene.hard("team") == by_value(TWO)
        assert base_of(scene, "team") == by_value(ONE), "what is raised is not the base"
        scene.hurry(migration)
        scene.succeed(migration)
        scene.settle(ONE, "team")
        scene.patch_quota({"spec": {"hard": TWO | {"services": "3"}}}, "team")
        eventually(lambda: base_of(scene, "team") == by_value(TWO | {"services": "3"}))
        scene.wait_hard(TWO | {"services": "3"}, "team")

    def test_a_controller_that_crashes_in_between_still_knows_the_base(self, on: Stage) -> None:
        on.run()
        scene = on.scene().start("vm1")
        scene.make_quota("team", ONE, managed=True)
        migration = scene.migrate("vm1", phase_seconds=LASTING)
        scene.wait_phase(migration, "Running")
        on.kill()
        scene.hurry(migration)
        scene.succeed(migration)
        eventually(lambda: len(scene.counting()) == 1, 30)
        assert scene.hard("team") == by_value(TWO)
        on.run()
        scene.settle(ONE, "team")
        assert base_of(scene, "team") == by_value(ONE)

    def test_every_quota_of_a_namespace_takes_part(self, on: Stage) -> None:
        """Rancher's default and two beside it, each with limits of its own."""
        on.run()
        scene = on.scene(limits=ONE).start("vm1")
        scene.make_quota("requests", REQUESTS, managed=True)
        scene.make_quota("memory", {"limits.memory": "5Gi"}, managed=True)
        bases = {"": ONE, "requests": REQUESTS, "memory": {"limits.memory": "5Gi"}}
        one = by_value(ONE | REQUESTS)
        with scene.watch() as versions:
            scene.succeed(scene.migrate("vm1", linger=0.5))
            for name, base in bases.items():
                scene.settle(base, name)
                found = by_value(base)
                assert hards(versions, name) == [found, plus(found, one), found], name

    def test_one_quota_that_takes_no_part_refuses_for_all(self, on: Stage) -> None:
        on.run()
        scene = on.scene(limits=ONE).start("vm1")
        scene.make_quota("requests", REQUESTS)
        migration = scene.migrate("vm1")
        scene.stays_refused(migration, 1.5)
        assert scene.hard("requests") == by_value(REQUESTS)


class TestMaxExtra:
    VMS = ("vm1", "vm2")

    def begin(self, scene: Scene) -> tuple[str, str]:
        """The first migration runs, the second has been asked for."""
        scene.start(*self.VMS)
        first = scene.migrate("vm1", phase_seconds=LASTING)
        scene.wait_phase(first, "Running")
        return first, scene.migrate("vm2")

    @pytest.mark.parametrize("on_namespace", [True, False], ids=["on the namespace", "on the quota"])
    def test_the_second_migration_waits_until_the_first_has_ended(
        self, on: Stage, on_namespace: bool
    ) -> None:
        on.run()
        scene = on.scene(limits=TWO, annotations={MAX_EXTRA: LOWER} if on_namespace else {})
        if not on_namespace:
            scene.patch_quota({"metadata": {"annotations": {MAX_EXTRA: LOWER}}})
        with scene.watch() as versions:
            first, second = self.begin(scene)
            event = scene.wait_event("MaxExtraReached")
            assert (event["type"], event["message"]) == (
                "Warning",
                "migration of VM vm2 waits: limits.memory would be raised by 8.9Gi, max-extra is 5Gi",
            )
            eventually(lambda: scene.is_refused(second))
            assert scene.phase(first) == "Running"
            scene.hurry(first)
            scene.succeed(first, second)
            scene.settle(TWO)
            raised = plus(by_value(TWO), by_value(ONE))
            assert {tuple(sorted(hard.items())) for hard in hards(versions)} == {
                tuple(sorted(hard.items())) for hard in (by_value(TWO), raised)
            }

    def test_without_a_cap_both_run_at_once(self, on: Stage) -> None:
        on.run()
        scene = on.scene(limits=TWO)
        first, second = self.begin(scene)
        scene.wait_phase(second, "Succeeded")
        assert scene.phase(first) == "Running"
        assert scene.events("MaxExtraReached") == []
        scene.hurry(first)
        scene.succeed(first)
        scene.settle(TWO)

    def test_a_cap_that_is_raised_lets_the_waiting_one_go(self, on: Stage) -> None:
        on.run()
        scene = on.scene(limits=ONE, annotations={MAX_EXTRA: json.dumps({"limits.cpu": "2"})}).start("vm1")
        migration = scene.migrate("vm1")
        scene.stays_refused(migration, 1.0)
        assert scene.hard() == by_value(ONE)
        began = time.monotonic()
        on.api.patch(scene.path, {"metadata": {"annotations": {MAX_EXTRA: json.dumps({"limits.cpu": "3"})}}})
        scene.succeed(migration)
        assert time.monotonic() - began < 10.0
        scene.settle(ONE)
