"""Node with the drain taint → a migration for each VMI that runs on it.

Source: kubevirt pkg/virt-controller/watch/drain/evacuation/evacuation.go. Since 1.9 all of a node's VMIs get theirs at
once, before that as many as the parallel limits let run beside those that run already. VMIs that an eviction marked
(status.evacuationNodeName) are not played.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from kubeloop.api.core import Node
from kubeloop.client.client import for_each
from kubeloop.controllers.cache_reader import CacheReader
from kubeloop.controllers.errors import RetryAfter
from lab.kubevirt.automatic import MigrationCreator, migrates_on_eviction
from lab.kubevirt.objects import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.api.kubevirt import MigrationConfiguration

logger = logging.getLogger(__name__)

DRAIN_TAINT: Final = "kubevirt.io/drain"
ANNOTATION: Final = "kubevirt.io/evacuationMigration"
PREFIX: Final = "kubevirt-evacuation-"
_FULL: Final = 5.0
"""Seconds until the next look while no migration may be added."""
_BY_NODE = "vmis of a node"


@dataclass(eq=False)
class EvacuationHandler:
    """Creates migrations for the VMIs of one drained node at a time."""

    vmis: CacheReader[VirtualMachineInstance]
    creator: MigrationCreator
    limits: Callable[[], MigrationConfiguration]

    def __post_init__(self) -> None:
        self.vmis.add_indexer(_BY_NODE, nodes_of)

    async def on_node_changed(self, key: str, node: Node | None) -> None:
        """Raises ApiError; RetryAfter while no more may be created."""
        if node is None or not is_drained(node):
            return
        vmis = self.vmis.by_index(_BY_NODE, node.name)
        candidates = [vmi for vmi in vmis if migrates_on_eviction(vmi) and self.creator.is_free(vmi)]
        selected = candidates if self.creator.has_priorities else candidates[: self._free_places(vmis)]
        if candidates:
            logger.info("node: %s, candidates: %d, selected: %d", node.name, len(candidates), len(selected))
        await for_each(selected, lambda vmi: self.creator.create(vmi, PREFIX, {ANNOTATION: node.name}))
        if len(selected) < len(candidates):
            raise RetryAfter(_FULL, "as many migrate as may")

    def _free_places(self, vmis: Iterable[VirtualMachineInstance]) -> int:
        """Returns the number of further migrations that the limits allow away from the node of these VMIs."""
        running, limits = self.creator.migrations.running(), self.limits()
        keys = {vmi.key for vmi in vmis}
        leaving_count = sum(migration.vmi_key in keys for migration in running)
        free_places = limits.parallel_migrations_per_cluster - len(running)
        return max(0, min(free_places, limits.parallel_outbound_migrations_per_node - leaving_count))

    def nodes_of_migration(self, migration: VirtualMachineInstanceMigration) -> list[str]:
        """Returns the node that a migration leaves."""
        vmi = self.vmis.get_by_key(migration.vmi_key)
        return nodes_of(vmi) if vmi else []


def is_drained(node: Node) -> bool:
    """Reports whether a node has the drain taint."""
    return any(taint.key == DRAIN_TAINT and taint.effect == "NoSchedule" for taint in node.spec.taints or ())


def nodes_of(vmi: VirtualMachineInstance) -> list[str]:
    """Returns the VMI's node, for an index and for events."""
    return [vmi.status.node_name] if vmi.status.node_name else []
