"""A migration as KubeVirt reports it: what it requires of quota, the state that its VMI shows, its pods and claims, its
refusals, and the parallel limits. Pure; `evidence` says which of its fields are trusted.

Source: KubeVirt pkg/virt-controller/watch/migration (updateStatus, handleTargetPodHandoff); Harvester
vmim_controller.go (the state that the VMI shows); Kubernetes apiserver, resourcequota (checkRequest's refusals)."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from kubeloop.api.core import Pod
from kubeloop.api.meta import Object, from_rfc3339
from kubeloop.api.objects import by_creation, condition_is_true
from kubeloop.api.resource_list import ResourceList
from pkg.api.kubevirt import (
    MigrationConfiguration,
    MigrationState,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
)
from pkg.util import constants
from pkg.util.kubevirt.evidence import trusted_status

MIGRATIONS_BY_VMI: Final = "vmi"
"""The index of VMIMs by `namespace/vmiName`."""
Migrations = Sequence[VirtualMachineInstanceMigration]
WHOLE_SECONDS = len("2026-01-01T00:00:00")


class Stage(IntEnum):
    """The stage of a VM's migration, as far as quota is concerned. The greatest of a VM's migrations counts."""

    FINISHED = 0
    ARRIVED = 1
    """The VM lives in its target already, whatever the migration says: only its leftover side may still count."""
    WITHOUT_TARGET = 2
    """No target pod is expected any more, here, or by Harvester's estimate yet: an entry stays, none is added."""
    CREATED = 3
    """Phase unset: virt-controller asks for the target pod next, within milliseconds. Harvester adds nothing yet."""
    ACTIVE = 4
    """Pending or any later phase, one that newer KubeVirt adds too: an entry is needed."""
    REFUSED = 5
    """Like ACTIVE, and quota admission denied its target pod, which KubeVirt has not created since."""


_WITHOUT_PLACE = {*constants.FINAL_PHASES, *constants.WAITING_PHASES, "WaitingForSync", "Synchronizing"}
PRIORITIES = {"system-critical": 100, "user-triggered": 50, "system-maintenance": 20}
"""KubeVirt's order of waiting migrations, the greatest first (pkg/util/migrations); by default 0."""


def is_finished(migration: VirtualMachineInstanceMigration) -> bool:
    return migration.phase in constants.FINAL_PHASES


def takes_place(migration: VirtualMachineInstanceMigration) -> bool:
    """Reports whether the migration, by its phase, takes one of the places that KubeVirt's parallel limits allow (its
    IsRunning): none does that waits for another cluster, perhaps for ever."""
    if migration.phase == constants.PHASE_SCHEDULING:
        return migration.spec.send_to is None
    return migration.phase not in _WITHOUT_PLACE


def abort_requested(migration: VirtualMachineInstanceMigration) -> bool:
    return condition_is_true(migration.status.conditions, constants.CONDITION_ABORT_REQUESTED)


def is_refused(migration: VirtualMachineInstanceMigration) -> bool:
    """Reports whether the migration, which nobody aborts, is Pending because quota admission denied the target pod."""
    is_pending = migration.phase == constants.PHASE_PENDING and not abort_requested(migration)
    return is_pending and condition_is_true(migration.status.conditions, constants.CONDITION_REJECTED_BY_RESOURCE_QUOTA)


def may_attach(migration: VirtualMachineInstanceMigration) -> bool:
    """Reports whether KubeVirt may still create the target's attachment pod."""
    return migration.phase in (constants.PHASE_PENDING, constants.PHASE_SCHEDULING, constants.PHASE_SCHEDULED)


def is_decentralized(migration: VirtualMachineInstanceMigration) -> bool:
    """Reports whether the VM moves to or from another namespace or cluster: no pod is added here. The sender gets no
    target pod, and the receiver's target is its VM's only pod (KubeVirt's spec.sendTo and spec.receive)."""
    return migration.spec.send_to is not None or migration.spec.receive is not None


def stage_of(migration: VirtualMachineInstanceMigration) -> Stage:
    if is_finished(migration):
        return Stage.FINISHED
    # KubeVirt creates no target before utility volumes are detached. During a backup it does, and waits then.
    is_blocked = condition_is_true(migration.status.conditions, constants.CONDITION_BLOCKED_BY_UTILITY_VOLUMES)
    if is_blocked or abort_requested(migration) or migration.deleting or is_decentralized(migration):
        return Stage.WITHOUT_TARGET
    if migration.phase == constants.PHASE_UNSET:
        return Stage.CREATED
    return Stage.REFUSED if is_refused(migration) else Stage.ACTIVE


def migration_ended_at(pod: str, migrations: Iterable[VirtualMachineInstanceMigration]) -> float | None:
    """Returns when the migration that left a launcher pod of this name behind ended, in seconds since the epoch, or
    None if KubeVirt does not report it. Too early a time only shortens the hold."""
    states = [m.status.migration_state for m in sorted(migrations, key=by_creation) if m.status.migration_state]
    of_source = [state for state in states if state.source_pod == pod]
    latest_state = (of_source or [state for state in states if state.target_pod == pod])[-1:]
    return seconds_of(latest_state[0].end_timestamp or "") if latest_state else None


def seconds_of(timestamp: str) -> float | None:
    """Returns an RFC 3339 time, also without a zone, in seconds since the epoch; None for another text."""
    try:
        return from_rfc3339(timestamp + "Z" * (len(timestamp) == WHOLE_SECONDS))
    except ValueError:
        return None


def parse_time(text: str | None) -> float:
    """Returns the seconds since the epoch, or 0 for a text that is no time."""
    return seconds_of(text or "") or 0.0


@dataclass(frozen=True, slots=True)
class Leftover:
    """A side of the VM, or a claim of its state, that quota still counts. `ended_at`: when the migration did (seconds
    since the epoch), None if unknown. `keeps_target_away`: KubeVirt creates no target while it is there."""

    uid: str
    name: str
    usage: ResourceList
    ended_at: float | None
    keeps_target_away: bool = False


def state_of(migration: VirtualMachineInstanceMigration) -> str:
    """Returns the state of a migration that is not finished."""
    if abort_requested(migration):
        return "Aborting migration"
    return "Pending migration" if migration.phase in constants.WAITING_PHASES else "Migrating"


def annotations_for(vmi: VirtualMachineInstance, migrations: Migrations) -> Mapping[str, str | None]:
    """Returns the change of the VMI's annotations. A migration under way wins over finished ones, whichever event came
    last: upstream lets the event of an old, finished migration clear the state of the one that runs. A migration is
    finished when its phase says so or when the VMI does (upstream OnVmiChanged), whichever is seen first."""
    state = trusted_status(vmi).migration_state
    completed_uid = state.migration_uid if state and state.completed else None
    active = [migration for migration in migrations if not (is_finished(migration) or migration.uid == completed_uid)]
    if not active:
        return {key: None for key in constants.VMI_STATE_ANNOTATIONS if key in vmi.annotations}
    current = max(active, key=by_creation)
    desired = {constants.ANNOTATION_MIGRATION_UID: current.uid, constants.ANNOTATION_MIGRATION_STATE: state_of(current)}
    return {key: value for key, value in desired.items() if vmi.annotations.get(key) != value}


def leftover_migration(vmi: VirtualMachineInstance) -> str | None:
    """Returns the UID of an aborted migration whose pods KubeVirt may leave behind (kubevirt issue 5373)."""
    state = trusted_status(vmi).migration_state
    was_aborted = state is not None and state.completed and state.abort_status == "Succeeded"
    return state.migration_uid or None if state is not None and was_aborted else None


def migration_of(pod: Pod) -> str:
    """Returns the migration's uid by a target's launcher or attachment pod, else "". It proves nothing."""
    of_vm = pod.labels.get(constants.LABEL_APP) in (constants.APP_VIRT_LAUNCHER, constants.APP_HOTPLUG_DISK)
    return pod.labels.get(constants.LABEL_MIGRATION_JOB_UID, "") if of_vm else ""


def second_of(obj: Object) -> str:
    """Returns the second in which an object was created, as RFC 3339 without a zone."""
    return (obj.metadata.creation_timestamp or "")[:WHOLE_SECONDS]


@dataclass(frozen=True, slots=True)
class MigrationPods:
    """The pods of one migration, and the claims of its VM's state, as KubeVirt names them. `created_at` and `ended_at`
    are RFC 3339 in whole seconds, "" if unknown."""

    uid: str
    source: str = ""
    source_node: str = ""
    target: str = ""
    source_claim: str = ""
    target_claim: str = ""
    created_at: str = ""
    ended_at: str = ""
    is_active: bool = False
    is_known: bool = False  # the migration exists; else only the VMI's status speaks of it

    @property
    def claims(self) -> tuple[str, str]:
        return self.source_claim, self.target_claim

    def fits_source(self, obj: Object) -> bool:
        """Reports whether the pod or claim is not younger than the migration."""
        return not self.created_at or second_of(obj) <= self.created_at

    def fits_target(self, obj: Object) -> bool:
        """Reports whether the pod or claim is not older than the migration, nor younger than its end."""
        return self.created_at <= second_of(obj) and (not self.ended_at or second_of(obj) <= self.ended_at)

    def is_source(self, pod: Pod) -> bool:
        """Reports whether the pod is the source, by its name; releases that name no source pod name its node."""
        if self.source:
            return pod.name == self.source and self.fits_source(pod)
        return bool(self.source_node) and pod.spec.node_name == self.source_node and self.fits_source(pod)

    def is_target(self, pod: Pod) -> bool:
        return bool(self.target) and pod.name == self.target and self.fits_target(pod)

    def is_labelled(self, pod: Pod) -> bool:
        return migration_of(pod) == self.uid and self.fits_target(pod)


def pods_of_migrations(
    handed_over: MigrationState | None, migrations: Migrations, names: Collection[str]
) -> list[MigrationPods]:
    """Returns the pods of the migrations that may name one of the launcher pods `names`, and perhaps of others, as
    KubeVirt keeps finished ones long after their pods are gone. `handed_over` is the state in the VMI's status."""
    migration_pods = list[MigrationPods]()
    uid = handed_over.migration_uid if handed_over else None
    for migration in migrations:
        state = migration.status.migration_state
        may_name = state and (not state.source_pod or not {state.source_pod, state.target_pod}.isdisjoint(names))
        if may_name or migration.uid == uid or not is_finished(migration):
            migration_pods.append(pods_of(migration, handed_over))
    if handed_over and uid and all(migration.uid != uid for migration in migration_pods):
        migration_pods.append(pods_of_states(uid, handed_over))
    return migration_pods


def pods_of(migration: VirtualMachineInstanceMigration, handed_over: MigrationState | None) -> MigrationPods:
    """Returns the pods that the migration's status names, for unset fields the VMI's status."""
    vmi_state = handed_over if handed_over and handed_over.migration_uid == migration.uid else None
    transitions = migration.status.phase_transition_timestamps or ()
    end_times = [t.phase_transition_timestamp or "" for t in transitions if t.phase in constants.FINAL_PHASES]
    return replace(
        pods_of_states(migration.uid, migration.status.migration_state, vmi_state),
        created_at=second_of(migration),
        ended_at=max(end_times, default="")[:WHOLE_SECONDS],
        is_active=not is_finished(migration),
        is_known=True,
    )


def pods_of_states(uid: str, *states: MigrationState | None) -> MigrationPods:
    """Returns the pods and claims that these states name, each by the first state that names one."""

    def first(field: str) -> str:
        return next((name for state in states if state and (name := getattr(state, field))), "")

    return MigrationPods(
        uid,
        first("source_pod"),
        first("source_node"),
        first("target_pod"),
        first("source_persistent_state_claim"),
        first("target_persistent_state_claim"),
    )


def migration_state_fields(state: MigrationState | None) -> object:
    """Returns the fields of a migration's state whose change makes a difference."""
    return state and (state.end_timestamp, pods_of_states(state.migration_uid or "", state))


def parallel_limit_reason(
    running: Collection[Collection[str]], node: str, limits: MigrationConfiguration | None
) -> str:
    """Returns why a migration away from `node` has to wait, "" if it need not. `running` has the source nodes of every
    migration that runs or has a target pod; more than one while a VMI's nodeName has moved on before its migration."""
    limits = limits or MigrationConfiguration()
    if len(running) >= limits.parallel_migrations_per_cluster:
        return f"{len(running)} migrations run, {limits.parallel_migrations_per_cluster} may"
    outbound, most = sum(node in nodes for nodes in running), limits.parallel_outbound_migrations_per_node
    return f"{outbound} migrations leave {node}, {most} may" if outbound >= most else ""


def refusing_quota(message: str) -> str:
    """Returns the name of the quota that a denial by quota admission names, "" for another denial."""
    return message.partition("exceeded quota: ")[2].partition(",")[0].strip()


def extra_devices_text(message: str, expected: Collection[str]) -> str:
    """Returns as text which devices a refused target requests that its source, which counts as `expected`, does not:
    those of a network that was changed or plugged in, whose definition is a tenant's. "" if there are none."""
    quota_name, requested = refusing_quota(message), message.partition("requested: ")[2].partition(", used:")[0]
    requested_names = {item.partition("=")[0].strip() for item in requested.split(",")}
    device_names = sorted(name for name in requested_names.difference(expected) if "/" in name)
    is_quotable = re.compile(r"[A-Za-z0-9][A-Za-z0-9./_-]*").fullmatch
    if not all(map(is_quotable, [quota_name, *device_names])) or not device_names:
        return ""
    devices = ", ".join(device_names)
    return f"its target asks for {devices}, which its source does not have: the base of {quota_name} has to cover that"
