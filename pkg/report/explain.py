"""Explains why a VM's migration waits, or whether one would. Reasons beside the quotas that headroom manages are named
with their part of docs/limits.md. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

from msgspec import field

from kubeloop.api.core import Event, Pod
from kubeloop.api.objects import find_condition
from kubeloop.api.resource_list import parse_resource_list
from kubeloop.logs import quoted
from pkg.api import kubevirt
from pkg.report.fit import Fit, fits
from pkg.report.snapshot import Document, Snapshot, event_text
from pkg.report.status import AT_ONCE
from pkg.util import constants
from pkg.util.amounts import format_amount, format_amounts
from pkg.util.kubevirt import migration as migrations
from pkg.util.kubevirt.claims import volume_overlap
from pkg.util.kubevirt.evidence import is_running, trusted_status
from pkg.util.managedtenantquota.sequence import Window

STORAGE, MIGRATIONS, ADMISSION, PLACEMENT = (
    f"docs/limits.md#{part}" for part in ("storage", "migrations", "admission-that-is-not-resourcequota", "placement")
)
_BLOCKED = {
    "migrationBlockedByBackup": "KubeVirt waits for a backup of the VM",
    constants.CONDITION_BLOCKED_BY_UTILITY_VOLUMES: "KubeVirt waits until utility volumes are detached",
}
_GATES = {
    "ApplicationAwareQuotaGate": "an ApplicationAwareResourceQuota (AAQ) holds its target pod back",
    "kueue.x-k8s.io/admission": "Kueue holds its target pod back",
}
_REFUSALS = {
    "maximum ": "a LimitRange refuses its target pod",
    "minimum ": "a LimitRange refuses its target pod",
    " limit to request ratio": "a LimitRange refuses its target pod",
    "must specify": "a quota refuses its target pod, which does not name what it limits",
    "violates PodSecurity": "Pod Security refuses its target pod",
}
"""By words of the API server's message."""
_WITHOUT_VOLUMES = ("Provisioning", "WaitingForVolumeBinding", "DataVolumeError", "ErrorPvcNotFound")
_START = "headroom adds nothing for a start: enlarge the quota"


class Verdict(StrEnum):
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
    name: str
    phase: str | None
    since: str | None  # RFC 3339
    refused: bool


class Explanation(Document, frozen=True):
    namespace: str
    vm: str
    verdict: Verdict
    summary: str
    ratio: str | None = field(default=None, name="overheadRatio")
    migration: ExplainedMigration | None = None
    fits: Sequence[Fit] = field(default=(), name="quotas")


def not_running(namespace: str, vm: str, reason: str) -> Explanation:
    """Explains a VM that does not run; `reason` is "" if none is known."""
    summary = _joined("the VM does not run: there is nothing to migrate", reason)
    return Explanation(namespace, vm, Verdict.NOT_RUNNING, summary)


def explain(snapshot: Snapshot, instance: kubevirt.VirtualMachineInstance) -> Explanation:
    """Explains the VM of a VMI. `snapshot` has the migrations of the whole cluster: KubeVirt's limits count them."""
    namespace, vm = instance.namespace, instance.name
    active = [m for m in snapshot.migrations_of(instance) if not migrations.is_finished(m)]
    is_received = any(map(migrations.is_decentralized, active))  # the receiver waits for the VM
    if (instance.deleting or not is_running(instance)) and not is_received:
        state = "being deleted" if instance.deleting else f"in phase {trusted_status(instance).phase}"
        reasons, since = [f"its VMI is {state}"], instance.metadata.creation_timestamp
        if failures := snapshot.failures_of(constants.EVENT_FAILED_CREATE, instance, since):
            reasons += [event_text(failures[-1]), _START if migrations.refusing_quota(failures[-1].message) else ""]
        return not_running(namespace, vm, _joined(*reasons))
    quota_fits = fits(snapshot, namespace, [instance], would=not active)
    explained = None
    if active:
        migration = max(active, key=lambda m: (migrations.is_refused(m), m.metadata.creation_timestamp or ""))
        created = migration.metadata.creation_timestamp
        explained = ExplainedMigration(migration.name, migration.phase, created, migrations.is_refused(migration))
        verdict, summary = _Wait(snapshot, instance, migration, quota_fits).verdict()
    else:
        verdict, prospect = _prospect_verdict(quota_fits)
        summary = _joined(f"it does not migrate; a target pod would {prospect}", *vm_notes(snapshot, instance))
    return Explanation(namespace, vm, verdict, summary, snapshot.ratio_in_use, explained, quota_fits)


def _joined(*sentences: str) -> str:
    return "; ".join(filter(None, dict.fromkeys(sentences)))


def _missing_amounts(quota_fits: Sequence[Fit]) -> str:
    return "; ".join(
        f"{fit.quota} lacks {', '.join(f'{format_amount(a, name)} of {name}' for name, a in fit.missing.items())}"
        for fit in quota_fits
    )


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
    refusals = _joined(*(fit.refusal for fit in still_too_small))
    reason = f"may not raise it: {refusals}" if refusals else "would not raise the quota enough"
    return Verdict.COULD_NOT_MIGRATE, f"{lack}, and headroom {reason}"


@dataclass(frozen=True)
class _Wait:
    snapshot: Snapshot
    instance: kubevirt.VirtualMachineInstance
    migration: kubevirt.VirtualMachineInstanceMigration
    quota_fits: Sequence[Fit]

    def verdict(self) -> tuple[Verdict, str]:
        """Returns what it waits for, if it waits, in a word and in a sentence."""
        migration, name, phase = self.migration, self.migration.name, self.migration.phase or "unset"
        if migrations.abort_requested(migration):
            return Verdict.BEING_ABORTED, f"{name} is being aborted"
        targets = [pod for pod in self.snapshot.pods if migrations.migration_of(pod) == migration.uid]
        target_reason = "".join(f": {reason}" for pod in targets if (reason := pending_target_reason(pod)))
        if migration.phase not in constants.WAITING_PHASES:
            return Verdict.UNDER_WAY, f"{name} is in phase {phase}{target_reason}"
        if wait_reason := kubevirt_wait_reason(migration):
            return Verdict.WAITS_FOR_KUBEVIRT, f"{name}: {wait_reason}"
        if targets and not self.quota_fits:
            return Verdict.UNDER_WAY, f"{name} is in phase {phase}: its target pod exists{target_reason}"
        notes = vm_notes(self.snapshot, self.instance)
        if too_small := [fit for fit in self.quota_fits if not fit.fits]:
            return self._shortage_verdict(too_small, notes)
        since = migration.metadata.creation_timestamp
        failures = self.snapshot.failures_of(constants.EVENT_FAILED_CREATE, self.instance, since)
        if verdict := self._creation_verdict(failures):
            return verdict
        if migrations.is_refused(migration):
            return self._retry_verdict(failures)
        reason = _joined(self._parallel_limit_note(), *notes)
        return Verdict.WAITS_FOR_KUBEVIRT, f"{name} fits; KubeVirt has not started it yet" + (reason and f": {reason}")

    def _shortage_verdict(self, too_small: Sequence[Fit], notes: Sequence[str]) -> tuple[Verdict, str]:
        """Returns what a migration waits for that does not fit into these quotas."""
        shortage = f"{self.migration.name} does not fit: {_missing_amounts(too_small)}"
        if refusals := _joined(*(fit.refusal for fit in too_small)):
            return Verdict.WAITS_FOR_HEADROOM, _joined(f"{shortage}, and headroom may not raise it", refusals, *notes)
        has_budget = bool(self.snapshot.source.budgets.list(self.migration.namespace))
        unenforced = _joined(*(fit.not_enforced for fit in too_small if fit.fits_then))
        if unenforced and not has_budget:  # a budget's room is not in spec.hard
            return Verdict.WAITS_FOR_KUBERNETES, _joined(shortage, unenforced, *notes)
        if has_budget:
            window = Window(self.snapshot.observe_window(self.migration.namespace), AT_ONCE)
            notes = [*notes, *window.wait_reasons(self.migration)]
        return Verdict.WAITS_FOR_QUOTA, _joined(shortage, *notes)

    def _retry_verdict(self, failures: Sequence[Event]) -> tuple[Verdict, str]:
        """Returns what a migration waits for that was refused and fits now."""
        name, message = self.migration.name, failures[-1].message if failures else ""
        if devices := migrations.extra_devices_text(message, {name for fit in self.quota_fits for name in fit.needs}):
            return Verdict.WAITS_FOR_QUOTA, f"{name} does not fit: {devices}: {MIGRATIONS}"
        retry = f"{name} was refused by quota and fits now: KubeVirt tries again when a quota changes"
        if self.snapshot.installed.is_stopped:
            return Verdict.WAITS_FOR_HEADROOM, f"{retry}, and headroom, which changes it, does not run"
        if refusals := _joined(*(fit.refusal for fit in self.quota_fits)):
            return Verdict.WAITS_FOR_HEADROOM, f"{retry}, and headroom may not change it; {refusals}"
        return Verdict.WAITS_FOR_KUBEVIRT, retry

    def _creation_verdict(self, failures: Sequence[Event]) -> tuple[Verdict, str] | None:
        """Returns what keeps KubeVirt from creating a target pod that fits, by its last failure."""
        name, own_names = self.migration.name, {q.name for q in self.snapshot.quotas_of(self.instance.namespace)}
        if migrations.is_refused(self.migration):  # what these quotas refused fits by now
            failures = [event for event in failures if migrations.refusing_quota(event.message) not in own_names]
        if not failures:
            return None
        message, text = failures[-1].message, event_text(failures[-1])
        if f'.{constants.WEBHOOK_CONFIGURATION_NAME}"' in message:
            note = ""
            if " is requested and " in message:  # the reserve, of a pod larger than what is left
                needs = {name: need.requested for fit in self.quota_fits for name, need in fit.needs.items()}
                changes = f"see what changes the VM's pods, such as a mesh's sidecar: {ADMISSION}"
                expected = f"more than headroom expects of it and has added ({format_amounts(needs)})"
                note = f"the pod asks for {expected}: {changes}"
            return Verdict.WAITS_FOR_HEADROOM, _joined(f"{name} fits, but its target pod is refused: {text}", note)
        reasons = [f"{reason}: {ADMISSION}" for words, reason in _REFUSALS.items() if words in message]
        if (quota := migrations.refusing_quota(message)) and quota not in own_names:
            is_foreign = "is not a ResourceQuota of the namespace, perhaps a ClusterResourceQuota"
            reasons.append(f"{quota} {is_foreign}: {ADMISSION}")
        sentence = f"{name} fits, but KubeVirt could not create its target pod: {text}"
        return Verdict.WAITS_FOR_KUBEVIRT, _joined(sentence, *reasons[:1])

    def _parallel_limit_note(self) -> str:
        """Returns which of KubeVirt's parallel limits is reached, as far as migrations show it."""
        states = [m.status.migration_state for m in self.snapshot.migrations if migrations.takes_place(m)]
        source_nodes = [{state.source_node or ""} if state else set() for state in states]
        limits = self.snapshot.source.rendering(self.instance.namespace).kubevirt.migrations
        return migrations.parallel_limit_reason(source_nodes, trusted_status(self.instance).node_name or "", limits)


def kubevirt_wait_reason(migration: kubevirt.VirtualMachineInstanceMigration) -> str:
    """Returns what KubeVirt waits for by itself before it creates a target, or why there is none here; else ""."""
    if migrations.is_decentralized(migration):
        return f"it is decentralized: nothing is added, as the base pays for the receiver's only pod: {MIGRATIONS}"
    for kind, text in _BLOCKED.items():
        if (condition := find_condition(migration.status.conditions, kind)) and condition.status == "True":
            return ": ".join(filter(None, [text, condition.message]))
    return ""


def pending_target_reason(target: Pod) -> str:
    """Returns why a target pod that exists does not run; "" if no reason is known."""
    spec, status = target.spec, target.status
    if status.phase != constants.PHASE_PENDING:
        return ""
    for gate in spec.scheduling_gates or ():
        if gate.name in _GATES:
            return f"{_GATES[gate.name]} (scheduling gate {gate.name}): {ADMISSION}"
    created = {claim.name for claim in status.resource_claim_statuses or () if claim.resource_claim_name}
    if missing := {claim.name for claim in spec.resource_claims or () if claim.template} - created:
        return f"ResourceClaims for its devices are not created: {', '.join(sorted(missing))}: {PLACEMENT}"
    if (scheduled := find_condition(status.conditions, "PodScheduled")) and scheduled.status == "False":
        return f"no node fits its target pod: {scheduled.message or scheduled.reason or ''}: {PLACEMENT}"
    if spec.node_name:
        return f"its containers have not started on {spec.node_name}: the events of pod {target.name} say why"
    return f"kube-scheduler has not placed pod {target.name} yet"


def vm_notes(snapshot: Snapshot, vmi: kubevirt.VirtualMachineInstance) -> list[str]:
    """Returns what else is known of a VM: that KubeVirt does not migrate it; that its volumes move, and count twice."""
    notes = list(filter(None, [unmigratable_reason(snapshot, vmi)]))
    if moves := snapshot.moves_of(vmi):
        claims = {claim.name: claim for claim in snapshot.source.claims.list(vmi.namespace)}
        size = volume_overlap(moves, claims, snapshot.basis.releases()).source.get("requests.storage")
        effect = f", so that {format_amount(size, 'requests.storage')} count twice" if size else ""
        notes.append(f"its volumes {', '.join(move.volume_name for move in moves)} move{effect}: {STORAGE}")
    return notes


def unmigratable_reason(snapshot: Snapshot, vmi: kubevirt.VirtualMachineInstance) -> str:
    """Returns why a VM does not migrate, whatever quotas say; "" if it does."""
    migratable = find_condition(trusted_status(vmi).conditions, "LiveMigratable")
    if migratable and migratable.status == "False":
        reason = migratable.message or migratable.reason or "no reason is given"
        return f"KubeVirt does not migrate it: {reason}: {PLACEMENT}"
    # The maximums of LimitRanges, written since the VM started, that a pod like the running one exceeds.
    for limit_range in snapshot.source.limit_ranges.list(vmi.namespace):
        maximums = [parse_resource_list(item.max) for item in limit_range.spec.limits if item.type == "Container"]
        source = snapshot.source_side(vmi) if maximums else None
        for most, container in product(maximums, source.launcher.spec.containers if source else ()):
            limits = parse_resource_list(container.resources.limits)
            if beyond := {name: most[name] for name in limits.keys() & most.keys() if limits[name] > most[name]}:
                has = f"{container.name} has {format_amounts({name: limits[name] for name in beyond})}"
                sizes = f"a container may have {format_amounts(beyond)}, {has}"
                return f"LimitRange {limit_range.name} refuses a target pod: {sizes}: {ADMISSION}"
    return ""


def halted_reason(vm: kubevirt.VirtualMachine) -> str:
    """Returns why a VM without a VMI does not run, if quota or storage is the reason; else ""."""
    if shortage := vm.annotations.get(constants.ANNOTATION_INSUFFICIENT_RESOURCE_QUOTA):
        return f"it was halted: {quoted(shortage)}: {_START}"
    if vm.status.printable_status not in _WITHOUT_VOLUMES:
        return ""
    refused = "quota may refuse an import's pods or scratch space"
    return f"its volumes are not ready ({vm.status.printable_status}): {refused}: {STORAGE}"
