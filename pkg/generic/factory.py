"""Management: every controller of a process, one shared informer and one queue a kind."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, TypeVar

from pkg.api import registry
from pkg.api.admissionregistration import ValidatingWebhookConfiguration
from pkg.api.core import LimitRange, Namespace, Pod, ResourceQuota
from pkg.api.harvesterhci import Setting
from pkg.api.kubevirt import (
    KubeVirt,
    VirtualMachine,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
)
from pkg.api.meta import Object
from pkg.api.mtq import VirtualMachineMigrationResourceQuota
from pkg.api.registry import Resource
from pkg.cache import SharedIndexInformer, wait_for_cache_sync
from pkg.cache.selected import Selected
from pkg.client.client import Client
from pkg.generic.controller import Controller
from pkg.generic.events import EventRecorder
from pkg.util.constants import LABEL_APP
from pkg.util.managedtenantquota.constants import LOCK_SELECTOR
from pkg.workqueue.queue import loop_time

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)

KUBEVIRT_PODS = LABEL_APP
"""A selector: every pod with this label, whatever its value."""


class Management:
    """What `register(management)` functions get: controllers by kind, made when first asked for.

    `workers` is the number of workers of every controller. The client stays the caller's to close.
    """

    def __init__(self, client: Client, *, workers: int = 10) -> None:
        self.client = client
        self._workers = workers
        self._controllers: dict[Resource[Any], Controller[Any]] = {}
        self._recorders: dict[str, EventRecorder] = {}
        self._starter: asyncio.Task[None] | None = None
        self._stopping = False

    def controller(
        self, resource: Resource[T], *, workers: int | None = None, label_selector: str = ""
    ) -> Controller[T]:
        """The kind's controller. `workers` and `label_selector`, which objects its cache holds, count only the
        first time."""
        found: Controller[T] | None = self._controllers.get(resource)
        if found is None:
            client = self.client.resource(resource)
            source = Selected(client, label_selector) if label_selector else client
            found = Controller(
                resource.plural, SharedIndexInformer(source), workers=workers or self._workers, client=client
            )
            self._controllers[resource] = found
            if self._starter is not None:
                self._begin()  # asked for while running
        return found

    def recorder(self, component: str) -> EventRecorder:
        """The component's event recorder; `stop` drains it."""
        if component not in self._recorders:
            self._recorders[component] = EventRecorder(self.client, component)
        return self._recorders[component]

    @property
    def resource_quotas(self) -> Controller[ResourceQuota]:
        return self.controller(registry.RESOURCE_QUOTAS)

    @property
    def limit_ranges(self) -> Controller[LimitRange]:
        return self.controller(registry.LIMIT_RANGES)

    @property
    def namespaces(self) -> Controller[Namespace]:
        return self.controller(registry.NAMESPACES)

    @property
    def pods(self) -> Controller[Pod]:
        """KubeVirt's pods only, launchers and attachments: a cluster has many others."""
        return self.controller(registry.PODS, label_selector=KUBEVIRT_PODS)

    @property
    def virtual_machines(self) -> Controller[VirtualMachine]:
        return self.controller(registry.VIRTUAL_MACHINES)

    @property
    def virtual_machine_instances(self) -> Controller[VirtualMachineInstance]:
        return self.controller(registry.VIRTUAL_MACHINE_INSTANCES)

    @property
    def virtual_machine_instance_migrations(self) -> Controller[VirtualMachineInstanceMigration]:
        return self.controller(registry.VIRTUAL_MACHINE_INSTANCE_MIGRATIONS)

    @property
    def kubevirts(self) -> Controller[KubeVirt]:
        return self.controller(registry.KUBEVIRTS)

    @property
    def settings(self) -> Controller[Setting]:
        return self.controller(registry.SETTINGS)

    @property
    def virtual_machine_migration_resource_quotas(self) -> Controller[VirtualMachineMigrationResourceQuota]:
        return self.controller(registry.VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS)

    @property
    def locks(self) -> Controller[ValidatingWebhookConfiguration]:
        """The webhook configurations that lock a namespace, and no others."""
        return self.controller(registry.VALIDATING_WEBHOOK_CONFIGURATIONS, label_selector=LOCK_SELECTOR)

    async def start(self) -> None:
        """Start every informer and return; workers begin by themselves as soon as all informers have synced.

        A kind that is not installed holds nobody up.
        """
        self._begin()

    async def wait_for_sync(self, timeout: float | None = None) -> bool:
        """Wait until every cache in use has synced, at most `timeout` seconds; whether they have."""
        return await wait_for_cache_sync(*self._informers(), timeout=timeout)

    async def stop(self, timeout: float = 10.0) -> None:
        """Drain: workers finish what is queued, events are written, within `timeout` seconds; then all ends."""
        self._stopping = True
        deadline = loop_time() + timeout
        if self._starter is not None:
            await _end(self._starter)
        await asyncio.gather(*(controller.stop(timeout) for controller in self._controllers.values()))
        left = max(0.0, deadline - loop_time())
        await asyncio.gather(*(recorder.stop(left) for recorder in self._recorders.values()))
        await asyncio.gather(*(informer.stop() for informer in self._informers()))

    def synced(self) -> bool:
        """Whether every cache in use holds what the server had."""
        return not self.unsynced()

    def unsynced(self) -> list[str]:
        """The kinds whose cache has not synced."""
        return [c.name for c in self._controllers.values() if not c.informer.has_synced()]

    def healthy(self) -> list[str]:
        """What is wrong, a line each: dead workers, ended informers, stale watches. Empty when nothing is."""
        if self._stopping:
            return []
        now = loop_time()
        workers = [problem for c in self._controllers.values() for problem in c.healthy()]
        return workers + [problem for informer in self._informers() for problem in informer.problems(now)]

    def _informers(self) -> list[SharedIndexInformer[Any]]:
        return [controller.informer for controller in self._controllers.values()]

    def _begin(self) -> None:
        for informer in self._informers():
            informer.start()
        if self._starter is not None:
            self._starter.cancel()  # the new one waits for the old ones' caches too
        self._starter = asyncio.create_task(self._start_workers(), name="start of workers")

    async def _start_workers(self) -> None:
        await self.wait_for_sync()
        log.info("caches synced: %s", ", ".join(c.name for c in self._controllers.values()))
        for controller in self._controllers.values():
            controller.start_workers()


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
