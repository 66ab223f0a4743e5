"""A namespace with one VM on a fake API server, and the handler that checks VMs."""

from __future__ import annotations

from typing import Any

from kubeloop.api import registry
from kubeloop.api.core import ResourceQuota
from kubeloop.controllers.errors import RetryAfter
from pkg.api.kubevirt import (
    VIRTUAL_MACHINE_INSTANCE_MIGRATIONS,
    VIRTUAL_MACHINE_INSTANCES,
    VIRTUAL_MACHINES,
    VirtualMachine,
)
from pkg.controller.indexes import LAUNCHERS_BY_VM, index
from pkg.controller.virtualmachine.vm_controller import Handler
from pkg.util.resourcequota.facts import Facts
from tests.decisions import observed
from tests.kinds import Clock, Events, Kind
from tests.objects import limits_text, quota, vm

KEY = "ns1/vm1"


class VmNamespace:
    """A namespace of 1 CPU with the seed's VM in it, and the handler."""

    def __init__(self, found: VirtualMachine | None = None, base: str = limits_text("1", "10Gi")) -> None:
        self.base = base
        self.machines: Kind[Any] = Kind(VIRTUAL_MACHINES)
        self.instances: Kind[Any] = Kind(VIRTUAL_MACHINE_INSTANCES)
        self.quotas: Kind[Any] = Kind(registry.RESOURCE_QUOTAS)
        self.pods: Kind[Any] = Kind(registry.PODS)
        index(Kind(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS).cache, self.pods.cache)
        self.events, self.clock = Events(), Clock()
        self.machines.given(found or vm())
        self.quotas.given(quota({}))
        self.handler = Handler(
            machines=self.machines.client,
            instance_cache=self.instances.cache,
            quotas=self.quotas.client,
            quota_cache=self.quotas.cache,
            pods=self.pods.client,
            pods_of=lambda key: self.pods.cache.by_index(LAUNCHERS_BY_VM, key),
            observer=self,
            events=self.events.recorder,
            clock=self.clock,
        )

    def observe(self, quota: ResourceQuota, now: float) -> Facts:
        return observed(quota, limits=self.base)

    async def handle(self) -> float | None:
        """Seconds after which it wants to be called again, None when it does not."""
        try:
            await self.handler.on_virtual_machine_changed(KEY, self.machines.cached(KEY))
        except RetryAfter as later:
            return later.seconds
        return None

    async def confirmed(self) -> float | None:
        """Called again after the time that it asked for."""
        again = await self.handle()
        assert again is not None
        self.clock.now += again
        return await self.handle()

    @property
    def now(self) -> VirtualMachine:
        found: VirtualMachine = self.machines.now(KEY)
        return found

    @property
    def patches(self) -> list[Any]:
        return self.machines.asked("patch")
