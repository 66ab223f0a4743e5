"""VirtualMachineInstanceMigration: observes, asks `phases.decide`, does that one step."""

import logging
from dataclasses import dataclass, field
from typing import Any

from kubeloop.api.core import Pod
from kubeloop.api.meta import Object, now_rfc3339
from kubeloop.client.errors import BadRequest, NotFound
from kubeloop.client.resource_client import ResourceClient
from kubeloop.controllers.controller import Controller
from kubeloop.controllers.errors import RetryAfter
from lab.kubevirt.creation import Creator, Refused
from lab.kubevirt.gate import Gate
from lab.kubevirt.instance import current_pod
from lab.kubevirt.lookup import Migrations, Pods
from lab.kubevirt.objects import VirtualMachineInstance, VirtualMachineInstanceMigration, write
from lab.kubevirt.options import Ages, MigrationOptions, StandInOptions
from lab.kubevirt.phases import Create, Step, View, Wait, Write, decide, rejection
from pkg.util import constants
from pkg.util.kubevirt.claims import keeps_state
from pkg.util.kubevirt.migration import is_finished

logger = logging.getLogger(__name__)

_BUSY = 5.0
"""Seconds until a migration that waits for others looks again by itself, as virt-controller does."""


@dataclass(eq=False)
class MigrationHandler:
    """Handles one VMIM at a time, one step a call."""

    migration_client: ResourceClient[VirtualMachineInstanceMigration]
    vmis: Controller[VirtualMachineInstance]
    migrations: Migrations
    pods: Pods
    creator: Creator
    gate: Gate
    options: StandInOptions
    # The time of each migration in its phase.
    _ages: Ages = field(default_factory=Ages, init=False)

    async def on_migration_changed(self, key: str, migration: VirtualMachineInstanceMigration | None) -> None:
        """Raises ApiError; RetryAfter where time has to pass."""
        if migration is None or is_finished(migration):
            self.creator.refusals.forget(key)
            self.gate.leave(key)
            self.gate.wake()
        if migration is None:
            self._ages.forget(key)
            return
        view = await self._look(migration)
        if view.target is not None:
            self.gate.leave(key)
            await self._bind(view, view.target)
        await self._do(view, decide(view))

    async def _look(self, migration: VirtualMachineInstanceMigration) -> View:
        vmi, configuration = await self._vmi(migration), self.creator.configuration
        launchers = self.pods.launchers(migration.vmi_key)
        own_launchers = [pod for pod in launchers if vmi and pod.labels.get(constants.LABEL_CREATED_BY) == vmi.uid]
        target = self.pods.target(migration)
        has_state = vmi is not None and keeps_state(vmi, configuration.rendering(migration.namespace).profile)
        return View(
            migration=migration,
            vmi=vmi,
            source=current_pod(vmi, own_launchers) if vmi else None,
            target=target,
            attachment=next(iter(self.pods.attachments(target)), None),
            options=MigrationOptions.of(self.options, migration),
            now=now_rfc3339(),
            age=self._ages.of(migration.key, (migration.uid, migration.phase)),
            rival=self.migrations.has_rival(migration),
            report_overhead=configuration.reports_overhead,
            claims=await self.creator.state.pair(vmi, migration) if vmi and has_state else None,
        )

    async def _vmi(self, migration: VirtualMachineInstanceMigration) -> VirtualMachineInstance | None:
        """The VMI. A migration fails without a running one: before that, the server is asked, not the cache."""
        vmi = self.vmis.cache().get_by_key(migration.vmi_key)
        if (vmi and vmi.phase == constants.PHASE_RUNNING) or is_finished(migration):
            return vmi
        try:
            return await self.vmis.client.get(name=migration.spec.vmi_name, namespace=migration.namespace)
        except (NotFound, BadRequest):
            return None

    async def _bind(self, view: View, target: Pod) -> None:
        """Binds a target that was created while no node fitted, as a scheduler would. Raises RetryAfter."""
        is_over = view.migration.deleting or is_finished(view.migration) or target.terminal or target.deleting
        if target.spec.node_name or is_over or not view.vmi or not view.vmi_runs:
            return
        node = self.creator.node_for(view.vmi, view.migration)
        if node is None:
            raise RetryAfter(1.0, "no node can run the target pod")
        binding = {"apiVersion": "v1", "kind": "Binding", "target": {"apiVersion": "v1", "kind": "Node", "name": node}}
        await self.creator.pods.create_subresource(
            "binding", binding, Object, name=target.name, namespace=target.namespace
        )

    async def _do(self, view: View, step: Step) -> None:
        await self._hand_over_claims(view, step)
        match step:
            case Write():
                await self._write(view.migration, step)
            case Create.TARGET:
                await self._create_target(view)
            case Create.ATTACHMENT if view.vmi and view.target:
                await self.creator.attach(view.target, view.vmi, view.migration)
            case Wait(seconds=seconds) if seconds is not None:
                raise RetryAfter(seconds, "the phase lasts")

    async def _hand_over_claims(self, view: View, step: Step) -> None:
        """Gives the target's claim to the VM before the guest is reported on the target; deletes it before a failure is
        reported."""
        if not isinstance(step, Write) or not view.claims or not view.vmi or view.claims.source == view.claims.target:
            return
        if step.obj is view.target:
            await self.creator.state.hand_over(view.vmi, view.migration)
        elif step.phase == constants.PHASE_FAILED:
            await self.creator.state.drop(view.migration)

    async def _create_target(self, view: View) -> None:
        """Creates the target as soon as the limits and quota admit it; the migration's condition shows a refusal by
        quota. Raises RetryAfter."""
        try:
            await self._launch(view)
        except Refused as refused:
            if refused.by_quota and (mark := rejection(view)):
                await self._write(view.migration, mark)
            raise

    async def _launch(self, view: View) -> None:
        key, vmi = view.migration.key, view.vmi
        assert vmi is not None
        try:
            self.creator.check(key)
            if view.source is None or sum(not pod.terminal for pod in self.pods.launchers(vmi.key)) > 1:
                raise RetryAfter(_BUSY, "an earlier pod of the VMI has not ended")
        except RetryAfter:
            self.gate.wake()  # There was room for one migration: let the next try.
            raise
        if reason := self.gate.enter(key, vmi.status.node_name or ""):
            raise RetryAfter(_BUSY, f"waits: {reason}")
        try:
            await self.creator.launch(vmi, view.migration)
        except BaseException:
            self.gate.leave(key)
            raise

    async def _write(self, migration: VirtualMachineInstanceMigration, step: Write) -> None:
        clients: dict[type[Object], ResourceClient[Any]] = {
            VirtualMachineInstanceMigration: self.migration_client,
            VirtualMachineInstance: self.vmis.client,
            Pod: self.creator.pods,
        }
        if not await write(clients[type(step.obj)], step.obj, step.patch, step.subresource):
            return
        if step.phase:
            logger.info("%s: %s → %s", migration.key, migration.phase or "new", step.phase)
        if step.event is not None:
            self.creator.recorder.event(migration, *step.event)
