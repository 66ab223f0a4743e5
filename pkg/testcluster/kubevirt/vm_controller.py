"""VirtualMachine → VirtualMachineInstance, as its run strategy asks, and the VM's status."""

from __future__ import annotations

import logging

from pkg.client.errors import AlreadyExists, Conflict, NotFound
from pkg.client.resource_client import ResourceClient
from pkg.generic.cache_reader import CacheReader
from pkg.testcluster.kubevirt.creation import Clock
from pkg.testcluster.kubevirt.machine import Wish, instance_body, owned_by, status_patch, wish
from pkg.testcluster.kubevirt.objects import VirtualMachine, VirtualMachineInstance
from pkg.testcluster.kubevirt.patches import guarded

logger = logging.getLogger(__name__)


class MachineHandler:
    """One VM at a time: its VMI first, then what its status says."""

    def __init__(
        self,
        machines: ResourceClient[VirtualMachine],
        instances: ResourceClient[VirtualMachineInstance],
        cache: CacheReader[VirtualMachineInstance],
        clock: Clock,
    ) -> None:
        self._machines = machines
        self._instances = instances
        self._cache = cache
        self._clock = clock

    async def on_machine_changed(self, key: str, vm: VirtualMachine | None) -> None:
        """Raises ApiError."""
        if vm is None:
            return
        vmi = self._cache.get_by_key(key)
        if vmi is not None and not owned_by(vmi, vm):
            return  # Somebody's own VMI of the same name: KubeVirt leaves both alone.
        wanted = wish(vm, vmi)
        if wanted is Wish.START:
            await self._start(vm)
        elif wanted is Wish.STOP and vmi is not None:
            await self._stop(vmi)
        patch = status_patch(vm, vmi, self._clock.stamp())
        if patch is not None:
            await self._write_status(vm, patch)

    async def _start(self, vm: VirtualMachine) -> None:
        try:
            await self._instances.create(instance_body(vm), vm.namespace)
        except AlreadyExists:
            return  # The cache does not show it yet, or an earlier one is still going.
        logger.info("started %s", vm.key)

    async def _stop(self, vmi: VirtualMachineInstance) -> None:
        try:
            await self._instances.delete(vmi.name, vmi.namespace, uid=vmi.uid)
        except (NotFound, Conflict):
            return  # Gone, or another one by now.
        logger.info("stopped %s", vmi.key)

    async def _write_status(self, vm: VirtualMachine, patch: dict[str, object]) -> None:
        try:
            await self._machines.merge_patch(vm.name, guarded(vm, patch), vm.namespace, subresource="status")
        except NotFound:
            pass  # Deleted meanwhile.
