"""Computes whether a migration's target pods fit into a namespace's quotas, as they are and after headroom has decided.
Pure.

A VM that does not migrate is asked about by a hypothetical migration: pending, and refused, so that whatever headroom
would do about it is in the plan."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from msgspec import field

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import Condition, ObjectMeta, RawResourceList
from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.registry import NAMESPACES, RESOURCE_QUOTAS
from kubeloop.api.resource_list import ResourceList, add, parse_resource_list, subtract, total
from pkg.api.kubevirt import (
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
    VirtualMachineInstanceMigrationSpec,
    VirtualMachineInstanceMigrationStatus,
)
from pkg.report.snapshot import NO_FAILURE, Document, Snapshot
from pkg.report.status import keeper_of, unenforced_limits
from pkg.util import constants
from pkg.util.amounts import format_amount, format_amounts
from pkg.util.kubevirt.migration import is_finished
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.resourcequota.balance import shortage
from pkg.util.resourcequota.base import base_of
from pkg.util.resourcequota.errors import EVENT_PROJECT_FULL
from pkg.util.resourcequota.facts import Facts, Plan
from pkg.util.resourcequota.managed import is_managed, is_off, switched_off
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import EXACT, Mode, Policy
from pkg.util.resourcequota.rancher_request import project_room, project_shortage
from pkg.util.resourcequota.vm import VmUsage, vms_of

_VM_NAME = re.compile(r"\bVM ([a-z0-9](?:[-.a-z0-9]*[a-z0-9])?)")
"""Matches a VM that a problem's sentence is about."""

_CAP_WAIT = re.compile(r"^migration of VM \S+ waits: ")
"""Matches the beginning of a problem about a migration's cap."""


class PodNeed(Document, frozen=True):
    """The amount of one resource that a quota counts of pending target pods. `missing` is zero if it fits."""

    requested: Quantity
    used: Quantity
    limited: Quantity
    missing: Quantity


class Fit(Document, frozen=True, kw_only=True):
    """A quota: what is asked of it by resource, and what headroom does about it.

    `fits` is whether the pods fit the quota as it is now; `raised` is what spec.hard gets more of each resource;
    `fits_then` is whether the pods fit afterwards; `action` says it in a sentence. `refusal` is who refuses the
    controller's writes of the quota, and why, "" where nobody does; `not_enforced` is why quota admission, which `fits`
    is about, goes by other limits than spec.hard, "" where it does not; `waits_for_leftover`: the pods of an earlier
    migration take the place of the target, and end by themselves."""

    quota: str = field(name="name")
    kept_by: str
    fits: bool
    needs: Mapping[str, PodNeed] = field(name="resources")
    raised: ResourceList = field(name="raisedBy")
    fits_then: bool
    action: str
    refusal: str = ""
    not_enforced: str = field(default="", name="notEnforced")
    waits_for_leftover: bool = field(default=False, name="waitsForLeftover")


def hypothetical_migration(vmi: VirtualMachineInstance) -> VirtualMachineInstanceMigration:
    """Returns a migration of the VM that does not exist."""
    refused = Condition(type=constants.CONDITION_REJECTED_BY_RESOURCE_QUOTA, status="True")
    return VirtualMachineInstanceMigration(
        metadata=ObjectMeta(name=f"asked-{vmi.name}", namespace=vmi.namespace, uid=f"asked-{vmi.uid}"),
        spec=VirtualMachineInstanceMigrationSpec(vmi_name=vmi.name),
        status=VirtualMachineInstanceMigrationStatus(phase=constants.PHASE_PENDING, conditions=[refused]),
    )


def with_migrations(snapshot: Snapshot, instances: Sequence[VirtualMachineInstance]) -> Snapshot:
    """Returns the same cluster with a hypothetical migration of each, beside those that exist."""
    return replace(snapshot, migrations=(*snapshot.migrations, *map(hypothetical_migration, instances)))


def fits(
    snapshot: Snapshot, namespace: str, vms: Collection[str], rendering: Rendering | None = None, *, would: bool = False
) -> list[Fit]:
    """Returns the fit of each of the namespace's quotas that counts anything of the pending target pods of these VMs,
    together. `would`: the VMs do not migrate, and the action is worded as what headroom would do; so it is if no
    headroom runs."""
    rendering = rendering or snapshot.rendering(namespace)
    would = would or snapshot.installed.is_stopped
    quota_fits = (
        _fit(snapshot.observe(quota, rendering), vms, snapshot, would=would) for quota in snapshot.quotas_of(namespace)
    )
    return [fit for fit in quota_fits if fit.needs]


def _fit(observed: Facts, names: Collection[str], snapshot: Snapshot, *, would: bool) -> Fit:
    quota, policy = observed.quota, snapshot.basis.policy
    base = base_of(quota, observed.limits, EXACT, observed.rancher.granted)
    vms = [vm for vm in vms_of(observed, EXACT, base)[0] if vm.name in names]
    targets = total(add(vm.pending_usage, vm.pending_volumes) for vm in vms)
    wanted_plan = plan(observed, policy)
    refusal = write_refusal(snapshot, observed) or _project_refusal(snapshot, observed, wanted_plan)
    effective_plan = Plan() if refusal else wanted_plan
    raised = _raised_by(quota, effective_plan)
    enforced = quota.status.hard or {}
    needs = _needs(quota, {name: enforced.get(name, limit) for name, limit in quota.hard.items()}, targets)
    unenforced = unenforced_limits(quota)
    missing = _missing(_needs(quota, _planned_limits(quota, effective_plan), targets))
    leftover_reason = _leftover_reason(missing, vms)
    reason = (
        _assist_reason(observed, policy, missing, targets)
        or leftover_reason
        or _volumes_reason(observed, missing, vms)
        or _growth_reason(missing, vms)
    )
    sentence = _raised_amounts(quota, raised) + (", which is not enough" if missing else "")
    problems = "; ".join(_plan_problems(effective_plan, names))
    return Fit(
        quota=quota.name,
        kept_by=keeper_of(observed, policy.mode, snapshot.installed),
        fits=not _missing(needs),
        needs=needs,
        raised=raised,
        fits_then=not missing,
        action=_unmanaged_reason(observed)
        or (f"nothing: {refusal}" if refusal else "")
        or _action(sentence if raised else "", problems, reason, would=would)
        or (f"nothing: {unenforced}" if unenforced and _missing(needs) else "")
        or _no_action(observed, needs, vms),
        refusal=refusal,
        not_enforced=unenforced,
        waits_for_leftover=bool(leftover_reason),
    )


def write_refusal(snapshot: Snapshot, observed: Facts) -> str:
    """Returns why the running controller does not raise the quota, or give back: it does not serve the namespace, or
    somebody refused what it asked for last; "" if neither is so. What it would do next does not matter then."""
    quota = observed.quota
    kind, key = (NAMESPACES.kind, quota.namespace) if observed.mtq else (RESOURCE_QUOTAS.kind, quota.key)
    return snapshot.installed.unserved_reason(quota.namespace) or snapshot.installed.refusal(kind, key)


def _project_refusal(snapshot: Snapshot, observed: Facts, decided: Plan) -> str:
    """Returns why Rancher will not grant what the plan requests of it: its project has no room, if that may be read,
    else the text of headroom's last event; "" if nothing is known."""
    if not (decided.asks and decided.namespace.get(constants.ANNOTATION_REQUEST)):
        return ""
    if project := snapshot.project_of(observed.rancher.namespace):
        remaining = project_room(project, snapshot.namespaces, observed.quota.namespace)
        return project_shortage(project, remaining, _raised_by(observed.quota, decided))
    waiting_since = [m.metadata.creation_timestamp or "" for m in observed.migrations if not is_finished(m)]
    since, objects = min(waiting_since, default=""), {(RESOURCE_QUOTAS.kind, observed.quota.name)}
    latest = max(snapshot.failures_of(EVENT_PROJECT_FULL, observed.quota.namespace, objects, since), default=NO_FAILURE)
    return str(latest) if latest.time else ""


def _raised_by(quota: ResourceQuota, decided: Plan) -> ResourceList:
    """Returns what a plan adds to spec.hard."""
    added = subtract(parse_resource_list(_planned_limits(quota, decided)), parse_resource_list(quota.hard))
    return {name: amount for name, amount in sorted(added.items()) if amount > ZERO}


def _planned_limits(quota: ResourceQuota, decided: Plan) -> RawResourceList:
    """Returns the limits of the quota that a plan writes."""
    return {name: limit for name, limit in {**quota.hard, **decided.hard}.items() if limit is not None}


def _needs(quota: ResourceQuota, limits: RawResourceList, to_come: ResourceList) -> dict[str, PodNeed]:
    used = parse_resource_list(quota.used)
    return {
        name: PodNeed(to_come[name], in_use := used.get(name, ZERO), limit, shortage(in_use, to_come[name], limit))
        for name, limit in sorted(parse_resource_list(limits).items())
        if to_come.get(name, ZERO) > ZERO
    }


def _missing(needs: Mapping[str, PodNeed]) -> ResourceList:
    return {name: need.missing for name, need in needs.items() if need.missing}


def _unmanaged_reason(observed: Facts) -> str:
    """Returns why headroom does nothing about the quota; "" if it does something."""
    quota = observed.quota
    if observed.namespace_off or switched_off(quota):
        return f"nothing: {constants.LABEL_MANAGED}=false switches it off"
    if not is_managed(quota):
        return f"nothing: it is not Rancher's default quota and has no label {constants.LABEL_MANAGED}=true"
    if is_off(quota.annotations):
        return f"nothing: a person has switched it off by {constants.ANNOTATION_SKIP_AUTO_SCALING}"
    return "nothing by itself: the namespace is managed tenant quota's" if observed.mtq else ""


def _action(raises: str, problems: str, reason: str, *, would: bool) -> str:
    """Returns the action as a sentence. `problems` are the plan's, `reason` is why something stays missing."""
    if raises:
        return "; ".join(filter(None, [f"{'would raise' if would else 'raises'} {raises}", problems, reason]))
    if problems:
        return f"{'would wait' if would else 'waits'}: {problems}"
    return f"nothing: {reason}" if reason else ""


def _no_action(observed: Facts, needs: Mapping[str, PodNeed], vms: Sequence[VmUsage]) -> str:
    if _missing(needs):
        return "nothing: the quota's base grants none of what is missing"
    entered = any(key in observed.quota.annotations for vm in vms for key in vm.keys)
    return "the quota is raised enough already" if entered else "nothing: the quota is large enough"


def _plan_problems(decided: Plan, vms: Collection[str]) -> list[str]:
    """Returns the plan's problems, without those about other VMs alone."""
    texts = [_CAP_WAIT.sub("", str(problem)) for problem in decided.problems]
    return [text for text in texts if not (vm_names := set(_VM_NAME.findall(text))) or vm_names & set(vms)]


def _leftover_reason(missing: Mapping[str, Quantity], vms: Sequence[VmUsage]) -> str:
    """Returns which pods of earlier migrations take the place of the targets, which KubeVirt creates later."""
    names = ", ".join(side.name for vm in vms for side in vm.old_sides)
    return f"KubeVirt creates no target before {names} of an earlier migration has ended" if missing and names else ""


def _growth_reason(missing: Mapping[str, Quantity], vms: Sequence[VmUsage]) -> str:
    """Returns how much more the targets count than their sources, in the resources that stay `missing`: no entry pays
    for that."""
    growth = subtract(total(vm.pending_usage for vm in vms), total(vm.target_limit for vm in vms))
    growing = {name: amount for name, amount in growth.items() if amount > ZERO and name in missing}
    if not growing:
        return ""
    new_limits = sorted({name for vm in vms for name in vm.younger_limits} & growing.keys())
    reason = f": the quota limits {', '.join(new_limits)} only since the VM's pod was created" if new_limits else ""
    return (
        f"the VM has grown by {format_amounts(growing)}, which the quota's base has to cover, "
        f"it lacks {format_amounts(missing)}{reason}"
    )


def _volumes_reason(observed: Facts, missing: Mapping[str, Quantity], vms: Sequence[VmUsage]) -> str:
    """Returns why what a volume migration doubles stays `missing`."""
    if observed.storage_migration or not total(vm.pending_volumes for vm in vms).keys() & missing.keys():
        return ""
    name = constants.ANNOTATION_STORAGE_MIGRATION.rpartition("/")[2]
    return f"volumes move: that is added where the namespace's annotation {name} is true"


def _assist_reason(observed: Facts, policy: Policy, missing: ResourceList, targets: ResourceList) -> str:
    """Returns what mode assist leaves missing, by Harvester's own rules, and whether takeover would add it."""
    if policy.mode is not Mode.ASSIST or not missing:
        return ""
    takeover_limits = _planned_limits(observed.quota, plan(observed, EXACT))
    takeover_missing = _missing(_needs(observed.quota, takeover_limits, targets))
    by_takeover = "" if missing.keys() & takeover_missing.keys() else ", --mode takeover adds it"
    return f"mode assist leaves {format_amounts(missing)} missing{by_takeover}"


def _raised_amounts(quota: ResourceQuota, raised: ResourceList) -> str:
    limits = dict.fromkeys(raised, ZERO) | parse_resource_list(quota.hard)
    return ", ".join(
        f"{name} from {format_amount(limits[name], name)} to {format_amount(limits[name] + amount, name)}"
        for name, amount in raised.items()
    )
