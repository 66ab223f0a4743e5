"""A VM's handler: VMI created and deleted, status written."""

from __future__ import annotations

from typing import Any

from pkg.testcluster.kubevirt.vm_controller import MachineHandler
from tests.pkg.testcluster.kubevirt.fakes import World
from tests.pkg.testcluster.kubevirt.samples import running, vm, vmi

KEY = "t1/vm1"
OWNED: dict[str, Any] = {
    "ownerReferences": [{"kind": "VirtualMachine", "uid": "uid-vm1", "controller": True}]
}


def handler(world: World) -> MachineHandler:
    machines: Any = world.machines
    instances: Any = world.instances
    return MachineHandler(machines, instances, world.instances.cache, world.clock)


async def change(world: World, **more: Any) -> None:
    world.machines.seed(vm(**more))
    await handler(world).on_machine_changed(KEY, world.machines.get_cached("vm1"))


async def test_a_vm_is_started() -> None:
    world = World()
    await change(world)
    assert world.instances.calls == [("create", "vm1")]
    assert world.instances.objects[KEY]["spec"]["domain"]["cpu"]["cores"] == 2
    assert world.machines.objects[KEY]["status"]["printableStatus"] == "Starting"


async def test_a_halted_vm_is_stopped() -> None:
    world = World()
    world.instances.seed(running(**OWNED))
    await change(world, strategy="Halted")
    assert world.instances.calls == [("delete", "vm1")]


async def test_the_status_follows_the_vmi() -> None:
    world = World()
    world.instances.seed(running(**OWNED))
    await change(world)
    assert world.instances.calls == []
    assert world.machines.calls == [("patch", "vm1", "status")]
    status = world.machines.objects[KEY]["status"]
    assert (status["printableStatus"], status["created"], status["ready"]) == ("Running", True, True)


async def test_somebody_s_own_vmi_of_the_same_name_is_left_alone() -> None:
    world = World()
    world.instances.seed(vmi())
    await change(world, strategy="Halted")
    assert world.instances.calls == []
    assert world.machines.calls == []


async def test_a_vmi_that_exists_already_is_no_failure() -> None:
    world = World()
    world.instances.lags = True
    world.instances.seed(running(**OWNED))
    await change(world)
    assert world.instances.calls == [("create", "vm1")]


async def test_a_vm_that_is_gone_needs_nothing() -> None:
    world = World()
    await handler(world).on_machine_changed(KEY, None)
    assert world.instances.calls == []


async def test_a_vm_that_goes_meanwhile_is_no_failure() -> None:
    world = World()
    await handler(world).on_machine_changed(KEY, vm(strategy="Halted"))
    assert world.machines.calls == []
