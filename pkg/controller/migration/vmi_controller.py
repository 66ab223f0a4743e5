"""On a change of a VMI or of a migration of it: show the migration's state, remove the pods of an aborted one.

Source: Harvester vmi_controller.go and the state half of vmim_controller.go; kubevirt issue 5373 for the pods.
"""

from __future__ import annotations

from kubeloop.api.core import Pod
from kubeloop.client.errors import NotFound
from kubeloop.client.resource_client import ResourceClient
from kubeloop.controllers.cache_reader import CacheReader
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.controller.indexes import PODS_BY_MIGRATION
from pkg.controller.migration.state import leftover_migration
from pkg.controller.migration.ui_state import UIStateWriter


class VMIHandler:
    """Handles VirtualMachineInstances."""

    def __init__(self, pod_cache: CacheReader[Pod], pods: ResourceClient[Pod], states: UIStateWriter) -> None:
        self._pod_cache = pod_cache
        self._pods = pods
        self._states = states

    async def on_vmi_changed(self, key: str, vmi: VirtualMachineInstance | None) -> None:
        """A VMI that is being deleted is left alone."""
        if vmi is None:
            self._states.forget(key)
        if vmi is None or vmi.deleting:
            return
        migration_uid = leftover_migration(vmi)
        if migration_uid is not None:
            await self._delete_pods(vmi.namespace, migration_uid)
        await self._states.sync(vmi)

    async def _delete_pods(self, namespace: str, migration_uid: str) -> None:
        for pod in self._pod_cache.by_index(PODS_BY_MIGRATION, f"{namespace}/{migration_uid}"):
            if pod.deleting:
                continue
            try:
                await self._pods.delete(name=pod.name, namespace=namespace, uid=pod.uid)
            except NotFound:
                continue
