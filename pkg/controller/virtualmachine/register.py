"""Wiring of the VM check."""

from __future__ import annotations

from kubeloop.controllers.events import EventRecorder
from pkg.api.kubevirt import VirtualMachine, VirtualMachineInstance
from pkg.config.management import Management
from pkg.config.settings import Settings
from pkg.controller.virtualmachine.vm_controller import LAUNCHERS_BY_VM, Handler
from pkg.util import constants
from pkg.util.kubevirt.evidence import vm_of
from pkg.util.resourcequota.observe import Observer

VIRTUAL_MACHINE_CONTROLLER = "virtualMachineController"


def register(management: Management, events: EventRecorder, settings: Settings) -> None:
    """Both modes: Harvester's own check comes to the same end, later."""
    machines, instances = management.virtual_machines, management.virtual_machine_instances
    management.pods.cache().add_indexer(LAUNCHERS_BY_VM, lambda pod: [f"{pod.namespace}/{vm_of(pod)}"])
    handler = Handler(
        machines.client,
        instances.cache(),
        management.resource_quotas,
        management.pods,
        Observer(management.source(), settings.profile),
        events,
        management.clock,
    )
    machines.on_change(VIRTUAL_MACHINE_CONTROLLER, handler.on_virtual_machine_changed, reads=_read_of_machine)

    def marked(instance: VirtualMachineInstance) -> list[str]:
        machine = machines.cache().get_by_key(instance.key)
        reason = constants.ANNOTATION_INSUFFICIENT_RESOURCE_QUOTA
        return [machine.key] if machine is not None and reason in machine.annotations else []

    machines.watch_related(instances, marked)


def _read_of_machine(machine: VirtualMachine) -> object:
    """Whether it migrates is not read."""
    meta, status = machine.metadata, machine.status.printable_status
    reason = machine.annotations.get(constants.ANNOTATION_INSUFFICIENT_RESOURCE_QUOTA)
    return meta.uid, meta.deletion_timestamp, machine.spec, reason, "Running" if status == "Migrating" else status
