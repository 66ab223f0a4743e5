"""VirtualMachineInstance → launcher pod, its status, and the end of pods that are no longer needed."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kubeloop.api.core import Pod
from kubeloop.api.meta import Condition, from_rfc3339
from kubeloop.client.errors import Conflict, Invalid, NotFound
from kubeloop.client.resource_client import ResourceClient
from kubeloop.controllers.cache_reader import CacheReader
from kubeloop.controllers.errors import RetryAfter
from lab.kubevirt import names
from lab.kubevirt.creation import Clock, Creator
from lab.kubevirt.instance import current_pod, ended_as, is_running, leftovers, refused_patch, status_patch, wants_pod
from lab.kubevirt.lookup import Migrations, Pods, is_active, owner_name
from lab.kubevirt.objects import VirtualMachine, VirtualMachineInstance, VolumeStatus
from lab.kubevirt.options import Options, migration_options
from lab.kubevirt.patches import Patch, as_json_patch, conditions_with
from lab.kubevirt.pod import hotplugged
from lab.kubevirt.state_claims import volume_status
from pkg.api.kubevirt import AttachmentPod
from pkg.util import constants

logger = logging.getLogger(__name__)

_JUST_NOW = 2.0
"""Seconds. Timestamps on objects are whole seconds: what ended so recently is taken to have ended now."""


@dataclass(eq=False)
class Ending:
    """Ends the left-over launchers of one VMI, each when its time has come."""

    pod_client: ResourceClient[Pod]
    pods: Pods
    migrations: Migrations
    machines: CacheReader[VirtualMachine]
    options: Options
    clock: Clock
    # By uid, as a loop time. Forgotten at a restart: then it follows from the migration's endTimestamp.
    _due: dict[str, float] = field(default_factory=dict, init=False)
    # Since when, by uid, a finished launcher was seen; only with finished_linger.
    _finished: dict[str, float] = field(default_factory=dict, init=False)

    async def reconcile(self, vmi: VirtualMachineInstance, launchers: list[Pod]) -> float | None:
        """End what is due; seconds until the next is, None when nothing is left. Raises ApiError."""
        soonest: float | None = None
        for pod in leftovers(vmi, launchers, lambda uid: is_active(self.migrations.by_uid(vmi.key, uid))):
            remaining = self._remaining(vmi, pod)
            if remaining <= 0:
                await self._end(vmi, pod)
            elif soonest is None or remaining < soonest:
                soonest = remaining
        for pod in launchers:
            if pod.terminal:
                self._due.pop(pod.uid, None)
                await self._delete_attachments(pod)
                stays = await self._clear_away(pod)
                soonest = stays if soonest is None else min(soonest, stays or soonest)
        return soonest

    async def _clear_away(self, pod: Pod) -> float | None:
        """Delete a finished launcher when it has stayed long enough; seconds until then, None: it stays."""
        if self.options.finished_linger == math.inf or pod.deleting:
            return None
        now = self.clock.loop()
        since = self._finished.setdefault(pod.uid, now)
        remaining = round(since + self.options.finished_linger - now, 6)
        if remaining > 0:
            return remaining
        del self._finished[pod.uid]
        await delete_pod(self.pod_client, pod)
        return None

    def _remaining(self, vmi: VirtualMachineInstance, pod: Pod) -> float:
        now = self.clock.loop()
        if pod.uid not in self._due:
            self._due[pod.uid] = now + max(0.0, self._linger(vmi, pod) - self._elapsed(vmi))
        return round(self._due[pod.uid] - now, 6)

    def _linger(self, vmi: VirtualMachineInstance, pod: Pod) -> float:
        state = vmi.status.migration_state
        left_well = ended_as(vmi, pod) == "Succeeded"
        own = pod.labels.get(constants.LABEL_MIGRATION_JOB_UID, "")
        uid = (state.migration_uid or "") if left_well and state else own
        migration = self.migrations.by_uid(vmi.key, uid)
        asked = migration_options(self.options, migration, vmi, self.machines.get_by_key(vmi.key))
        return asked.source_linger if left_well else asked.target_linger

    def _elapsed(self, vmi: VirtualMachineInstance) -> float:
        state = vmi.status.migration_state
        try:
            ended = from_rfc3339((state.end_timestamp if state else None) or "")
        except ValueError:
            return 0.0
        elapsed = self.clock.wall() - ended
        return elapsed if elapsed > _JUST_NOW else 0.0

    async def _end(self, vmi: VirtualMachineInstance, pod: Pod) -> None:
        await self._delete_attachments(pod)
        phase = ended_as(vmi, pod)
        if not phase:
            await delete_pod(self.pod_client, pod)
        else:
            await self._finish(pod, phase)
        logger.info("%s: launcher %s ended %s", vmi.key, pod.name, phase or "by deletion")

    async def _finish(self, pod: Pod, phase: str) -> None:
        try:
            await self.pod_client.merge_patch(
                ended_status(pod, phase, self.clock.stamp()),
                name=pod.name,
                namespace=pod.namespace,
                subresource="status",
            )
        except NotFound:
            logger.debug("pod %s is gone", pod.key)

    async def _delete_attachments(self, launcher: Pod) -> None:
        for attachment in self.pods.attachments(launcher):
            if not attachment.deleting:
                await delete_pod(self.pod_client, attachment)


def ended_status(pod: Pod, phase: str, now: str) -> dict[str, Any]:
    """The merge patch of /status of a pod whose containers have ended."""
    changes = [
        Condition(type=kind, status="False", reason="PodCompleted", last_transition_time=now)
        for kind in ("Ready", "ContainersReady")
    ]
    conditions = conditions_with(pod.status.conditions, *changes)
    status: dict[str, Any] = {"phase": phase}
    if conditions is not None:
        status["conditions"] = msgspec.to_builtins(conditions)
    return {"status": status}


async def delete_pod(pods: ResourceClient[Pod], pod: Pod) -> None:
    """Delete exactly this pod, if it is still there."""
    try:
        await pods.delete(name=pod.name, namespace=pod.namespace, uid=pod.uid)
    except NotFound:
        logger.debug("pod %s is gone", pod.key)


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
        if sorted(after, key=_name) == sorted(before, key=_name):
            return None
        return {"status": {"volumeStatus": msgspec.to_builtins(after)}}


def _volume_status(name: str, attachment: Pod | None) -> VolumeStatus:
    if attachment is None:
        return VolumeStatus(name=name, phase="Pending")
    reference = AttachmentPod(attach_pod_name=attachment.name, attach_pod_uid=attachment.uid)
    phase = "Ready" if is_running(attachment) else "AttachedToNode"
    return VolumeStatus(name=name, phase=phase, hotplug_volume=reference)


def _name(status: VolumeStatus) -> str:
    return status.name


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
        now, report = self.creator.clock.stamp(), rendering.reports_overhead
        patch = status_patch(vmi, launchers, now, report_overhead=report)
        if patch is None:
            patch = self.hotplug.status_patch(vmi, launchers)
        if patch is None and rendering.needs_state(vmi):
            patch = volume_status(vmi, await self._state_claim(vmi))
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

    async def _state_claim(self, vmi: VirtualMachineInstance) -> str:
        """The claim that the VMI's launcher uses. Raises RetryAfter while it is refused."""
        self.creator.may_try(vmi.key, "launcher")
        made = await self.creator.before(vmi.key, vmi.namespace, self.creator.state.of_instance(vmi))
        if isinstance(made, str):
            return made
        raise self.creator.again(made)

    async def _launch(self, vmi: VirtualMachineInstance) -> None:
        self.creator.may_try(vmi.key, "launcher")
        refusal = await self.creator.launch(vmi)
        if refusal is not None:
            patch = refused_patch(vmi, refusal.message, self.creator.clock.stamp())
            if patch is not None:
                await self._write(vmi, patch)
            raise self.creator.again(refusal)

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
        operations = as_json_patch(msgspec.to_builtins(vmi), patch)
        try:
            await self.instances.json_patch(operations, name=vmi.name, namespace=vmi.namespace)
        except NotFound:
            logger.debug("%s is gone", vmi.key)
        except Invalid as error:
            raise Conflict(f"{vmi.key} has changed meanwhile: {error}", status=409) from error


def _owners(pod: Pod) -> set[str]:
    return {ref.uid for ref in pod.metadata.owner_references or ()}
