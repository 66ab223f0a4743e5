"""Everything that the stand-in watches and does, on one screen."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from kubeloop.api.core import Pod, ResourceQuota
from kubeloop.api.meta import Object
from kubeloop.api.objects import guarded
from kubeloop.api.registry import NODES, PERSISTENT_VOLUME_CLAIMS
from kubeloop.client.errors import NotFound
from kubeloop.client.resource_client import ResourceClient
from kubeloop.controllers.reconcile import Handler
from lab.kubevirt.creation import QUICK, Clock, Creator, Placement, Refusals
from lab.kubevirt.gate import Gate
from lab.kubevirt.instance import is_launcher
from lab.kubevirt.lookup import Migrations, Pods, instance_keys, is_active, migration_keys
from lab.kubevirt.objects import (
    INSTANCES,
    MACHINES,
    MIGRATIONS,
    STORAGE_CLASSES,
    VirtualMachineInstance,
)
from lab.kubevirt.options import SCALE_NAMESPACES, Options
from lab.kubevirt.quota_lag import QuotaLag
from lab.kubevirt.rendering import (
    Rendering,
    deployed_configuration,
    limits,
    observed_version,
    rendering,
)
from lab.kubevirt.state_claims import StateClaims
from lab.kubevirt.vm_controller import MachineHandler
from lab.kubevirt.vmi_controller import Ending, Hotplug, InstanceHandler
from lab.kubevirt.vmim_controller import MigrationHandler, Targets
from pkg.api.kubevirt import KubeVirt
from pkg.config.management import Management
from pkg.util import constants
from pkg.util.kubevirt.parallel_migrations import Limits

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)


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
        try:
            await self.kubevirts.merge_patch(
                guarded(kubevirt, {"status": status}),
                name=kubevirt.name,
                namespace=kubevirt.namespace,
                subresource="status",
            )
        except NotFound:
            return  # Deleted meanwhile.
        logger.info("%s: deployed %s", key, version)


def connect(
    management: Management,
    pods: Pods,
    migrations: Migrations,
    gate: Gate,
    launching: Refusals,
    migrating: Refusals,
    lag: QuotaLag,
) -> None:
    """Have every controller told of what concerns it in the other kinds."""
    machine_controller = management.controller(MACHINES)
    instance_controller = management.controller(INSTANCES)
    migration_controller = management.controller(MIGRATIONS)
    machine_controller.watch_related(instance_controller, own_key)
    instance_controller.watch_related(machine_controller, own_key)
    instance_controller.watch_related(management.pods, instances_of(pods))
    instance_controller.watch_related(migration_controller, lambda migration: [migration.vmi_key])
    instance_controller.watch_related(management.resource_quotas, refused_by(launching, lag=lag))
    migration_controller.watch_related(management.pods, migrations_of(pods, migrations))
    migration_controller.watch_related(instance_controller, active_migrations(migrations))
    migration_controller.watch_related(
        management.resource_quotas, refused_by(migrating, gate.is_waiting, lag=lag)
    )


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

    def resolve(pod: Pod) -> Iterable[str]:
        yield from migration_keys(pod)
        for vmi_key in instance_keys(pod):
            yield from _active(migrations, vmi_key)

    return lambda pod: list(resolve(pod))


def active_migrations(migrations: Migrations) -> Callable[[VirtualMachineInstance], list[str]]:
    """The migrations of a VMI that have not ended."""
    return lambda vmi: _active(migrations, vmi.key)


def refused_by(
    refusals: Refusals, is_waiting: Callable[[str], bool] = lambda key: False, *, lag: QuotaLag
) -> Callable[[ResourceQuota], list[str]]:
    """Whatever was refused in a quota's namespace: it is tried again at once when the quota changes or goes.

    Not what `is_waiting` for another reason: three hundred that may not run yet need not be told every time that
    a pod is counted.
    """

    def resolve(quota: ResourceQuota) -> list[str]:
        lag.observe(quota)
        return [key for key in refusals.quota_changed(quota.namespace) if not is_waiting(key)]

    return resolve


def _active(migrations: Migrations, vmi_key: str) -> list[str]:
    return [migration.key for migration in migrations.of(vmi_key) if is_active(migration)]


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
        quotas = management.resource_quotas.cache()
        self.lag = QuotaLag(options.quota_lag, quotas, self.clock.loop)
        self.launching, self.migrating = self._creator(), self._creator()
        self.gate = Gate(
            self.found_migrations,
            self.instances.cache(),
            self.found_pods,
            self.configuration.limits,
            partial(self.migrations.enqueue, immediately=True),
            self.clock,
        )
        self.state = StateClaims(
            management.client.resource(PERSISTENT_VOLUME_CLAIMS),
            management.client.resource(STORAGE_CLASSES),
            self.configuration.rendering,
        )
        self.hotplug = Hotplug(
            self.pod_client, self.found_pods, self.launching, self.configuration.rendering, self.clock
        )

    def _creator(self) -> Creator:
        first, quick = (
            (self.options.max_retry, ()) if self.options.drained_bucket else (self.options.first_retry, QUICK)
        )
        refusals = Refusals(first, self.options.max_retry, quick)
        return Creator(self.pod_client, self.placement, refusals, self.recorder, self.clock, self.lag)


def register(management: Management, options: Options) -> None:
    """Give the management its handlers; start it afterwards."""
    parts = Parts(management, options)
    machines = MachineHandler(
        parts.machines.client, parts.instances.client, parts.instances.cache(), parts.clock
    )
    operator = OperatorHandler(management.kubevirts.client, parts.gate, options)
    prefix = options.namespace_prefix
    parts.machines.on_change("vm-controller", within(prefix, machines.on_machine_changed))
    parts.instances.on_change("vmi-controller", within(prefix, instance_handler(parts).on_instance_changed))
    parts.migrations.on_change(
        "migration-controller", within(prefix, migration_handler(parts).on_migration_changed)
    )
    management.kubevirts.on_change("virt-operator", within(prefix, operator.on_kubevirt_changed))
    launching, migrating = parts.launching.refusals, parts.migrating.refusals
    connect(management, parts.found_pods, parts.found_migrations, parts.gate, launching, migrating, parts.lag)


def within(prefix: str, handle: Handler[T]) -> Handler[T]:
    """The handler for objects of the namespaces that are meant (`Options.namespace_prefix`); not told of others."""

    async def handled(key: str, obj: T | None) -> None:
        if key.startswith(prefix) if prefix else not key.startswith(SCALE_NAMESPACES):
            await handle(key, obj)

    return handled


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
        state=parts.state,
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
        state=parts.state,
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
