"""VirtualMachineInstanceMigration: observes, asks `phases.decide`, does that one step."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import msgspec

from kubeloop.api.core import Pod
from kubeloop.api.objects import guarded
from kubeloop.api.registry import PODS
from kubeloop.client.errors import BadRequest, NotFound
from kubeloop.client.resource_client import ResourceClient
from kubeloop.client.transport import Transport
from kubeloop.controllers.cache_reader import CacheReader
from kubeloop.controllers.errors import RetryAfter
from kubeloop.controllers.events import EventRecorder
from lab.kubevirt.creation import Creator
from lab.kubevirt.gate import Gate
from lab.kubevirt.instance import current_pod
from lab.kubevirt.lookup import Migrations, Pods
from lab.kubevirt.objects import VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration
from lab.kubevirt.options import Options, migration_options
from lab.kubevirt.patches import Patch
from lab.kubevirt.phases import decide, rejected
from lab.kubevirt.steps import (
    CreateAttachment,
    CreateTarget,
    Step,
    View,
    Wait,
    WriteInstance,
    WriteMigration,
    WriteTarget,
)
from pkg.util import constants

_BUSY = 5.0
"""Seconds until a migration that waits for others looks again by itself, as virt-controller does."""
_UNSEEN = 1.0


@dataclass(eq=False)
class Targets:
    """Creates target pods and their attachment pods."""

    pods: Pods
    creator: Creator
    gate: Gate
    transport: Transport

    def created(self, key: str) -> None:
        """The cache shows the migration's target pod."""
        self.gate.leave(key)

    def forget(self, key: str) -> None:
        """The migration has ended or is gone: what it held is free."""
        self.creator.refusals.forget(key)
        self.gate.leave(key)
        self.gate.wake()

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
        reason = self.gate.enter(key, vmi.status.node_name or "")
        if reason:
            raise RetryAfter(_BUSY, f"waits: {reason}")
        try:
            refusal = await self.creator.launch(vmi, view.migration)
        except BaseException:
            self.gate.leave(key)
            raise
        if refusal is None:
            return None
        self.gate.leave(key)
        return rejected(view) if refusal.by_quota else None

    async def bind(self, view: View) -> None:
        """Give a target that was created while no node fitted its node, as a scheduler would. Raises RetryAfter."""
        target = view.target
        if target is None or target.spec.node_name or target.terminal or target.deleting:
            return
        assert view.vmi is not None
        node = self.creator.node_for(view.vmi, view.migration)
        if node is None:
            raise RetryAfter(_UNSEEN, "no node can run the target pod")
        body = {"metadata": {"name": target.name}, "target": {"apiVersion": "v1", "kind": "Node", "name": node}}
        path = PODS.path(target.namespace, target.name, "binding")
        await self.transport.request("POST", path, body=msgspec.json.encode(body))

    def retry_after(self, key: str) -> float | None:
        """Seconds until the next try, None when the pod is there or on its way."""
        last = self.creator.refusals.last(key)
        return max(0.0, last.not_before - self.creator.clock.loop()) if last else None

    def _may_try(self, view: View) -> None:
        key = view.migration.key
        if self.gate.awaits_pod(key):
            raise RetryAfter(_UNSEEN, "the pod was created a moment ago")
        wait = self.creator.refusals.wait(key, self.creator.clock.loop())
        if wait > 0:
            self.gate.wake()  # There was room for one migration: let the next try.
            raise RetryAfter(wait, "the target pod was refused")
        assert view.vmi is not None
        launchers = self.pods.launchers(view.vmi.key)
        if view.source is None or sum(not pod.terminal for pod in launchers) > 1:
            self.gate.wake()
            raise RetryAfter(_BUSY, "an earlier pod of the VMI has not ended")

    def _unmarked(self, view: View) -> WriteMigration | None:
        """The step that marks the migration as refused, if it was and the mark could not be written then."""
        key = view.migration.key
        last = self.creator.refusals.last(key)
        if last is None or not last.by_quota or not self.creator.refusals.wait(key, self.creator.clock.loop()):
            return None
        return rejected(view)


logger = logging.getLogger(__name__)


@dataclass(eq=False)
class MigrationHandler:
    """One VMIM at a time, one step a call."""

    migration_client: ResourceClient[VirtualMachineInstanceMigration]
    instance_client: ResourceClient[VirtualMachineInstance]
    pod_client: ResourceClient[Pod]
    migrations: Migrations
    instances: CacheReader[VirtualMachineInstance]
    machines: CacheReader[VirtualMachine]
    pods: Pods
    targets: Targets
    recorder: EventRecorder
    options: Options
    # When each migration was first seen in its phase: only the pace depends on it, so it may be lost.
    _seen: dict[str, tuple[str, str, float]] = field(default_factory=dict, init=False)

    async def on_migration_changed(self, key: str, migration: VirtualMachineInstanceMigration | None) -> None:
        """Raises ApiError; RetryAfter where time has to pass."""
        if migration is None:
            self._seen.pop(key, None)
            self.targets.forget(key)
            return
        if migration.phase in constants.FINAL_PHASES:
            self.targets.forget(key)
        view = await self._look(migration)
        if view.target is not None:
            self.targets.created(key)
            await self._bind(view)
        await self._do(view, decide(view))

    async def _bind(self, view: View) -> None:
        if view.vmi_runs and view.migration.phase not in constants.FINAL_PHASES and not view.migration.deleting:
            await self.targets.bind(view)

    async def _look(self, migration: VirtualMachineInstanceMigration) -> View:
        vmi = await self._instance(migration)
        launchers = [pod for pod in self.pods.launchers(migration.vmi_key) if vmi and _created_by(pod, vmi)]
        target = self.pods.target(migration)
        machine = self.machines.get_by_key(migration.vmi_key)
        creator = self.targets.creator
        rendering = creator.rendering(migration.namespace)
        return View(
            migration=migration,
            vmi=vmi,
            source=current_pod(vmi, launchers) if vmi else None,
            target=target,
            attachment=self.pods.attachment(target),
            options=migration_options(self.options, migration, vmi, machine),
            now=creator.clock.stamp(),
            age=self._age(migration),
            rival=self.migrations.rival(migration),
            report_overhead=rendering.reports_overhead,
            claims=await creator.state.pair(vmi, migration) if vmi and rendering.needs_state(vmi) else None,
        )

    async def _instance(self, migration: VirtualMachineInstanceMigration) -> VirtualMachineInstance | None:
        """The VMI. A migration fails without a running one: before that, the server is asked, not the cache."""
        vmi = self.instances.get_by_key(migration.vmi_key)
        runs = vmi is not None and vmi.phase == constants.PHASE_RUNNING
        if runs or migration.phase in constants.FINAL_PHASES:
            return vmi
        try:
            return await self.instance_client.get(name=migration.spec.vmi_name, namespace=migration.namespace)
        except (NotFound, BadRequest):
            return None

    def _age(self, migration: VirtualMachineInstanceMigration) -> float:
        now = self.targets.creator.clock.loop()
        uid, phase, since = self._seen.get(migration.key, ("", "", now))
        if (uid, phase) != (migration.uid, migration.phase):
            since = now
            self._seen[migration.key] = (migration.uid, migration.phase, now)
        return now - since

    async def _do(self, view: View, step: Step) -> None:
        await self._hand_over_claims(view, step)
        match step:
            case WriteMigration():
                await self._write(view.migration, step)
            case WriteInstance(patch=patch):
                assert view.vmi is not None
                await self._write_instance(view.vmi, patch)
            case WriteTarget(patch=patch):
                assert view.target is not None
                await self.pod_client.merge_patch(patch, name=view.target.name, namespace=view.target.namespace)
            case CreateTarget():
                await self._create_target(view)
            case CreateAttachment():
                assert view.vmi is not None
                assert view.target is not None
                await self.targets.creator.attach(view.target, view.vmi, view.migration)
            case Wait(seconds=None):
                return
            case Wait(seconds=seconds):
                assert seconds is not None
                raise RetryAfter(seconds, "the phase lasts")

    async def _hand_over_claims(self, view: View, step: Step) -> None:
        """Before the guest is said to be on the target its claim is the VM's; before a failure is said it goes."""
        if view.claims is None or view.vmi is None or view.claims.source == view.claims.target:
            return
        if isinstance(step, WriteTarget):
            await self.targets.creator.state.hand_over(view.vmi, view.migration)
        elif isinstance(step, WriteMigration) and _phase(step) == constants.PHASE_FAILED:
            await self.targets.creator.state.drop(view.migration)

    async def _create_target(self, view: View) -> None:
        marked = await self.targets.create(view)
        if marked is not None:
            await self._write(view.migration, marked)
        delay = self.targets.retry_after(view.migration.key)
        if delay is not None:
            raise RetryAfter(delay, "no target pod yet")

    async def _write(self, migration: VirtualMachineInstanceMigration, step: WriteMigration) -> None:
        patch = guarded(migration, step.patch)
        try:
            await self.migration_client.merge_patch(
                patch, name=migration.name, namespace=migration.namespace, subresource=step.subresource
            )
        except NotFound:
            return  # Deleted meanwhile.
        phase = _phase(step)
        if phase:
            logger.info("%s: %s → %s", migration.key, migration.phase or "new", phase)
        if step.note is not None:
            self.recorder.event(migration, step.note.type, step.note.reason, step.note.message)

    async def _write_instance(self, vmi: VirtualMachineInstance, patch: Patch) -> None:
        await self.instance_client.merge_patch(guarded(vmi, patch), name=vmi.name, namespace=vmi.namespace)


def _phase(step: WriteMigration) -> str:
    phase: str = step.patch.get("status", {}).get("phase", "")
    return phase


def _created_by(pod: Pod, vmi: VirtualMachineInstance) -> bool:
    return pod.labels.get(constants.LABEL_CREATED_BY) == vmi.uid
