"""VirtualMachineInstance → launcher pod, its status, and the end of pods that are no longer needed."""

import contextlib
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from kubeloop.api.core import Pod
from kubeloop.api.meta import from_rfc3339, now_rfc3339
from kubeloop.api.objects import set_condition
from kubeloop.client.errors import NotFound
from kubeloop.client.resource_client import ResourceClient
from kubeloop.controllers.controller import Controller
from kubeloop.controllers.errors import RetryAfter
from lab.kubevirt import instance, objects
from lab.kubevirt.creation import Creator, Refused
from lab.kubevirt.lookup import Migrations, Pods, is_owned_by, owner_name
from lab.kubevirt.objects import Patch, VirtualMachine, VirtualMachineInstance, delete, write
from lab.kubevirt.options import Ages, MigrationOptions, StandInOptions
from lab.kubevirt.pod import hotplugged_volumes
from pkg.util.kubevirt.claims import keeps_state
from pkg.util.kubevirt.migration import is_finished

logger = logging.getLogger(__name__)

_JUST_NOW = 2.0
"""Seconds. Timestamps on objects are whole seconds: what ended so recently is taken to have ended now."""


@dataclass(eq=False)
class Ending:
    """Ends the left-over launchers of one VMI, each when its time has come."""

    client: ResourceClient[Pod]
    pods: Pods
    migrations: Migrations
    options: StandInOptions
    # The time since each pod, by uid, is left over or has ended.
    _ages: Ages = field(default_factory=Ages, init=False)

    async def reconcile(self, vmi: VirtualMachineInstance, launchers: list[Pod]) -> None:
        """Ends the launchers that are due. Raises ApiError; RetryAfter while some are left."""
        waits: list[float] = []
        for pod in instance.leftovers(vmi, launchers, lambda uid: self._is_under_way(vmi, uid)):
            age = self._ages.of(pod.uid, elapsed=_since_migration(vmi))
            if (remaining := round(self._linger(vmi, pod) - age, 6)) > 0:
                waits.append(remaining)
            else:
                await self._end(vmi, pod)
        for pod in (launcher for launcher in launchers if launcher.terminal):
            await self.delete(self.pods.attachments(pod))
            # A finished launcher is deleted when it has stayed long enough, if it goes at all.
            if pod.deleting or self.options.finished_linger == math.inf:
                self._ages.forget(pod.uid)
            elif (remaining := round(self.options.finished_linger - self._ages.of(pod.uid, "ended"), 6)) > 0:
                waits.append(remaining)
            else:
                await self.delete([pod])
        if waits:
            raise RetryAfter(min(waits), "a pod lingers")

    async def delete(self, pods: Sequence[Pod]) -> None:
        """Deletes the pods that are not being deleted yet."""
        for pod in pods:
            if not pod.deleting:
                await delete(self.client, pod)

    def _is_under_way(self, vmi: VirtualMachineInstance, uid: str) -> bool:
        migration = self.migrations.by_uid(vmi.key, uid)
        return migration is not None and not is_finished(migration)

    def _linger(self, vmi: VirtualMachineInstance, pod: Pod) -> float:
        """Returns the seconds that a source keeps counting; a target of a migration that failed goes at once."""
        if instance.final_phase_of(vmi, pod) != "Succeeded":
            return 0.0
        state = vmi.status.migration_state
        migration = self.migrations.by_uid(vmi.key, (state and state.migration_uid) or "")
        return MigrationOptions.of(self.options, migration).source_linger

    async def _end(self, vmi: VirtualMachineInstance, pod: Pod) -> None:
        await self.delete(self.pods.attachments(pod))
        if phase := instance.final_phase_of(vmi, pod):
            status = completion_patch(pod, phase, now_rfc3339())
            with contextlib.suppress(NotFound):  # kwok writes the status, too: whatever it has written
                await self.client.merge_patch(status, name=pod.name, namespace=pod.namespace, subresource="status")
        else:
            await delete(self.client, pod)
        logger.info("%s: launcher %s ended %s", vmi.key, pod.name, phase or "by deletion")


def _since_migration(vmi: VirtualMachineInstance) -> float:
    """Returns the seconds since the VMI's last migration ended, by its status: known after a restart, too."""
    state = vmi.status.migration_state
    try:
        elapsed = time.time() - from_rfc3339((state.end_timestamp if state else None) or "")
    except ValueError:
        return 0.0
    return elapsed if elapsed > _JUST_NOW else 0.0


def completion_patch(pod: Pod, phase: str, now: str) -> Patch:
    """The merge patch of /status of a pod whose containers have ended."""
    conditions = pod.status.conditions
    for kind in ("Ready", "ContainersReady"):
        conditions = set_condition(conditions, kind, "False", reason="PodCompleted", now=now)
    return {"status": {"phase": phase, **objects.conditions(pod.status.conditions, conditions or [])}}


@dataclass(eq=False)
class VMIHandler:
    """Handles one VMI at a time. Every call writes the VMI once at most; the rest follows with that write's event."""

    vmis: ResourceClient[VirtualMachineInstance]
    vms: Controller[VirtualMachine]
    pods: Pods
    creator: Creator
    ending: Ending

    async def on_vmi_changed(self, key: str, vmi: VirtualMachineInstance | None) -> None:
        """Raises ApiError; RetryAfter where time has to pass."""
        all_launchers = self.pods.launchers(key)
        launchers = [pod for pod in all_launchers if vmi and is_owned_by(pod, vmi)]
        await self.ending.delete([pod for pod in all_launchers if pod not in launchers])
        if vmi is None:
            self.creator.refusals.forget(key)
        elif vmi.deleting:
            await self._tear_down(vmi, launchers)
        elif await self._is_abandoned(vmi):
            await delete(self.vmis, vmi)
        else:
            await self._advance(vmi, launchers)

    async def _advance(self, vmi: VirtualMachineInstance, launchers: list[Pod]) -> None:
        current = instance.current_pod(vmi, launchers)
        attachments = self.pods.attachments(current)
        patch = instance.status_patch(
            vmi, launchers, now_rfc3339(), report_overhead=self.creator.configuration.reports_overhead
        )
        if patch is None:
            has_state = keeps_state(vmi, self.creator.configuration.rendering(vmi.namespace).profile)
            patch = instance.volumes_patch(vmi, attachments, await self.creator.claim(vmi) if has_state else "")
        if patch is not None:
            await write(self.vmis, vmi, patch)
            return
        if instance.wants_pod(vmi, launchers):
            await self._launch(vmi)
            return
        if current is not None and instance.is_running(current):
            # A migration's target gets its attachment pod from the migration.
            if hotplugged_volumes(vmi) and not attachments:
                await self.creator.attach(current, vmi)
            elif not hotplugged_volumes(vmi):
                await self.ending.delete(attachments)
        await self.ending.reconcile(vmi, launchers)

    async def _launch(self, vmi: VirtualMachineInstance) -> None:
        try:
            await self.creator.launch(vmi)
        except Refused as refused:
            if patch := instance.refused_patch(vmi, str(refused), now_rfc3339()):
                await write(self.vmis, vmi, patch)
            raise

    async def _tear_down(self, vmi: VirtualMachineInstance, launchers: list[Pod]) -> None:
        await self.ending.delete(launchers)
        metadata = objects.finalizers(vmi, objects.FINALIZER_VMI, present=False)
        if metadata and not launchers:
            await write(self.vmis, vmi, {"metadata": metadata})

    async def _is_abandoned(self, vmi: VirtualMachineInstance) -> bool:
        """Reports whether the VMI's VM is gone. The cache may be stale: a deletion asks the server first."""
        name = owner_name(vmi, "VirtualMachine")
        if not name or self.vms.cache().get(namespace=vmi.namespace, name=name) is not None:
            return False
        try:
            await self.vms.client.get(name=name, namespace=vmi.namespace)
        except NotFound:
            return True
        return False
