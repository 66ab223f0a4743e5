"""What KubeVirt says of a migration's pods. Pure; `evidence` says what of it is believed.

Source: KubeVirt pkg/virt-controller/watch/migration (updateStatus, handleTargetPodHandoff).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kubeloop.api.core import Pod
from pkg.api.kubevirt import MigrationState, VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.kubevirt.migration import is_finished

_WHOLE_SECONDS = len("2026-01-01T00:00:00")


def migration_of(pod: Pod) -> str:
    """The uid of the migration that a target's launcher or attachment pod is labelled with, "" for any other pod. It
    proves nothing."""
    of_vm = pod.labels.get(constants.LABEL_APP) in (constants.APP_VIRT_LAUNCHER, constants.APP_HOTPLUG_DISK)
    return pod.labels.get(constants.LABEL_MIGRATION_JOB_UID, "") if of_vm else ""


@dataclass(frozen=True, slots=True)
class MigrationPods:
    """What KubeVirt says of one migration's pods. `created` and `ended` are RFC 3339, "" where nothing tells."""

    uid: str
    source: str = ""
    source_node: str = ""
    target: str = ""
    created: str = ""
    ended: str = ""
    active: bool = False
    known: bool = True
    """The migration exists; else only the VMI's status speaks of it."""

    def fits_source(self, pod: Pod) -> bool:
        """A source is not younger than its migration."""
        return not self.created or _second(pod) <= self.created[:_WHOLE_SECONDS]

    def fits_target(self, pod: Pod) -> bool:
        """A target is not older than its migration, nor younger than its end."""
        if self.created and _second(pod) < self.created[:_WHOLE_SECONDS]:
            return False
        return not self.ended or _second(pod) <= self.ended[:_WHOLE_SECONDS]

    def is_source(self, pod: Pod) -> bool:
        """By name; releases that name no source pod name its node."""
        if not self.fits_source(pod):
            return False
        if self.source:
            return pod.name == self.source
        return bool(self.source_node) and pod.spec.node_name == self.source_node

    def is_target(self, pod: Pod) -> bool:
        return bool(self.target) and pod.name == self.target and self.fits_target(pod)

    def is_labelled(self, pod: Pod) -> bool:
        """As a target. Tenants may write that too."""
        return migration_of(pod) == self.uid and self.fits_target(pod)


def namings_of(
    vmi: VirtualMachineInstance | None,
    migrations: Sequence[VirtualMachineInstanceMigration],
    names: Collection[str],
) -> list[MigrationPods]:
    """What is said of the launcher pods with these names, and perhaps of others."""
    handed_over = vmi.status.migration_state if vmi else None
    found = [_naming(each, handed_over) for each in migrations if _names_any(each, handed_over, names)]
    if handed_over is None or not handed_over.migration_uid:
        return found
    if any(naming.uid == handed_over.migration_uid for naming in found):
        return found
    return [*found, _of_state(handed_over.migration_uid, handed_over, None, known=False)]


def _names_any(
    migration: VirtualMachineInstanceMigration, handed_over: MigrationState | None, names: Collection[str]
) -> bool:
    """Whether it may name one of these. KubeVirt keeps finished migrations long after their pods are gone, and
    what they say of those would be read at every decision."""
    if not is_finished(migration) or (handed_over and handed_over.migration_uid == migration.uid):
        return True
    state = migration.status.migration_state
    if state is None:
        return False
    return not state.source_pod or state.source_pod in names or state.target_pod in names


def _naming(migration: VirtualMachineInstanceMigration, handed_over: MigrationState | None) -> MigrationPods:
    of_vmi = handed_over if handed_over and handed_over.migration_uid == migration.uid else None
    own = _of_state(migration.uid, migration.status.migration_state, of_vmi)
    transitions = migration.status.phase_transition_timestamps or ()
    ends = [t.phase_transition_timestamp or "" for t in transitions if t.phase in constants.FINAL_PHASES]
    return MigrationPods(
        uid=migration.uid,
        source=own.source,
        source_node=own.source_node,
        target=own.target,
        created=migration.metadata.creation_timestamp or "",
        ended=max(ends, default=""),
        active=not is_finished(migration),
    )


def _of_state(
    uid: str, state: MigrationState | None, beside: MigrationState | None, *, known: bool = True
) -> MigrationPods:
    """`state` wins; `beside` fills what it leaves open."""
    first, second = state or MigrationState(), beside or MigrationState()
    return MigrationPods(
        uid=uid,
        source=first.source_pod or second.source_pod or "",
        source_node=first.source_node or second.source_node or "",
        target=first.target_pod or second.target_pod or "",
        known=known,
    )


def _second(pod: Pod) -> str:
    return (pod.metadata.creation_timestamp or "")[:_WHOLE_SECONDS]
