"""VirtualMachineInstance → launcher pod, its status, and the end of pods that are no longer needed."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import msgspec

from kubeloop.api.core import Pod
from kubeloop.api.meta import from_rfc3339, now_rfc3339
from kubeloop.api.objects import guarded, set_condition
from kubeloop.client.errors import NotFound
from kubeloop.client.resource_client import ResourceClient
from kubeloop.controllers.cache_reader import CacheReader
from kubeloop.controllers.errors import RetryAfter
from lab.kubevirt import names
from lab.kubevirt.ages import Ages
from lab.kubevirt.creation import Creator, Refused
from lab.kubevirt.instance import current_pod, ended_as, is_running, leftovers, refused_patch, status_patch, wants_pod
from lab.kubevirt.lookup import Migrations, Pods, is_active, owner_name
from lab.kubevirt.objects import VirtualMachine, VirtualMachineInstance
from lab.kubevirt.options import Options, migration_options
from lab.kubevirt.patches import Patch, conditions
from lab.kubevirt.pod import hotplugged
from lab.kubevirt.state_claims import volume_status
from pkg.api.kubevirt import AttachmentPod, VolumeStatus
from pkg.util import constants
from pkg.util.kubevirt.claims import keeps_state

logger = logging.getLogger(__name__)

_JUST_NOW = 2.0
"""Seconds. Timestamps on objects are whole seconds: what ended so recently is taken to have ended now."""


@dataclass(eq=False)
class Ending:
    """Ends the left-over launchers of one VMI, each when its time has come."""

    pod_client: ResourceClient[Pod]
    pods: Pods
    migrations: Migrations
    options: Options
    # Since when each pod, by uid, is left over or has ended.
    _ages: Ages = field(default_factory=Ages, init=False)

    async def reconcile(self, vmi: VirtualMachineInstance, launchers: list[Pod]) -> float | None:
        """End what is due; seconds until the next is, None when nothing is left. Raises ApiError."""
        waits: list[float] = []
        for pod in leftovers(vmi, launchers, lambda uid: is_active(self.migrations.by_uid(vmi.key, uid))):
            age = self._ages.of(pod.uid, already=_ended_before(vmi))
            if (remaining := round(self._linger(vmi, pod) - age, 6)) > 0:
                waits.append(remaining)
            else:
                await self._end(vmi, pod)
        for pod in launchers:
            if pod.terminal:
                await self._delete_attachments(pod)
                waits += await self._clear_away(pod)
        return min(waits, default=None)

    async def _clear_away(self, pod: Pod) -> list[float]:
        """Delete a finished launcher when it has stayed long enough; seconds until then, if it goes at all."""
        if pod.deleting or self.options.finished_linger == math.inf:
            self._ages.forget(pod.uid)
            return []
        remaining = round(self.options.finished_linger - self._ages.of(pod.uid, "ended"), 6)
        if remaining > 0:
            return [remaining]
        await delete_pod(self.pod_client, pod)
        return []

    def _linger(self, vmi: VirtualMachineInstance, pod: Pod) -> float:
        state = vmi.status.migration_state
        left_well = ended_as(vmi, pod) == "Succeeded"
        own = pod.labels.get(constants.LABEL_MIGRATION_JOB_UID, "")
        uid = (state.migration_uid or "") if left_well and state else own
        asked = migration_options(self.options, self.migrations.by_uid(vmi.key, uid))
        return asked.source_linger if left_well else asked.target_linger

    async def _end(self, vmi: VirtualMachineInstance, pod: Pod) -> None:
        await self._delete_attachments(pod)
        phase = ended_as(vmi, pod)
        if not phase:
            await delete_pod(self.pod_client, pod)
        else:
            status = ended_status(pod, phase, now_rfc3339())
            with contextlib.suppress(NotFound):
                await self.pod_client.merge_patch(status, name=pod.name, namespace=pod.namespace, subresource="status")
        logger.info("%s: launcher %s ended %s", vmi.key, pod.name, phase or "by deletion")

    async def _delete_attachments(self, launcher: Pod) -> None:
        for attachment in self.pods.attachments(launcher):
            if not attachment.deleting:
                await delete_pod(self.pod_client, attachment)


def _ended_before(vmi: VirtualMachineInstance) -> float:
    """Seconds since the VMI's last migration ended, as its status says it: known after a restart, too."""
    state = vmi.status.migration_state
    try:
        elapsed = time.time() - from_rfc3339((state.end_timestamp if state else None) or "")
    except ValueError:
        return 0.0
    return elapsed if elapsed > _JUST_NOW else 0.0


def ended_status(pod: Pod, phase: str, now: str) -> Patch:
    """The merge patch of /status of a pod whose containers have ended."""
    after = pod.status.conditions
    for kind in ("Ready", "ContainersReady"):
        after = set_condition(after, kind, "False", reason="PodCompleted", now=now)
    return {"status": {"phase": phase, **conditions(pod.status.conditions, after or [])}}


async def delete_pod(pods: ResourceClient[Pod], pod: Pod) -> None:
    """Delete exactly this pod, if it is still there."""
    with contextlib.suppress(NotFound):
        await pods.delete(name=pod.name, namespace=pod.namespace, uid=pod.uid)


@dataclass(eq=False)
class Hotplug:
    """Keeps the attachment pod of a VMI's present launcher; a migration's target gets its own from the migration."""

    pods: Pods
    creator: Creator

    async def reconcile(self, vmi: VirtualMachineInstance, launchers: Sequence[Pod]) -> None:
        """Raises ApiError; RetryAfter when the pod was refused."""
        launcher = current_pod(vmi, launchers)
        volumes = hotplugged(vmi)
        attachment = self.pods.attachment(launcher)
        if launcher is None or not is_running(launcher):
            return
        if not volumes and attachment is not None and not attachment.deleting:
            await delete_pod(self.creator.pods, attachment)
        if volumes and attachment is None:
            await self.creator.attach(launcher, vmi)

    def status_patch(self, vmi: VirtualMachineInstance, launchers: Sequence[Pod]) -> Patch | None:
        """The merge patch of the VMI's volumeStatus, None when it is right."""
        attachment = self.pods.attachment(current_pod(vmi, launchers))
        plugged = {volume.name for volume in hotplugged(vmi)}
        before = vmi.status.volume_status or []
        after = [status for status in before if status.hotplug_volume is None and status.name not in plugged]
        after += [_volume_status(name, attachment) for name in sorted(plugged)]
        if sorted(after, key=attrgetter("name")) == sorted(before, key=attrgetter("name")):
            return None
        return {"status": {"volumeStatus": msgspec.to_builtins(after)}}


def _volume_status(name: str, attachment: Pod | None) -> VolumeStatus:
    if attachment is None:
        return VolumeStatus(name=name, phase="Pending")
    reference = AttachmentPod(attach_pod_name=attachment.name, attach_pod_uid=attachment.uid)
    phase = "Ready" if is_running(attachment) else "AttachedToNode"
    return VolumeStatus(name=name, phase=phase, hotplug_volume=reference)


@dataclass(eq=False)
class InstanceHandler:
    """One VMI at a time. Every call writes the VMI once at most; what follows from that comes with its event."""

    instances: ResourceClient[VirtualMachineInstance]
    machines: ResourceClient[VirtualMachine]
    machine_cache: CacheReader[VirtualMachine]
    pods: Pods
    creator: Creator
    ending: Ending
    hotplug: Hotplug

    async def on_instance_changed(self, key: str, vmi: VirtualMachineInstance | None) -> None:
        """Raises ApiError; RetryAfter where time has to pass."""
        uid = vmi.uid if vmi else ""
        known = self.pods.launchers(key)
        await self._delete([pod for pod in known if not vmi or uid not in _owners(pod)])
        if vmi is None:
            self.creator.refusals.forget(key)
            return
        launchers = [pod for pod in known if uid in _owners(pod)]
        if vmi.deleting:
            await self._tear_down(vmi, launchers)
        elif await self._is_abandoned(vmi):
            await self.instances.delete(name=vmi.name, namespace=vmi.namespace, uid=vmi.uid)
        else:
            await self._advance(vmi, launchers)

    async def _advance(self, vmi: VirtualMachineInstance, launchers: list[Pod]) -> None:
        rendering = self.creator.rendering(vmi.namespace)
        patch = status_patch(vmi, launchers, now_rfc3339(), report_overhead=rendering.reports_overhead)
        patch = patch or self.hotplug.status_patch(vmi, launchers)
        if patch is None and keeps_state(vmi, rendering.profile):
            patch = volume_status(vmi, await self.creator.claim(vmi))
        if patch is not None:
            await self._write(vmi, patch)
            return
        if wants_pod(vmi, launchers):
            await self._launch(vmi)
            return
        await self.hotplug.reconcile(vmi, launchers)
        delay = await self.ending.reconcile(vmi, launchers)
        if delay is not None:
            raise RetryAfter(delay, "a pod lingers")

    async def _launch(self, vmi: VirtualMachineInstance) -> None:
        try:
            await self.creator.launch(vmi)
        except Refused as refused:
            patch = refused_patch(vmi, refused.refusal.message, now_rfc3339())
            if patch is not None:
                await self._write(vmi, patch)
            raise

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
        if not name or self.machine_cache.get(namespace=vmi.namespace, name=name) is not None:
            return False
        try:
            await self.machines.get(name=name, namespace=vmi.namespace)
        except NotFound:
            return True
        return False

    async def _delete(self, pods: list[Pod]) -> None:
        for pod in pods:
            if not pod.deleting:
                await delete_pod(self.creator.pods, pod)

    async def _write(self, vmi: VirtualMachineInstance, patch: Patch) -> None:
        with contextlib.suppress(NotFound):
            await self.instances.merge_patch(guarded(vmi, patch), name=vmi.name, namespace=vmi.namespace)


def _owners(pod: Pod) -> set[str]:
    return {ref.uid for ref in pod.metadata.owner_references or ()}
