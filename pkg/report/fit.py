"""Computes whether a migration's target pods fit into a namespace's quotas, as they are and after headroom has decided.
A VM that does not migrate is asked about by a hypothetical migration, pending and refused, so that whatever headroom
would do about it is in the plan. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

from msgspec import field, structs

from kubeloop.api.meta import Condition, ObjectMeta
from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.registry import NAMESPACES, RESOURCE_QUOTAS
from kubeloop.api.resource_list import ResourceList, add, parse_resource_list, positive, subtract, total
from pkg.api import kubevirt
from pkg.report.snapshot import Document, Snapshot, event_text, usages_of
from pkg.report.status import keeper_of, unenforced_limits
from pkg.util import constants
from pkg.util.amounts import format_amounts, format_distinctly
from pkg.util.kubevirt.migration import is_finished
from pkg.util.managedtenantquota.model import readable
from pkg.util.problems import EVENT_PROJECT_FULL
from pkg.util.resourcequota.facts import Facts, Plan
from pkg.util.resourcequota.managed import QuotaManagement, management_of
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import Mode
from pkg.util.resourcequota.vm import VmUsage

_UNMANAGED = {
    QuotaManagement.OFF: f"nothing: {constants.LABEL_MANAGED}=false switches it off",
    QuotaManagement.NONE: f"nothing: it is not Rancher's default quota and has no label {constants.LABEL_MANAGED}=true",
    QuotaManagement.SKIPPED: f"nothing: a person has switched it off by {constants.ANNOTATION_SKIP_AUTO_SCALING}",
}
_REFUSED = kubevirt.VirtualMachineInstanceMigrationStatus(
    phase=constants.PHASE_PENDING,
    conditions=[Condition(type=constants.CONDITION_REJECTED_BY_RESOURCE_QUOTA, status="True")],
)
_NO_BASE = "the quota's base grants none of what is missing"
_VM_NAME = re.compile(r"\bVM ([a-z0-9](?:[-.a-z0-9]*[a-z0-9])?)")


class PodNeed(Document, frozen=True):
    requested: Quantity
    used: Quantity
    limited: Quantity
    missing: Quantity


class Fit(Document, frozen=True, kw_only=True):
    """A quota: what is asked of it by resource, and in `action` what headroom does about it. `fits` is whether the pods
    fit by the limits that quota admission goes by now, `not_enforced` why these are not spec.hard; `fits_then` is
    whether they fit once spec.hard is raised by `raised`. `refusal` is who refuses the controller's writes of the
    quota, and why; `waits_for_leftover`: pods of an earlier migration take the target's place, and end."""

    namespace: str
    quota: str = field(name="name")
    kept_by: str
    fits: bool
    needs: Mapping[str, PodNeed] = field(name="resources")
    raised: ResourceList = field(name="raisedBy")
    fits_then: bool
    action: str
    refusal: str = ""
    not_enforced: str = ""
    waits_for_leftover: bool = False

    @property
    def missing(self) -> ResourceList:
        return positive({name: need.missing for name, need in self.needs.items()})


def fits(
    snapshot: Snapshot, namespace: str, vms: Sequence[kubevirt.VirtualMachineInstance], *, would: bool = False
) -> list[Fit]:
    """Returns the fit of each of the namespace's quotas that counts anything of the pending target pods of these VMs,
    together. `would`: the VMs do not migrate, and a migration of each is assumed."""
    names, assumed = {vmi.name for vmi in vms}, list[kubevirt.VirtualMachineInstanceMigration]()
    for vmi in vms if would else ():
        metadata = ObjectMeta(name=f"asked-{vmi.name}", namespace=vmi.namespace, uid=f"asked-{vmi.uid}")
        spec = kubevirt.VirtualMachineInstanceMigrationSpec(vmi_name=vmi.name)
        assumed.append(kubevirt.VirtualMachineInstanceMigration(metadata=metadata, spec=spec, status=_REFUSED))
    quota_fits = []
    for quota in snapshot.quotas_of(namespace):
        observed = snapshot.observe(quota)
        observed = replace(observed, migrations=[*observed.migrations, *assumed])
        fit = _fit(snapshot, observed, names, would=would or snapshot.installed.is_stopped)
        if fit.needs:
            quota_fits.append(fit if fit.fits_then or fit.refusal else _with_budget(fit, snapshot))
    return quota_fits


def _fit(snapshot: Snapshot, observed: Facts, names: Set[str], *, would: bool) -> Fit:
    quota, policy, installed = observed.quota, snapshot.basis.policy, snapshot.installed
    vms = [vm for vm in usages_of(observed) if vm.name in names]
    targets = total(add(vm.pending_usage, vm.pending_volumes) for vm in vms)
    decided = plan(observed, policy)
    # What the controller would do next does not matter where it does not serve the namespace, or was refused.
    kind, key = (NAMESPACES.kind, quota.namespace) if observed.mtq else (RESOURCE_QUOTAS.kind, quota.key)
    refusal = installed.unserved_reason(quota.namespace) or installed.refusal(kind, key)
    refusal = refusal or _project_refusal(snapshot, observed, decided)
    hard, used = parse_resource_list(quota.hard), parse_resource_list(quota.used)
    enforced = hard | {name: limit for name, limit in parse_resource_list(quota.status.hard).items() if name in hard}
    lacking = _lacking(enforced, used, targets)
    planned = hard if refusal else hard | parse_resource_list(decided.hard)
    raised, missing = positive(subtract(planned, hard)), positive(_lacking(planned, used, targets))
    problems = map(str, decided.problems)
    notes = [text for text in problems if not (about := set(_VM_NAME.findall(text))) or about & names]
    reason = next(_reasons(observed, policy.mode, missing, vms), "") if missing else ""
    if raised:
        steps = (
            "{} from {} to {}".format(name, *format_distinctly(name, planned[name] - amount, planned[name]))
            for name, amount in sorted(raised.items())
        )
        enough = ", which is not enough" if missing else ""
        notes.insert(0, f"{'would raise' if would else 'raises'} {', '.join(steps)}{enough}")
    elif reason and not notes:
        reason = f"nothing: {reason}"
    return Fit(
        namespace=quota.namespace,
        quota=quota.name,
        kept_by=keeper_of(snapshot, observed),
        fits=not positive(lacking),
        needs={n: PodNeed(targets[n], used.get(n, ZERO), enforced[n], lack) for n, lack in lacking.items()},
        raised=raised,
        fits_then=not missing,
        action=_action(observed, refusal, "; ".join(filter(None, [*notes, reason])), positive(lacking), vms),
        refusal=refusal,
        not_enforced=unenforced_limits(quota),
        waits_for_leftover=bool(missing) and any(vm.old_sides for vm in vms),
    )


def _action(observed: Facts, refusal: str, notes: str, missing: ResourceList, vms: Sequence[VmUsage]) -> str:
    """Returns what headroom does about the quota, of which `missing` is lacking now."""
    quota, management = observed.quota, management_of(observed.quota, namespace_off=observed.namespace_off)
    unmanaged = _UNMANAGED.get(management)
    if refusal and (observed.mtq or not unmanaged):
        return f"nothing: {refusal}"
    if unmanaged:
        return unmanaged
    if observed.mtq:
        return "nothing by itself: the namespace is managed tenant quota's"
    if notes:
        return notes
    if missing:
        return f"nothing: {unenforced_limits(quota) or _NO_BASE}"
    is_entered = any(key in quota.annotations for vm in vms for key in vm.keys)
    return "the quota is raised enough already" if is_entered else "nothing: the quota is large enough"


def _with_budget(fit: Fit, snapshot: Snapshot) -> Fit:
    """Returns the fit with what the namespace's migration budget may add under a lock. Two budgets add nothing."""
    budgets, missing = snapshot.source.budgets.list(fit.namespace), fit.missing
    if not budgets:
        return fit
    names, most = ", ".join(sorted(b.name for b in budgets)), parse_resource_list(readable(budgets[0].additional))
    if len(budgets) > 1:
        action = f"nothing: the namespace has more than one VirtualMachineMigrationResourceQuota ({names})"
    elif any(amount > most.get(name, ZERO) for name, amount in missing.items()):
        action = f"nothing: {names} may add {format_amounts(most)}, {format_amounts(missing)} are missing"
    else:
        action = f"{names} would add {format_amounts(missing)} under a lock"
        return structs.replace(fit, fits_then=True, raised=missing, action=action)
    return structs.replace(fit, action=action)


def _project_refusal(snapshot: Snapshot, observed: Facts, decided: Plan) -> str:
    """Returns headroom's last event about Rancher's project without room for what the plan requests; else ""."""
    if not (decided.asks and decided.namespace.get(constants.ANNOTATION_REQUEST)):
        return ""
    waiting_since = (m.metadata.creation_timestamp or "" for m in observed.migrations if not is_finished(m))
    failures = snapshot.failures_of(EVENT_PROJECT_FULL, observed.quota, min(waiting_since, default=""))
    return event_text(failures[-1]) if failures else ""


def _lacking(limits: ResourceList, used: ResourceList, targets: ResourceList) -> ResourceList:
    """Returns what is lacking of each resource that the target pods ask for and the quota limits; zero if they fit."""
    asked = ((name, amount) for name, amount in sorted(positive(targets).items()) if name in limits)
    return {name: max(ZERO, used.get(name, ZERO) + amount - limits[name]) for name, amount in asked}


def _reasons(observed: Facts, mode: Mode, missing: ResourceList, vms: Sequence[VmUsage]) -> Iterator[str]:
    """Yields why something stays `missing` whatever headroom adds; the first counts."""
    if mode is Mode.ASSIST:  # by Harvester's own rules
        yield f"mode assist leaves {format_amounts(missing)} missing: --mode takeover shows what takeover would add"
    if leftovers := ", ".join(side.name for vm in vms for side in vm.old_sides):
        yield f"KubeVirt creates no target before {leftovers} of an earlier migration has ended"
    if not observed.storage_migration and total(vm.pending_volumes for vm in vms).keys() & missing.keys():
        name = constants.ANNOTATION_STORAGE_MIGRATION.rpartition("/")[2]
        yield f"volumes move: that is added where the namespace's annotation {name} is true"
    growth = positive(subtract(total(vm.pending_usage for vm in vms), total(vm.target_limit for vm in vms)))
    if growing := {name: amount for name, amount in growth.items() if name in missing}:
        new_limits = ", ".join(sorted({name for vm in vms for name in vm.younger_limits} & growing.keys()))
        since = f": the quota limits {new_limits} only since the VM's pod was created" if new_limits else ""
        yield (
            f"the VM has grown by {format_amounts(growing)}, which the quota's base has to cover, "
            f"it lacks {format_amounts(missing)}{since}"
        )
