"""The fields that decisions read of an object. Most of the dozens of updates that a migration makes change none."""

from kubeloop.api.core import Pod
from kubeloop.api.meta import Object
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.kubevirt import claims
from pkg.util.kubevirt.evidence import trusted_status
from pkg.util.kubevirt.launcher import rendered_from
from pkg.util.kubevirt.migration import may_attach, migration_of, migration_state_fields, stage_of


def read_of_migration(migration: VirtualMachineInstanceMigration) -> object:
    """Returns the fields that affect a quota. Phases after the target pods exist are equivalent."""
    phase = stage_of(migration), may_attach(migration), migration.phase == constants.PHASE_PENDING
    ends = [t for t in migration.status.phase_transition_timestamps or () if t.phase in constants.FINAL_PHASES]
    state = migration_state_fields(migration.status.migration_state)
    return _read_of_metadata(migration), migration.spec, phase, state, ends


def read_of_pod(pod: Pod) -> object:
    status = pod.status
    containers = *(status.container_statuses or ()), *(status.init_container_statuses or ())
    in_force = [container for container in containers if container.resources or container.allocated_resources]
    labels = pod.labels.get(constants.LABEL_APP), migration_of(pod)
    read_status = pod.terminal, status.conditions, status.qos_class, in_force
    return _read_of_metadata(pod), labels, pod.spec, read_status


def read_of_vmi(vmi: VirtualMachineInstance) -> object:
    status = trusted_status(vmi)
    lives = status.phase, status.node_name, migration_state_fields(status.migration_state)
    volumes = claims.claim_fields_of(vmi), status.migrated_volumes
    return _read_of_metadata(vmi), lives, volumes, rendered_from(vmi)


def _read_of_metadata(obj: Object) -> object:
    meta = obj.metadata
    return meta.uid, meta.deletion_timestamp, meta.deletion_grace_period_seconds, meta.owner_references
