"""Why a VM's migration waits, or whether one would. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from msgspec import field

from kubeloop.api.meta import rfc3339
from kubeloop.text import quoted
from pkg.api.kubevirt import (
    VIRTUAL_MACHINE_INSTANCE_MIGRATIONS,
    VIRTUAL_MACHINE_INSTANCES,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
)
from pkg.report import causes
from pkg.report.fit import Fit, fits, with_migrations
from pkg.report.snapshot import Document, Snapshot
from pkg.util import constants
from pkg.util.amounts import listed, shown
from pkg.util.kubevirt.evidence import trusted_status
from pkg.util.kubevirt.migration import (
    abort_requested,
    hindrance,
    is_finished,
    is_refused,
    limits_of,
    migration_of,
    of_devices,
    refusing_quota,
)
from pkg.util.resourcequota.touch import last_touch


class _Failure(NamedTuple):
    """An event. Every user who may create events can have written it, so that its text is only quoted."""

    at: str
    message: str
    about: str

    def __str__(self) -> str:
        return f"event of {self.about} at {self.at}: {quoted(self.message)}"


_NONE = _Failure("", "", "")
_ASKS_FOR_MORE = " is requested and "
"""In what the reserve says of a pod that is larger than what is left (pkg/webhook/resources/pod)."""
_POD_WEBHOOK = f"pods.{constants.WEBHOOK_CONFIGURATION_NAME}"


class Verdict(StrEnum):
    """Where a VM stands."""

    NOT_RUNNING = "not running"
    COULD_MIGRATE = "could migrate"
    COULD_WITH_HEADROOM = "could migrate with headroom"
    COULD_NOT_MIGRATE = "could not migrate"
    WAITS_FOR_QUOTA = "waits for quota"
    WAITS_FOR_HEADROOM = "waits for headroom"
    WAITS_FOR_KUBERNETES = "waits for Kubernetes"
    WAITS_FOR_KUBEVIRT = "waits for KubeVirt"
    BEING_ABORTED = "is being aborted"
    UNDER_WAY = "is under way"


class Asked(Document, frozen=True):
    """The migration that an explanation is about. `since` is RFC 3339."""

    name: str
    phase: str | None
    since: str | None
    refused: bool


class Explanation(Document, frozen=True):
    """`fits` are the quotas that count anything of the target pods to come."""

    namespace: str
    vm: str
    verdict: Verdict
    summary: str
    ratio: str | None = field(default=None, name="overheadRatio")
    migration: Asked | None = None
    fits: Sequence[Fit] = field(default=(), name="quotas")


def not_running(namespace: str, vm: str, printable_status: str = "") -> Explanation:
    """A VM without a VMI."""
    summary = "the VM does not run: there is nothing to migrate"
    halted = causes.of_halted(printable_status)
    return Explanation(namespace, vm, Verdict.NOT_RUNNING, "; ".join(filter(None, [summary, halted])))


def explain(snapshot: Snapshot, instance: VirtualMachineInstance) -> Explanation:
    """The VM of a VMI. `snapshot` has the migrations of the whole cluster: KubeVirt's parallel limits count them."""
    namespace, vm = instance.namespace, instance.name
    rendering = snapshot.rendering(namespace)
    active = [m for m in snapshot.migrations_of(namespace, vm) if not is_finished(m)]
    if not active:
        found = fits(with_migrations(snapshot, [instance]), namespace, [vm], rendering, would=True)
        verdict, summary = _prospect(found)
        summary = "; ".join([summary, *causes.of_instance(snapshot, instance)])
        return Explanation(namespace, vm, verdict, summary, rendering.ratio or None, None, found)
    migration = max(active, key=lambda m: (is_refused(m), m.metadata.creation_timestamp or ""))
    found = fits(snapshot, namespace, [vm], rendering)
    verdict, summary = _reason(snapshot, instance, migration, found)
    asked_about = Asked(migration.name, migration.phase, migration.metadata.creation_timestamp, is_refused(migration))
    return Explanation(namespace, vm, verdict, summary, rendering.ratio or None, asked_about, found)


def _prospect(found: Sequence[Fit]) -> tuple[Verdict, str]:
    short = [fit for fit in found if not fit.fits]
    if not short:
        return Verdict.COULD_MIGRATE, "it does not migrate; a target pod would fit as the quotas are"
    stuck = [fit for fit in short if not fit.fits_then]
    if not stuck:
        return (
            Verdict.COULD_WITH_HEADROOM,
            f"it does not migrate; a target pod would not fit ({_missing(short)}), headroom would raise the quota",
        )
    refusals = "; ".join(dict.fromkeys(fit.refusal for fit in stuck if fit.refusal))
    why = f"and headroom may not raise it: {refusals}" if refusals else "and headroom would not raise the quota enough"
    return Verdict.COULD_NOT_MIGRATE, f"it does not migrate; a target pod would not fit ({_missing(stuck)}), {why}"


def _reason(
    snapshot: Snapshot,
    instance: VirtualMachineInstance,
    migration: VirtualMachineInstanceMigration,
    found: Sequence[Fit],
) -> tuple[Verdict, str]:
    name = migration.name
    if abort_requested(migration):
        return Verdict.BEING_ABORTED, f"{name} is being aborted"
    why = _of_targets(snapshot, migration)
    if migration.phase not in (constants.PHASE_UNSET, constants.PHASE_PENDING):
        return Verdict.UNDER_WAY, f"{name} is in phase {migration.phase}{why}"
    if waits := causes.kubevirt_waits(migration):
        return Verdict.WAITS_FOR_KUBEVIRT, f"{name}: {waits}"
    if not found and any(migration_of(pod) == migration.uid for pod in snapshot.pods):
        return (Verdict.UNDER_WAY, f"{name} is in phase {migration.phase or 'unset'}: its target pod exists{why}")
    short = [fit for fit in found if not fit.fits]
    if short:
        return _lacking(name, short, causes.of_instance(snapshot, instance))
    in_the_way = _in_the_way(snapshot, instance, migration, found)
    if in_the_way:
        return in_the_way
    if is_refused(migration):
        last = max(_failures(snapshot, instance, migration), default=_NONE).message
        if devices := of_devices(last, {name for fit in found for name in fit.needs}):
            return Verdict.WAITS_FOR_QUOTA, f"{name} does not fit: {devices}: {causes.MIGRATIONS}"
        again = f"{name} was refused by quota and fits now: KubeVirt tries again when a quota changes"
        if snapshot.installed.stopped:
            return Verdict.WAITS_FOR_HEADROOM, f"{again}, and headroom, which changes it, does not run"
        if refusals := dict.fromkeys(fit.refusal for fit in found if fit.refusal):
            return Verdict.WAITS_FOR_HEADROOM, "; ".join([f"{again}, and headroom may not change it", *refusals])
        return Verdict.WAITS_FOR_KUBEVIRT, again + _next_touch(snapshot, instance)
    limit = _parallel_limit(snapshot, instance)
    ahead = causes.of_queue(snapshot, migration) if limit else ""
    busy = [limit, ahead, *causes.of_instance(snapshot, instance)]
    said = "; ".join(filter(None, busy))
    return Verdict.WAITS_FOR_KUBEVIRT, f"{name} fits; KubeVirt has not started it yet" + (f": {said}" if said else "")


def _lacking(name: str, short: Sequence[Fit], notes: Sequence[str]) -> tuple[Verdict, str]:
    """Returns what a migration waits for that does not fit into these quotas."""
    lacks = f"{name} does not fit: {_missing(short)}"
    if refusals := dict.fromkeys(fit.refusal for fit in short if fit.refusal):
        return Verdict.WAITS_FOR_HEADROOM, "; ".join([f"{lacks}, and headroom may not raise it", *refusals, *notes])
    if behind := dict.fromkeys(fit.not_enforced for fit in short if fit.not_enforced and fit.fits_then):
        return Verdict.WAITS_FOR_KUBERNETES, "; ".join([lacks, *behind, *notes])
    return Verdict.WAITS_FOR_QUOTA, "; ".join([lacks, *notes])


def _in_the_way(
    snapshot: Snapshot,
    instance: VirtualMachineInstance,
    migration: VirtualMachineInstanceMigration,
    found: Sequence[Fit],
) -> tuple[Verdict, str] | None:
    """What keeps KubeVirt from creating a target pod that fits: our own webhook, or what KubeVirt said last."""
    namespace = snapshot.source.namespaces.get(name=instance.namespace)
    is_asked = namespace is not None and namespace.labels.get(constants.LABEL_HOLDING) == constants.TRUE
    ours = (
        f"webhook {_POD_WEBHOOK} does not answer" if is_asked and _POD_WEBHOOK in snapshot.installed.in_the_way else ""
    )
    known = {quota.name for quota in snapshot.quotas_of(instance.namespace)}
    failures = [
        failure
        for failure in _failures(snapshot, instance, migration)
        if not (is_refused(migration) and refusing_quota(failure.message) in known)
    ]
    last = max(failures, default=_NONE)
    if ours or f'.{constants.WEBHOOK_CONFIGURATION_NAME}"' in last.message:
        why = str(last) if failures else ours
        larger = f"; {_larger(found)}" if _ASKS_FOR_MORE in last.message else ""
        return Verdict.WAITS_FOR_HEADROOM, f"{migration.name} fits, but its target pod is refused: {why}{larger}"
    if failures:
        why = causes.of_refusal(snapshot, instance.namespace, last.message)
        return (
            Verdict.WAITS_FOR_KUBEVIRT,
            f"{migration.name} fits, but KubeVirt could not create its target pod: {last}{why and f'; {why}'}",
        )
    return None


def _larger(found: Sequence[Fit]) -> str:
    """Why the reserve refuses a target: it asks for more than what was added for it."""
    granted = {name: need.requested for fit in found for name, need in fit.needs.items()}
    return (
        f"the pod asks for more than headroom expects of it and has added ({listed(granted)}): see what changes the "
        f"VM's pods, such as a mesh's sidecar: {causes.ADMISSION}"
    )


def _failures(
    snapshot: Snapshot, instance: VirtualMachineInstance, migration: VirtualMachineInstanceMigration
) -> list[_Failure]:
    """What events say of pods of the VM that could not be created since the migration began."""
    # KubeVirt writes them about the VMI; what was collected from a test cluster of 0.1.0 has them about the migration.
    told = {(VIRTUAL_MACHINE_INSTANCES.kind, instance.name), (VIRTUAL_MACHINE_INSTANCE_MIGRATIONS.kind, migration.name)}
    since = migration.metadata.creation_timestamp or ""
    return [
        _Failure(event.last_timestamp or "", event.message, event.involved_object.name)
        for event in snapshot.failures
        if event.reason == constants.EVENT_FAILED_CREATE
        and event.involved_object.namespace == instance.namespace
        and (event.involved_object.kind, event.involved_object.name) in told
        and (event.last_timestamp or "") >= since
    ]


def _next_touch(snapshot: Snapshot, instance: VirtualMachineInstance) -> str:
    """When headroom changes the quota next, so that KubeVirt tries again."""
    found = (last_touch(quota.annotations) for quota in snapshot.quotas_of(instance.namespace))
    at = partial(rfc3339, timespec="milliseconds")
    touched = (f"; headroom touched it at {at(each.at)}, the next time is {at(each.next)}" for each in found if each)
    return "".join(touched)


def _of_targets(snapshot: Snapshot, migration: VirtualMachineInstanceMigration) -> str:
    job = constants.LABEL_MIGRATION_JOB_UID
    targets = (pod for pod in snapshot.pods if pod.labels.get(job) == migration.uid)
    return "".join(f": {why}" for pod in targets if (why := causes.of_target(snapshot, pod)))


def _missing(found: Sequence[Fit]) -> str:
    return "; ".join(
        f"{fit.quota} lacks "
        + ", ".join(f"{shown(need.missing, name)} of {name}" for name, need in fit.needs.items() if need.missing)
        for fit in found
    )


def _parallel_limit(snapshot: Snapshot, instance: VirtualMachineInstance) -> str:
    """Why it waits for KubeVirt, as far as migrations show it."""
    running = [
        {m.status.migration_state.source_node or ""} if m.status.migration_state else set()
        for m in snapshot.migrations
        if not is_finished(m) and m.phase not in (constants.PHASE_UNSET, constants.PHASE_PENDING)
    ]
    configuration = snapshot.rendering(instance.namespace).kubevirt
    return hindrance(running, trusted_status(instance).node_name or "", limits_of(configuration))
