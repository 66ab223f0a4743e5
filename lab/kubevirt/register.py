"""Everything that the stand-in watches and does, on one screen."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kubeloop.api.core import Pod, ResourceQuota
from kubeloop.api.meta import Object
from kubeloop.api.objects import guarded
from kubeloop.api.registry import NODES, PERSISTENT_VOLUME_CLAIMS, STORAGE_CLASSES
from kubeloop.client.errors import NotFound
from kubeloop.client.resource_client import ResourceClient
from lab.kubevirt.creation import QUICK, Creator, Placement, Refusals
from lab.kubevirt.gate import Gate
from lab.kubevirt.instance import is_launcher
from lab.kubevirt.lookup import Migrations, Pods, instance_keys, migration_keys
from lab.kubevirt.objects import INSTANCES, MACHINES, MIGRATIONS
from lab.kubevirt.options import Options
from lab.kubevirt.rendering import Configuration, observed_version
from lab.kubevirt.state_claims import StateClaims
from lab.kubevirt.vm_controller import MachineHandler
from lab.kubevirt.vmi_controller import Ending, Hotplug, InstanceHandler
from lab.kubevirt.vmim_controller import MigrationHandler
from pkg.api.kubevirt import KubeVirt
from pkg.config.management import Management
from pkg.util import constants

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class OperatorHandler:
    """Marks a new KubeVirt as Deployed; a phase that is set already stays. Other limits may let others in."""

    kubevirts: ResourceClient[KubeVirt]
    gate: Gate
    options: Options

    async def on_kubevirt_changed(self, key: str, kubevirt: KubeVirt | None) -> None:
        """Raises ApiError."""
        self.gate.wake()
        if kubevirt is None or kubevirt.status.phase or kubevirt.deleting:
            return
        version = observed_version(self.options.overhead_profile)
        status = {"phase": constants.KUBEVIRT_PHASE_DEPLOYED, "observedKubeVirtVersion": version}
        patch = guarded(kubevirt, {"status": status})
        with contextlib.suppress(NotFound):  # deleted meanwhile
            await self.kubevirts.merge_patch(
                patch, name=kubevirt.name, namespace=kubevirt.namespace, subresource="status"
            )
            logger.info("%s: deployed %s", key, version)


def own_key(obj: Object) -> list[str]:
    """A VM and its VMI have the same key."""
    return [obj.key]


def instances_of(pods: Pods) -> Callable[[Pod], list[str]]:
    """The VMI of a launcher, or of the launcher that an attachment pod belongs to."""

    def resolve(pod: Pod) -> list[str]:
        launcher = pod if is_launcher(pod) else pods.launcher_of(pod)
        return instance_keys(launcher) if launcher else []

    return resolve


def migrations_of(pods: Pods, migrations: Migrations) -> Callable[[Pod], list[str]]:
    """The migration that a pod was created for, and those that wait for a pod of their VMI to end."""
    return lambda pod: [
        *migration_keys(pod),
        *(each.key for vmi_key in instance_keys(pod) for each in migrations.active(vmi_key)),
    ]


def refused_by(
    refusals: Refusals, is_waiting: Callable[[str], bool] = lambda key: False
) -> Callable[[ResourceQuota], list[str]]:
    """Whatever was refused in a quota's namespace: it is tried again at once when the quota changes or goes.

    Not what `is_waiting` for another reason: three hundred that may not run yet need not be told every time that
    a pod is counted.
    """
    return lambda quota: [key for key in refusals.quota_changed(quota.namespace) if not is_waiting(key)]


COMPONENT = "virtualmachine-controller"
"""The source of events, as KubeVirt's controllers name themselves."""


@dataclass(eq=False)
class Parts:
    """What several handlers share."""

    management: Management
    options: Options

    def __post_init__(self) -> None:
        management = self.management
        self.configuration = Configuration(management, self.options)
        self.machines = management.controller(MACHINES)
        self.instances = management.controller(INSTANCES)
        self.migrations = management.controller(MIGRATIONS)
        self.found_pods = Pods(management.pods.cache())
        self.found_migrations = Migrations(self.migrations.cache())
        self.placement = Placement(management.controller(NODES).cache(), self.found_pods)
        self.gate = Gate(
            self.found_migrations,
            self.instances.cache(),
            self.found_pods,
            self.configuration.limits,
            partial(self.migrations.enqueue, immediately=True),
        )

    def creator(self) -> Creator:
        """One for VMIs and one for migrations, each with its own refusals."""
        options, client, rendering = self.options, self.management.client, self.configuration.rendering
        first, quick = (options.max_retry, ()) if options.drained_bucket else (options.first_retry, QUICK)
        return Creator(
            self.management.pods.client,
            self.placement,
            Refusals(first, options.max_retry, quick),
            self.management.recorder(COMPONENT),
            StateClaims(client.resource(PERSISTENT_VOLUME_CLAIMS), client.resource(STORAGE_CLASSES), rendering),
            rendering,
        )


def register(management: Management, options: Options) -> None:
    """Give the management its handlers; start it afterwards."""
    parts = Parts(management, options)
    machine = MachineHandler(parts.machines.client, parts.instances.client, parts.instances.cache())
    operator = OperatorHandler(management.kubevirts.client, parts.gate, options)
    parts.machines.on_change("vm-controller", machine.on_machine_changed)
    management.kubevirts.on_change("virt-operator", operator.on_kubevirt_changed)
    parts.machines.watch_related(parts.instances, own_key)
    register_instances(parts)
    register_migrations(parts)


def register_instances(parts: Parts) -> None:
    """VMI → launcher pod."""
    instances, pods, creator = parts.instances, parts.found_pods, parts.creator()
    handler = InstanceHandler(
        instances=instances.client,
        machines=parts.machines.client,
        machine_cache=parts.machines.cache(),
        pods=pods,
        creator=creator,
        ending=Ending(creator.pods, pods, parts.found_migrations, parts.options),
        hotplug=Hotplug(pods, creator),
    )
    instances.on_change("vmi-controller", handler.on_instance_changed)
    instances.watch_related(parts.machines, own_key)
    instances.watch_related(parts.management.pods, instances_of(pods))
    instances.watch_related(parts.migrations, lambda migration: [migration.vmi_key])
    instances.watch_related(parts.management.resource_quotas, refused_by(creator.refusals))


def register_migrations(parts: Parts) -> None:
    """VMIM → target pod and phases."""
    migrations, management, creator = parts.migrations, parts.management, parts.creator()
    handler = MigrationHandler(
        migration_client=migrations.client,
        instance_client=parts.instances.client,
        transport=management.client.transport,
        migrations=parts.found_migrations,
        instances=parts.instances.cache(),
        pods=parts.found_pods,
        creator=creator,
        gate=parts.gate,
        recorder=creator.recorder,
        options=parts.options,
    )
    migrations.on_change("migration-controller", handler.on_migration_changed)
    migrations.watch_related(management.pods, migrations_of(parts.found_pods, parts.found_migrations))
    migrations.watch_related(parts.instances, lambda vmi: [each.key for each in parts.found_migrations.active(vmi.key)])
    migrations.watch_related(management.resource_quotas, refused_by(creator.refusals, parts.gate.is_waiting))
