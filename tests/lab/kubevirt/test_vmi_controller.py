"""A VMI's handler: from nothing to a running launcher, through refusals, to its end."""

from __future__ import annotations

from typing import Any

import pytest

from kubeloop.client.errors import Conflict, Forbidden
from kubeloop.controllers.errors import RetryAfter
from lab.kubevirt.options import Options
from lab.kubevirt.rendering import rendering
from lab.kubevirt.vmi_controller import Ending, Hotplug, InstanceHandler
from tests.lab.kubevirt.fakes import Cluster
from tests.lab.kubevirt.samples import (
    HOTPLUG_VOLUME,
    NOW,
    attachment,
    launcher,
    running,
    vm,
    vmi,
    vmim,
)

KEY = "t1/vm1"
QUOTA = Forbidden('pods "p" is forbidden: exceeded quota: default', status=403)
OWNED: dict[str, Any] = {"ownerReferences": [{"kind": "VirtualMachine", "name": "vm1", "controller": True}]}
DONE = {
    "migrationUid": "uid-m1",
    "sourcePod": "source",
    "targetPod": "target",
    "completed": True,
    "endTimestamp": "1970-01-01T00:16:40Z",
}
"""A migration that ended at 1000 s, when the fake clock starts."""


class Setup:
    """A world with the handler in it."""

    def __init__(self, **options: Any) -> None:
        self.cluster = Cluster()
        self.options = Options(**options)
        pods = self.cluster.pods.client
        clients: Any = {
            "instances": self.cluster.instances.client,
            "machines": self.cluster.machines.client,
            "pod_client": pods,
        }
        creator = self.cluster.creator()
        self.refusals = creator.refusals

        def how(namespace: str) -> Any:
            return rendering([], None, self.options)

        self.handler = InstanceHandler(
            **clients,
            machine_cache=self.cluster.machines.cache,
            pods=self.cluster.found_pods,
            creator=creator,
            placement=self.cluster.placement,
            ending=Ending(
                pod_client=pods,
                pods=self.cluster.found_pods,
                migrations=self.cluster.found_migrations,
                machines=self.cluster.machines.cache,
                options=self.options,
                clock=self.cluster.clock,
            ),
            hotplug=Hotplug(pods, self.cluster.found_pods, creator, how, self.cluster.clock),
            state=self.cluster.state(how),
            rendering=how,
            clock=self.cluster.clock,
        )

    async def step(self) -> float | None:
        """One call; the seconds that it asks to be called again after."""
        try:
            await self.handler.on_instance_changed(KEY, self.cluster.instances.indexer.get_by_key(KEY))
        except RetryAfter as later:
            return later.seconds
        return None

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.instances.objects[KEY]["status"]
        return found

    async def pods_run(self) -> None:
        for key in list(self.cluster.pods.objects):
            self.cluster.pods.edited(key, {"status": {"phase": "Running"}})


async def test_a_vmi_without_vm_gets_a_launcher_and_runs() -> None:
    setup = Setup()
    setup.cluster.instances.seed(vmi())
    await setup.step()
    assert setup.status()["phase"] == "Pending"
    await setup.step()
    (pod,) = setup.cluster.pods.objects.values()
    assert pod["spec"]["nodeName"] == "node-1"
    await setup.step()
    assert setup.status()["phase"] == "Scheduling"
    await setup.pods_run()
    await setup.step()
    assert setup.status()["phase"] == "Running"
    assert setup.status()["activePods"] == {pod["metadata"]["uid"]: "node-1"}
    before = len(setup.cluster.instances.asked("patch"))
    assert await setup.step() is None
    assert len(setup.cluster.instances.asked("patch")) == before


async def test_a_refused_launcher_leaves_the_vmi_pending_with_a_condition() -> None:
    setup = Setup()
    setup.cluster.instances.seed(vmi())
    await setup.step()
    setup.cluster.pods.errors["create"] = [QUOTA]
    assert await setup.step() == 5
    assert setup.status()["phase"] == "Pending"
    conditions = {c["type"]: c for c in setup.status()["conditions"]}
    assert QUOTA.message in conditions["Synchronized"]["message"]


async def test_a_refused_launcher_is_tried_again_when_its_time_comes_or_quota_changes() -> None:
    setup = Setup()
    setup.cluster.instances.seed(vmi())
    await setup.step()
    setup.cluster.pods.errors["create"] = [QUOTA, QUOTA, None]
    await setup.step()
    assert await setup.step() == 5
    assert len(setup.cluster.pods.verbs) == 1
    setup.cluster.clock.now += 5
    await setup.step()
    assert len(setup.cluster.pods.verbs) == 2
    setup.refusals.quota_changed("t1")
    await setup.step()
    assert len(setup.cluster.pods.objects) == 1


async def test_without_a_node_there_is_no_pod_and_another_look() -> None:
    setup = Setup()
    setup.cluster.nodes.indexer.replace([])
    setup.cluster.instances.seed(vmi(status={"phase": "Pending"}))
    await setup.step()
    assert await setup.step() == 1
    assert setup.cluster.pods.verbs == []


async def test_a_vmi_that_is_deleted_goes_after_its_pods() -> None:
    setup = Setup()
    setup.cluster.instances.seed(running(deletionTimestamp=NOW))
    setup.cluster.pods.seed(launcher(), launcher("target", job="m1", node="node-2"))
    await setup.step()
    assert setup.cluster.pods.objects == {}
    assert "finalizers" in setup.cluster.instances.objects[KEY]["metadata"]
    await setup.step()
    assert setup.cluster.instances.objects == {}


async def test_pods_of_a_vmi_that_is_gone_go() -> None:
    setup = Setup()
    setup.cluster.pods.seed(launcher())
    await setup.step()
    assert setup.cluster.pods.objects == {}


async def test_pods_of_an_earlier_vmi_of_the_name_go_and_the_new_one_s_stay() -> None:
    setup = Setup()
    setup.cluster.instances.seed(running(uid="uid-new"))
    setup.cluster.pods.seed(launcher())
    await setup.step()
    assert setup.cluster.pods.verbs == [("delete", "source")]


async def test_a_vmi_whose_vm_is_gone_is_deleted() -> None:
    setup = Setup()
    setup.cluster.instances.seed(running(**OWNED))
    await setup.step()
    assert setup.cluster.instances.now(KEY).deleting
    assert setup.cluster.instances.verbs == [("delete", "vm1")]


async def test_a_vm_that_the_cache_does_not_show_yet_is_not_gone() -> None:
    setup = Setup()
    setup.cluster.machines.lagging = True
    setup.cluster.machines.seed(vm())
    setup.cluster.instances.seed(running(**OWNED))
    await setup.step()
    assert ("delete", "vm1") not in setup.cluster.instances.verbs


def moved(**more: Any) -> Any:
    active = {"uid-source": "node-1", "uid-target": "node-2"}
    labels = {"labels": {"kubevirt.io/nodeName": "node-2"}}
    state = more.pop("state", DONE)
    return running(state=state, status={"nodeName": "node-2", "activePods": active}, **labels, **more)


async def test_the_source_counts_for_as_long_as_it_is_told_and_then_succeeds() -> None:
    setup = Setup(source_linger=31)
    setup.cluster.instances.seed(moved())
    setup.cluster.migrations.seed(vmim(phase="Succeeded"))
    setup.cluster.pods.seed(launcher(), launcher("target", node="node-2", job="m1"))
    assert await setup.step() == 31
    setup.cluster.clock.now += 30.5
    assert await setup.step() == pytest.approx(0.5)
    assert setup.cluster.pods.objects["t1/source"]["status"]["phase"] == "Running"
    setup.cluster.clock.now += 0.6
    assert await setup.step() is None
    assert setup.cluster.pods.objects["t1/source"]["status"]["phase"] == "Succeeded"
    assert setup.cluster.pods.objects["t1/target"]["status"]["phase"] == "Running"


async def test_a_restart_does_not_begin_the_time_anew() -> None:
    first = Setup(source_linger=31)
    first.cluster.instances.seed(moved())
    first.cluster.pods.seed(launcher(), launcher("target", node="node-2", job="m1"))
    first.cluster.clock.now += 20
    assert await first.step() == 11


LINGERS: dict[str, tuple[dict[str, str], float | None]] = {
    "the migration's own time": ({"source-linger-seconds": "3"}, 3),
    "no time at all": ({"source-linger-seconds": "0"}, None),
    "a target's time is another's": ({"target-linger-seconds": "3"}, 31),
}


@pytest.mark.parametrize(("annotations", "seconds"), LINGERS.values(), ids=LINGERS.keys())
async def test_the_time_by_annotation(annotations: dict[str, str], seconds: float | None) -> None:
    setup = Setup()
    marks = {f"testcluster.headroom.harvesterhci.io/{key}": value for key, value in annotations.items()}
    setup.cluster.instances.seed(moved())
    setup.cluster.migrations.seed(vmim(phase="Succeeded", annotations=marks))
    setup.cluster.pods.seed(launcher(), launcher("target", node="node-2", job="m1"))
    assert await setup.step() == seconds


async def test_a_migration_that_is_deleted_meanwhile_leaves_the_time_as_it_was() -> None:
    setup = Setup()
    marks = {"testcluster.headroom.harvesterhci.io/source-linger-seconds": "3"}
    setup.cluster.instances.seed(moved())
    setup.cluster.migrations.seed(vmim(phase="Succeeded", annotations=marks))
    setup.cluster.pods.seed(launcher(), launcher("target", node="node-2", job="m1"))
    assert await setup.step() == 3
    await setup.cluster.migrations.client.delete(name="m1", namespace="t1")
    assert await setup.step() == 3


async def test_the_target_of_a_failed_migration_ends_at_once() -> None:
    setup = Setup()
    state = {**DONE, "failed": True}
    active = {"uid-source": "node-1", "uid-target": "node-2"}
    setup.cluster.instances.seed(running(state=state, status={"activePods": active}))
    setup.cluster.migrations.seed(vmim(phase="Failed"))
    setup.cluster.pods.seed(launcher(), launcher("target", node="node-2", job="m1"))
    assert await setup.step() is None
    assert setup.cluster.pods.objects["t1/target"]["status"]["phase"] == "Failed"


async def test_or_is_left_behind_as_in_kubevirt_s_issue_5373() -> None:
    setup = Setup()
    marks = {"testcluster.headroom.harvesterhci.io/target-linger-seconds": "600"}
    active = {"uid-source": "node-1", "uid-target": "node-2"}
    setup.cluster.instances.seed(running(state={**DONE, "failed": True}, status={"activePods": active}))
    setup.cluster.migrations.seed(vmim(phase="Failed", annotations=marks))
    setup.cluster.pods.seed(launcher(), launcher("target", node="node-2", job="m1"))
    assert await setup.step() == 600


async def test_a_target_that_was_never_handed_over_is_deleted() -> None:
    setup = Setup()
    active = {"uid-source": "node-1", "uid-target": "node-2"}
    setup.cluster.instances.seed(running(status={"activePods": active}))
    setup.cluster.migrations.seed(vmim(phase="Failed"))
    setup.cluster.pods.seed(launcher(), launcher("target", node="node-2", job="m1"))
    await setup.step()
    assert setup.cluster.pods.verbs == [("delete", "target")]


async def test_a_pod_that_ends_loses_its_readiness_and_its_attachment() -> None:
    setup = Setup(source_linger=0)
    ready = [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}]
    setup.cluster.instances.seed(moved())
    setup.cluster.pods.seed(
        launcher(conditions=ready), attachment(), launcher("target", node="node-2", job="m1")
    )
    await setup.step()
    conditions = {
        c["type"]: c["status"] for c in setup.cluster.pods.objects["t1/source"]["status"]["conditions"]
    }
    assert conditions == {"Ready": "False", "ContainersReady": "False", "PodScheduled": "True"}
    assert ("delete", "hp-volume-a") in setup.cluster.pods.verbs


async def test_a_hotplugged_volume_gets_an_attachment_pod_on_the_guest_s_node() -> None:
    setup = Setup()
    setup.cluster.instances.seed(running(spec={"volumes": [HOTPLUG_VOLUME]}))
    setup.cluster.pods.seed(launcher())
    await setup.step()
    assert setup.status()["volumeStatus"] == [{"name": "extra", "phase": "Pending"}]
    await setup.step()
    (pod,) = [
        p for p in setup.cluster.pods.objects.values() if p["metadata"]["name"].startswith("hp-volume-")
    ]
    assert pod["spec"]["nodeName"] == "node-1"
    await setup.step()
    assert setup.status()["volumeStatus"][0]["phase"] == "AttachedToNode"
    await setup.pods_run()
    await setup.step()
    meta = pod["metadata"]
    assert setup.status()["volumeStatus"] == [
        {
            "name": "extra",
            "phase": "Ready",
            "hotplugVolume": {"attachPodName": meta["name"], "attachPodUID": meta["uid"]},
        }
    ]


async def test_an_attachment_pod_goes_with_the_last_volume() -> None:
    setup = Setup()
    plugged = [{"name": "extra", "phase": "Ready", "hotplugVolume": {"attachPodName": "hp-volume-a"}}]
    setup.cluster.instances.seed(running(status={"volumeStatus": plugged}))
    setup.cluster.pods.seed(launcher(), attachment())
    await setup.step()
    assert setup.status()["volumeStatus"] == []
    await setup.step()
    assert setup.cluster.pods.verbs == [("delete", "hp-volume-a")]


async def test_an_attachment_pod_that_quota_refuses_is_tried_again() -> None:
    setup = Setup()
    pending = [{"name": "extra", "phase": "Pending"}]
    setup.cluster.instances.seed(
        running(spec={"volumes": [HOTPLUG_VOLUME]}, status={"volumeStatus": pending})
    )
    setup.cluster.pods.seed(launcher())
    setup.cluster.pods.errors["create"] = [QUOTA, None]
    assert await setup.step() == 5
    assert await setup.step() == 5
    setup.refusals.quota_changed("t1")
    assert await setup.step() is None
    assert len(setup.cluster.pods.objects) == 2


async def test_a_finished_launcher_stays_for_as_long_as_it_is_told() -> None:
    setup = Setup(source_linger=0, finished_linger=60)
    setup.cluster.instances.seed(moved())
    setup.cluster.migrations.seed(vmim(phase="Succeeded"))
    setup.cluster.pods.seed(launcher(phase="Succeeded"), launcher("target", node="node-2", job="m1"))
    assert await setup.step() == 60
    setup.cluster.clock.now += 59
    assert await setup.step() == 1
    setup.cluster.clock.now += 1
    await setup.step()
    assert list(setup.cluster.pods.objects) == ["t1/target"]


async def test_a_change_of_the_conditions_that_was_not_seen_is_a_conflict() -> None:
    setup = Setup()
    setup.cluster.instances.seed(vmi())
    setup.cluster.instances.lagging = True
    conditions = {"status": {"conditions": [{"type": "Paused", "status": "True"}]}}
    setup.cluster.instances.edited("t1/vm1", conditions)
    with pytest.raises(Conflict):
        await setup.step()
    setup.cluster.instances.catch_up()
    await setup.step()
    assert {c["type"] for c in setup.status()["conditions"]} == {"Paused", "Ready"}
