"""A migration's handler: the whole way, with what quota, limits and restarts do to it."""

from __future__ import annotations

from typing import Any

import pytest

from kubeloop.client.errors import Conflict, Forbidden
from kubeloop.controllers.errors import RetryAfter
from lab.kubevirt.gate import Gate
from lab.kubevirt.options import Options
from lab.kubevirt.rendering import rendering
from lab.kubevirt.vmi_controller import Hotplug
from lab.kubevirt.vmim_controller import MigrationHandler, Targets
from pkg.util.kubevirt.parallel_migrations import Limits
from tests.lab.kubevirt.fakes import Cluster
from tests.lab.kubevirt.samples import (
    HOTPLUG_VOLUME,
    NOW,
    attachment,
    launcher,
    running,
    vmim,
)
from tests.objects import SEED_DOMAIN

QUOTA = Forbidden('pods "p" is forbidden: exceeded quota: default', status=403)
REJECTED = "migrationRejectedByResourceQuota"


class FakeTransport:
    """Notes bindings."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, bytes]] = []

    async def request(self, method: str, path: str, *, body: bytes) -> bytes:
        self.requests.append((method, path, body))
        return b"{}"


class Setup:
    """A world with the handler in it; the handler can be thrown away and made anew."""

    def __init__(self, limits: Limits | None = None, **options: Any) -> None:
        self.cluster = Cluster()
        self.options = Options(phase_delay=0, **options)
        self.limits = limits or Limits(5, 2)
        self.transport = FakeTransport()
        self.woken: list[str] = []
        self.restart()

    def restart(self) -> None:
        """A new process: nothing of the old one's memory is left."""
        cluster = self.cluster
        transport: Any = self.transport
        pods = cluster.pods.client
        creator = cluster.creator()
        self.refusals = creator.refusals

        def how(namespace: str) -> Any:
            return rendering([], None, self.options)

        gate = Gate(
            cluster.found_migrations,
            cluster.instances.cache,
            cluster.found_pods,
            lambda: self.limits,
            self.woken.append,
            cluster.clock,
        )
        clients: Any = {
            "migration_client": cluster.migrations.client,
            "instance_client": cluster.instances.client,
            "pod_client": pods,
        }
        shared: Any = {"pods": cluster.found_pods, "rendering": how, "clock": cluster.clock}
        recorder = cluster.events.recorder
        self.handler = MigrationHandler(
            **clients,
            **shared,
            migrations=cluster.found_migrations,
            instances=cluster.instances.cache,
            machines=cluster.machines.cache,
            targets=Targets(
                **shared,
                creator=creator,
                placement=cluster.placement,
                gate=gate,
                hotplug=Hotplug(pods, cluster.found_pods, creator, how, cluster.clock),
                state=cluster.state(how),
                transport=transport,
            ),
            recorder=recorder,
            options=self.options,
        )

    async def step(self, name: str = "m1") -> float | None:
        """One call; the seconds that it asks to be called again after."""
        key = f"t1/{name}"
        try:
            await self.handler.on_migration_changed(key, self.cluster.migrations.indexer.get_by_key(key))
        except RetryAfter as later:
            return later.seconds
        return None

    def body(self, name: str = "m1") -> dict[str, Any]:
        return self.cluster.migrations.objects[f"t1/{name}"]

    def status(self, name: str = "m1") -> dict[str, Any]:
        found: dict[str, Any] = self.body(name).get("status", {})
        return found

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.instances.objects["t1/vm1"]["status"]["migrationState"]
        return found

    def targets(self) -> list[dict[str, Any]]:
        label = "kubevirt.io/migrationJobUID"
        return [
            pod for pod in self.cluster.pods.objects.values() if label in pod["metadata"].get("labels", {})
        ]

    async def pods_run(self) -> None:
        for key in list(self.cluster.pods.objects):
            self.cluster.pods.edited(key, {"status": {"phase": "Running"}})

    def begin(self, **more: Any) -> Setup:
        self.cluster.instances.seed(running(**more))
        self.cluster.pods.seed(launcher())
        self.cluster.migrations.seed(vmim(finalizers=[], labels={}))
        return self


async def run_steps(setup: Setup, steps: int = 30, *, restart: bool = False) -> list[str]:
    """Step until the migration rests; the phases that were seen."""
    phases: list[str] = []
    for _ in range(steps):
        phase = setup.status().get("phase", "")
        if not phases or phases[-1] != phase:
            phases.append(phase)
        if restart:
            setup.restart()
        await setup.step()
        await setup.pods_run()
    return phases


WAY = ["", "Pending", "Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running", "Succeeded"]


@pytest.mark.parametrize("restart", [False, True], ids=["in one go", "restarted before every step"])
async def test_a_migration_goes_its_whole_way(restart: bool) -> None:
    setup = Setup().begin()
    assert await run_steps(setup, restart=restart) == WAY
    assert [stamp["phase"] for stamp in setup.status()["phaseTransitionTimestamps"]] == WAY[1:]
    (target,) = setup.targets()
    vmi_ = setup.cluster.instances.objects["t1/vm1"]
    assert vmi_["status"]["nodeName"] == target["spec"]["nodeName"] == "node-2"
    assert setup.state()["completed"] is True
    assert setup.status()["migrationState"] == setup.state()
    assert setup.body()["metadata"]["finalizers"] == []
    assert setup.body()["metadata"]["labels"] == {"kubevirt.io/vmi-name": "vm1"}
    assert (
        "t1/m1",
        "SuccessfulMigration",
        "Source node reported migration succeeded",
    ) in setup.cluster.events.told


async def test_quota_s_refusal_leaves_it_pending_with_the_condition_and_tells_people() -> None:
    setup = Setup().begin()
    await setup.step()
    await setup.step()
    setup.cluster.pods.errors["create"] = [QUOTA]
    assert await setup.step() == 5
    assert setup.status()["phase"] == "Pending"
    assert [(c["type"], c["status"]) for c in setup.status()["conditions"]] == [(REJECTED, "True")]
    assert ("t1/vm1", "FailedCreate", f"Error creating pod: {QUOTA.message}") in setup.cluster.events.told


async def test_a_refused_migration_does_not_ask_again_before_its_time() -> None:
    setup = Setup().begin()
    setup.cluster.pods.errors["create"] = [QUOTA, None]
    for _ in range(5):
        await setup.step()
    assert setup.cluster.pods.verbs.count(setup.cluster.pods.verbs[0]) == 1
    assert await setup.step() == 5
    setup.cluster.clock.now += 5
    await setup.step()
    assert len(setup.targets()) == 1


async def test_a_change_of_quota_lets_it_ask_at_once_and_go_on() -> None:
    setup = Setup().begin()
    setup.cluster.pods.errors["create"] = [QUOTA, None]
    for _ in range(4):
        await setup.step()
    assert setup.refusals.quota_changed("t1") == ["t1/m1"]
    assert await run_steps(setup) == WAY[1:]
    assert "conditions" not in setup.status()


async def test_a_refusal_that_could_not_be_marked_is_marked_without_asking_again() -> None:
    setup = Setup().begin()
    await setup.step()
    await setup.step()
    setup.cluster.pods.errors["create"] = [QUOTA]
    setup.cluster.migrations.lagging = True
    setup.cluster.migrations.edited("t1/m1", {"metadata": {"annotations": {"a": "b"}}})
    with pytest.raises(Conflict):
        await setup.step()
    setup.cluster.migrations.lagging = False
    setup.cluster.migrations.catch_up()
    assert await setup.step() == 5
    assert setup.status()["conditions"][0]["type"] == REJECTED
    assert len([call for call in setup.cluster.pods.verbs if call[0] == "create"]) == 1


async def test_another_refusal_brings_no_condition() -> None:
    setup = Setup().begin()
    await setup.step()
    await setup.step()
    setup.cluster.pods.errors["create"] = [Forbidden("no service account", status=403)]
    assert await setup.step() == pytest.approx(0.1)
    assert "conditions" not in setup.status()


async def test_the_target_counts_with_today_s_ratio_and_goes_elsewhere() -> None:
    setup = Setup().begin()
    for _ in range(3):
        await setup.step()
    (target,) = setup.targets()
    assert target["spec"]["nodeName"] != "node-1"
    assert target["metadata"]["labels"]["kubevirt.io/migrationJobUID"] == "uid-m1"
    assert target["metadata"]["annotations"]["kubevirt.io/migrationJobName"] == "m1"


async def test_the_node_that_a_migration_names_is_taken() -> None:
    setup = Setup().begin()
    wanted = {"addedNodeSelector": {"kubernetes.io/hostname": "node-3"}}
    setup.cluster.migrations.seed(vmim(spec=wanted))
    for _ in range(3):
        await setup.step()
    assert setup.targets()[0]["spec"]["nodeName"] == "node-3"


async def test_without_another_node_the_target_waits_without_one_and_is_bound_later() -> None:
    setup = Setup().begin()
    nodes = setup.cluster.nodes.indexer.list()
    setup.cluster.nodes.indexer.replace(nodes[:1])
    for _ in range(3):
        await setup.step()
    assert "nodeName" not in setup.targets()[0]["spec"]
    assert await setup.step() == 1
    setup.cluster.nodes.indexer.replace(nodes)
    await setup.step()
    (request,) = setup.transport.requests
    assert request[:2] == (
        "POST",
        f"/api/v1/namespaces/t1/pods/{setup.targets()[0]['metadata']['name']}/binding",
    )
    assert b'"name":"node-2"' in request[2]


async def test_an_earlier_source_that_has_not_ended_holds_it_up_without_a_condition() -> None:
    setup = Setup().begin()
    setup.cluster.pods.seed(launcher("older", node="node-3"))
    await setup.step()
    await setup.step()
    assert await setup.step() == 5
    assert setup.targets() == []
    assert "conditions" not in setup.status()
    setup.cluster.pods.edited("t1/older", {"status": {"phase": "Succeeded"}})
    await setup.step()
    assert len(setup.targets()) == 1


async def test_beyond_the_limit_it_waits_without_a_condition_until_a_place_is_free() -> None:
    setup = Setup(Limits(1, 1)).begin()
    setup.cluster.instances.seed(running("vm2", status={"nodeName": "node-3"}))
    setup.cluster.pods.seed(launcher("other", node="node-3", vmi_name="vm2"))
    setup.cluster.migrations.seed(vmim("m2", phase="Pending", vmi_name="vm2"))
    for _ in range(3):
        await setup.step()
    assert await setup.step("m2") == 5
    assert "conditions" not in setup.status("m2")
    await run_steps(setup)
    assert setup.status()["phase"] == "Succeeded"
    assert setup.woken == ["t1/m2"]
    assert await setup.step("m2") is None


async def test_a_refused_migration_takes_no_place() -> None:
    setup = Setup(Limits(1, 1)).begin()
    setup.cluster.instances.seed(running("vm2", status={"nodeName": "node-3"}))
    setup.cluster.pods.seed(launcher("other", node="node-3", vmi_name="vm2"))
    setup.cluster.migrations.seed(vmim("m2", phase="Pending", vmi_name="vm2"))
    setup.cluster.pods.errors["create"] = [QUOTA, None]
    for _ in range(3):
        await setup.step()
    assert await setup.step("m2") is None
    assert len(setup.targets()) == 1


async def test_a_second_migration_of_the_vmi_fails() -> None:
    setup = Setup().begin()
    await setup.step()
    await setup.step()
    setup.cluster.migrations.seed(vmim("m2"))
    await setup.step("m2")
    assert setup.status("m2")["phase"] == "Failed"


async def test_of_two_new_migrations_the_older_one_goes() -> None:
    setup = Setup().begin()
    setup.cluster.migrations.seed(
        vmim("a", creationTimestamp="2026-01-01T00:00:02Z"),
        vmim("b", creationTimestamp="2026-01-01T00:00:01Z"),
    )
    await setup.cluster.migrations.client.delete(name="m1", namespace="t1")
    await setup.step("a")
    await setup.step("b")
    assert (setup.status("a")["phase"], setup.status("b")["phase"]) == ("Failed", "Pending")


async def test_a_new_migration_after_one_that_has_ended_goes() -> None:
    setup = Setup().begin()
    setup.cluster.migrations.seed(vmim("m0", phase="Succeeded"))
    await setup.step()
    await setup.step()
    assert setup.status()["phase"] == "Pending"


async def test_a_vmi_that_the_cache_does_not_show_yet_is_looked_up() -> None:
    setup = Setup()
    setup.cluster.instances.lagging = True
    setup.cluster.instances.seed(running())
    setup.cluster.migrations.seed(vmim())
    await setup.step()
    assert setup.status()["phase"] == "Pending"


@pytest.mark.parametrize("name", ["no-such-vmi", "no/name"])
async def test_a_migration_of_a_vmi_that_does_not_exist_fails(name: str) -> None:
    setup = Setup()
    setup.cluster.migrations.seed(vmim(vmi_name=name))
    await setup.step()
    assert setup.status()["phase"] == "Failed"


async def test_deleting_a_pending_migration_ends_it() -> None:
    setup = Setup().begin()
    setup.cluster.migrations.seed(vmim(phase="Pending", deletionTimestamp=NOW))
    await setup.step()
    assert setup.status()["phase"] == "Failed"
    assert setup.status()["conditions"][0]["type"] == "migrationAbortRequested"
    await setup.step()
    assert setup.cluster.migrations.objects == {}


async def test_deleting_a_running_migration_aborts_it_through_the_vmi() -> None:
    setup = Setup().begin()
    await run_steps(setup, steps=8)
    assert setup.status()["phase"] in ("TargetReady", "Running", "PreparingTarget")
    kept = [*setup.body()["metadata"]["finalizers"], "example.com/test"]
    setup.cluster.migrations.edited("t1/m1", {"metadata": {"deletionTimestamp": NOW, "finalizers": kept}})
    await run_steps(setup)
    assert setup.status()["phase"] == "Failed"
    assert setup.state()["abortStatus"] == "Succeeded"
    assert setup.state()["abortRequested"] is True
    assert setup.state()["failed"] is True
    assert setup.cluster.instances.objects["t1/vm1"]["status"]["nodeName"] == "node-1"


FAILURES = ["Pending", "Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running"]


@pytest.mark.parametrize("phase", FAILURES)
async def test_a_migration_fails_in_the_phase_that_is_asked_for(phase: str) -> None:
    setup = Setup().begin()
    setup.cluster.migrations.edited(
        "t1/m1", {"metadata": {"annotations": {"testcluster.headroom.harvesterhci.io/fail-at-phase": phase}}}
    )
    assert await run_steps(setup) == [*WAY[: WAY.index(phase) + 1], "Failed"]
    assert setup.cluster.instances.objects["t1/vm1"]["status"]["nodeName"] == "node-1"


async def test_with_hotplugged_volumes_it_stays_pending_until_the_attachment_pod_runs() -> None:
    setup = Setup().begin(spec={"volumes": [HOTPLUG_VOLUME]})
    setup.cluster.pods.seed(attachment())
    for _ in range(3):
        await setup.step()
    await setup.pods_run()
    setup.cluster.pods.errors["create"] = [QUOTA, None]
    assert await setup.step() == 5
    assert setup.status()["phase"] == "Pending"
    assert "conditions" not in setup.status()
    assert setup.refusals.quota_changed("t1") == ["t1/m1"]
    await setup.step()
    hotplugs = [pod for pod in setup.targets() if pod["metadata"]["name"].startswith("hp-volume-")]
    assert [pod["metadata"]["labels"]["kubevirt.io"] for pod in hotplugs] == ["hotplug-disk"]
    await setup.step()
    assert setup.status()["phase"] == "Pending"
    assert (await run_steps(setup))[-1] == "Succeeded"


async def test_a_phase_lasts_as_long_as_it_is_told() -> None:
    setup = Setup().begin()
    marks = {"testcluster.headroom.harvesterhci.io/phase-seconds": "Scheduling=4"}
    setup.cluster.migrations.edited("t1/m1", {"metadata": {"annotations": marks}})
    await run_steps(setup, steps=8)
    assert setup.status()["phase"] == "Scheduling"
    assert await setup.step() == 4
    setup.cluster.clock.now += 1.5
    assert await setup.step() == 2.5
    setup.cluster.clock.now += 2.5
    await setup.step()
    assert setup.status()["phase"] == "Scheduled"


async def test_a_migration_that_is_gone_leaves_nothing_behind() -> None:
    setup = Setup(Limits(1, 1)).begin()
    for _ in range(3):
        await setup.step()
    await setup.cluster.migrations.client.delete(name="m1", namespace="t1")
    assert await setup.step() is None
    assert setup.refusals.last("t1/m1") is None


FAIL_AT = "testcluster.headroom.harvesterhci.io/fail-at-phase"
STATE = {"domain": {**SEED_DOMAIN, "devices": {"tpm": {"persistent": True}}}}


def with_state() -> Setup:
    """A VM with a persistent TPM and the claim of its state."""
    setup = Setup().begin(spec=STATE)
    owner = {"name": "state-1", "namespace": "t1", "labels": {"persistent-state-for": "vm1"}}
    setup.cluster.claims.seed({"metadata": owner, "status": {"accessModes": ["ReadWriteOnce"]}})
    return setup


def labels_of(setup: Setup) -> list[dict[str, str]]:
    return [claim["metadata"]["labels"] for claim in setup.cluster.claims.objects.values()]


async def test_a_target_s_claim_is_made_before_its_pod_and_is_the_vm_s_in_the_end() -> None:
    setup = with_state()
    setup.cluster.pods.errors["create"] = [QUOTA]
    await setup.step()
    await setup.step()
    await setup.step()
    assert [labels.get("kubevirt.io/migrationName") for labels in labels_of(setup)] == [None, "m1"]
    assert setup.targets() == []
    setup.cluster.pods.errors.clear()
    setup.refusals.quota_changed("t1")
    assert (await run_steps(setup))[-1] == "Succeeded"
    (target,) = setup.targets()
    (left,) = setup.cluster.claims.objects.values()
    assert left["metadata"]["labels"]["persistent-state-for"] == "vm1"
    name = left["metadata"]["name"]
    assert target["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] == name
    state = setup.status()["migrationState"]
    assert (state["sourcePersistentStatePVCName"], state["targetPersistentStatePVCName"]) == ("state-1", name)


async def test_a_claim_that_quota_refuses_marks_the_migration_and_tells_no_one() -> None:
    setup = with_state()
    await setup.step()
    await setup.step()
    setup.cluster.claims.errors["create"] = [QUOTA]
    assert await setup.step() == 5
    assert [(c["type"], c["status"]) for c in setup.status()["conditions"]] == [(REJECTED, "True")]
    assert setup.targets() == []
    assert "FailedCreate" not in setup.cluster.events.reasons


async def test_a_migration_that_fails_takes_its_claim_with_it() -> None:
    setup = with_state()
    while setup.status().get("phase") != "Scheduled":
        await setup.step()
        await setup.pods_run()
    assert len(labels_of(setup)) == 2
    setup.cluster.migrations.edited("t1/m1", {"metadata": {"annotations": {FAIL_AT: "Scheduled"}}})
    await setup.step()
    assert setup.status()["phase"] == "Failed"
    assert [labels["persistent-state-for"] for labels in labels_of(setup)] == ["vm1"]


async def test_a_claim_that_both_can_use_is_shared() -> None:
    setup = with_state()
    setup.cluster.claims.edited("t1/state-1", {"status": {"accessModes": ["ReadWriteMany"]}})
    assert (await run_steps(setup))[-1] == "Succeeded"
    assert list(setup.cluster.claims.objects) == ["t1/state-1"]
