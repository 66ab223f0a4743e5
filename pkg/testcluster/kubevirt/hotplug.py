"""Volumes plugged into a running VM: an attachment pod beside the launcher, and what the VMI says of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from pkg.api.core import Pod
from pkg.client.resource_client import ResourceClient
from pkg.generic.errors import RetryAfter
from pkg.testcluster.kubevirt.creation import Clock, Creator
from pkg.testcluster.kubevirt.ending import delete_pod
from pkg.testcluster.kubevirt.instance import current_pod, is_running
from pkg.testcluster.kubevirt.lookup import Pods
from pkg.testcluster.kubevirt.objects import HotplugVolume, VirtualMachineInstance, VolumeStatus
from pkg.testcluster.kubevirt.patches import Patch
from pkg.testcluster.kubevirt.pod import attachment_pod, hotplugged
from pkg.testcluster.kubevirt.rendering import Rendering


class Hotplug:
    """Keeps the attachment pod of a VMI's present launcher; a migration's target gets its own from the migration."""

    def __init__(
        self,
        pod_client: ResourceClient[Pod],
        pods: Pods,
        creator: Creator,
        rendering: Callable[[str], Rendering],
        clock: Clock,
    ) -> None:
        self._client = pod_client
        self._pods = pods
        self._creator = creator
        self._rendering = rendering
        self._clock = clock

    def attachment(self, launcher: Pod | None) -> Pod | None:
        """The launcher's attachment pod."""
        return next(iter(self._pods.attachments(launcher)), None) if launcher else None

    async def reconcile(self, vmi: VirtualMachineInstance, launchers: Sequence[Pod]) -> None:
        """Raises ApiError; RetryAfter when the pod was refused."""
        launcher = current_pod(vmi, launchers)
        volumes = hotplugged(vmi)
        attachment = self.attachment(launcher)
        if launcher is None or not is_running(launcher):
            return
        if not volumes and attachment is not None and not attachment.deleting:
            await delete_pod(self._client, attachment)
        if not volumes or attachment is not None:
            return
        wait = self._creator.refusals.wait(vmi.key, self._clock.loop())
        if wait > 0:
            raise RetryAfter(wait, "the attachment pod was refused")
        body = attachment_pod(launcher, volumes, self._rendering(vmi.namespace).configuration)
        refusal = await self._creator.create(vmi.key, body, vmi, "attachment pod")
        if refusal is not None:
            raise RetryAfter(max(0.0, refusal.not_before - self._clock.loop()), refusal.message)

    def status_patch(self, vmi: VirtualMachineInstance, launchers: Sequence[Pod]) -> Patch | None:
        """The merge patch of the VMI's volumeStatus, None when it is right."""
        attachment = self.attachment(current_pod(vmi, launchers))
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
    reference = HotplugVolume(attach_pod_name=attachment.name, attach_pod_uid=attachment.uid)
    phase = "Ready" if is_running(attachment) else "AttachedToNode"
    return VolumeStatus(name=name, phase=phase, hotplug_volume=reference)


def _name(status: VolumeStatus) -> str:
    return status.name
