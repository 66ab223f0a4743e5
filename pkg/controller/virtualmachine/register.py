"""Wiring of the VM check."""

from __future__ import annotations

from kubeloop.controllers.events import EventRecorder
from pkg.api.kubevirt import VirtualMachine, VirtualMachineInstance
from pkg.config.management import Management
from pkg.config.settings import Settings
from pkg.controller.virtualmachine.vm_controller import LAUNCHERS_BY_VM, VMHandler
from pkg.util import constants
from pkg.util.kubevirt.evidence import vm_of
from pkg.util.resourcequota.observe import Observer

VIRTUAL_MACHINE_CONTROLLER = "virtualMachineController"


def register(management: Management, events: EventRecorder, settings: Settings) -> None:
    """Registers the VM check, in both modes: Harvester's own check comes to the same end, later."""
    vms, vmis = management.virtual_machines, management.virtual_machine_instances
    management.pods.cache().add_indexer(LAUNCHERS_BY_VM, lambda pod: [f"{pod.namespace}/{vm_of(pod)}"])
    handler = VMHandler(
        vms.client,
        vmis.cache(),
        management.resource_quotas,
        management.pods,
        Observer(management.source(), settings.profile),
        events,
        management.clock,
    )
    vms.on_change(VIRTUAL_MACHINE_CONTROLLER, handler.on_virtual_machine_changed, reads=_read_of_vm)

    def keys_of_halted_vm(vmi: VirtualMachineInstance) -> list[str]:
        vm = vms.cache().get_by_key(vmi.key)
        reason = constants.ANNOTATION_INSUFFICIENT_RESOURCE_QUOTA
        return [vm.key] if vm is not None and reason in vm.annotations else []

    vms.watch_related(vmis, keys_of_halted_vm)


def _read_of_vm(vm: VirtualMachine) -> object:
    """Returns the part of a VM that the handler reads. Migrating is the same as running."""
    meta, status = vm.metadata, vm.status.printable_status
    reason = vm.annotations.get(constants.ANNOTATION_INSUFFICIENT_RESOURCE_QUOTA)
    return meta.uid, meta.deletion_timestamp, vm.spec, reason, "Running" if status == "Migrating" else status
