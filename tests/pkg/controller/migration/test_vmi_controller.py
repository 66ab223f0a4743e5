"""The handler of VMIs: what is written, on which object, and what is not."""

import asyncio

import pytest

from kubeloop.api.registry import PODS
from kubeloop.client.errors import Invalid
from kubeloop.testing.virtual_time import now
from pkg.api.kubevirt import (
    VIRTUAL_MACHINE_INSTANCE_MIGRATIONS,
    VIRTUAL_MACHINE_INSTANCES,
    VIRTUAL_MACHINES,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
)
from pkg.config.settings import Settings
from pkg.controller.migration.vmi_controller import SETTLED, register
from tests.decisions import sentences
from tests.kinds import Server
from tests.objects import controlled_by, vmi, vmim
from tests.pkg.controller.wired import Wired

pytestmark = pytest.mark.virtual_time

UID = "harvesterhci.io/migrationUID"
STATE = "harvesterhci.io/migrationState"
MIGRATION, JOB = "uid-migration-of-vm1", "kubevirt.io/migrationJobUID"
TIMESTAMP = "harvesterhci.io/timestamp"


class MigrationCluster:
    """A namespace's VMs, VMIs, migrations and pods, and the handlers over them."""

    def __init__(self) -> None:
        server = Server()
        management = self._management = Wired(server)
        register(management, Settings())
        self.migrations = server.kind(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS)
        self.instances, self.machines = server.kind(VIRTUAL_MACHINE_INSTANCES), server.kind(VIRTUAL_MACHINES)
        self.pods = server.kind(PODS)

    def vm(self, name: str = "vm1") -> None:
        self.machines.given({"metadata": {"name": name, "namespace": "ns1", "uid": f"uid-of-vm-{name}"}})

    def pod(
        self, name: str, migration: str = MIGRATION, *, of: str = "vm1", node: str = "node-2", **metadata: object
    ) -> None:
        """A launcher of the VM, or what is attached to the pod `of`."""
        attached = name.startswith("attachment")
        owner = controlled_by("Pod" if attached else "VirtualMachineInstance", of, f"uid-{of}")
        labels = {"kubevirt.io": "hotplug-disk" if attached else "virt-launcher", JOB: migration}
        fields = {"labels": labels, "ownerReferences": owner, **metadata}
        self.pods.put(name, "ns1", metadata=fields, spec={"nodeName": node})

    async def see(self, migration: VirtualMachineInstanceMigration) -> None:
        """A migration's event arrives: its VMI is enqueued."""
        self.migrations.given(migration)
        await self.look(migration.spec.vmi_name)

    async def look(self, name: str = "vm1") -> None:
        """A VMI's event arrives, and nothing else happens until its handler is done."""
        if (again := await self.glance(name)) is not None:
            await asyncio.sleep(again)
            await self.glance(name)

    async def glance(self, name: str = "vm1") -> float | None:
        """A VMI's event arrives; in how many seconds its handler wants to be called again."""
        return await self._management.handle(VIRTUAL_MACHINE_INSTANCES, f"ns1/{name}")

    def state(self, name: str = "vm1") -> dict[str, str]:
        annotations = self.instances.now(f"ns1/{name}").annotations
        return {key: text for key, text in annotations.items() if key in (UID, STATE)}

    def bumps(self) -> int:
        return len(self.machines.asked("patch"))


@pytest.fixture
def cluster() -> MigrationCluster:
    cluster = MigrationCluster()
    cluster.vm()
    cluster.instances.given(vmi(annotations={"example.com/other": "kept"}))
    return cluster


async def test_each_state_of_a_migration_is_shown_and_bumps_the_vm(cluster: MigrationCluster) -> None:
    states = []
    for phase in (None, "Pending", "Pending", "Scheduling", "Running", "Running", "Succeeded", "Succeeded"):
        await cluster.see(vmim(phase))
        states.append((cluster.state().get(STATE), cluster.bumps()))
    assert states == [
        ("Pending migration", 1),
        ("Pending migration", 1),
        ("Pending migration", 1),
        ("Migrating", 2),
        ("Migrating", 2),
        ("Migrating", 2),
        (None, 3),
        (None, 3),
    ]
    assert cluster.instances.now("ns1/vm1").annotations == {"example.com/other": "kept"}


SHORT: dict[str, tuple[list[tuple[float, str]], list[str | None]]] = {
    "Pending is over before it would be written": (
        [(0.0, "Pending"), (0.4, "Scheduling"), (0.9, "Running")],
        [None, None, "Migrating"],
    ),
    "a whole migration": ([(0.0, "Pending"), (0.2, "Running"), (0.4, "Succeeded"), (9.0, "Succeeded")], [None] * 4),
    "one that is written stays until the next has lasted": (
        [(0.0, "Pending"), (0.5, "Pending"), (0.6, "Running"), (1.0, "Running"), (1.1, "Running")],
        [None, "Pending migration", "Pending migration", "Pending migration", "Migrating"],
    ),
    "the end is written like any other state": (
        [(0.0, "Running"), (0.5, "Running"), (2.0, "Succeeded"), (2.5, "Succeeded")],
        [None, "Migrating", "Migrating", None],
    ),
}


@sentences(SHORT, "steps, expected")
async def test_a_state_of_less_than_half_a_second_is_not_written(
    steps: list[tuple[float, str]], expected: list[str | None], cluster: MigrationCluster
) -> None:
    annotations = []
    for moment, phase in steps:
        await asyncio.sleep(moment - now())
        cluster.migrations.given(vmim(phase))
        await cluster.glance()
        annotations.append(cluster.state().get(STATE))
    assert annotations == expected
    assert (
        len(cluster.instances.asked("patch"))
        == cluster.bumps()
        == len(set(filter(None, annotations))) + (annotations[-1] is None and any(annotations))
    )


async def test_the_patch_holds_only_changes_and_is_bound_to_the_vmi(cluster: MigrationCluster) -> None:
    await cluster.see(vmim("Pending"))
    assert cluster.instances.asked("patch") == [
        {"metadata": {"uid": "uid-vm1", "annotations": {UID: "uid-migration-of-vm1", STATE: "Pending migration"}}}
    ]


async def test_a_vmi_without_vm_is_fine(cluster: MigrationCluster) -> None:
    cluster.instances.given(vmi("alone"))
    await cluster.see(vmim("Pending", vm="alone"))
    assert cluster.state("alone")[STATE] == "Pending migration"
    assert cluster.bumps() == 0


async def test_a_vm_that_goes_away_meanwhile_is_fine(cluster: MigrationCluster) -> None:
    cluster.machines.lagging = True
    cluster.machines.gone("ns1/vm1")
    await cluster.see(vmim("Pending"))
    assert cluster.state()[STATE] == "Pending migration"


async def test_a_vmi_that_is_deleted_gets_no_state_and_no_bump(cluster: MigrationCluster) -> None:
    cluster.instances.lagging = True
    cluster.instances.gone("ns1/vm1")
    await cluster.see(vmim("Pending"))
    assert cluster.bumps() == 0


async def test_a_new_vmi_of_the_same_name_gets_no_state_of_the_old_one(cluster: MigrationCluster) -> None:
    cluster.instances.lagging = True
    cluster.instances.edited("ns1/vm1", {"metadata": {"uid": "uid-of-the-next"}})
    with pytest.raises(Invalid, match="immutable"):
        await cluster.see(vmim("Pending"))
    assert cluster.state() == {}


async def test_a_state_is_not_written_again_before_the_watch_shows_it(cluster: MigrationCluster) -> None:
    cluster.instances.lagging = True
    for phase in ("Pending", "Pending", "Scheduling", "Scheduling"):
        await cluster.see(vmim(phase))
    assert len(cluster.instances.asked("patch")) == cluster.bumps() == 2
    assert cluster.state()[STATE] == "Migrating"


async def test_what_another_client_wrote_since_is_seen(cluster: MigrationCluster) -> None:
    cluster.instances.lagging = True
    await cluster.see(vmim("Pending"))
    cluster.instances.edited("ns1/vm1", {"metadata": {"annotations": {STATE: "Migrating"}}})
    cluster.instances.catch_up()
    await cluster.look()
    assert cluster.state()[STATE] == "Pending migration"


async def test_a_vmi_that_was_gone_is_waited_for_anew(cluster: MigrationCluster) -> None:
    cluster.migrations.given(vmim("Pending"))
    assert await cluster.glance() == pytest.approx(SETTLED)
    present = cluster.instances.now("ns1/vm1")
    cluster.instances.gone("ns1/vm1")
    await asyncio.sleep(0.4)
    assert await cluster.glance() is None
    cluster.instances.given(present)
    assert await cluster.glance() == pytest.approx(SETTLED)


async def test_a_migration_that_was_deleted_is_not_shown_any_longer(cluster: MigrationCluster) -> None:
    await cluster.see(vmim("Running"))
    cluster.migrations.gone("ns1/migration-of-vm1")
    await cluster.look()
    assert cluster.state() == {}


def completed(node: str | None = "node-1", phase: str = "Running", **more: object) -> VirtualMachineInstance:
    annotations = {UID: MIGRATION, STATE: "Migrating"}
    state = {"migrationUid": MIGRATION, "completed": True, **more}
    return vmi(annotations=annotations, migrationState=state, nodeName=node, phase=phase)


async def test_only_pods_of_an_aborted_migration_are_deleted_by_uid(cluster: MigrationCluster) -> None:
    cluster.instances.given(completed(abortStatus="Succeeded"))
    cluster.pod("target")
    cluster.pod("attachment", of="target")
    cluster.pod("going", deletionTimestamp="2026-01-01T00:00:00Z")
    cluster.pod("other", "uid-of-another")
    await cluster.look()
    assert [(verb, key, body["preconditions"]["uid"]) for verb, key, body in cluster.pods.calls] == [
        ("delete", "ns1/target", "uid-target"),
        ("delete", "ns1/attachment", "uid-attachment"),
    ]


UNPROVEN: dict[str, tuple[VirtualMachineInstance, dict[str, str]]] = {
    "another VM's": (completed(abortStatus="Succeeded"), {"of": "victim"}),
    "that of a VMI that does not run, whose status its tenant wrote": (
        completed(phase="Pending", abortStatus="Succeeded"),
        {},
    ),
    "the one in which the VM lives": (completed(abortStatus="Succeeded"), {"node": "node-1"}),
    "one of a VM whose node is not known": (completed(None, abortStatus="Succeeded"), {}),
    "one of a migration that was not aborted": (completed(), {}),
}


@sentences(UNPROVEN, "instance, fields")
async def test_a_launcher_not_proven_to_be_a_leftover_of_this_vm_stays(
    instance: VirtualMachineInstance, fields: dict[str, str], cluster: MigrationCluster
) -> None:
    cluster.instances.given(instance)
    cluster.pod("target", **fields)
    cluster.pod("attachment", of="target")
    await cluster.look()
    assert not cluster.pods.calls


async def test_a_pod_that_is_gone_already_does_not_keep_the_others(cluster: MigrationCluster) -> None:
    cluster.instances.given(completed(abortStatus="Succeeded"))
    cluster.pod("first")
    cluster.pod("second")
    cluster.pods.lagging = True
    cluster.pods.gone("ns1/first")
    await cluster.look()
    assert "ns1/second" not in cluster.pods.objects


async def test_a_vmi_on_its_way_out_is_left_alone(cluster: MigrationCluster) -> None:
    cluster.instances.given(completed(abortStatus="Succeeded"))
    cluster.instances.edited("ns1/vm1", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    cluster.pod("target")
    await cluster.look()
    assert not cluster.instances.calls
    assert not cluster.pods.calls
