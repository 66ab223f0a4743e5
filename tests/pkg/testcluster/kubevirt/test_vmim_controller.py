"""A migration's handler: the whole way, with what quota, limits and restarts do to it."""

from __future__ import annotations

from typing import Any

import pytest

from pkg.client.errors import Conflict, Forbidden
from pkg.generic.errors import RetryAfter
from pkg.testcluster.kubevirt.gate import Gate
from pkg.testcluster.kubevirt.options import Options
from pkg.testcluster.kubevirt.rendering import rendering
from pkg.testcluster.kubevirt.vmi_controller import Hotplug
from pkg.testcluster.kubevirt.vmim_controller import MigrationHandler, Targets
from pkg.util.kubevirt.parallel_migrations import Limits
from tests.pkg.testcluster.kubevirt.fakes import World
from tests.pkg.testcluster.kubevirt.samples import (
    HOTPLUG_VOLUME,
    NOW,
    attachment,
    launcher,
    running,
    vmi,
    vmim,
)

QUOTA = Forbidden('pods "p" is forbidden: exceeded quota: default', status=403)
REJECTED = "migrationRejectedByResourceQuota"


class FakeTransport:
    """Notes bindings."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, bytes]] = []

    async def request(self, method: str, path: str, *, body: bytes) -> bytes:
        self.requests.append((method, path, body))
        return b"{}"


class Scene:
    """A world with the handler in it; the handler can be thrown away and made anew."""

    def __init__(self, limits: Limits | None = None, **options: Any) -> None:
        self.world = World()
        self.options = Options(phase_delay=0, **options)
        self.limits = limits or Limits(5, 2)
        self.transport = FakeTransport()
        self.woken: list[str] = []
        self.restart()

    def restart(self) -> None:
        """A new process: nothing of the old one's memory is left."""
        world = self.world
        transport: Any = self.transport
        pods = world.pods.client
        creator = world.creator()
        self.refusals = creator.refusals

        def how(namespace: str) -> Any:
            return rendering([], None, self.options)

        gate = Gate(
            world.found_migrations,
            world.instances.cache,
            world.found_pods,
            lambda: self.limits,
            self.woken.append,
            world.clock,
        )
        clients: Any = {
            "migration_client": world.migrations.client,
            "instance_client": world.instances.client,
            "pod_client": pods,
        }
        shared: Any = {"pods": world.found_pods, "rendering": how, "clock": world.clock}
        recorder = world.events.recorder
        self.handler = MigrationHandler(
            **clients,
            **shared,
            migrations=world.found_migrations,
            instances=world.instances.cache,
            machines=world.machines.cache,
            targets=Targets(
                **shared,
                creator=creator,
                placement=world.placement,
                gate=gate,
                hotplug=Hotplug(pods, world.found_pods, creator, how, world.clock),
                transport=transport,
            ),
            recorder=recorder,
            options=self.options,
        )

    async def step(self, name: str = "m1") -> float | None:
        """One call; the seconds that it asks to be called again after."""
        key = f"t1/{name}"
        try:
            await self.handler.on_migration_changed(key, self.world.migrations.indexer.get_by_key(key))
        except RetryAfter as later:
            return later.seconds
        return None

    def body(self, name: str = "m1") -> dict[str, Any]:
        return self.world.migrations.objects[f"t1/{name}"]

    def status(self, name: str = "m1") -> dict[str, Any]:
        found: dict[str, Any] = self.body(name).get("status", {})
        return found

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.world.instances.objects["t1/vm1"]["status"]["migrationState"]
        return found

    def targets(self) -> list[dict[str, Any]]:
        label = "kubevirt.io/migrationJobUID"
        return [pod for pod in self.world.pods.objects.values() if label in pod["metadata"].get("labels", {})]

    async def pods_run(self) -> None:
        for key in list(self.world.pods.objects):
            self.world.pods.edited(key, {"status": {"phase": "Running"}})

    def begin(self, **more: Any) -> Scene:
        self.world.instances.seed(running(**more))
        self.world.pods.seed(launcher())
        self.world.migrations.seed(vmim(finalizers=[], labels={}))
        return self


async def play(scene: Scene, steps: int = 30, *, restart: bool = False) -> list[str]:
    """Step until the migration rests; the phases that were seen."""
    phases: list[str] = []
    for _ in range(steps):
        phase = scene.status().get("phase", "")
        if not phases or phases[-1] != phase:
            phases.append(phase)
        if restart:
            scene.restart()
        await scene.step()
        await scene.pods_run()
    return phases


WAY = ["", "Pending", "Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running", "Succeeded"]


@pytest.mark.parametrize("restart", [False, True], ids=["in one go", "restarted before every step"])
async def test_a_migration_goes_its_whole_way(restart: bool) -> None:
    scene = Scene().begin()
    assert await play(scene, restart=restart) == WAY
    assert [stamp["phase"] for stamp in scene.status()["phaseTransitionTimestamps"]] == WAY[1:]
    (target,) = scene.targets()
    vmi_ = scene.world.instances.objects["t1/vm1"]
    assert vmi_["status"]["nodeName"] == target["spec"]["nodeName"] == "node-2"
    assert scene.state()["completed"] is True
    assert scene.status()["migrationState"] == scene.state()
    assert scene.body()["metadata"]["finalizers"] == []
    assert scene.body()["metadata"]["labels"] == {"kubevirt.io/vmi-name": "vm1"}
    assert (
        "t1/m1",
        "SuccessfulMigration",
        "Source node reported migration succeeded",
    ) in scene.world.events.told


async def test_quota_s_refusal_leaves_it_pending_with_the_condition_and_tells_people() -> None:
    scene = Scene().begin()
    await scene.step()
    await scene.step()
    scene.world.pods.errors["create"] = [QUOTA]
    assert await scene.step() == 5
    assert scene.status()["phase"] == "Pending"
    assert [(c["type"], c["status"]) for c in scene.status()["conditions"]] == [(REJECTED, "True")]
    assert ("t1/m1", "FailedCreate", f"Error creating pod: {QUOTA.message}") in scene.world.events.told


async def test_a_refused_migration_does_not_ask_again_before_its_time() -> None:
    scene = Scene().begin()
    scene.world.pods.errors["create"] = [QUOTA, None]
    for _ in range(5):
        await scene.step()
    assert scene.world.pods.verbs.count(scene.world.pods.verbs[0]) == 1
    assert await scene.step() == 5
    scene.world.clock.now += 5
    await scene.step()
    assert len(scene.targets()) == 1


async def test_a_change_of_quota_lets_it_ask_at_once_and_go_on() -> None:
    scene = Scene().begin()
    scene.world.pods.errors["create"] = [QUOTA, None]
    for _ in range(4):
        await scene.step()
    assert scene.refusals.quota_changed("t1") == ["t1/m1"]
    assert await play(scene) == WAY[1:]
    assert "conditions" not in scene.status()


async def test_a_refusal_that_could_not_be_marked_is_marked_without_asking_again() -> None:
    scene = Scene().begin()
    await scene.step()
    await scene.step()
    scene.world.pods.errors["create"] = [QUOTA]
    scene.world.migrations.lagging = True
    scene.world.migrations.edited("t1/m1", {"metadata": {"annotations": {"a": "b"}}})
    with pytest.raises(Conflict):
        await scene.step()
    scene.world.migrations.lagging = False
    scene.world.migrations.catch_up()
    assert await scene.step() == 5
    assert scene.status()["conditions"][0]["type"] == REJECTED
    assert len([call for call in scene.world.pods.verbs if call[0] == "create"]) == 1


async def test_another_refusal_brings_no_condition() -> None:
    scene = Scene().begin()
    await scene.step()
    await scene.step()
    scene.world.pods.errors["create"] = [Forbidden("no service account", status=403)]
    assert await scene.step() == pytest.approx(0.1)
    assert "conditions" not in scene.status()


async def test_the_target_counts_with_today_s_ratio_and_goes_elsewhere() -> None:
    scene = Scene().begin()
    for _ in range(3):
        await scene.step()
    (target,) = scene.targets()
    assert target["spec"]["nodeName"] != "node-1"
    assert target["metadata"]["labels"]["kubevirt.io/migrationJobUID"] == "uid-m1"
    assert target["metadata"]["annotations"]["kubevirt.io/migrationJobName"] == "m1"


async def test_the_node_that_a_migration_names_is_taken() -> None:
    scene = Scene().begin()
    wanted = {"addedNodeSelector": {"kubernetes.io/hostname": "node-3"}}
    scene.world.migrations.seed(vmim(spec=wanted))
    for _ in range(3):
        await scene.step()
    assert scene.targets()[0]["spec"]["nodeName"] == "node-3"


async def test_without_another_node_the_target_waits_without_one_and_is_bound_later() -> None:
    scene = Scene().begin()
    nodes = scene.world.nodes.indexer.list()
    scene.world.nodes.indexer.replace(nodes[:1])
    for _ in range(3):
        await scene.step()
    assert "nodeName" not in scene.targets()[0]["spec"]
    assert await scene.step() == 1
    scene.world.nodes.indexer.replace(nodes)
    await scene.step()
    (request,) = scene.transport.requests
    assert request[:2] == (
        "POST",
        f"/api/v1/namespaces/t1/pods/{scene.targets()[0]['metadata']['name']}/binding",
    )
    assert b'"name":"node-2"' in request[2]


async def test_an_earlier_source_that_has_not_ended_holds_it_up_without_a_condition() -> None:
    scene = Scene().begin()
    scene.world.pods.seed(launcher("older", node="node-3"))
    await scene.step()
    await scene.step()
    assert await scene.step() == 5
    assert scene.targets() == []
    assert "conditions" not in scene.status()
    scene.world.pods.edited("t1/older", {"status": {"phase": "Succeeded"}})
    await scene.step()
    assert len(scene.targets()) == 1


async def test_beyond_the_limit_it_waits_without_a_condition_until_a_place_is_free() -> None:
    scene = Scene(Limits(1, 1)).begin()
    scene.world.instances.seed(running("vm2", status={"nodeName": "node-3"}))
    scene.world.pods.seed(launcher("other", node="node-3", vmi_name="vm2"))
    scene.world.migrations.seed(vmim("m2", phase="Pending", vmi_name="vm2"))
    for _ in range(3):
        await scene.step()
    assert await scene.step("m2") == 5
    assert "conditions" not in scene.status("m2")
    await play(scene)
    assert scene.status()["phase"] == "Succeeded"
    assert scene.woken == ["t1/m2"]
    assert await scene.step("m2") is None


async def test_a_refused_migration_takes_no_place() -> None:
    scene = Scene(Limits(1, 1)).begin()
    scene.world.instances.seed(running("vm2", status={"nodeName": "node-3"}))
    scene.world.pods.seed(launcher("other", node="node-3", vmi_name="vm2"))
    scene.world.migrations.seed(vmim("m2", phase="Pending", vmi_name="vm2"))
    scene.world.pods.errors["create"] = [QUOTA, None]
    for _ in range(3):
        await scene.step()
    assert await scene.step("m2") is None
    assert len(scene.targets()) == 1


async def test_a_second_migration_of_the_vmi_fails() -> None:
    scene = Scene().begin()
    await scene.step()
    await scene.step()
    scene.world.migrations.seed(vmim("m2"))
    await scene.step("m2")
    assert scene.status("m2")["phase"] == "Failed"


async def test_of_two_new_migrations_the_older_one_goes() -> None:
    scene = Scene().begin()
    scene.world.migrations.seed(
        vmim("a", creationTimestamp="2026-01-01T00:00:02Z"),
        vmim("b", creationTimestamp="2026-01-01T00:00:01Z"),
    )
    await scene.world.migrations.client.delete(name="m1", namespace="t1")
    await scene.step("a")
    await scene.step("b")
    assert (scene.status("a")["phase"], scene.status("b")["phase"]) == ("Failed", "Pending")


async def test_a_new_migration_after_one_that_has_ended_goes() -> None:
    scene = Scene().begin()
    scene.world.migrations.seed(vmim("m0", phase="Succeeded"))
    await scene.step()
    await scene.step()
    assert scene.status()["phase"] == "Pending"


MISSING: dict[str, Any] = {
    "does not exist": None,
    "does not run yet": vmi(status={"phase": "Scheduling"}),
    "has ended": vmi(status={"phase": "Succeeded"}),
}


@pytest.mark.parametrize("instance", MISSING.values(), ids=MISSING.keys())
async def test_a_migration_fails_when_its_vmi(instance: Any) -> None:
    scene = Scene()
    if instance is not None:
        scene.world.instances.seed(instance)
    scene.world.migrations.seed(vmim())
    await scene.step()
    assert scene.status()["phase"] == "Failed"


async def test_a_vmi_that_the_cache_does_not_show_yet_is_looked_up() -> None:
    scene = Scene()
    scene.world.instances.lagging = True
    scene.world.instances.seed(running())
    scene.world.migrations.seed(vmim())
    await scene.step()
    assert scene.status()["phase"] == "Pending"


async def test_a_vmi_name_that_can_be_no_name_is_no_vmi() -> None:
    scene = Scene()
    scene.world.migrations.seed(vmim(vmi_name="no-such-vmi"))
    await scene.step()
    assert scene.status()["phase"] == "Failed"


async def test_deleting_a_pending_migration_ends_it() -> None:
    scene = Scene().begin()
    scene.world.migrations.seed(vmim(phase="Pending", deletionTimestamp=NOW))
    await scene.step()
    assert scene.status()["phase"] == "Failed"
    assert scene.status()["conditions"][0]["type"] == "migrationAbortRequested"
    await scene.step()
    assert scene.world.migrations.objects == {}


async def test_deleting_a_running_migration_aborts_it_through_the_vmi() -> None:
    scene = Scene().begin()
    await play(scene, steps=8)
    assert scene.status()["phase"] in ("TargetReady", "Running", "PreparingTarget")
    kept = [*scene.body()["metadata"]["finalizers"], "example.com/test"]
    scene.world.migrations.edited("t1/m1", {"metadata": {"deletionTimestamp": NOW, "finalizers": kept}})
    await play(scene)
    assert scene.status()["phase"] == "Failed"
    assert scene.state()["abortStatus"] == "Succeeded"
    assert scene.state()["abortRequested"] is True
    assert scene.state()["failed"] is True
    assert scene.world.instances.objects["t1/vm1"]["status"]["nodeName"] == "node-1"


FAILURES = ["Pending", "Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running"]


@pytest.mark.parametrize("phase", FAILURES)
async def test_a_migration_fails_in_the_phase_that_is_asked_for(phase: str) -> None:
    scene = Scene().begin()
    scene.world.migrations.edited(
        "t1/m1", {"metadata": {"annotations": {"testcluster.headroom.harvesterhci.io/fail-at-phase": phase}}}
    )
    assert await play(scene) == [*WAY[: WAY.index(phase) + 1], "Failed"]
    assert scene.world.instances.objects["t1/vm1"]["status"]["nodeName"] == "node-1"


async def test_with_hotplugged_volumes_it_stays_pending_until_the_attachment_pod_runs() -> None:
    scene = Scene().begin(spec={"volumes": [HOTPLUG_VOLUME]})
    scene.world.pods.seed(attachment())
    for _ in range(3):
        await scene.step()
    await scene.pods_run()
    scene.world.pods.errors["create"] = [QUOTA, None]
    assert await scene.step() == 5
    assert scene.status()["phase"] == "Pending"
    assert "conditions" not in scene.status()
    assert scene.refusals.quota_changed("t1") == ["t1/m1"]
    await scene.step()
    hotplugs = [pod for pod in scene.targets() if pod["metadata"]["name"].startswith("hp-volume-")]
    assert [pod["metadata"]["labels"]["kubevirt.io"] for pod in hotplugs] == ["hotplug-disk"]
    await scene.step()
    assert scene.status()["phase"] == "Pending"
    assert (await play(scene))[-1] == "Succeeded"


async def test_a_phase_lasts_as_long_as_it_is_told() -> None:
    scene = Scene().begin()
    marks = {"testcluster.headroom.harvesterhci.io/phase-seconds": "Scheduling=4"}
    scene.world.migrations.edited("t1/m1", {"metadata": {"annotations": marks}})
    await play(scene, steps=8)
    assert scene.status()["phase"] == "Scheduling"
    assert await scene.step() == 4
    scene.world.clock.now += 1.5
    assert await scene.step() == 2.5
    scene.world.clock.now += 2.5
    await scene.step()
    assert scene.status()["phase"] == "Scheduled"


async def test_a_migration_that_is_gone_leaves_nothing_behind() -> None:
    scene = Scene(Limits(1, 1)).begin()
    for _ in range(3):
        await scene.step()
    await scene.world.migrations.client.delete(name="m1", namespace="t1")
    assert await scene.step() is None
    assert scene.refusals.last("t1/m1") is None
