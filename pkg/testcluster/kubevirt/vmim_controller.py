"""VirtualMachineInstanceMigration: looks at what there is, asks `phases.decide`, does the one step."""

from __future__ import annotations

import logging
from collections.abc import Callable

from pkg.api.core import Pod
from pkg.client.errors import BadRequest, NotFound
from pkg.client.resource_client import ResourceClient
from pkg.generic.cache_reader import CacheReader
from pkg.generic.errors import RetryAfter
from pkg.generic.events import EventRecorder
from pkg.testcluster.kubevirt.creation import Clock
from pkg.testcluster.kubevirt.instance import current_pod
from pkg.testcluster.kubevirt.lookup import Migrations, Pods
from pkg.testcluster.kubevirt.objects import (
    VirtualMachine,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
)
from pkg.testcluster.kubevirt.options import Options, wishes
from pkg.testcluster.kubevirt.patches import Patch, guarded
from pkg.testcluster.kubevirt.phases import decide
from pkg.testcluster.kubevirt.rendering import Rendering
from pkg.testcluster.kubevirt.steps import (
    CreateAttachment,
    CreateTarget,
    Step,
    View,
    Wait,
    WriteInstance,
    WriteMigration,
    WriteTarget,
)
from pkg.testcluster.kubevirt.targets import Targets
from pkg.util import constants

logger = logging.getLogger(__name__)


class MigrationHandler:
    """One VMIM at a time, one step a call."""

    def __init__(
        self,
        *,
        migration_client: ResourceClient[VirtualMachineInstanceMigration],
        instance_client: ResourceClient[VirtualMachineInstance],
        pod_client: ResourceClient[Pod],
        migrations: Migrations,
        instances: CacheReader[VirtualMachineInstance],
        machines: CacheReader[VirtualMachine],
        pods: Pods,
        targets: Targets,
        rendering: Callable[[str], Rendering],
        recorder: EventRecorder,
        options: Options,
        clock: Clock,
    ) -> None:
        self._migration_client = migration_client
        self._instance_client = instance_client
        self._pod_client = pod_client
        self._migrations = migrations
        self._instances = instances
        self._machines = machines
        self._pods = pods
        self._targets = targets
        self._rendering = rendering
        self._recorder = recorder
        self._options = options
        self._clock = clock
        # When each migration was first seen in its phase: only the pace depends on it, so it may be lost.
        self._seen: dict[str, tuple[str, str, float]] = {}

    async def on_migration_changed(self, key: str, migration: VirtualMachineInstanceMigration | None) -> None:
        """Raises ApiError; RetryAfter where time has to pass."""
        if migration is None:
            self._seen.pop(key, None)
            self._targets.forget(key)
            return
        if migration.phase in constants.FINAL_PHASES:
            self._targets.forget(key)
        view = await self._look(migration)
        if view.target is not None:
            self._targets.created(key)
            await self._bind(view)
        await self._do(view, decide(view))

    async def _bind(self, view: View) -> None:
        if (
            view.vmi_runs
            and view.migration.phase not in constants.FINAL_PHASES
            and not view.migration.deleting
        ):
            await self._targets.bind(view)

    async def _look(self, migration: VirtualMachineInstanceMigration) -> View:
        vmi = await self._instance(migration)
        launchers = [pod for pod in self._pods.launchers(migration.vmi_key) if vmi and _created_by(pod, vmi)]
        target = self._pods.target(migration)
        machine = self._machines.get_by_key(migration.vmi_key)
        return View(
            migration=migration,
            vmi=vmi,
            source=current_pod(vmi, launchers) if vmi else None,
            target=target,
            attachment=self._targets.attachment(target),
            wishes=wishes(self._options, migration, vmi, machine),
            now=self._clock.stamp(),
            age=self._age(migration),
            rival=self._migrations.rival(migration),
            report_overhead=self._rendering(migration.namespace).reports_overhead,
        )

    async def _instance(self, migration: VirtualMachineInstanceMigration) -> VirtualMachineInstance | None:
        """The VMI. A migration fails without a running one: before that, the server is asked, not the cache."""
        vmi = self._instances.get_by_key(migration.vmi_key)
        runs = vmi is not None and vmi.phase == constants.PHASE_RUNNING
        if runs or migration.phase in constants.FINAL_PHASES:
            return vmi
        try:
            return await self._instance_client.get(migration.spec.vmi_name, migration.namespace)
        except (NotFound, BadRequest):
            return None

    def _age(self, migration: VirtualMachineInstanceMigration) -> float:
        now = self._clock.loop()
        uid, phase, since = self._seen.get(migration.key, ("", "", now))
        if (uid, phase) != (migration.uid, migration.phase):
            since = now
            self._seen[migration.key] = (migration.uid, migration.phase, now)
        return now - since

    async def _do(self, view: View, step: Step) -> None:
        match step:
            case WriteMigration():
                await self._write(view.migration, step)
            case WriteInstance(patch=patch):
                assert view.vmi is not None
                await self._write_instance(view.vmi, patch)
            case WriteTarget(patch=patch):
                assert view.target is not None
                await self._pod_client.merge_patch(view.target.name, patch, view.target.namespace)
            case CreateTarget():
                await self._create_target(view)
            case CreateAttachment():
                await self._targets.create_attachment(view)
            case Wait(seconds=None):
                return
            case Wait(seconds=seconds):
                assert seconds is not None
                raise RetryAfter(seconds, "the phase lasts")

    async def _create_target(self, view: View) -> None:
        marked = await self._targets.create(view)
        if marked is not None:
            await self._write(view.migration, marked)
        delay = self._targets.retry_after(view.migration.key)
        if delay is not None:
            raise RetryAfter(delay, "no target pod yet")

    async def _write(self, migration: VirtualMachineInstanceMigration, step: WriteMigration) -> None:
        patch = guarded(migration, step.patch)
        try:
            await self._migration_client.merge_patch(
                migration.name, patch, migration.namespace, subresource=step.subresource
            )
        except NotFound:
            return  # Deleted meanwhile.
        phase = step.patch.get("status", {}).get("phase")
        if phase:
            logger.info("%s: %s → %s", migration.key, migration.phase or "new", phase)
        if step.note is not None:
            self._recorder.event(migration, step.note.type, step.note.reason, step.note.message)

    async def _write_instance(self, vmi: VirtualMachineInstance, patch: Patch) -> None:
        await self._instance_client.merge_patch(vmi.name, guarded(vmi, patch), vmi.namespace)


def _created_by(pod: Pod, vmi: VirtualMachineInstance) -> bool:
    return pod.labels.get(constants.LABEL_CREATED_BY) == vmi.uid
