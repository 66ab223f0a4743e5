"""On a change of a VMI or of a migration of it: show the migration's state, remove the pods of an aborted one.

Source: Harvester vmi_controller.go and the state half of vmim_controller.go; kubevirt issue 5373 for the pods.
The UI watches VMs only, so every change on a VMI bumps an annotation of the VM (harvester issue 6193).
What a VMI lacks for half a second is written as it is then: shorter states are over before a person sees them."""

from contextlib import suppress
from dataclasses import dataclass, field

from kubeloop.api.core import Pod
from kubeloop.api.meta import now_rfc3339
from kubeloop.client.errors import NotFound
from kubeloop.client.resource_client import ResourceClient
from kubeloop.controllers.controller import Controller
from kubeloop.controllers.errors import RetryAfter
from kubeloop.workqueue.queue import loop_time
from pkg.api.kubevirt import VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.config.management import Management
from pkg.config.settings import Settings
from pkg.util import constants
from pkg.util.kubevirt import migration
from pkg.util.kubevirt.evidence import leftover_pods, trusted_status

PODS_BY_MIGRATION = "migrationJobUID"  # the index of the pods of a migration's target by `namespace/<vmim uid>`
SETTLED = 0.5  # seconds for which a VMI shows another state than its migration's before that is written
_EARLY = 0.001  # seconds by which a timer may come too early: less than that is not waited for again


@dataclass(eq=False)
class VMIHandler:
    """Handles VirtualMachineInstances: the one writer of their three state annotations and of a VM's timestamp."""

    migrations: Controller[VirtualMachineInstanceMigration]
    vmis: ResourceClient[VirtualMachineInstance]
    vms: Controller[VirtualMachine]
    pods: Controller[Pod]
    # By a VMI's key since when it has shown another state than its migration's.
    _differs_since: dict[str, float] = field(default_factory=dict, init=False)

    async def on_vmi_changed(self, key: str, vmi: VirtualMachineInstance | None) -> VirtualMachineInstance | None:
        """Shows the migration's state. Returns the VMI as it was written: a migration's next event often comes before
        our patch is seen. Raises RetryAfter while its state may change again."""
        if vmi is None or vmi.deleting:
            self._differs_since.pop(key, None)
            return None
        if (migration_uid := migration.leftover_migration(vmi)) is not None:
            labelled = self.pods.cache().by_index(PODS_BY_MIGRATION, f"{vmi.namespace}/{migration_uid}")
            for pod in leftover_pods(vmi, labelled):
                if not pod.deleting:
                    with suppress(NotFound):
                        await self.pods.client.delete(name=pod.name, namespace=vmi.namespace, uid=pod.uid)
        migrations = self.migrations.cache().by_index(migration.MIGRATIONS_BY_VMI, key)
        changes, written = migration.annotations_for(vmi, migrations), None
        if changes:
            seconds_left = self._differs_since.setdefault(key, loop_time()) + SETTLED - loop_time()
            if seconds_left > _EARLY:
                raise RetryAfter(seconds_left, "the state may change again")
            # The uid makes the API server refuse the patch for a VMI that was re-created under the same name.
            patch = {"metadata": {"uid": vmi.uid, "annotations": dict(changes)}}
            with suppress(NotFound):
                written = await self.vmis.merge_patch(patch, name=vmi.name, namespace=vmi.namespace)
                if self.vms.cache().get_by_key(vmi.key) is not None:  # a VMI without VM is fine
                    stamp = {"metadata": {"annotations": {"harvesterhci.io/timestamp": now_rfc3339()}}}
                    await self.vms.client.merge_patch(stamp, name=vmi.name, namespace=vmi.namespace)
        self._differs_since.pop(key, None)
        return written

    def keys_of_migration(self, vmim: VirtualMachineInstanceMigration) -> list[str]:
        """Returns the VMI's key, or none while its timer runs: the state at its end counts."""
        key = f"{vmim.namespace}/{vmim.spec.vmi_name}"
        is_waiting = loop_time() < self._differs_since.get(key, float("-inf")) + SETTLED - _EARLY
        return [] if is_waiting else [key]


def _read_of_vmi(vmi: VirtualMachineInstance) -> object:
    status = trusted_status(vmi)
    state = status.migration_state
    finished = (state.migration_uid, state.abort_status, status.node_name) if state and state.completed else None
    return vmi.uid, vmi.deleting, finished, [vmi.annotations.get(key) for key in constants.VMI_STATE_ANNOTATIONS]


def register(management: Management, settings: Settings) -> None:
    """Registers the controller of VMIs. A dry run shows no state."""
    migrations, vmis = management.virtual_machine_instance_migrations, management.virtual_machine_instances
    migrations.cache().add_indexer(migration.MIGRATIONS_BY_VMI, lambda vmim: [f"{vmim.namespace}/{vmim.spec.vmi_name}"])
    if settings.dry_run:
        return
    pods = management.pods
    pods.cache().add_indexer(PODS_BY_MIGRATION, lambda pod: [f"{pod.namespace}/{migration.migration_of(pod)}"])
    states = VMIHandler(migrations, vmis.client, management.virtual_machines, pods)
    vmis.on_change("virtualMachineInstanceController", states.on_vmi_changed, reads=_read_of_vmi)
    vmis.watch_related(
        migrations,
        states.keys_of_migration,
        reads=lambda vmim: (vmim.uid, None if migration.is_finished(vmim) else migration.state_of(vmim)),
    )
