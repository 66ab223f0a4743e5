"""Halts a VM that cannot start within its namespace's quota, with the reason; takes the reason away when it runs.

Source: Harvester pkg/controller/master/virtualmachine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from kubeloop.api.core import Pod, ResourceQuota
from kubeloop.client.errors import NotFound
from kubeloop.client.resource_client import ResourceClient
from kubeloop.client.shared_reads import SharedReads
from kubeloop.controllers.cache_reader import CacheReader
from kubeloop.controllers.controller import Controller
from kubeloop.controllers.errors import RetryAfter
from kubeloop.controllers.events import EventRecorder
from pkg.api.kubevirt import VirtualMachine, VirtualMachineInstance
from pkg.config.time_slices import TimeSlices
from pkg.util import constants
from pkg.util.kubevirt.evidence import trusted_status
from pkg.util.resourcequota.managed import is_default
from pkg.util.resourcequota.observe import Observer
from pkg.util.resourcequota.policy import EXACT
from pkg.util.resourcequota.room import has_pod, run_strategy, shortage_of, wants_to_run

LAUNCHERS_BY_VM = "launchers-by-vm"
"""The index of launcher pods by `namespace/<VM name>`."""
CONFIRM = 1.0
"""Seconds that a shortage has to last: status.used follows a pod that ended a little later."""
AGAIN = 5.0
"""Seconds until a VM that wants to run and has no pod yet is re-checked."""


@dataclass(eq=False)
class VMHandler:
    """Handles VirtualMachines."""

    vms: ResourceClient[VirtualMachine]
    vmis: CacheReader[VirtualMachineInstance]
    quotas: Controller[ResourceQuota]
    pods: Controller[Pod]
    observer: Observer
    events: EventRecorder
    clock: Callable[[], float]
    slices: TimeSlices = field(default_factory=TimeSlices)
    _short_since: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._live_lists = SharedReads(self._list_live)

    async def on_virtual_machine_changed(self, key: str, vm: VirtualMachine | None) -> None:
        """Halts the VM if its quotas refuse it for CONFIRM seconds. Raises RetryAfter while the VM wants to run and has
        no pod.
        """
        starts = vm is not None and wants_to_run(vm) and not self.pods.cache().by_index(LAUNCHERS_BY_VM, key)
        if vm is None or vm.deleting or not starts:
            self._short_since.pop(key, None)
            if vm is not None and not vm.deleting:
                await self._clear(vm)
            return
        if await self._shortage(vm, filter(is_default, self.quotas.cache().list(vm.namespace))) is None:
            self._short_since.pop(key, None)
            raise RetryAfter(AGAIN, "no pod yet")
        seconds_left = self._short_since.setdefault(key, self.clock()) + CONFIRM - self.clock()
        if seconds_left > 0:
            raise RetryAfter(seconds_left, "confirming the shortage")
        shortage = await self._live_shortage(vm)
        if shortage is None:
            raise RetryAfter(AGAIN, "the caches are stale, the VM fits")
        await self._halt(vm, shortage)
        self._short_since.pop(key, None)

    async def _shortage(
        self, vm: VirtualMachine, quotas: Iterable[ResourceQuota], pods: Sequence[Pod] | None = None
    ) -> str | None:
        """Returns the shortage of the first quota that refuses the VM. `pods`: these, instead of the cache's."""
        for quota in quotas:
            observed = self.observer.observe(quota, self.clock())
            observed = observed if pods is None else replace(observed, pods=pods)
            await self.slices.work_out(observed, EXACT)
            shortage = shortage_of(vm, observed)
            if shortage is not None:
                return shortage
        return None

    async def _live_shortage(self, vm: VirtualMachine) -> str | None:
        """Returns the shortage by live reads. A pod may be counted while the cache has only the new quota (harvester
        issue 7585)."""
        quotas, pods = await self._live_lists.fresh(vm.namespace)
        return None if has_pod(vm, pods) else await self._shortage(vm, quotas, pods)

    async def _list_live(self, namespace: str) -> tuple[Sequence[ResourceQuota], Sequence[Pod]]:
        """Once for all VMs that wait: a tenant may start all of its own again and again."""
        # The quotas first: a pod that is created in between is then in the list, and there is no shortage.
        selector = f"{constants.LABEL_DEFAULT_RESOURCE_QUOTA}=true"
        quotas = await self.quotas.client.list(namespace, label_selector=selector)
        return quotas, await self.pods.client.list(namespace, label_selector=constants.KUBEVIRT_PODS)

    async def _halt(self, vm: VirtualMachine, shortage: str) -> None:
        spec: dict[str, Any] = {"runStrategy": constants.RUN_STRATEGY_HALTED}
        if vm.spec.running is not None:
            spec["running"] = None  # KubeVirt takes only one of the two
        patch = {
            "metadata": {
                "resourceVersion": vm.metadata.resource_version,
                "annotations": {constants.ANNOTATION_INSUFFICIENT_RESOURCE_QUOTA: str(shortage)},
            },
            "spec": spec,
        }
        with suppress(NotFound):
            await self.vms.merge_patch(patch, name=vm.name, namespace=vm.namespace)
            self.events.event(
                vm,
                "Warning",
                constants.EVENT_INSUFFICIENT_RESOURCE_QUOTA,
                f"Set runStrategy to {constants.RUN_STRATEGY_HALTED}: {shortage}",
            )

    async def _clear(self, vm: VirtualMachine) -> None:
        """Removes the reason once the VM runs: a person who starts it again may want to read it before."""
        if constants.ANNOTATION_INSUFFICIENT_RESOURCE_QUOTA not in vm.annotations:
            return
        vmi = self.vmis.get(namespace=vm.namespace, name=vm.name)
        runs = vmi is not None and trusted_status(vmi).phase == constants.VMI_PHASE_RUNNING
        if not runs or run_strategy(vm) == constants.RUN_STRATEGY_HALTED:
            return
        patch = {"metadata": {"annotations": {constants.ANNOTATION_INSUFFICIENT_RESOURCE_QUOTA: None}}}
        with suppress(NotFound):
            await self.vms.merge_patch(patch, name=vm.name, namespace=vm.namespace)
