"""Node with the drain taint → a migration for each VMI that runs on it.

Source: kubevirt pkg/virt-controller/watch/drain/evacuation/evacuation.go. All of a node's VMIs get theirs at once; the
migration controller's parallel limits say when each begins. VMIs that an eviction marked (status.evacuationNodeName)
are not played.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from kubeloop.api.core import Node
from kubeloop.client.client import for_each
from kubeloop.controllers.cache_reader import CacheReader
from lab.kubevirt.automatic import MigrationCreator, migrates_on_eviction
from lab.kubevirt.objects import VirtualMachineInstance, VirtualMachineInstanceMigration

logger = logging.getLogger(__name__)

DRAIN_TAINT: Final = "kubevirt.io/drain"
ANNOTATION: Final = "kubevirt.io/evacuationMigration"
PREFIX: Final = "kubevirt-evacuation-"
_PRIORITY: Final = "system-critical"
_BY_NODE = "vmis of a node"


@dataclass(eq=False)
class EvacuationHandler:
    """One node at a time."""

    instances: CacheReader[VirtualMachineInstance]
    creator: MigrationCreator

    def __post_init__(self) -> None:
        self.instances.add_indexer(_BY_NODE, nodes_of)

    async def on_node_changed(self, key: str, node: Node | None) -> None:
        """Raises ApiError."""
        if node is None or not is_drained(node):
            return
        found = self.instances.by_index(_BY_NODE, node.name)
        candidates = [vmi for vmi in found if migrates_on_eviction(vmi) and self.creator.is_free(vmi)]
        if candidates:
            logger.info("node: %s, VMIs: %d, candidates: %d", node.name, len(found), len(candidates))
        await for_each(candidates, lambda vmi: self.creator.create(vmi, PREFIX, {ANNOTATION: node.name}, _PRIORITY))

    def nodes_of_migration(self, migration: VirtualMachineInstanceMigration) -> list[str]:
        """Returns the node that a migration leaves."""
        vmi = self.instances.get_by_key(migration.vmi_key)
        return nodes_of(vmi) if vmi else []


def is_drained(node: Node) -> bool:
    """Reports whether a node has the drain taint."""
    return any(taint.key == DRAIN_TAINT and taint.effect == "NoSchedule" for taint in node.spec.taints or ())


def nodes_of(vmi: VirtualMachineInstance) -> list[str]:
    """Returns the VMI's node, for an index and for events."""
    return [vmi.status.node_name] if vmi.status.node_name else []
