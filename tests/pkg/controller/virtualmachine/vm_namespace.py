"""A namespace with one VM on a fake API server, and the handler that checks VMs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kubeloop.api import registry
from kubeloop.api.core import Pod
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINES, VirtualMachine
from pkg.config.settings import Settings
from pkg.controller.virtualmachine.register import register
from tests.kinds import Clock, Events, Server
from tests.objects import annotated_namespace, limits_text, quota, vm
from tests.pkg.controller.wired import Wired

KEY = "ns1/vm1"


class VmNamespace:
    """A namespace of 1 CPU with the seed's VM in it, and the handler."""

    def __init__(
        self,
        machine: VirtualMachine | None = None,
        base: str = limits_text("1", "10Gi"),
        pod: Pod | None = None,
        quota_labels: Mapping[str, str] | None = None,
    ) -> None:
        self.events, self.clock, server = Events(), Clock(), Server()
        management = Wired(server, clock=self.clock)
        register(management, self.events.recorder, Settings())
        self._management = management
        self.machines, self.instances = server.kind(VIRTUAL_MACHINES), server.kind(VIRTUAL_MACHINE_INSTANCES)
        self.quotas, self.pods = server.kind(registry.RESOURCE_QUOTAS), server.kind(registry.PODS)
        self._namespaces = server.kind(registry.NAMESPACES)
        self.grant(base)
        self.machines.given(machine or vm())
        self.quotas.given(quota({}, labels=quota_labels))
        if pod is not None:
            self.pods.given(pod)

    def grant(self, base: str) -> None:
        """The base of its quota."""
        self._namespaces.given(annotated_namespace(base))

    async def handle(self) -> float | None:
        """Seconds after which it wants to be called again, None when it does not."""
        return await self._management.handle(VIRTUAL_MACHINES, KEY)

    async def confirmed(self) -> float | None:
        """Called again after the time that it asked for."""
        again = await self.handle()
        assert again is not None
        self.clock.now += again
        return await self.handle()

    @property
    def now(self) -> VirtualMachine:
        machine: VirtualMachine = self.machines.now(KEY)
        return machine

    @property
    def patches(self) -> list[Any]:
        return self.machines.asked("patch")
