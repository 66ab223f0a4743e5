"""Everything that the stand-in watches and does, on one screen."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import Object
from kubeloop.api.registry import NODES, PERSISTENT_VOLUME_CLAIMS, STORAGE_CLASSES
from kubeloop.client.resource_client import ResourceClient
from lab.kubevirt.automatic import MigrationCreator
from lab.kubevirt.creation import QUICK, Creator, Placement, Refusals
from lab.kubevirt.evacuation_controller import EvacuationHandler, nodes_of
from lab.kubevirt.gate import Gate
from lab.kubevirt.lookup import Configuration, Migrations, Pods
from lab.kubevirt.objects import INSTALLED_KUBEVIRTS, MIGRATIONS, VMIS, VMS, write
from lab.kubevirt.options import StandInOptions, reported_version
from lab.kubevirt.state_claims import StateClaims
from lab.kubevirt.vm_controller import VMHandler
from lab.kubevirt.vmi_controller import Ending, VMIHandler
from lab.kubevirt.vmim_controller import MigrationHandler
from lab.kubevirt.workload_update_controller import WorkloadUpdateHandler
from pkg.api.kubevirt import KubeVirt
from pkg.config.management import Management
from pkg.util import constants

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class OperatorHandler:
    """Marks a new KubeVirt as Deployed; a phase that is set already stays. Other limits may let others in."""

    kubevirts: ResourceClient[KubeVirt]
    gate: Gate
    version: str

    async def on_kubevirt_changed(self, key: str, kubevirt: KubeVirt | None) -> None:
        """Raises ApiError."""
        self.gate.wake()
        if kubevirt is None or kubevirt.status.phase or kubevirt.deleting:
            return
        status = {"phase": constants.KUBEVIRT_PHASE_DEPLOYED, "observedKubeVirtVersion": self.version}
        if await write(self.kubevirts, kubevirt, {"status": status}, "status"):
            logger.info("%s: deployed %s", key, self.version)


def own_key(obj: Object) -> list[str]:
    return [obj.key]


def retry_refused(
    refusals: Refusals, is_waiting: Callable[[str], bool] = lambda key: False
) -> Callable[[ResourceQuota], list[str]]:
    """Returns a function from a changed quota to the refused keys of its namespace: they are tried again at once.

    It leaves out the keys that `is_waiting` for another reason: three hundred that may not run yet need not be told
    every time that a pod is counted.
    """
    return lambda quota: [key for key in refusals.quota_changed(quota.namespace) if not is_waiting(key)]


COMPONENT = "virtualmachine-controller"
"""The source of events, as KubeVirt's controllers name themselves."""


def creator_of(
    management: Management, options: StandInOptions, configuration: Configuration, placement: Placement
) -> Creator:
    """Returns a creator with refusals of its own: VMIs have one, and migrations another."""
    client = management.client
    first_retry, quick = (options.max_retry, ()) if options.drained_bucket else (options.first_retry, QUICK)
    claims, classes = client.resource(PERSISTENT_VOLUME_CLAIMS), client.resource(STORAGE_CLASSES)
    return Creator(
        management.pods.client,
        placement,
        Refusals(first_retry, options.max_retry, quick),
        management.recorder(COMPONENT),
        StateClaims(claims, classes, configuration.rendering),
        configuration,
    )


def register(management: Management, options: StandInOptions) -> None:
    """Gives the management its handlers; start it afterwards."""
    vms, vmis = management.controller(VMS), management.controller(VMIS)
    migrations, quotas = management.controller(MIGRATIONS), management.resource_quotas
    configuration = Configuration(management, options)
    pods, lookup = Pods(management.pods.cache()), Migrations(migrations.cache())
    placement = Placement(management.controller(NODES).cache(), pods)
    enqueue = partial(migrations.enqueue, immediately=True)
    gate = Gate(lookup, vmis.cache(), pods, configuration.limits, enqueue)
    creator = partial(creator_of, management, options, configuration, placement)

    vm_handler = VMHandler(vms.client, vmis)
    vms.on_change("vm-controller", vm_handler.on_vm_changed)
    vms.watch_related(vmis, own_key)

    operator_handler = OperatorHandler(management.kubevirts.client, gate, reported_version(options.overhead_profile))
    management.kubevirts.on_change("virt-operator", operator_handler.on_kubevirt_changed)

    ending = Ending(management.pods.client, pods, lookup, options)
    vmi_handler = VMIHandler(vmis.client, vms, pods, creator(), ending)
    vmis.on_change("vmi-controller", vmi_handler.on_vmi_changed)
    vmis.watch_related(vms, own_key)
    vmis.watch_related(management.pods, pods.vmis_of)
    vmis.watch_related(migrations, lambda migration: [migration.vmi_key])
    vmis.watch_related(quotas, retry_refused(vmi_handler.creator.refusals))

    migration = MigrationHandler(migrations.client, vmis, lookup, pods, creator(), gate, options)
    migrations.on_change("migration-controller", migration.on_migration_changed)
    migrations.watch_related(management.pods, lookup.of_pod)
    migrations.watch_related(vmis, lambda vmi: [migration.key for migration in lookup.active(vmi.key)])
    migrations.watch_related(quotas, retry_refused(migration.creator.refusals, gate.is_waiting))

    register_automatic(management, options, lookup, pods, configuration)


def register_automatic(
    management: Management, options: StandInOptions, lookup: Migrations, pods: Pods, configuration: Configuration
) -> None:
    """Registers the controllers that create migrations by themselves."""
    vmis, migrations = management.controller(VMIS), management.controller(MIGRATIONS)
    automatic = MigrationCreator(
        migrations.client, lookup, pods, management.recorder(COMPONENT), options.selects, options.has_priority_queue
    )
    nodes = management.controller(NODES)
    evacuation = EvacuationHandler(vmis.cache(), automatic, configuration.limits)
    nodes.on_change("evacuation-controller", evacuation.on_node_changed)
    nodes.watch_related(vmis, nodes_of)
    nodes.watch_related(migrations, evacuation.nodes_of_migration)

    installations = management.controller(INSTALLED_KUBEVIRTS)
    updater = WorkloadUpdateHandler(vmis.cache(), automatic, configuration, options.workload_update_delay)
    installations.on_change("workload-update-controller", updater.on_kubevirt_changed)
    installations.watch_related(migrations, updater.hurry)
