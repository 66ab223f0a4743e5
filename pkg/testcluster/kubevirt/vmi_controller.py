"""VirtualMachineInstance → launcher pod, its status, and the end of pods that are no longer needed."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pkg.api.core import Pod
from pkg.client.errors import NotFound
from pkg.client.resource_client import ResourceClient
from pkg.generic.cache_reader import CacheReader
from pkg.generic.errors import RetryAfter
from pkg.testcluster.kubevirt import names
from pkg.testcluster.kubevirt.creation import Clock, Creator, Placement
from pkg.testcluster.kubevirt.ending import Ending, delete_pod
from pkg.testcluster.kubevirt.hotplug import Hotplug
from pkg.testcluster.kubevirt.instance import refused_patch, status_patch, wants_pod
from pkg.testcluster.kubevirt.lookup import Pods, owner_name
from pkg.testcluster.kubevirt.objects import VirtualMachine, VirtualMachineInstance
from pkg.testcluster.kubevirt.patches import Patch, guarded
from pkg.testcluster.kubevirt.pod import launcher_name, launcher_pod
from pkg.testcluster.kubevirt.rendering import Rendering

logger = logging.getLogger(__name__)


class InstanceHandler:
    """One VMI at a time. Every call writes the VMI once at most; what follows from that comes with its event."""

    def __init__(
        self,
        *,
        instances: ResourceClient[VirtualMachineInstance],
        machines: ResourceClient[VirtualMachine],
        machine_cache: CacheReader[VirtualMachine],
        pod_client: ResourceClient[Pod],
        pods: Pods,
        creator: Creator,
        placement: Placement,
        ending: Ending,
        hotplug: Hotplug,
        rendering: Callable[[str], Rendering],
        clock: Clock,
    ) -> None:
        self._instances = instances
        self._machines = machines
        self._machine_cache = machine_cache
        self._pod_client = pod_client
        self._pods = pods
        self._creator = creator
        self._placement = placement
        self._ending = ending
        self._hotplug = hotplug
        self._rendering = rendering
        self._clock = clock

    async def on_instance_changed(self, key: str, vmi: VirtualMachineInstance | None) -> None:
        """Raises ApiError; RetryAfter where time has to pass."""
        uid = vmi.uid if vmi else ""
        known = self._pods.launchers(key)
        await self._delete([pod for pod in known if not vmi or uid not in _owners(pod)])
        if vmi is None:
            self._creator.refusals.forget(key)
            return
        launchers = [pod for pod in known if uid in _owners(pod)]
        if vmi.deleting:
            await self._tear_down(vmi, launchers)
        elif await self._is_abandoned(vmi):
            await self._instances.delete(vmi.name, vmi.namespace, uid=vmi.uid)
        else:
            await self._advance(vmi, launchers)

    async def _advance(self, vmi: VirtualMachineInstance, launchers: list[Pod]) -> None:
        report = self._rendering(vmi.namespace).reports_overhead
        patch = status_patch(vmi, launchers, self._clock.stamp(), report_overhead=report)
        if patch is None:
            patch = self._hotplug.status_patch(vmi, launchers)
        if patch is not None:
            await self._write(vmi, patch)
            return
        if wants_pod(vmi, launchers):
            await self._launch(vmi)
            return
        await self._hotplug.reconcile(vmi, launchers)
        delay = await self._ending.reconcile(vmi, launchers)
        if delay is not None:
            raise RetryAfter(delay, "a pod lingers")

    async def _launch(self, vmi: VirtualMachineInstance) -> None:
        wait = self._creator.refusals.wait(vmi.key, self._clock.loop())
        if wait > 0:
            raise RetryAfter(wait, "the launcher was refused")
        rendering = self._rendering(vmi.namespace)
        pod_key = f"{vmi.namespace}/{launcher_name(vmi)}"
        node = self._placement.choose(pod_key, selector=vmi.spec.node_selector)
        if node is None:
            raise RetryAfter(1.0, "no node can run it")
        body = launcher_pod(vmi, rendering.containers(vmi), overhead=rendering.overhead(vmi), node=node)
        refusal = await self._creator.create(vmi.key, body, vmi, "launcher pod")
        if refusal is not None:
            patch = refused_patch(vmi, refusal.message, self._clock.stamp())
            if patch is not None:
                await self._write(vmi, patch)
            raise RetryAfter(max(0.0, refusal.not_before - self._clock.loop()), refusal.message)

    async def _tear_down(self, vmi: VirtualMachineInstance, launchers: list[Pod]) -> None:
        finalizers = vmi.metadata.finalizers or []
        if launchers:
            await self._delete(launchers)
        elif names.FINALIZER_INSTANCE in finalizers:
            left = [finalizer for finalizer in finalizers if finalizer != names.FINALIZER_INSTANCE]
            await self._write(vmi, {"metadata": {"finalizers": left}})

    async def _is_abandoned(self, vmi: VirtualMachineInstance) -> bool:
        """Whether the VMI's VM is gone. The cache may be behind: the server is asked before anything is deleted."""
        name = owner_name(vmi, "VirtualMachine")
        if not name or self._machine_cache.get(vmi.namespace, name) is not None:
            return False
        try:
            await self._machines.get(name, vmi.namespace)
        except NotFound:
            return True
        return False

    async def _delete(self, pods: list[Pod]) -> None:
        for pod in pods:
            if not pod.deleting:
                await delete_pod(self._pod_client, pod)

    async def _write(self, vmi: VirtualMachineInstance, patch: Patch) -> None:
        try:
            await self._instances.merge_patch(vmi.name, guarded(vmi, patch), vmi.namespace)
        except NotFound:
            logger.debug("%s is gone", vmi.key)


def _owners(pod: Pod) -> set[str]:
    return {ref.uid for ref in pod.metadata.owner_references or ()}
