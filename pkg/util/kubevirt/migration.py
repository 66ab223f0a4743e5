"""What KubeVirt says of a migration: what it asks of its namespace's quota, its pods and claims, its refusals, and
how many may run. Pure; `evidence` says what of it is believed.

Source: KubeVirt pkg/virt-controller/watch/migration (updateStatus, handleTargetPodHandoff).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from kubeloop.api.core import Pod
from kubeloop.api.meta import Object, from_rfc3339
from kubeloop.api.objects import condition_is_true
from kubeloop.api.resource_list import ResourceList
from pkg.api.kubevirt import (
    KubeVirtConfiguration,
    MigrationConfiguration,
    MigrationState,
    VirtualMachineInstanceMigration,
)
from pkg.util import constants

MIGRATIONS_BY_VMI: Final = "vmi"
"""The index of VMIMs by `namespace/vmiName`."""
WHOLE_SECONDS = len("2026-01-01T00:00:00")


class Stage(IntEnum):
    """Where a VM's migration is, as far as quota is concerned. The greatest of a VM's migrations counts."""

    FINISHED = 0
    """Only Succeeded or Failed migrations: the entry goes."""
    ARRIVED = 1
    """The VM lives in its target already, whatever the migration says: only its old side may still count."""
    ANNOUNCED = 2
    """No target pod will be created any more, or none here: an entry that stands stays, none is added."""
    CREATED = 3
    """Phase unset: virt-controller asks for the target pod next, within milliseconds. Harvester adds nothing yet."""
    WANTED = 4
    """Pending or any later phase, one that newer KubeVirt adds too: an entry is needed."""
    REFUSED = 5
    """Likewise, and quota refused its target pod, which KubeVirt has not got past yet."""


_STAGES = {"": Stage.CREATED, constants.PHASE_SUCCEEDED: Stage.FINISHED, constants.PHASE_FAILED: Stage.FINISHED}


PRIORITIES = {"system-critical": 100, "user-triggered": 50, "system-maintenance": 20}
"""By what KubeVirt orders migrations that wait, the greatest first (pkg/util/migrations); one without has 0."""


def is_finished(migration: VirtualMachineInstanceMigration) -> bool:
    """Succeeded or Failed: nothing happens to it any more."""
    return migration.phase in constants.FINAL_PHASES


def abort_requested(migration: VirtualMachineInstanceMigration) -> bool:
    return condition_is_true(migration.status.conditions, constants.CONDITION_ABORT_REQUESTED)


def is_refused(migration: VirtualMachineInstanceMigration) -> bool:
    """Pending because quota admission refused the target pod, and not being aborted."""
    return (
        migration.phase == constants.PHASE_PENDING
        and not abort_requested(migration)
        and condition_is_true(migration.status.conditions, constants.CONDITION_REJECTED_BY_RESOURCE_QUOTA)
    )


def may_attach(migration: VirtualMachineInstanceMigration) -> bool:
    """Whether KubeVirt may still create the target's attachment pod."""
    return migration.phase in (constants.PHASE_PENDING, constants.PHASE_SCHEDULING, constants.PHASE_SCHEDULED)


def is_decentralized(migration: VirtualMachineInstanceMigration) -> bool:
    """Whether the VM moves to or from another namespace or cluster: no pod is added here. The sender gets no target
    pod, and the receiver's target is its VM's only pod (KubeVirt's spec.sendTo and spec.receive)."""
    return migration.spec.send_to is not None or migration.spec.receive is not None


def stage_of(migration: VirtualMachineInstanceMigration) -> Stage:
    """The stage of one migration by itself."""
    stage = _STAGES.get(migration.phase, Stage.WANTED)
    if stage < Stage.CREATED:
        return stage
    if abort_requested(migration) or migration.deleting or is_decentralized(migration):
        return Stage.ANNOUNCED
    # KubeVirt creates no target before utility volumes are detached. During a backup it does, and waits then.
    if condition_is_true(migration.status.conditions, constants.CONDITION_BLOCKED_BY_UTILITY_VOLUMES):
        return Stage.ANNOUNCED
    return Stage.REFUSED if is_refused(migration) else stage


def left_at(pod: str, migrations: Iterable[VirtualMachineInstanceMigration]) -> float | None:
    """When the migration that left a launcher pod of this name behind ended, in seconds since the epoch, as far as
    KubeVirt says so. Too early a time only shortens the hold."""
    ordered = sorted(migrations, key=lambda each: each.metadata.creation_timestamp or "")
    states = [each.status.migration_state for each in ordered if each.status.migration_state]
    left = [state for state in states if state.source_pod == pod]
    last = (left or [state for state in states if state.target_pod == pod])[-1:]
    return seconds_of(last[0].end_timestamp or "") if last else None


def seconds_of(timestamp: str) -> float | None:
    """Seconds since the epoch of an RFC 3339 time, also of one in whole seconds without a zone; None for another."""
    try:
        return from_rfc3339(timestamp + "Z" * (len(timestamp) == WHOLE_SECONDS))
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Leftover:
    """What a migration left behind and quota still counts: a side of its VM, or a claim of its state. `ended` is when
    the migration did, in seconds since the epoch, None where that is not known."""

    uid: str
    name: str
    usage: ResourceList
    ended: float | None


# ---- its pods and claims -------------------------------------------------------------------------------------

_NOTHING = MigrationState()


def migration_of(pod: Pod) -> str:
    """The uid of the migration that a target's launcher or attachment pod is labelled with, "" for any other pod. It
    proves nothing."""
    of_vm = pod.labels.get(constants.LABEL_APP) in (constants.APP_VIRT_LAUNCHER, constants.APP_HOTPLUG_DISK)
    return pod.labels.get(constants.LABEL_MIGRATION_JOB_UID, "") if of_vm else ""


@dataclass(frozen=True, slots=True)
class MigrationPods:
    """What KubeVirt says of one migration's pods, and of the claims of its VM's state. `created` and `ended` are RFC
    3339 in whole seconds, "" where nothing tells."""

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
        return not self.created or (pod.metadata.creation_timestamp or "")[:WHOLE_SECONDS] <= self.created

    def fits_target(self, pod: Object) -> bool:
        """A target is not older than its migration, nor younger than its end."""
        second = (pod.metadata.creation_timestamp or "")[:WHOLE_SECONDS]
        return second >= self.created and (not self.ended or second <= self.ended)

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


def pods_of_migrations(
    handed_over: MigrationState | None, migrations: Sequence[VirtualMachineInstanceMigration], names: Collection[str]
) -> list[MigrationPods]:
    """What is said of the launcher pods with these names, and perhaps of others; `handed_over` is what the VMI's status
    says. KubeVirt keeps finished migrations long after their pods are gone, and what those say would be read at every
    decision."""
    found = list[MigrationPods]()
    uid = handed_over.migration_uid if handed_over else None
    for each in migrations:
        state = each.status.migration_state
        may_name = state and (not state.source_pod or state.source_pod in names or state.target_pod in names)
        if may_name or each.uid == uid or not is_finished(each):
            found.append(pods_of(each, handed_over))
    if handed_over and uid and all(each.uid != uid for each in found):
        found.append(MigrationPods(uid, *said(handed_over)))
    return found


def pods_of(migration: VirtualMachineInstanceMigration, handed_over: MigrationState | None) -> MigrationPods:
    """What its status says, and where that leaves something open the VMI's."""
    of_vmi = handed_over if handed_over and handed_over.migration_uid == migration.uid else None
    transitions = migration.status.phase_transition_timestamps or ()
    ends = [t.phase_transition_timestamp or "" for t in transitions if t.phase in constants.FINAL_PHASES]
    return MigrationPods(
        migration.uid,
        *said(migration.status.migration_state, of_vmi),
        created=(migration.metadata.creation_timestamp or "")[:WHOLE_SECONDS],
        ended=max(ends, default="")[:WHOLE_SECONDS],
        active=not is_finished(migration),
        known=True,
    )


def said(state: MigrationState | None, other: MigrationState | None = None) -> tuple[str, str, str, str, str]:
    """The pods and claims that `state` names, and what it leaves open the other one, as MigrationPods has them."""
    one, two = state or _NOTHING, other or _NOTHING
    return (
        one.source_pod or two.source_pod or "",
        one.source_node or two.source_node or "",
        one.target_pod or two.target_pod or "",
        one.source_persistent_state_claim or two.source_persistent_state_claim or "",
        one.target_persistent_state_claim or two.target_persistent_state_claim or "",
    )


def read_of(state: MigrationState | None) -> object:
    """What is read of a migration's state: that much of a change makes a difference."""
    return state and (state.migration_uid, state.end_timestamp, said(state))


# ---- how many may run ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limits:
    """How many migrations may run: in the cluster, and away from one node. KubeVirt's own where nothing is given."""

    per_cluster: int = 5
    per_node: int = 2


USUAL_LIMITS: Final = Limits()


def limits_of(configuration: KubeVirtConfiguration, default: Limits = USUAL_LIMITS) -> Limits:
    """What the KubeVirt CR says; `default` where it says nothing."""
    given = configuration.migrations or MigrationConfiguration()
    cluster, node = given.parallel_migrations_per_cluster, given.parallel_outbound_migrations_per_node
    return Limits(default.per_cluster if cluster is None else cluster, default.per_node if node is None else node)


def hindrance(running: Iterable[Collection[str]], node: str, limits: Limits) -> str:
    """Why a migration away from `node` has to wait, "" when it need not.

    `running` has the source nodes of every migration that runs or has a target pod already; more than one while
    a VMI's nodeName has moved on and its migration has not ended.
    """
    sources = list(running)
    if len(sources) >= limits.per_cluster:
        return f"{len(sources)} migrations run, {limits.per_cluster} may"
    outbound = sum(node in nodes for nodes in sources)
    return f"{outbound} migrations leave {node}, {limits.per_node} may" if outbound >= limits.per_node else ""


# ---- its refusals, as KubeVirt quotes them in its events. Source: kubernetes apiserver, resourcequota (checkRequest)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9./_-]*")
_EXCEEDED, _REQUESTED, _USED = "exceeded quota: ", "requested: ", ", used:"


def refusing_quota(message: str) -> str:
    """The name of the quota that a refusal by quota admission names, "" for another refusal."""
    _before, found, rest = message.partition(_EXCEEDED)
    return rest.partition(",")[0].strip() if found else ""


def of_devices(message: str, expected: Collection[str]) -> str:
    """What a refused target asks for that its source does not count: a device of a network that was changed or plugged
    in, whose definition is a tenant's. `expected`: what quota counts of the source. "": nothing of that kind."""
    base = refusing_quota(message)
    _before, _found, rest = message.partition(_REQUESTED)
    asked = {each.partition("=")[0].strip() for each in rest.partition(_USED)[0].split(",")}
    other = sorted(name for name in asked.difference(expected) if "/" in name)
    if not all(map(_NAME.fullmatch, [base, *other])) or not other:
        return ""
    devices = ", ".join(other)
    return f"its target asks for {devices}, which its source does not have: the base of {base} has to cover that"
