"""KubeVirt CR with workload updates by live migration → a migration for each VMI whose launcher is of another image.

Source: kubevirt pkg/virt-controller/watch/workload-updater/workload-updater.go. Evictions (method Evict) and hotplug
are not played.
"""

import logging
import random
from dataclasses import dataclass, field
from typing import Final

from kubeloop.client.client import for_each
from kubeloop.controllers.cache_reader import CacheReader
from kubeloop.controllers.errors import RetryAfter
from kubeloop.workqueue.queue import loop_time
from lab.kubevirt.automatic import MigrationCreator
from lab.kubevirt.lookup import Configuration
from lab.kubevirt.objects import KubeVirt, VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util import constants

logger = logging.getLogger(__name__)

ANNOTATION: Final = "kubevirt.io/workloadUpdateMigration"
PREFIX: Final = "kubevirt-workload-update-"
_METHOD: Final = "LiveMigrate"
_AGAIN: Final = 30.0
"""Seconds until the next look while VMIs are outdated."""


@dataclass(eq=False)
class WorkloadUpdateHandler:
    """Handles one KubeVirt at a time, some time after an event."""

    vmis: CacheReader[VirtualMachineInstance]
    creator: MigrationCreator
    configuration: Configuration
    delay: float
    """Seconds."""
    _due: dict[str, float] = field(default_factory=dict, init=False)

    async def on_kubevirt_changed(self, key: str, kubevirt: KubeVirt | None) -> None:
        """Raises ApiError; RetryAfter until it is time, and while VMIs are outdated."""
        if kubevirt is None or not self._updates(kubevirt):
            self._due.pop(key, None)
            return
        if (wait := self._due.setdefault(key, loop_time() + self.delay) - loop_time()) > 0:
            raise RetryAfter(wait, "workload updates are throttled")
        del self._due[key]
        outdated = self._outdated_vmis()
        if not outdated:
            return
        batch = random.sample(outdated, min(len(outdated), self._places()))
        logger.info("workload update: %d outdated, %d migrate now", len(outdated), len(batch))
        await for_each(batch, lambda vmi: self.creator.create(vmi, PREFIX, {ANNOTATION: ""}))
        self._due[key] = loop_time() + _AGAIN
        raise RetryAfter(_AGAIN, "VMIs are outdated")

    def hurry(self, _: VirtualMachineInstanceMigration) -> list[str]:
        """Returns the KubeVirts that look again soon: at each event of a migration, while VMIs are outdated."""
        for key, due in self._due.items():
            self._due[key] = min(due, loop_time() + self.delay)
        return list(self._due)

    @staticmethod
    def _updates(kubevirt: KubeVirt) -> bool:
        strategy = kubevirt.spec.workload_update_strategy
        methods = (strategy.workload_update_methods if strategy else None) or ()
        return kubevirt.status.phase == constants.KUBEVIRT_PHASE_DEPLOYED and _METHOD in methods

    def _outdated_vmis(self) -> list[VirtualMachineInstance]:
        """The VMIs that may migrate and run in another launcher than today's; an unknown one counts as today's."""
        image = self.configuration.launcher_image
        return [
            vmi
            for vmi in self.vmis.list()
            if vmi.status.launcher_container_image_version not in (None, "", image) and self.creator.is_free(vmi)
        ]

    def _places(self) -> int:
        """Returns the number of further migrations that the limit for the cluster allows."""
        return max(
            0, self.configuration.limits().parallel_migrations_per_cluster - len(self.creator.migrations.running())
        )
