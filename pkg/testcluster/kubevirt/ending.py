"""The end of pods that a migration left behind: at once, or after they have counted for a while longer."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from pkg.api.core import Pod
from pkg.api.meta import Condition
from pkg.client.errors import NotFound
from pkg.client.resource_client import ResourceClient
from pkg.generic.cache_reader import CacheReader
from pkg.testcluster.kubevirt.creation import Clock
from pkg.testcluster.kubevirt.instance import ended_as, leftovers
from pkg.testcluster.kubevirt.lookup import Migrations, Pods, is_active
from pkg.testcluster.kubevirt.objects import VirtualMachine, VirtualMachineInstance
from pkg.testcluster.kubevirt.options import Options, wishes
from pkg.testcluster.kubevirt.patches import conditions_with, parse_timestamp
from pkg.util import constants

logger = logging.getLogger(__name__)

_JUST_NOW = 2.0
"""Seconds. Timestamps on objects are whole seconds: what ended so recently is taken to have ended now."""


class Ending:
    """Ends the left-over launchers of one VMI, each when its time has come."""

    def __init__(
        self,
        *,
        pod_client: ResourceClient[Pod],
        pods: Pods,
        migrations: Migrations,
        machines: CacheReader[VirtualMachine],
        options: Options,
        clock: Clock,
    ) -> None:
        self._client = pod_client
        self._pods = pods
        self._migrations = migrations
        self._machines = machines
        self._options = options
        self._clock = clock
        # By uid, as a loop time. Forgotten at a restart: then it follows from the migration's endTimestamp.
        self._due: dict[str, float] = {}

    async def reconcile(self, vmi: VirtualMachineInstance, launchers: list[Pod]) -> float | None:
        """End what is due; seconds until the next is, None when nothing is left. Raises ApiError."""
        soonest: float | None = None
        for pod in leftovers(vmi, launchers, lambda uid: is_active(self._migrations.by_uid(vmi.key, uid))):
            remaining = self._remaining(vmi, pod)
            if remaining <= 0:
                await self._end(vmi, pod)
            elif soonest is None or remaining < soonest:
                soonest = remaining
        for pod in launchers:
            if pod.terminal:
                self._due.pop(pod.uid, None)
                await self._delete_attachments(pod)
        return soonest

    def _remaining(self, vmi: VirtualMachineInstance, pod: Pod) -> float:
        now = self._clock.loop()
        if pod.uid not in self._due:
            self._due[pod.uid] = now + max(0.0, self._linger(vmi, pod) - self._elapsed(vmi))
        return self._due[pod.uid] - now

    def _linger(self, vmi: VirtualMachineInstance, pod: Pod) -> float:
        state = vmi.status.migration_state
        left_well = ended_as(vmi, pod) == "Succeeded"
        own = pod.labels.get(constants.LABEL_MIGRATION_JOB_UID, "")
        uid = (state.migration_uid or "") if left_well and state else own
        migration = self._migrations.by_uid(vmi.key, uid)
        asked = wishes(self._options, migration, vmi, self._machines.get_by_key(vmi.key))
        return asked.source_linger if left_well else asked.target_linger

    def _elapsed(self, vmi: VirtualMachineInstance) -> float:
        state = vmi.status.migration_state
        ended = parse_timestamp(state.end_timestamp) if state else None
        elapsed = self._clock.wall() - ended if ended is not None else 0.0
        return elapsed if elapsed > _JUST_NOW else 0.0

    async def _end(self, vmi: VirtualMachineInstance, pod: Pod) -> None:
        await self._delete_attachments(pod)
        phase = ended_as(vmi, pod)
        if not phase:
            await delete_pod(self._client, pod)
        else:
            await self._finish(pod, phase)
        logger.info("%s: launcher %s ended %s", vmi.key, pod.name, phase or "by deletion")

    async def _finish(self, pod: Pod, phase: str) -> None:
        try:
            await self._client.merge_patch(
                pod.name, ended_status(pod, phase, self._clock.stamp()), pod.namespace, subresource="status"
            )
        except NotFound:
            logger.debug("pod %s is gone", pod.key)

    async def _delete_attachments(self, launcher: Pod) -> None:
        for attachment in self._pods.attachments(launcher):
            if not attachment.deleting:
                await delete_pod(self._client, attachment)


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
        await pods.delete(pod.name, pod.namespace, uid=pod.uid)
    except NotFound:
        logger.debug("pod %s is gone", pod.key)
