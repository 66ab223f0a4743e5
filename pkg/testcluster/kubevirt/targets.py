"""Target pods: created when the limits allow it, refused by quota, asked for again."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from pkg.api.core import Pod
from pkg.api.registry import PODS
from pkg.client.transport import Transport
from pkg.generic.errors import RetryAfter
from pkg.testcluster.kubevirt.creation import Clock, Creator, Placement
from pkg.testcluster.kubevirt.gate import Gate
from pkg.testcluster.kubevirt.hotplug import Hotplug
from pkg.testcluster.kubevirt.lookup import Pods
from pkg.testcluster.kubevirt.phases import rejected
from pkg.testcluster.kubevirt.pod import attachment_pod, hotplugged, launcher_name, launcher_pod
from pkg.testcluster.kubevirt.refusals import Refusal
from pkg.testcluster.kubevirt.rendering import Rendering
from pkg.testcluster.kubevirt.steps import View, WriteMigration

_BUSY = 5.0
"""Seconds until a migration that waits for others looks again by itself, as virt-controller does."""
_UNSEEN = 1.0


class Targets:
    """Creates target pods and their attachment pods."""

    def __init__(
        self,
        *,
        pods: Pods,
        creator: Creator,
        placement: Placement,
        gate: Gate,
        hotplug: Hotplug,
        rendering: Callable[[str], Rendering],
        clock: Clock,
        transport: Transport,
    ) -> None:
        self._transport = transport
        self._pods = pods
        self._creator = creator
        self._placement = placement
        self._gate = gate
        self._hotplug = hotplug
        self._rendering = rendering
        self._clock = clock

    def attachment(self, target: Pod | None) -> Pod | None:
        """The target's attachment pod."""
        return self._hotplug.attachment(target)

    def created(self, key: str) -> None:
        """The cache shows the migration's target pod."""
        self._gate.leave(key)

    def forget(self, key: str) -> None:
        """The migration has ended or is gone: what it held is free."""
        self._creator.refusals.forget(key)
        self._gate.leave(key)
        self._gate.wake()

    async def create(self, view: View) -> WriteMigration | None:
        """Create the target pod if it may be. The step that marks the migration as refused, if quota refused it.

        Raises RetryAfter while it has to wait, ApiError.
        """
        key = view.migration.key
        if marking := self._unmarked(view):
            return marking
        self._may_try(view)
        vmi = view.vmi
        assert vmi is not None
        reason = self._gate.enter(key, vmi.status.node_name or "")
        if reason:
            raise RetryAfter(_BUSY, f"waits: {reason}")
        try:
            refusal = await self._post(view)
        except BaseException:
            self._gate.leave(key)
            raise
        if refusal is None:
            return None
        self._gate.leave(key)
        return rejected(view) if refusal.by_quota else None

    async def bind(self, view: View) -> None:
        """Give a target that was created while no node fitted its node, as a scheduler would. Raises RetryAfter."""
        target = view.target
        if target is None or target.spec.node_name or target.terminal or target.deleting:
            return
        node = self._choose(view)
        if node is None:
            raise RetryAfter(_UNSEEN, "no node can run the target pod")
        body = {
            "metadata": {"name": target.name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = PODS.path(target.namespace, target.name, "binding")
        await self._transport.request("POST", path, body=msgspec.json.encode(body))

    def retry_after(self, key: str) -> float | None:
        """Seconds until the next try, None when the pod is there or on its way."""
        last = self._creator.refusals.last(key)
        return max(0.0, last.not_before - self._clock.loop()) if last else None

    async def create_attachment(self, view: View) -> None:
        """Create the target's attachment pod. Raises RetryAfter when it was refused, ApiError."""
        assert view.vmi is not None
        assert view.target is not None
        key = view.migration.key
        wait = self._creator.refusals.wait(key, self._clock.loop())
        if wait > 0:
            raise RetryAfter(wait, "the attachment pod was refused")
        configuration = self._rendering(view.migration.namespace).configuration
        body = attachment_pod(view.target, hotplugged(view.vmi), configuration, view.migration)
        if await self._creator.create(key, body, view.migration, "attachment pod") is not None:
            raise RetryAfter(self.retry_after(key) or 0.0, "the attachment pod was refused")

    def _may_try(self, view: View) -> None:
        key = view.migration.key
        if self._gate.awaits_pod(key):
            raise RetryAfter(_UNSEEN, "the pod was created a moment ago")
        wait = self._creator.refusals.wait(key, self._clock.loop())
        if wait > 0:
            self._gate.wake()  # Whoever woke this one has room for another.
            raise RetryAfter(wait, "the target pod was refused")
        assert view.vmi is not None
        launchers = self._pods.launchers(view.vmi.key)
        if view.source is None or sum(not pod.terminal for pod in launchers) > 1:
            self._gate.wake()
            raise RetryAfter(_BUSY, "an earlier pod of the VMI has not ended")

    def _unmarked(self, view: View) -> WriteMigration | None:
        """The step that marks the migration as refused, if it was and the mark could not be written then."""
        key = view.migration.key
        last = self._creator.refusals.last(key)
        if last is None or not last.by_quota or not self._creator.refusals.wait(key, self._clock.loop()):
            return None
        return rejected(view)

    async def _post(self, view: View) -> Refusal | None:
        migration, vmi = view.migration, view.vmi
        assert vmi is not None
        rendering = self._rendering(view.migration.namespace)
        body = launcher_pod(
            vmi,
            rendering.containers(vmi),
            overhead=rendering.overhead(vmi),
            node=self._choose(view),
            migration=migration,
        )
        return await self._creator.create(migration.key, body, migration, "vmi migration target pod")

    def _choose(self, view: View) -> str | None:
        """A node other than the source's."""
        migration, vmi = view.migration, view.vmi
        assert vmi is not None
        selector = {**(vmi.spec.node_selector or {}), **(migration.spec.added_node_selector or {})}
        pod_key = f"{vmi.namespace}/{launcher_name(vmi, migration)}"
        return self._placement.choose(pod_key, avoid={vmi.status.node_name or ""}, selector=selector)
