"""Whether a migration's target pods fit into a namespace's quotas, as they are and after headroom has decided. Pure.

A VM that does not migrate is asked about by a migration that does not exist: pending, and refused, so that whatever
headroom would do about it is in the plan.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import field

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import Condition, ObjectMeta
from pkg.api.kubevirt import (
    VirtualMachineInstance,
    VirtualMachineInstanceMigration,
    VirtualMachineInstanceMigrationSpec,
    VirtualMachineInstanceMigrationStatus,
)
from pkg.report.snapshot import Document, Snapshot
from pkg.report.status import kept_by
from pkg.util import constants
from pkg.util.amounts import listed, shown
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.quantity import ZERO, Quantity
from pkg.util.resource_list import ResourceList, add, parse_resource_list, subtract, total
from pkg.util.resourcequota.balance import shortage
from pkg.util.resourcequota.base import base_of
from pkg.util.resourcequota.entries import Entries
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.managed import is_managed, is_off, switched_off
from pkg.util.resourcequota.plan import Plan
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import EXACT, Mode, Policy
from pkg.util.resourcequota.vm import Vm
from pkg.util.resourcequota.vms import vms_of

_NAMED = re.compile(r"\bVM ([a-z0-9](?:[-.a-z0-9]*[a-z0-9])?)")
"""The VMs that a problem's sentence is about."""


class Need(Document, frozen=True):
    """What a quota counts of the pods to come, of one resource. `missing` is zero where it fits."""

    requested: Quantity
    used: Quantity
    limited: Quantity
    missing: Quantity


class Fit(Document, frozen=True):
    """One quota: what is asked of it by resource, and what headroom does about it.

    `fits` is whether the pods fit the quota as it is now; `raised` is what spec.hard gets more of each resource;
    `fits_then` is whether the pods fit afterwards; `action` says it in a sentence.
    """

    quota: str = field(name="name")
    kept_by: str
    fits: bool
    needs: Mapping[str, Need] = field(name="resources")
    raised: ResourceList = field(name="raisedBy")
    fits_then: bool
    action: str


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
        _fit(snapshot.observe(quota, rendering), vms, snapshot.basis.policy, would=would)
        for quota in snapshot.quotas_of(namespace)
    )
    return [fit for fit in found if fit.needs]


def _fit(observed: Facts, vms: Collection[str], policy: Policy, *, would: bool) -> Fit:
    quota = observed.quota
    to_come = _to_come(observed, vms)
    needs = _needs(quota, to_come)
    decided = plan(observed, policy)
    then = msgspec.structs.replace(quota, spec=msgspec.structs.replace(quota.spec, hard=_merged(quota, decided)))
    raised = subtract(parse_resource_list(then.hard), parse_resource_list(quota.hard))
    short = {name for name, need in _needs(then, to_come).items() if need.missing}
    return Fit(
        quota=quota.name,
        kept_by=kept_by(observed, policy.mode),
        fits=not any(need.missing for need in needs.values()),
        needs=needs,
        raised={name: amount for name, amount in sorted(raised.items()) if amount > ZERO},
        fits_then=not short,
        action=_action(observed, policy, decided, needs, short, vms, would=would),
    )


def _to_come(observed: Facts, vms: Collection[str]) -> ResourceList:
    return total(add(vm.to_come, vm.volumes_to_come) for vm in _vms(observed, vms))


def _vms(observed: Facts, names: Collection[str]) -> list[Vm]:
    base = base_of(observed.quota, observed.limits, EXACT)
    return [vm for vm in vms_of(observed, EXACT, base)[0] if vm.name in names]


def _needs(quota: ResourceQuota, to_come: Mapping[str, Quantity]) -> dict[str, Need]:
    hard, used = parse_resource_list(quota.hard), parse_resource_list(quota.used)
    return {
        name: _need(to_come[name], used.get(name, ZERO), limit)
        for name, limit in sorted(hard.items())
        if to_come.get(name, ZERO) > ZERO
    }


def _need(requested: Quantity, used: Quantity, limited: Quantity) -> Need:
    return Need(requested, used, limited, shortage(used, requested, limited))


def _merged(quota: ResourceQuota, decided: Plan) -> dict[str, Any]:
    changed = {**quota.hard, **decided.hard}
    return {name: limit for name, limit in changed.items() if limit is not None}


def _action(
    observed: Facts,
    policy: Policy,
    decided: Plan,
    needs: Mapping[str, Need],
    short: Collection[str],
    vms: Collection[str],
    *,
    would: bool,
) -> str:
    """`short` are the resources that are missing whatever headroom does."""
    quota = observed.quota
    if observed.namespace_off or switched_off(quota):
        return f"nothing: {constants.LABEL_MANAGED}=false switches it off"
    if not is_managed(quota):
        return f"nothing: it is not Rancher's default quota and has no label {constants.LABEL_MANAGED}=true"
    if is_off(quota.annotations):
        return f"nothing: a person has switched it off by {constants.ANNOTATION_SKIP_AUTO_SCALING}"
    if observed.mtq:
        return "nothing by itself: the namespace is managed tenant quota's"
    said = "; ".join(_said(decided, vms))
    raises = _raises(quota, decided)
    left = (
        _unserved(observed, policy, decided, needs) or _volumes(observed, short, vms) or _growth(observed, short, vms)
    )
    if raises:
        enough = ", which is not enough" if short else ""
        raised = f"{'would raise' if would else 'raises'} {raises}{enough}"
        return "; ".join(filter(None, [raised, said, left]))
    if said:
        return f"{'would wait' if would else 'waits'}: {said}"
    if left:
        return f"nothing: {left}"
    if any(need.missing for need in needs.values()):
        return "nothing: the namespace's annotation grants none of what is missing"
    entries = Entries(quota.annotations)
    entered = any(entries.keys_of(name, observed.instances.get(name)) for name in vms)
    return "the quota is raised enough already" if entered else "nothing: the quota is large enough"


def _said(decided: Plan, vms: Collection[str]) -> list[str]:
    """What the plan complains of, without what is about other VMs alone."""
    texts = [str(problem) for problem in decided.problems]
    return [text for text in texts if not (named := set(_NAMED.findall(text))) or named & set(vms)]


def _growth(observed: Facts, short: Collection[str], vms: Collection[str]) -> str:
    """How CPU or memory hotplug has enlarged the VMs, in the resources that stay `short`: no entry pays for that."""
    found = _vms(observed, vms)
    more = subtract(total(vm.to_come for vm in found), total(vm.allowed for vm in found))
    grown = {name: amount for name, amount in more.items() if amount > ZERO and name in short}
    return f"the VM has grown by {listed(grown)}, which the quota's base has to cover" if grown else ""


def _volumes(observed: Facts, short: Collection[str], vms: Collection[str]) -> str:
    """Why what a volume migration doubles stays `short`."""
    to_come = total(vm.volumes_to_come for vm in _vms(observed, vms))
    if observed.storage_migration or not to_come.keys() & short:
        return ""
    name = constants.ANNOTATION_STORAGE_MIGRATION.rpartition("/")[2]
    return f"volumes move: that is added where the namespace's annotation {name} is true"


def _unserved(observed: Facts, policy: Policy, decided: Plan, needs: Mapping[str, Need]) -> str:
    """What mode assist leaves missing, by Harvester's own rules."""
    if policy.mode is not Mode.ASSIST:
        return ""
    missing = _left_missing(needs, decided)
    if not missing:
        return ""
    served = not missing.keys() & _left_missing(needs, plan(observed, EXACT)).keys()
    return f"mode assist leaves {listed(missing)} missing" + (", --mode takeover adds it" if served else "")


def _left_missing(needs: Mapping[str, Need], decided: Plan) -> ResourceList:
    raised = parse_resource_list({name: limit for name, limit in decided.hard.items() if limit is not None})
    left = {name: shortage(need.used, need.requested, raised.get(name, need.limited)) for name, need in needs.items()}
    return {name: missing for name, missing in left.items() if missing}


def _raises(quota: ResourceQuota, decided: Plan) -> str:
    before = parse_resource_list(quota.hard)
    after = parse_resource_list({name: limit for name, limit in decided.hard.items() if limit is not None})
    return ", ".join(
        f"{name} from {shown(before.get(name, ZERO), name)} to {shown(limit, name)}"
        for name, limit in sorted(after.items())
        if limit > before.get(name, ZERO)
    )
