"""Whether a migration's target pods fit into a namespace's quotas, as they are and after headroom has decided. Pure.

A VM that does not migrate is asked about by a migration that does not exist: pending, and refused, so that whatever
headroom would do about it is in the plan.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import msgspec
from msgspec import field

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import Condition, ObjectMeta
from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.registry import NAMESPACES, RESOURCE_QUOTAS
from kubeloop.api.resource_list import ResourceList, add, parse_resource_list, subtract, total
from kubeloop.text import quoted
from pkg.api.kubevirt import (
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
    VirtualMachineInstanceMigrationSpec,
    VirtualMachineInstanceMigrationStatus,
)
from pkg.report.snapshot import Document, Snapshot
from pkg.report.status import kept_by, not_enforced
from pkg.util import constants
from pkg.util.amounts import listed, shown
from pkg.util.kubevirt.migration import is_finished
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.resourcequota.balance import shortage
from pkg.util.resourcequota.base import base_of
from pkg.util.resourcequota.errors import EVENT_PROJECT_FULL
from pkg.util.resourcequota.facts import Facts, Plan
from pkg.util.resourcequota.managed import is_managed, is_off, switched_off
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import EXACT, Mode, Policy
from pkg.util.resourcequota.rancher_project import left_in, no_room
from pkg.util.resourcequota.vm import VmUsage
from pkg.util.resourcequota.vms import vms_of

_NAMED = re.compile(r"\bVM ([a-z0-9](?:[-.a-z0-9]*[a-z0-9])?)")
"""The VMs that a problem's sentence is about."""

_WAITS = re.compile(r"^migration of VM \S+ waits: ")
"""How a problem begins that is about a migration's cap."""


class Need(Document, frozen=True):
    """What a quota counts of the pods to come, of one resource. `missing` is zero where it fits."""

    requested: Quantity
    used: Quantity
    limited: Quantity
    missing: Quantity


class Fit(Document, frozen=True):
    """One quota: what is asked of it by resource, and what headroom does about it.

    `fits` is whether the pods fit the quota as it is now; `raised` is what spec.hard gets more of each resource;
    `fits_then` is whether the pods fit afterwards; `action` says it in a sentence. `refusal` is who refuses the
    controller's writes of the quota, and why, "" where nobody does; `not_enforced` is why quota admission, which `fits`
    is about, goes by other limits than spec.hard, "" where it does not; `waits_for_leftover`: the pods of an earlier
    migration are in the way, which end by themselves.
    """

    quota: str = field(name="name")
    kept_by: str
    fits: bool
    needs: Mapping[str, Need] = field(name="resources")
    raised: ResourceList = field(name="raisedBy")
    fits_then: bool
    action: str
    refusal: str = ""
    not_enforced: str = field(default="", name="notEnforced")
    waits_for_leftover: bool = field(default=False, name="waitsForLeftover")


def asked_for(instance: VirtualMachineInstance) -> VirtualMachineInstanceMigration:
    """The migration that does not exist."""
    refused = Condition(type=constants.CONDITION_REJECTED_BY_RESOURCE_QUOTA, status="True")
    return VirtualMachineInstanceMigration(
        metadata=ObjectMeta(name=f"asked-{instance.name}", namespace=instance.namespace, uid=f"asked-{instance.uid}"),
        spec=VirtualMachineInstanceMigrationSpec(vmi_name=instance.name),
        status=VirtualMachineInstanceMigrationStatus(phase=constants.PHASE_PENDING, conditions=[refused]),
    )


def with_migrations(snapshot: Snapshot, instances: Sequence[VirtualMachineInstance]) -> Snapshot:
    """The same cluster with a migration of each, beside those that there are."""
    return replace(snapshot, migrations=(*snapshot.migrations, *map(asked_for, instances)))


def fits(
    snapshot: Snapshot, namespace: str, vms: Collection[str], rendering: Rendering | None = None, *, would: bool = False
) -> list[Fit]:
    """The namespace's quotas that count anything of the target pods to come of these VMs, together. `would`: they do
    not migrate, what headroom does is said as what it would do; so it is where no headroom runs."""
    rendering = rendering or snapshot.rendering(namespace)
    would = would or snapshot.installed.stopped
    found = (
        _fit(snapshot.observe(quota, rendering), vms, snapshot, would=would) for quota in snapshot.quotas_of(namespace)
    )
    return [fit for fit in found if fit.needs]


def _fit(observed: Facts, names: Collection[str], snapshot: Snapshot, *, would: bool) -> Fit:
    quota, policy = observed.quota, snapshot.basis.policy
    base = base_of(quota, observed.limits, EXACT, observed.rancher.granted)
    vms = [vm for vm in vms_of(observed, EXACT, base)[0] if vm.name in names]
    to_come = total(add(vm.to_come, vm.volumes_to_come) for vm in vms)
    would_be = plan(observed, policy)
    refusal = refusal_of(snapshot, observed) or _no_room(snapshot, observed, would_be)
    decided = Plan() if refusal else would_be
    then = _applied(quota, decided)
    raised = _more(quota, decided)
    needs = _needs(_enforced(quota), to_come)
    behind = not_enforced(quota)
    short = _missing(_needs(then, to_come))
    served = _missing(_needs(_applied(quota, plan(observed, EXACT)), to_come)) if policy.mode is Mode.ASSIST else short
    left = (
        _unserved(short, served, policy)
        or _lingering(short, vms)
        or _volumes(observed, short, vms)
        or _growth(short, vms)
    )
    raises = _raises(quota, raised) + (", which is not enough" if short else "")
    said = "; ".join(_said(decided, names))
    return Fit(
        quota=quota.name,
        kept_by=kept_by(observed, policy.mode),
        fits=not _missing(needs),
        needs=needs,
        raised=raised,
        fits_then=not short,
        action=_left_alone(observed)
        or (f"nothing: {refusal}" if refusal else "")
        or _does(raises if raised else "", said, left, would=would)
        or (f"nothing: {behind}" if behind and _missing(needs) else "")
        or _nothing(observed, needs, vms),
        refusal=refusal,
        not_enforced=behind,
        waits_for_leftover=bool(_lingering(short, vms)),
    )


def refusal_of(snapshot: Snapshot, observed: Facts) -> str:
    """Who refused what the running controller asked for last to raise the quota, or to give back, and why; "" where
    nobody did. What it would do next does not matter then."""
    quota = observed.quota
    kind, key = (NAMESPACES.kind, quota.namespace) if observed.mtq else (RESOURCE_QUOTAS.kind, quota.key)
    return snapshot.installed.refusal(kind, key)


def _no_room(snapshot: Snapshot, observed: Facts, decided: Plan) -> str:
    """Returns why Rancher will not grant what the plan requests of it: its project has no room, where that may be read,
    else what headroom's last event says; "" where nothing is known."""
    if not (decided.asks and decided.namespace.get(constants.ANNOTATION_REQUEST)):
        return ""
    if project := snapshot.project_of(observed.rancher.namespace):
        left = left_in(project, snapshot.namespaces, observed.quota.namespace)
        return no_room(project, left, _more(observed.quota, decided))
    asked = [m.metadata.creation_timestamp or "" for m in observed.migrations if not is_finished(m)]
    events = [
        (event.last_timestamp or "", event.message)
        for event in snapshot.failures
        if event.reason == EVENT_PROJECT_FULL and event.involved_object.name == observed.quota.name
    ]
    at, message = max(events, default=("", ""))
    return f"event of {observed.quota.name} at {at}: {quoted(message)}" if at and at >= min(asked, default="") else ""


def _more(quota: ResourceQuota, decided: Plan) -> ResourceList:
    """What a plan adds to spec.hard."""
    more = subtract(parse_resource_list(_applied(quota, decided).hard), parse_resource_list(quota.hard))
    return {name: amount for name, amount in sorted(more.items()) if amount > ZERO}


def _applied(quota: ResourceQuota, decided: Plan) -> ResourceQuota:
    """With the limits that a plan writes."""
    hard = {name: limit for name, limit in {**quota.hard, **decided.hard}.items() if limit is not None}
    return msgspec.structs.replace(quota, spec=msgspec.structs.replace(quota.spec, hard=hard))


def _enforced(quota: ResourceQuota) -> ResourceQuota:
    """With the limits that quota admission goes by."""
    enforced = quota.status.hard or {}
    hard = {name: enforced.get(name, limit) for name, limit in quota.hard.items()}
    return msgspec.structs.replace(quota, spec=msgspec.structs.replace(quota.spec, hard=hard))


def _needs(quota: ResourceQuota, to_come: Mapping[str, Quantity]) -> dict[str, Need]:
    hard, used = parse_resource_list(quota.hard), parse_resource_list(quota.used)
    return {
        name: _need(to_come[name], used.get(name, ZERO), limit)
        for name, limit in sorted(hard.items())
        if to_come.get(name, ZERO) > ZERO
    }


def _need(requested: Quantity, used: Quantity, limited: Quantity) -> Need:
    return Need(requested, used, limited, shortage(used, requested, limited))


def _missing(needs: Mapping[str, Need]) -> ResourceList:
    return {name: need.missing for name, need in needs.items() if need.missing}


def _left_alone(observed: Facts) -> str:
    """Why headroom does nothing about the quota; "" where it does."""
    quota = observed.quota
    if observed.namespace_off or switched_off(quota):
        return f"nothing: {constants.LABEL_MANAGED}=false switches it off"
    if not is_managed(quota):
        return f"nothing: it is not Rancher's default quota and has no label {constants.LABEL_MANAGED}=true"
    if is_off(quota.annotations):
        return f"nothing: a person has switched it off by {constants.ANNOTATION_SKIP_AUTO_SCALING}"
    return "nothing by itself: the namespace is managed tenant quota's" if observed.mtq else ""


def _does(raises: str, said: str, left: str, *, would: bool) -> str:
    """`said` is what the plan complains of, `left` why something stays missing."""
    if raises:
        return "; ".join(filter(None, [f"{'would raise' if would else 'raises'} {raises}", said, left]))
    if said:
        return f"{'would wait' if would else 'waits'}: {said}"
    return f"nothing: {left}" if left else ""


def _nothing(observed: Facts, needs: Mapping[str, Need], vms: Sequence[VmUsage]) -> str:
    if _missing(needs):
        return "nothing: the namespace's annotation grants none of what is missing"
    entered = any(key in observed.quota.annotations for vm in vms for key in vm.keys)
    return "the quota is raised enough already" if entered else "nothing: the quota is large enough"


def _said(decided: Plan, vms: Collection[str]) -> list[str]:
    """What the plan complains of, without what is about other VMs alone."""
    texts = [_WAITS.sub("", str(problem)) for problem in decided.problems]
    return [text for text in texts if not (named := set(_NAMED.findall(text))) or named & set(vms)]


def _lingering(short: Mapping[str, Quantity], vms: Sequence[VmUsage]) -> str:
    """Which pods of earlier migrations take the place of the targets, which KubeVirt creates later."""
    names = ", ".join(side.name for vm in vms for side in vm.old_sides)
    return f"KubeVirt creates no target before {names} of an earlier migration has ended" if short and names else ""


def _growth(short: Mapping[str, Quantity], vms: Sequence[VmUsage]) -> str:
    """What the targets count more than their sources, in the resources that stay `short`: no entry pays for that."""
    more = subtract(total(vm.to_come for vm in vms), total(vm.allowed for vm in vms))
    grown = {name: amount for name, amount in more.items() if amount > ZERO and name in short}
    if not grown:
        return ""
    newer = sorted({name for vm in vms for name in vm.limits_since} & grown.keys())
    why = f": the quota limits {', '.join(newer)} only since the VM's pod was created" if newer else ""
    return f"the VM has grown by {listed(grown)}, which the quota's base has to cover, it lacks {listed(short)}{why}"


def _volumes(observed: Facts, short: Mapping[str, Quantity], vms: Sequence[VmUsage]) -> str:
    """Why what a volume migration doubles stays `short`."""
    if observed.storage_migration or not total(vm.volumes_to_come for vm in vms).keys() & short.keys():
        return ""
    name = constants.ANNOTATION_STORAGE_MIGRATION.rpartition("/")[2]
    return f"volumes move: that is added where the namespace's annotation {name} is true"


def _unserved(short: ResourceList, served: ResourceList, policy: Policy) -> str:
    """What mode assist leaves missing, by Harvester's own rules; `served` is what takeover would leave."""
    if policy.mode is not Mode.ASSIST or not short:
        return ""
    by_takeover = "" if short.keys() & served.keys() else ", --mode takeover adds it"
    return f"mode assist leaves {listed(short)} missing{by_takeover}"


def _raises(quota: ResourceQuota, raised: ResourceList) -> str:
    before = parse_resource_list(quota.hard)
    return ", ".join(
        f"{name} from {shown(before.get(name, ZERO), name)} to {shown(before.get(name, ZERO) + more, name)}"
        for name, more in raised.items()
    )
