"""Computes how large a namespace's quotas must be: for its VMs to run, for the largest to migrate, for several at once.
Pure.

    all run = what others use + one side of each VM       several at once = all run + the largest second sides

A VM that runs counts as much as it does now or as KubeVirt would render it, whichever is more: a restart renders it
anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec import field, structs

from kubeloop.api.core import ResourceQuota
from kubeloop.api.objects import edit
from kubeloop.api.quantity import ZERO, Quantity, QuantityError
from kubeloop.api.resource_list import ResourceList, add, maximum, parse_resource_list, subtract, total
from pkg.api.kubevirt import VirtualMachine, VirtualMachineInstance
from pkg.report.snapshot import Document, Snapshot
from pkg.util import constants
from pkg.util.amounts import format_amounts
from pkg.util.kubevirt.claims import target_claim_usage
from pkg.util.kubevirt.defaults import with_defaults
from pkg.util.kubevirt.instancetype import missing_instancetype
from pkg.util.kubevirt.launcher import vmi_of
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.kubevirt.sides import sides_of
from pkg.util.kubevirt.target import target_usage, usage_of
from pkg.util.managedtenantquota.record import readable
from pkg.util.resourcequota.base import counts_of_claims, is_scaled
from pkg.util.resourcequota.entries import parse_resources
from pkg.util.resourcequota.errors import InvalidEntry
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.managed import is_served

_RATIOS: Final = ("1.0", "1.5", "2.0", "3.0", "4.5")
"""Overhead ratios that are shown beside the one that is asked for: KubeVirt's default to Harvester's largest advice."""
_MEMORY: Final = "limits.memory"


class NotSized(ValueError):
    """The question cannot be answered; says why."""


@dataclass(frozen=True, slots=True)
class Growth:
    """A VM that shall have other limits."""

    vm: str
    cpu: Quantity | None = None
    memory: Quantity | None = None


class ResourceSize(Document, frozen=True):
    """The size of one resource of a quota: its limit without added headroom (the person's, as far as Rancher granted
    it), what is used now and how much of that is not VMs'; and how large it must be for all VMs to run, for the largest
    to migrate beside them, and for several at once."""

    limited: Quantity
    used: Quantity
    others: Quantity
    run: Quantity = field(name="allRun")
    largest: Quantity = field(name="largestMigrates")
    at_once: Quantity


class MemorySize(Document, frozen=True):
    """The size of a quota's memory that all VMs need to run, the largest to migrate, and several, at an overhead
    ratio."""

    ratio: str = field(name="overheadRatio")
    run: Quantity = field(name="allRun")
    largest: Quantity = field(name="largestMigrates")
    at_once: Quantity


class QuotaSize(Document, frozen=True):
    """The size of one quota, by resource; `verdicts` say for what its base, and what headroom may add, is enough, and
    which VMs would not start again or are not counted; `ratios` is the size of `limits.memory` at other ratios."""

    name: str
    needs: Mapping[str, ResourceSize] = field(name="resources")
    verdicts: Sequence[str] = ()
    ratios: Sequence[MemorySize] = ()


class Sizes(Document, frozen=True):
    """The answer for one namespace, by quota. `vms` are those that are counted."""

    namespace: str
    ratio: str | None = field(name="overheadRatio")
    at_once: int
    vms: Sequence[str]
    quotas: Sequence[QuotaSize]


def sizes(
    snapshot: Snapshot,
    namespace: str,
    vms: Sequence[VirtualMachine] = (),
    *,
    ratio: str | None = None,
    at_once: int = 2,
    growth: Growth | None = None,
) -> Sizes:
    """Returns the size of every quota of the namespace. `vms`: all its VMs, those that do not run too. Raises NotSized
    for a VM that does not exist or whose size is not known, and for invalid quantities."""
    rendering = snapshot.rendering(namespace, ratio)
    running = {vmi.name: vmi for vmi in snapshot.instances if vmi.namespace == namespace}
    halted = {vm.name: vm for vm in vms if vm.name not in running}
    unread = {name: missing for name, vm in halted.items() if (missing := missing_instancetype(vm))}
    if growth is not None and growth.vm in unread:
        raise NotSized(f"the {unread[growth.vm]} of VM {growth.vm} cannot be read: start the VM first")
    grown_vm = growth.vm if growth else ""
    try:
        vmis = {name: with_defaults(vmi_of(vm), rendering) for name, vm in halted.items() if name not in unread}
        vmis |= running
        if growth is not None and growth.vm in vmis:
            vmis[growth.vm] = _with_growth(vmis[growth.vm], growth)
        elif growth is not None:
            raise NotSized(f"there is no VM {growth.vm} in namespace {namespace}")
        by_quota = [
            _size(_Question(snapshot, quota, vmis, grown_vm, at_once), rendering)
            for quota in snapshot.quotas_of(namespace)
        ]
    except QuantityError as exc:
        raise NotSized(f"a VM of namespace {namespace} has a quantity that is none: {exc}") from exc
    remarks = [
        f"VM {name} is not counted: it does not run, and its {missing} cannot be read: ask again once it runs"
        for name, missing in unread.items()
    ]
    verdict = f"large enough: all VMs run, and {at_once} can migrate at once"
    quotas = [structs.replace(q, verdicts=[*q.verdicts, *remarks] or [verdict]) for q in by_quota if q.needs]
    return Sizes(namespace, rendering.ratio or None, at_once, sorted(vmis), quotas)


@dataclass(frozen=True)
class _Question:
    """The question about one quota: of these VMs, of which one has grown, several migrate at once."""

    snapshot: Snapshot
    quota: ResourceQuota
    vmis: Mapping[str, VirtualMachineInstance]
    grown_vm: str
    at_once: int


@dataclass(frozen=True)
class _VmSize:
    """The usage that a quota counts of a VM: running now, restarted, at least to run, and with a second side."""

    name: str
    running: ResourceList
    restarted: ResourceList
    side: ResourceList
    second: ResourceList


def _size(question: _Question, rendering: Rendering) -> QuotaSize:
    vms = _vm_sizes(question, rendering)
    needs = _resource_sizes(question, vms, rendering)
    verdicts = [*_restart_verdicts(vms, needs), *_migration_verdicts(question, needs)]
    if missing := _above_base({name: need.run for name, need in needs.items()}, needs):
        verdicts.insert(0, f"the base is too small for all VMs to run: it lacks {format_amounts(missing)}")
    ratios = []
    for ratio in _RATIOS if _MEMORY in needs else ():
        at_ratio = question.snapshot.rendering(question.quota.namespace, ratio)
        size = _resource_sizes(question, _vm_sizes(question, at_ratio), at_ratio)[_MEMORY]
        ratios.append(MemorySize(ratio, size.run, size.largest, size.at_once))
    return QuotaSize(question.quota.name, needs, verdicts, ratios)


def _restart_verdicts(vms: Sequence[_VmSize], needs: Mapping[str, ResourceSize]) -> Iterator[str]:
    """Yields the VMs that run and would not start again if they were stopped: the quota, or the overhead ratio, has
    changed. What migrations have left behind goes by itself."""
    running = total(vm.running for vm in vms)
    for vm in vms:
        of_others = add({name: need.others for name, need in needs.items()}, subtract(running, vm.running))
        missing = _above_base(add(of_others, vm.restarted), needs) if vm.running else {}
        if missing := {name: amount for name, amount in missing.items() if vm.restarted.get(name)}:
            yield f"VM {vm.name} would not start again: {format_amounts(missing)} are missing"


def _migration_verdicts(question: _Question, needs: Mapping[str, ResourceSize]) -> Iterator[str]:
    """Yields which migrations cannot be: headroom adds nothing, or less than they ask for."""
    snapshot, at_once = question.snapshot, question.at_once
    observed = snapshot.observe(question.quota)
    is_scaled_quota = is_served(question.quota) and not observed.namespace_off and not observed.mtq
    try:
        caps = list(_headroom_caps(snapshot, observed)) if is_scaled_quota or observed.mtq else []
    except InvalidEntry as exc:
        yield f"{exc}: nothing is added"
        return
    if is_scaled_quota and not caps:
        return
    for number, vms in ((1, "the largest VM"), (at_once, f"the {at_once} largest VMs at once")):
        limits = {name: need.largest if number == 1 else need.at_once for name, need in needs.items()}
        additional = (
            {name: limits[name] - need.run for name, need in needs.items()}
            if is_scaled_quota
            else _above_base(limits, needs)
        )
        above_caps = (
            {name: additional[name] for cap in caps for name in cap if additional.get(name, ZERO) > cap[name]}
            if caps
            else additional
        )
        if above_caps:
            reason = "less may be added" if caps else "headroom does not scale this quota"
            yield f"too small for {vms} to migrate: {format_amounts(above_caps)} more are needed, and {reason}"
            return


def _headroom_caps(snapshot: Snapshot, observed: Facts) -> Iterator[ResourceList]:
    """Yields what headroom may add at most, by `max-extra` or by the namespace's budgets. Raises InvalidEntry."""
    if observed.mtq:
        for budget in snapshot.source.budgets.list(observed.quota.namespace):
            yield parse_resource_list(readable(budget.additional)[0])
        return
    for text in (observed.quota.annotations.get(constants.ANNOTATION_MAX_EXTRA, ""), observed.max_extra):
        if text:
            yield parse_resources(constants.ANNOTATION_MAX_EXTRA, text)


def _above_base(limits: Mapping[str, Quantity], needs: Mapping[str, ResourceSize]) -> ResourceList:
    """Returns what is asked for above the base."""
    return {name: limits[name] - need.limited for name, need in needs.items() if limits.get(name, ZERO) > need.limited}


def _vm_sizes(question: _Question, rendering: Rendering) -> list[_VmSize]:
    snapshot, quota = question.snapshot, question.quota
    controlled = snapshot.controlled(quota.namespace)
    claims = {claim.name: claim for claim in snapshot.source.claims.list(quota.namespace)}
    vm_sizes = []
    for name, vmi in question.vmis.items():
        is_grown = name == question.grown_vm
        source = sides_of(vmi, snapshot.migrations_of(quota.namespace, name), controlled).source[:1]
        running = usage_of(source[0].pods, quota.spec, rendering.kubernetes) if source else {}
        restarted = target_usage(vmi, source[0] if source and not is_grown else None, rendering, quota.spec)
        side = restarted if is_grown else maximum(running, restarted)
        vm_sizes.append(_VmSize(name, running, restarted, side, add(side, target_claim_usage(vmi, claims, rendering))))
    return vm_sizes


def _resource_sizes(question: _Question, vms: Sequence[_VmSize], rendering: Rendering) -> dict[str, ResourceSize]:
    snapshot, quota = question.snapshot, question.quota
    hard, used = snapshot.base(quota), parse_resource_list(quota.used)
    of_vms = usage_of(snapshot.source.pods.list(quota.namespace), quota.spec, rendering.kubernetes)
    all_run = total(vm.side for vm in vms)

    def need(name: str, limit: Quantity) -> ResourceSize:
        used_now = used.get(name, ZERO)
        of_others = max(ZERO, used_now - of_vms.get(name, ZERO))
        run = of_others if counts_of_claims(name) else of_others + all_run.get(name, ZERO)
        largest = sorted((vm.second.get(name, ZERO) for vm in vms), reverse=True) or [ZERO]
        return ResourceSize(limit, used_now, of_others, run, run + largest[0], sum(largest[: question.at_once], run))

    return {name: need(name, limit) for name, limit in sorted(hard.items()) if is_scaled(name)}


def _with_growth(vmi: VirtualMachineInstance, growth: Growth) -> VirtualMachineInstance:
    """Returns the VMI with these limits: requests grow in proportion, the guest's memory by the difference."""
    domain = vmi.spec.domain
    limits, requests = domain.resources.limits or {}, domain.resources.requests or {}
    changes: dict[str, Any] = {}
    for name, size in ((constants.CPU, growth.cpu), (constants.MEMORY, growth.memory)):
        if size is None:
            continue
        old_limit = parse_resource_list(limits).get(name)
        limits = {**limits, name: str(size)}
        if old_limit and name in requests:
            request = parse_resource_list(requests)[name]
            scaled = Quantity(-(-request.nanos * size.nanos // old_limit.nanos), request.format)
            requests = {**requests, name: str(scaled)}
        if name == constants.MEMORY and domain.memory and domain.memory.guest is not None and old_limit:
            guest = Quantity.parse(domain.memory.guest) + size - old_limit
            changes["memory"] = {"guest": str(guest)}
    if growth.cpu is not None:
        changes["cpu"] = {"cores": growth.cpu.value(), "sockets": 1, "threads": 1}
    changes["resources"] = {"limits": limits, "requests": requests}
    return edit(vmi, spec={"domain": changes})
