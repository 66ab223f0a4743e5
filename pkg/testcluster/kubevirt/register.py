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
    Limits,
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


def register(management: Management, options: Options) -> None:
    """Give the management its handlers; start it afterwards."""
    machines, instances = management.controller(MACHINES), management.controller(INSTANCES)
    migrations, pods = management.controller(MIGRATIONS), management.pods
    clock, recorder = Clock(), management.recorder(COMPONENT)
    configuration = Configuration(management, options)
    found_pods, found_migrations = Pods(pods.cache()), Migrations(migrations.cache())
    placement = Placement(management.controller(NODES).cache(), found_pods)

    def creator() -> Creator:
        refusals = Refusals(options.first_retry, options.max_retry)
        return Creator(pods.client, placement, refusals, recorder, clock)

    launching, migrating = creator(), creator()
    gate = Gate(
        found_migrations,
        instances.cache(),
        found_pods,
        configuration.limits,
        migrations.enqueue_key,
        clock,
    )
    hotplug = Hotplug(pods.client, found_pods, launching, configuration.rendering, clock)
    machine_handler = MachineHandler(machines.client, instances.client, instances.cache(), clock)
    instance_handler = InstanceHandler(
        instances=instances.client,
        machines=machines.client,
        machine_cache=machines.cache(),
        pod_client=pods.client,
        pods=found_pods,
        creator=launching,
        placement=placement,
        ending=Ending(
            pod_client=pods.client,
            pods=found_pods,
            migrations=found_migrations,
            machines=machines.cache(),
            options=options,
            clock=clock,
        ),
        hotplug=hotplug,
        rendering=configuration.rendering,
        clock=clock,
    )
    migration_handler = MigrationHandler(
        migration_client=migrations.client,
        instance_client=instances.client,
        pod_client=pods.client,
        migrations=found_migrations,
        instances=instances.cache(),
        machines=machines.cache(),
        pods=found_pods,
        targets=Targets(
            pods=found_pods,
            creator=migrating,
            placement=placement,
            gate=gate,
            hotplug=hotplug,
            rendering=configuration.rendering,
            clock=clock,
            transport=management.client.transport,
        ),
        rendering=configuration.rendering,
        recorder=recorder,
        options=options,
        clock=clock,
    )
    machines.on_change("vm-controller", machine_handler.on_machine_changed)
    instances.on_change("vmi-controller", instance_handler.on_instance_changed)
    migrations.on_change("migration-controller", migration_handler.on_migration_changed)
    operator_handler = OperatorHandler(management.kubevirts.client, gate, options)
    management.kubevirts.on_change("virt-operator", operator_handler.on_kubevirt_changed)
    wakeups.connect(management, found_pods, found_migrations, launching.refusals, migrating.refusals)
