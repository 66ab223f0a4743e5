"""Everything that the stand-in watches and does, on one screen."""

from __future__ import annotations

from pkg.generic.factory import Management
from pkg.testcluster.kubevirt import wakeups
from pkg.testcluster.kubevirt.creation import Clock, Creator, Placement
from pkg.testcluster.kubevirt.ending import Ending
from pkg.testcluster.kubevirt.gate import Gate
from pkg.testcluster.kubevirt.hotplug import Hotplug
from pkg.testcluster.kubevirt.lookup import Migrations, Pods
from pkg.testcluster.kubevirt.objects import INSTANCES, MACHINES, MIGRATIONS, NODES
from pkg.testcluster.kubevirt.options import Options
from pkg.testcluster.kubevirt.refusals import Refusals
from pkg.testcluster.kubevirt.rendering import (
    Rendering,
    deployed_configuration,
    limits,
    rendering,
)
from pkg.testcluster.kubevirt.targets import Targets
from pkg.testcluster.kubevirt.virt_operator import OperatorHandler
from pkg.testcluster.kubevirt.vm_controller import MachineHandler
from pkg.testcluster.kubevirt.vmi_controller import InstanceHandler
from pkg.testcluster.kubevirt.vmim_controller import MigrationHandler
from pkg.util import constants
from pkg.util.parallel_migrations import Limits

COMPONENT = "virtualmachine-controller"
"""The source of events, as KubeVirt's controllers name themselves."""


class Configuration:
    """The present configuration, from the caches."""

    def __init__(self, management: Management, options: Options) -> None:
        self._kubevirts = management.kubevirts.cache()
        self._settings = management.settings.cache()
        self._quotas = management.resource_quotas.cache()
        self._namespaces = management.namespaces.cache()
        self._options = options

    def rendering(self, namespace: str) -> Rendering:
        """What holds for pods of this namespace."""
        return rendering(
            self._kubevirts.list(),
            self._settings.get_by_key(constants.SETTING_OVERHEAD_RATIO),
            self._options,
            quotas=self._quotas.list(namespace),
            namespace=self._namespaces.get_by_key(namespace),
        )

    def limits(self) -> Limits:
        return limits(deployed_configuration(self._kubevirts.list()), self._options)


class Parts:
    """What several handlers share."""

    def __init__(self, management: Management, options: Options) -> None:
        self.options = options
        self.clock = Clock()
        self.recorder = management.recorder(COMPONENT)
        self.configuration = Configuration(management, options)
        self.machines = management.controller(MACHINES)
        self.instances = management.controller(INSTANCES)
        self.migrations = management.controller(MIGRATIONS)
        self.pod_client = management.pods.client
        self.transport = management.client.transport
        self.found_pods = Pods(management.pods.cache())
        self.found_migrations = Migrations(self.migrations.cache())
        self.placement = Placement(management.controller(NODES).cache(), self.found_pods)
        self.launching, self.migrating = self._creator(), self._creator()
        self.gate = Gate(
            self.found_migrations,
            self.instances.cache(),
            self.found_pods,
            self.configuration.limits,
            self.migrations.enqueue_key,
            self.clock,
        )
        self.hotplug = Hotplug(
            self.pod_client, self.found_pods, self.launching, self.configuration.rendering, self.clock
        )

    def _creator(self) -> Creator:
        refusals = Refusals(self.options.first_retry, self.options.max_retry)
        return Creator(self.pod_client, self.placement, refusals, self.recorder, self.clock)


def register(management: Management, options: Options) -> None:
    """Give the management its handlers; start it afterwards."""
    parts = Parts(management, options)
    machines = MachineHandler(
        parts.machines.client, parts.instances.client, parts.instances.cache(), parts.clock
    )
    operator = OperatorHandler(management.kubevirts.client, parts.gate, options)
    parts.machines.on_change("vm-controller", machines.on_machine_changed)
    parts.instances.on_change("vmi-controller", instance_handler(parts).on_instance_changed)
    parts.migrations.on_change("migration-controller", migration_handler(parts).on_migration_changed)
    management.kubevirts.on_change("virt-operator", operator.on_kubevirt_changed)
    launching, migrating = parts.launching.refusals, parts.migrating.refusals
    wakeups.connect(management, parts.found_pods, parts.found_migrations, parts.gate, launching, migrating)


def instance_handler(parts: Parts) -> InstanceHandler:
    """VMI → launcher pod."""
    ending = Ending(
        pod_client=parts.pod_client,
        pods=parts.found_pods,
        migrations=parts.found_migrations,
        machines=parts.machines.cache(),
        options=parts.options,
        clock=parts.clock,
    )
    return InstanceHandler(
        instances=parts.instances.client,
        machines=parts.machines.client,
        machine_cache=parts.machines.cache(),
        pod_client=parts.pod_client,
        pods=parts.found_pods,
        creator=parts.launching,
        placement=parts.placement,
        ending=ending,
        hotplug=parts.hotplug,
        rendering=parts.configuration.rendering,
        clock=parts.clock,
    )


def migration_handler(parts: Parts) -> MigrationHandler:
    """VMIM → target pod and phases."""
    targets = Targets(
        pods=parts.found_pods,
        creator=parts.migrating,
        placement=parts.placement,
        gate=parts.gate,
        hotplug=parts.hotplug,
        rendering=parts.configuration.rendering,
        clock=parts.clock,
        transport=parts.transport,
    )
    return MigrationHandler(
        migration_client=parts.migrations.client,
        instance_client=parts.instances.client,
        pod_client=parts.pod_client,
        migrations=parts.found_migrations,
        instances=parts.instances.cache(),
        machines=parts.machines.cache(),
        pods=parts.found_pods,
        targets=targets,
        rendering=parts.configuration.rendering,
        recorder=parts.recorder,
        options=parts.options,
        clock=parts.clock,
    )
