"""What KubeVirt says of a migration's pods and claims. Pure; `evidence` says what of it is believed.

Source: KubeVirt pkg/virt-controller/watch/migration (updateStatus, handleTargetPodHandoff).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from kubeloop.api.core import Pod
from kubeloop.api.meta import Object
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
    """What KubeVirt says of one migration's pods, and of the claims of its VM's state. `created` and `ended` are RFC
    3339, "" where nothing tells."""

    uid: str
    source: str = ""
    source_node: str = ""
    target: str = ""
    source_claim: str = ""
    target_claim: str = ""
    created: str = ""
    ended: str = ""
    active: bool = False
    known: bool = False
    """The migration exists; else only the VMI's status speaks of it."""

    @property
    def claims(self) -> tuple[str, str]:
        return self.source_claim, self.target_claim

    def fits_source(self, pod: Object) -> bool:
        """A source is not younger than its migration."""
        return not self.created or _second(pod) <= self.created[:_WHOLE_SECONDS]

    def fits_target(self, pod: Object) -> bool:
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
    vmi: VirtualMachineInstance | None, migrations: Sequence[VirtualMachineInstanceMigration], names: Collection[str]
) -> list[MigrationPods]:
    """What is said of the launcher pods with these names, and perhaps of others."""
    handed_over = vmi.status.migration_state if vmi else None
    found = [naming_of(each, handed_over) for each in migrations if _names_any(each, handed_over, names)]
    if handed_over is None or not handed_over.migration_uid:
        return found
    if any(naming.uid == handed_over.migration_uid for naming in found):
        return found
    return [*found, of_state(handed_over.migration_uid, handed_over)]


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


def naming_of(migration: VirtualMachineInstanceMigration, handed_over: MigrationState | None) -> MigrationPods:
    """What its status says, and where that leaves something open the VMI's."""
    of_vmi = handed_over if handed_over and handed_over.migration_uid == migration.uid else None
    transitions = migration.status.phase_transition_timestamps or ()
    ends = [t.phase_transition_timestamp or "" for t in transitions if t.phase in constants.FINAL_PHASES]
    return replace(
        of_state(migration.uid, migration.status.migration_state, of_vmi),
        created=migration.metadata.creation_timestamp or "",
        ended=max(ends, default=""),
        active=not is_finished(migration),
        known=True,
    )


def of_state(uid: str, state: MigrationState | None, beside: MigrationState | None = None) -> MigrationPods:
    """`state` wins; `beside` fills what it leaves open."""
    first, second = state or MigrationState(), beside or MigrationState()
    return MigrationPods(
        uid=uid,
        source=first.source_pod or second.source_pod or "",
        source_node=first.source_node or second.source_node or "",
        target=first.target_pod or second.target_pod or "",
        source_claim=first.source_persistent_state_claim or second.source_persistent_state_claim or "",
        target_claim=first.target_persistent_state_claim or second.target_persistent_state_claim or "",
    )


def _second(obj: Object) -> str:
    return (obj.metadata.creation_timestamp or "")[:_WHOLE_SECONDS]
