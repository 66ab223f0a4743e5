"""How large a namespace's quotas must be: for its VMs to run, for the largest to migrate, for several at once. Pure.

    all run = what others use + one side of each VM       several at once = all run + the largest second sides

A VM that runs counts as much as it does now or as KubeVirt would render it, whichever is more: a restart renders it
anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import field

from kubeloop.api.core import Pod, ResourceQuota
from kubeloop.api.quantity import ZERO, Quantity, QuantityError
from kubeloop.api.resource_list import ResourceList, add, maximum, parse_resource_list, total
from pkg.api.kubevirt import CPU, VirtualMachine, VirtualMachineInstance
from pkg.report.snapshot import Document, Snapshot
from pkg.util import constants
from pkg.util.kubevirt.claims import claim_to_come
from pkg.util.kubevirt.launcher import instance_of
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.kubevirt.sides import ControlledPods, sides_of
from pkg.util.kubevirt.target import Side, target_usage, usage_of
from pkg.util.resourcequota.base import base_of, counts_of_claims, is_scaled
from pkg.util.resourcequota.managed import is_served
from pkg.util.resourcequota.policy import EXACT


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


class Sized(Document, frozen=True):
    """What a quota needs, by resource."""

    name: str
    needs: Mapping[str, Need] = field(name="resources")


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
    that is not there, and for one whose quantities are none."""
    rendering = snapshot.rendering(namespace, ratio)
    instances = {vmi.name: vmi for vmi in snapshot.instances if vmi.namespace == namespace}
    every = {vm.name: instance_of(vm) for vm in machines} | instances
    if growth is not None:
        if growth.vm not in every:
            raise NotSized(f"there is no VM {growth.vm} in namespace {namespace}")
        every[growth.vm] = _grown(every[growth.vm], growth)
    pods = [pod for pod in snapshot.pods if pod.namespace == namespace]
    grown = growth.vm if growth else ""
    try:
        found = [
            Sized(quota.name, _needs(snapshot, quota, every, grown, pods, rendering, at_once))
            for quota in snapshot.quotas_of(namespace)
        ]
    except QuantityError as exc:
        raise NotSized(f"a VM of namespace {namespace} has a quantity that is none: {exc}") from exc
    quotas = [each for each in found if each.needs]
    return Sizes(namespace, rendering.ratio or None, at_once, sorted(every), quotas)


def _needs(
    snapshot: Snapshot,
    quota: ResourceQuota,
    vms: Mapping[str, VirtualMachineInstance],
    grown: str,
    pods: Sequence[Pod],
    rendering: Rendering,
    at_once: int,
) -> dict[str, Need]:
    controlled = ControlledPods(pods, snapshot.now)
    sides: list[ResourceList] = []
    seconds: list[ResourceList] = []
    claims = {claim.name: claim for claim in snapshot.claims if claim.namespace == quota.namespace}
    for name, vmi in vms.items():
        migrations = snapshot.migrations_of(quota.namespace, name)
        home = sides_of(vmi, migrations, controlled).home[:1]
        now = usage_of(home[0].pods, quota.spec, rendering.kubernetes) if home else {}
        like: Side | None = home[0] if home and name != grown else None
        then = target_usage(vmi, like, rendering, quota.spec)
        sides.append(then if name == grown else maximum(now, then))
        seconds.append(add(sides[-1], claim_to_come(vmi, claims, rendering)))
    hard, used = _base(snapshot, quota), parse_resource_list(quota.used)
    of_vms, all_run = usage_of(pods, quota.spec, rendering.kubernetes), total(sides)

    def need(name: str, limit: Quantity) -> Need:
        in_use = used.get(name, ZERO)
        others = max(ZERO, in_use - of_vms.get(name, ZERO))
        run = others if counts_of_claims(name) else others + all_run.get(name, ZERO)
        largest = sorted((second.get(name, ZERO) for second in seconds), reverse=True) or [ZERO]
        several = total([{name: amount} for amount in largest[:at_once]])[name]
        return Need(limit, in_use, others, run, run + largest[0], run + several)

    return {name: need(name, limit) for name, limit in sorted(hard.items()) if is_scaled(name)}


def _base(snapshot: Snapshot, quota: ResourceQuota) -> ResourceList:
    """Returns the limits without what headroom has added."""
    observed, hard = snapshot.observe(quota), parse_resource_list(quota.hard)
    if not is_served(quota):
        return hard
    base = base_of(quota, observed.limits, EXACT, observed.rancher.granted).limits or {}
    return hard | {name: limit for name, limit in base.items() if name in hard}


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
