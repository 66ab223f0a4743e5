"""Explains why a VM's migration waits, or whether one would. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from msgspec import field

from kubeloop.api.meta import from_rfc3339
from pkg.api.kubevirt import (
    VIRTUAL_MACHINE_INSTANCE_MIGRATIONS,
    VIRTUAL_MACHINE_INSTANCES,
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
)
from pkg.report import causes
from pkg.report.budget import observe, wait_reasons
from pkg.report.fit import Fit, fits
from pkg.report.installation import duration_text
from pkg.report.snapshot import NO_FAILURE, Document, FailureEvent, Snapshot
from pkg.util import constants
from pkg.util.amounts import format_amount, format_amounts
from pkg.util.kubevirt.evidence import trusted_status
from pkg.util.kubevirt.migration import (
    abort_requested,
    extra_devices_text,
    is_decentralized,
    is_finished,
    is_refused,
    migration_of,
    parallel_limit_reason,
    parallel_limits_of,
    refusing_quota,
    takes_place,
)

_TOO_LARGE = " is requested and "
"""Part of the reserve's message about a pod that is larger than what is left (pkg/webhook/resources/pod)."""
_UNEXPLAINED_AFTER = 60.0
"""Seconds until a wait without a reason is one: KubeVirt starts a target within seconds, and retries in minutes."""
_POD_WEBHOOK = f"pods.{constants.WEBHOOK_CONFIGURATION_NAME}"


class Verdict(StrEnum):
    """The state of a VM's migration."""

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


class ExplainedMigration(Document, frozen=True):
    """The migration that an explanation is about. `since` is RFC 3339."""

    name: str
    phase: str | None
    since: str | None
    refused: bool


class Explanation(Document, frozen=True):
    """The explanation of one VM. `fits` are the quotas that count anything of the target pods to come."""

    namespace: str
    vm: str
    verdict: Verdict
    summary: str
    ratio: str | None = field(default=None, name="overheadRatio")
    migration: ExplainedMigration | None = None
    fits: Sequence[Fit] = field(default=(), name="quotas")


def not_running(namespace: str, vm: str, reason: str) -> Explanation:
    """Explains a VM that does not run; `reason` is "" if none is known."""
    return Explanation(
        namespace, vm, Verdict.NOT_RUNNING, _joined("the VM does not run: there is nothing to migrate", reason)
    )


def explain(snapshot: Snapshot, instance: VirtualMachineInstance) -> Explanation:
    """Explains the VM of a VMI. `snapshot` has the migrations of the whole cluster: KubeVirt's parallel limits count
    them."""
    namespace, vm = instance.namespace, instance.name
    ratio = snapshot.rendering(namespace).ratio or None
    active = [m for m in snapshot.migrations_of(instance) if not is_finished(m)]
    reason = causes.unstarted_reason(snapshot, instance)
    if reason and not any(map(is_decentralized, active)):  # its receiver waits for the VM
        return not_running(namespace, vm, reason)
    if not active:
        quota_fits = fits(snapshot, namespace, [instance], would=True)
        verdict, prospect = _prospect_verdict(quota_fits)
        summary = _joined(f"it does not migrate; a target pod would {prospect}", *causes.vm_notes(snapshot, instance))
        return Explanation(namespace, vm, verdict, summary, ratio, None, quota_fits)
    migration = max(active, key=lambda m: (is_refused(m), m.metadata.creation_timestamp or ""))
    quota_fits = fits(snapshot, namespace, [instance])
    verdict, summary = _Wait(snapshot, instance, migration, quota_fits).verdict()
    if verdict is Verdict.WAITS_FOR_QUOTA and snapshot.source.budgets.list(namespace):
        summary = _joined(summary, *wait_reasons(observe(snapshot, namespace), migration))
    explained = ExplainedMigration(
        migration.name, migration.phase, migration.metadata.creation_timestamp, is_refused(migration)
    )
    return Explanation(namespace, vm, verdict, summary, ratio, explained, quota_fits)


def _joined(*sentences: str) -> str:
    return "; ".join(filter(None, sentences))


def _prospect_verdict(quota_fits: Sequence[Fit]) -> tuple[Verdict, str]:
    """Returns what a target pod would do, after "a target pod would"."""
    too_small = [fit for fit in quota_fits if not fit.fits]
    if not too_small:
        return Verdict.COULD_MIGRATE, "fit as the quotas are"
    still_too_small = [fit for fit in too_small if not fit.fits_then]
    lack = f"not fit ({_missing_amounts(still_too_small or too_small)})"
    if not still_too_small:
        return Verdict.COULD_WITH_HEADROOM, f"{lack}, headroom would raise the quota"
    if all(fit.waits_for_leftover for fit in still_too_small):
        until = "until the pods of an earlier migration have ended; then headroom would raise the quota"
        return Verdict.COULD_WITH_HEADROOM, f"{lack} {until}"
    refusals = _joined(*dict.fromkeys(fit.refusal for fit in still_too_small))
    reason = f"may not raise it: {refusals}" if refusals else "would not raise the quota enough"
    return Verdict.COULD_NOT_MIGRATE, f"{lack}, and headroom {reason}"


@dataclass(frozen=True)
class _Wait:
    """A migration under way: `quota_fits` are the quotas that count anything of its target pods to come."""

    snapshot: Snapshot
    instance: VirtualMachineInstance
    migration: VirtualMachineInstanceMigration
    quota_fits: Sequence[Fit]

    def verdict(self) -> tuple[Verdict, str]:
        """Returns what it waits for, if it waits, in a word and in a sentence."""
        migration, name, phase = self.migration, self.migration.name, self.migration.phase or "unset"
        if abort_requested(migration):
            return Verdict.BEING_ABORTED, f"{name} is being aborted"
        targets = [pod for pod in self.snapshot.pods if migration_of(pod) == migration.uid]
        target_reason = "".join(
            f": {reason}" for pod in targets if (reason := causes.pending_target_reason(self.snapshot, pod))
        )
        if migration.phase not in (constants.PHASE_UNSET, constants.PHASE_PENDING):
            return Verdict.UNDER_WAY, f"{name} is in phase {phase}{target_reason}"
        if wait_reason := causes.kubevirt_wait_reason(migration):
            return Verdict.WAITS_FOR_KUBEVIRT, f"{name}: {wait_reason}"
        if targets and not self.quota_fits:
            return Verdict.UNDER_WAY, f"{name} is in phase {phase}: its target pod exists{target_reason}"
        if too_small := [fit for fit in self.quota_fits if not fit.fits]:
            return _shortage_verdict(name, too_small, causes.vm_notes(self.snapshot, self.instance))
        if verdict := self._creation_verdict():
            return verdict
        if is_refused(migration):
            return self._retry_verdict()
        notes = _joined(self._parallel_limit_note(), *causes.vm_notes(self.snapshot, self.instance))
        sentences = f"{name} fits; KubeVirt has not started it yet", notes or self._unexplained_note()
        return Verdict.WAITS_FOR_KUBEVIRT, ": ".join(filter(None, sentences))

    def _retry_verdict(self) -> tuple[Verdict, str]:
        """Returns what a migration waits for that was refused and fits now."""
        name = self.migration.name
        message = (self._failures() or [NO_FAILURE])[-1].message
        if devices := extra_devices_text(message, {name for fit in self.quota_fits for name in fit.needs}):
            return Verdict.WAITS_FOR_QUOTA, f"{name} does not fit: {devices}: {causes.MIGRATIONS}"
        retry = f"{name} was refused by quota and fits now: KubeVirt tries again when a quota changes"
        if self.snapshot.installed.is_stopped:
            return Verdict.WAITS_FOR_HEADROOM, f"{retry}, and headroom, which changes it, does not run"
        if refusals := _joined(*dict.fromkeys(fit.refusal for fit in self.quota_fits)):
            return Verdict.WAITS_FOR_HEADROOM, f"{retry}, and headroom may not change it; {refusals}"
        return Verdict.WAITS_FOR_KUBEVIRT, _joined(retry, "" if message else self._unexplained_note())

    def _creation_verdict(self) -> tuple[Verdict, str] | None:
        """Returns what keeps KubeVirt from creating a target pod that fits: headroom's own webhook, or KubeVirt's last
        failure."""
        name, snapshot = self.migration.name, self.snapshot
        namespace = snapshot.source.namespaces.get(name=self.instance.namespace)
        is_reserved = namespace is not None and namespace.labels.get(constants.LABEL_HOLDING) == constants.TRUE
        is_silent = is_reserved and _POD_WEBHOOK in snapshot.installed.blocking_webhooks
        quota_names = {quota.name for quota in snapshot.quotas_of(self.instance.namespace)}
        failures = [
            failure
            for failure in self._failures()
            if not (is_refused(self.migration) and refusing_quota(failure.message) in quota_names)
        ]
        latest = (failures or [NO_FAILURE])[-1]
        if is_silent or f'.{constants.WEBHOOK_CONFIGURATION_NAME}"' in latest.message:
            reason = str(latest) or f"webhook {_POD_WEBHOOK} does not answer"
            larger_pod = (
                "the pod asks for more than headroom expects of it and has added "
                f"({_expected_amounts(self.quota_fits)}): see what changes the VM's pods, such as a mesh's sidecar: "
                f"{causes.ADMISSION}"
            )
            note = larger_pod if _TOO_LARGE in latest.message else ""
            return Verdict.WAITS_FOR_HEADROOM, _joined(f"{name} fits, but its target pod is refused: {reason}", note)
        if failures:
            reason = causes.refusal_reason(snapshot, self.instance.namespace, latest.message)
            sentence = f"{name} fits, but KubeVirt could not create its target pod: {latest}"
            return Verdict.WAITS_FOR_KUBEVIRT, _joined(sentence, reason)
        return None

    def _unexplained_note(self) -> str:
        """Explains a wait of which no limit and no event is known: events end after an hour, and not everybody may read
        them. A refused pod leaves nothing else."""
        created = self.migration.metadata.creation_timestamp
        age = self.snapshot.now - from_rfc3339(created) if created else 0.0
        if age < _UNEXPLAINED_AFTER or not self.quota_fits:
            return ""
        return (
            f"it has waited for {duration_text(age)}, and no event that may be read says why: a target pod that asks "
            f"for more than headroom expects of it and has added ({_expected_amounts(self.quota_fits)}) is refused, "
            f"and named in virt-controller's log: {causes.ADMISSION}"
        )

    def _failures(self) -> list[FailureEvent]:
        """Returns the events about pods of the VM that could not be created since the migration began."""
        # KubeVirt writes them about the VMI; what was collected from a test cluster of 0.1.0 has them about the
        # migration.
        objects = {
            (VIRTUAL_MACHINE_INSTANCES.kind, self.instance.name),
            (VIRTUAL_MACHINE_INSTANCE_MIGRATIONS.kind, self.migration.name),
        }
        since = self.migration.metadata.creation_timestamp or ""
        return self.snapshot.failures_of(constants.EVENT_FAILED_CREATE, self.instance.namespace, objects, since)

    def _parallel_limit_note(self) -> str:
        """Returns which of KubeVirt's parallel limits is reached, as far as migrations show it, and how many of those
        that wait are started first."""
        states = [m.status.migration_state for m in self.snapshot.migrations if takes_place(m)]
        source_nodes = [{state.source_node or ""} if state else set() for state in states]
        limits = parallel_limits_of(self.snapshot.rendering(self.instance.namespace).kubevirt)
        reason = parallel_limit_reason(source_nodes, trusted_status(self.instance).node_name or "", limits)
        return _joined(reason, causes.priority_note(self.snapshot, self.migration)) if reason else ""


def _shortage_verdict(name: str, too_small: Sequence[Fit], notes: Sequence[str]) -> tuple[Verdict, str]:
    """Returns what a migration waits for that does not fit into these quotas."""
    shortage = f"{name} does not fit: {_missing_amounts(too_small)}"
    if refusals := _joined(*dict.fromkeys(fit.refusal for fit in too_small)):
        return Verdict.WAITS_FOR_HEADROOM, _joined(f"{shortage}, and headroom may not raise it", refusals, *notes)
    if unenforced := _joined(*dict.fromkeys(fit.not_enforced for fit in too_small if fit.fits_then)):
        return Verdict.WAITS_FOR_KUBERNETES, _joined(shortage, unenforced, *notes)
    return Verdict.WAITS_FOR_QUOTA, _joined(shortage, *notes)


def _expected_amounts(quota_fits: Sequence[Fit]) -> str:
    return format_amounts({name: need.requested for fit in quota_fits for name, need in fit.needs.items()})


def _missing_amounts(quota_fits: Sequence[Fit]) -> str:
    amounts = (
        (fit.quota, ", ".join(f"{format_amount(amount, name)} of {name}" for name, amount in fit.missing.items()))
        for fit in quota_fits
    )
    return _joined(*(f"{quota} lacks {listed}" for quota, listed in amounts))
