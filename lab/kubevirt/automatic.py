"""Migrations that nobody asked for: which VMIs may get one, and its creation."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kubeloop.api.objects import condition_is_true
from kubeloop.client.errors import ApiError
from kubeloop.client.resource_client import ResourceClient
from kubeloop.controllers.events import WARNING, EventRecorder
from kubeloop.workqueue.queue import loop_time
from lab.kubevirt.lookup import Migrations, Pods
from lab.kubevirt.objects import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util import constants

logger = logging.getLogger(__name__)

_UNSEEN = 300.0
"""Seconds after which a migration that the cache never showed counts as gone (client-go's expectations)."""
_PRIORITY = "system-critical"
_STRATEGIES = ("LiveMigrate", "LiveMigrateIfPossible")


@dataclass(eq=False)
class MigrationCreator:
    """Creates one migration a VMI at a time. One that was created counts until the cache shows it."""

    client: ResourceClient[VirtualMachineInstanceMigration]
    migrations: Migrations
    pods: Pods
    recorder: EventRecorder
    selects: Callable[[str], bool]
    """Reports whether this stand-in serves the namespace of a VMI's key."""
    has_priorities: bool
    _created: dict[str, tuple[str, float]] = field(default_factory=dict, init=False)

    def is_free(self, vmi: VirtualMachineInstance) -> bool:
        """Reports whether a VMI runs, can migrate, and neither migrates nor waits for a pod of its last migration."""
        runs = self.selects(vmi.key) and vmi.phase == constants.PHASE_RUNNING and not vmi.deleting
        if not runs or self._is_expected(vmi):
            return False
        can_migrate = condition_is_true(vmi.status.conditions, "LiveMigratable")
        live = [pod for pod in self.pods.launchers(vmi.key) if not pod.terminal]
        return can_migrate and len(live) <= 1 and not self.migrations.active(vmi.key)

    async def create(self, vmi: VirtualMachineInstance, prefix: str, annotations: Mapping[str, str]) -> None:
        """Raises ApiError, and says so by an event about the VMI."""
        metadata: dict[str, Any] = {"generateName": prefix, "annotations": dict(annotations)}
        priority = {"priority": _PRIORITY} if self.has_priorities else {}
        body = {"metadata": metadata, "spec": {"vmiName": vmi.name, **priority}}
        try:
            migration = await self.client.create(body, namespace=vmi.namespace)
        except ApiError as error:
            self.recorder.event(vmi, WARNING, "FailedCreate", f"Error creating a Migration: {error}")
            raise
        self._created[vmi.key] = (migration.key, loop_time())
        self.recorder.event(vmi, "Normal", "SuccessfulCreate", f"Created Migration {migration.name}")
        logger.info("%s: created migration %s", vmi.key, migration.name)

    def _is_expected(self, vmi: VirtualMachineInstance) -> bool:
        key, since = self._created.get(vmi.key, ("", 0.0))
        if key and self.migrations.get(key) is None and loop_time() - since < _UNSEEN:
            return True
        self._created.pop(vmi.key, None)
        return False


def migrates_on_eviction(vmi: VirtualMachineInstance) -> bool:
    """Reports whether a VMI is to move when its node is drained."""
    return vmi.spec.eviction_strategy in _STRATEGIES
