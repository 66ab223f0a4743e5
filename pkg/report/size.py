"""How large a namespace's quotas must be: for its VMs to run, for the largest to migrate, for several at once. Pure.

    all run = what others use + one side of each VM       several at once = all run + the largest second sides

A VM that runs counts as much as it does now or as KubeVirt would render it, whichever is more: a restart renders it
anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
from msgspec import field

from kubeloop.api.core import Pod, ResourceQuota
from kubeloop.api.quantity import ZERO, Quantity, QuantityError
from kubeloop.api.resource_list import ResourceList, add, maximum, parse_resource_list, subtract, total
from pkg.api.kubevirt import CPU, VirtualMachine, VirtualMachineInstance
from pkg.report.snapshot import Document, Snapshot
from pkg.util import constants
from pkg.util.amounts import listed
from pkg.util.kubevirt.claims import claim_to_come
from pkg.util.kubevirt.defaults import missing_instancetype, with_topology
from pkg.util.kubevirt.launcher import instance_of
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.kubevirt.sides import sides_of
from pkg.util.kubevirt.target import Side, target_usage, usage_of
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


class Need(Document, frozen=True):
    """One resource of a quota: its limit without added headroom (the person's, as far as Rancher granted it), what is
    used now and how much of that is not VMs'; and how large it must be for all VMs to run, for the largest to migrate
    beside them, and for several at once."""

    limited: Quantity
    used: Quantity
    others: Quantity
    run: Quantity = field(name="allRun")
    largest: Quantity = field(name="largestMigrates")
    at_once: Quantity


class AtRatio(Document, frozen=True):
    """What of a quota's memory all VMs need to run, the largest to migrate, and several, at an overhead ratio."""

    ratio: str = field(name="overheadRatio")
    run: Quantity = field(name="allRun")
    largest: Quantity = field(name="largestMigrates")
    at_once: Quantity


class Sized(Document, frozen=True):
    """What a quota needs, by resource; `verdicts` say for what its base, and what headroom may add, is enough, and
    which VMs would not start again or are not counted; `ratios` is the need of `limits.memory` at other ratios."""

    name: str
    needs: Mapping[str, Need] = field(name="resources")
    verdicts: Sequence[str] = ()
    ratios: Sequence[AtRatio] = ()


class Sizes(Document, frozen=True):
    """The answer for one namespace, by quota. `vms` are those that are counted."""

    namespace: str
    ratio: str | None = field(name="overheadRatio")
    at_once: int
    vms: Sequence[str]
    quotas: Sequence[Sized]


def sizes(
    snapshot: Snapshot,
    namespace: str,
    machines: Sequence[VirtualMachine] = (),
    *,
    ratio: str | None = None,
    at_once: int = 2,
    growth: Growth | None = None,
) -> Sizes:
    """For every quota of the namespace. `machines`: all its VMs, those that do not run too. Raises NotSized for a VM
    that is not there or whose size is not known, and for one whose quantities are none."""
    rendering = snapshot.rendering(namespace, ratio)
    instances = {vmi.name: vmi for vmi in snapshot.instances if vmi.namespace == namespace}
    halted = {vm.name: vm for vm in machines if vm.name not in instances}
    unread = {name: missing for name, vm in halted.items() if (missing := missing_instancetype(vm))}
    if growth is not None and growth.vm in unread:
        raise NotSized(f"the {unread[growth.vm]} of VM {growth.vm} is not read: start the VM first")
    pods = [pod for pod in snapshot.pods if pod.namespace == namespace]
    grown = growth.vm if growth else ""
    try:
        every = {name: with_topology(instance_of(vm)) for name, vm in halted.items() if name not in unread} | instances
        if growth is not None and growth.vm in every:
            every[growth.vm] = _grown(every[growth.vm], growth)
        elif growth is not None:
            raise NotSized(f"there is no VM {growth.vm} in namespace {namespace}")
        found = [
            _sized(snapshot, quota, every, grown, pods, rendering, at_once) for quota in snapshot.quotas_of(namespace)
        ]
    except QuantityError as exc:
        raise NotSized(f"a VM of namespace {namespace} has a quantity that is none: {exc}") from exc
    uncounted = [
        f"VM {name} is not counted: it does not run, and its {missing} is not read: ask again once it runs"
        for name, missing in unread.items()
    ]
    enough = f"large enough: all VMs run, and {at_once} can migrate at once"
    quotas = [
        msgspec.structs.replace(each, verdicts=[*each.verdicts, *uncounted] or [enough]) for each in found if each.needs
    ]
    return Sizes(namespace, rendering.ratio or None, at_once, sorted(every), quotas)


@dataclass(frozen=True)
class _Vm:
    """What a quota counts of a VM: now, when it is started anew, at least to run, and of a second side."""

    name: str
    now: ResourceList
    anew: ResourceList
    side: ResourceList
    second: ResourceList


def _sized(
    snapshot: Snapshot,
    quota: ResourceQuota,
    every: Mapping[str, VirtualMachineInstance],
    grown: str,
    pods: Sequence[Pod],
    rendering: Rendering,
    at_once: int,
) -> Sized:
    vms = _vms(snapshot, quota, every, grown, rendering)
    needs = _needs(snapshot, quota, vms, pods, rendering, at_once)
    verdicts = [*_too_small(needs), *_not_again(vms, needs), *_not_at_once(snapshot, quota, needs, at_once)]
    ratios = []
    for ratio in _RATIOS if _MEMORY in needs else ():
        then = replace(rendering, ratio=ratio, harvester_ratio=ratio)
        of = _needs(snapshot, quota, _vms(snapshot, quota, every, grown, then), pods, then, at_once)[_MEMORY]
        ratios.append(AtRatio(ratio, of.run, of.largest, of.at_once))
    return Sized(quota.name, needs, verdicts, ratios)


def _too_small(needs: Mapping[str, Need]) -> Iterator[str]:
    if lacking := _beyond({name: need.run for name, need in needs.items()}, needs):
        yield f"the base is too small for all VMs to run: it lacks {listed(lacking)}"


def _not_again(vms: Sequence[_Vm], needs: Mapping[str, Need]) -> Iterator[str]:
    """Those that run and would not start again if they were stopped: the quota, or the overhead ratio, has changed.
    What migrations have left behind goes by itself."""
    run = total(vm.now for vm in vms)
    for vm in vms:
        others = add({name: need.others for name, need in needs.items()}, subtract(run, vm.now))
        short = _beyond(add(others, vm.anew), needs) if vm.now else {}
        if short := {name: amount for name, amount in short.items() if vm.anew.get(name)}:
            yield f"VM {vm.name} would not start again: {listed(short)} are missing"


def _not_at_once(snapshot: Snapshot, quota: ResourceQuota, needs: Mapping[str, Need], at_once: int) -> Iterator[str]:
    """Which migrations cannot be: headroom adds nothing, or less than they ask for."""
    observed = snapshot.observe(quota)
    scales = is_served(quota) and not observed.namespace_off and not observed.mtq
    try:
        caps = list(_caps(snapshot, observed)) if scales or observed.mtq else []
    except InvalidEntry as exc:
        yield f"{exc}: nothing is added"
        return
    if scales and not caps:
        return
    for number, vms in ((1, "the largest VM"), (at_once, f"the {at_once} largest VMs at once")):
        asked = {name: need.largest if number == 1 else need.at_once for name, need in needs.items()}
        more = {name: asked[name] - need.run for name, need in needs.items()} if scales else _beyond(asked, needs)
        over = {name: more[name] for cap in caps for name in cap if more.get(name, ZERO) > cap[name]} if caps else more
        if over:
            why = "less may be added" if caps else "headroom does not scale this quota"
            yield f"too small for {vms} to migrate: {listed(over)} more are needed, and {why}"
            return


def _caps(snapshot: Snapshot, observed: Facts) -> Iterator[ResourceList]:
    """What headroom may add at most, by `max-extra` or by the namespace's budgets. Raises InvalidEntry."""
    if observed.mtq:
        for budget in snapshot.source.budgets.list(observed.quota.namespace):
            yield parse_resource_list(readable(budget.additional)[0])
        return
    for text in (observed.quota.annotations.get(constants.ANNOTATION_MAX_EXTRA, ""), observed.max_extra):
        if text:
            yield parse_resources(constants.ANNOTATION_MAX_EXTRA, text)


def _beyond(asked: Mapping[str, Quantity], needs: Mapping[str, Need]) -> ResourceList:
    """What is asked for beyond the base."""
    return {name: asked[name] - need.limited for name, need in needs.items() if asked.get(name, ZERO) > need.limited}


def _vms(
    snapshot: Snapshot,
    quota: ResourceQuota,
    every: Mapping[str, VirtualMachineInstance],
    grown: str,
    rendering: Rendering,
) -> list[_Vm]:
    controlled = snapshot.controlled(quota.namespace)
    claims = {claim.name: claim for claim in snapshot.claims if claim.namespace == quota.namespace}
    found = []
    for name, vmi in every.items():
        migrations = snapshot.migrations_of(quota.namespace, name)
        home = sides_of(vmi, migrations, controlled).home[:1]
        now = usage_of(home[0].pods, quota.spec, rendering.kubernetes) if home else {}
        like: Side | None = home[0] if home and name != grown else None
        anew = target_usage(vmi, like, rendering, quota.spec)
        side = anew if name == grown else maximum(now, anew)
        found.append(_Vm(name, now, anew, side, add(side, claim_to_come(vmi, claims, rendering))))
    return found


def _needs(
    snapshot: Snapshot,
    quota: ResourceQuota,
    vms: Sequence[_Vm],
    pods: Sequence[Pod],
    rendering: Rendering,
    at_once: int,
) -> dict[str, Need]:
    hard, used = snapshot.base(quota), parse_resource_list(quota.used)
    of_vms, all_run = usage_of(pods, quota.spec, rendering.kubernetes), total(vm.side for vm in vms)

    def need(name: str, limit: Quantity) -> Need:
        in_use = used.get(name, ZERO)
        others = max(ZERO, in_use - of_vms.get(name, ZERO))
        run = others if counts_of_claims(name) else others + all_run.get(name, ZERO)
        largest = sorted((vm.second.get(name, ZERO) for vm in vms), reverse=True) or [ZERO]
        several = total([{name: amount} for amount in largest[:at_once]])[name]
        return Need(limit, in_use, others, run, run + largest[0], run + several)

    return {name: need(name, limit) for name, limit in sorted(hard.items()) if is_scaled(name)}


def _grown(vmi: VirtualMachineInstance, growth: Growth) -> VirtualMachineInstance:
    """With these limits: requests grow in proportion, the guest's memory by the difference."""
    domain = vmi.spec.domain
    limits, requests = domain.resources.limits or {}, domain.resources.requests or {}
    changes: dict[str, Any] = {}
    for name, size in ((constants.CPU, growth.cpu), (constants.MEMORY, growth.memory)):
        if size is None:
            continue
        before = parse_resource_list(limits).get(name)
        limits = {**limits, name: str(size)}
        if before and name in requests:
            request = parse_resource_list(requests)[name]
            scaled = Quantity(-(-request.nanos * size.nanos // before.nanos), request.format)
            requests = {**requests, name: str(scaled)}
        if name == constants.MEMORY and domain.memory and domain.memory.guest is not None and before:
            guest = Quantity.parse(domain.memory.guest) + size - before
            changes["memory"] = msgspec.structs.replace(domain.memory, guest=str(guest))
    if growth.cpu is not None:
        cores = growth.cpu.value()
        changes["cpu"] = msgspec.structs.replace(domain.cpu or CPU(), cores=cores, sockets=1, threads=1)
    changes["resources"] = msgspec.structs.replace(domain.resources, limits=limits, requests=requests)
    spec = msgspec.structs.replace(vmi.spec, domain=msgspec.structs.replace(domain, **changes))
    return msgspec.structs.replace(vmi, spec=spec)
