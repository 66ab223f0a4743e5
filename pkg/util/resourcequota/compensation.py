"""Compensation: headroom for target pods that quota refused although their entries are applied. Pure.

It happens when the namespace already uses more than its base, for example after the overhead ratio was raised
(Harvester issue 9435). While a migration is refused, what the VMs of its namespace can have grown by is added, as far
as it is missing: bounded by what operators have changed, whatever other pods use. Beside Harvester its own rule holds:
`limits.memory` only, what is missing plus 128Mi. status.used counts a target pod before a cache shows it: what is to be
compensated for is decided with pods that are read live (resourcequota_controller).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from kubeloop.api.core import ResourceQuota
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.util import constants
from pkg.util.constants import LIMITS_MEMORY
from pkg.util.kubevirt.migration import Stage
from pkg.util.kubevirt.observed_overhead import overhead_of
from pkg.util.kubevirt.overhead import factor_of
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.kubevirt.target import rendered_pod
from pkg.util.quantity import ZERO, Quantity
from pkg.util.quotacount.usage import pod_usage
from pkg.util.resource_list import ResourceList, add, maximum, minimum, subtract, total
from pkg.util.resourcequota.balance import shortage
from pkg.util.resourcequota.base import COMPENSATION_MARGIN, Base, hard, quantity_of
from pkg.util.resourcequota.caps import Caps
from pkg.util.resourcequota.entries import Entries
from pkg.util.resourcequota.errors import InvalidEntry, ResourceQuotaError
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.vm import Vm
from pkg.util.resourcequota.vms import controlled_pods, rendering_of
from pkg.util.resourcequota.writing import Wanted


def promised(facts: Facts, base: Base, refused: Sequence[Wanted]) -> ResourceList:
    """The most that is added while target pods are refused: what the namespace's VMs have outgrown the base by, and
    what Harvester's estimate leaves out of the refused ones'."""
    left_out = (subtract(each.vm.allowed, each.value) for each in refused)
    more = [
        {name: amount for name, amount in left.items() if amount > ZERO and name in each.value}
        for each, left in zip(refused, left_out, strict=True)
    ]
    grown = overhead_growth(facts, rendering_of(facts, base))
    return {name: amount for name, amount in total([grown, *more]).items() if name in (base.limits or {})}


def lack(
    quota: ResourceQuota,
    vms: Sequence[Vm],
    without: Mapping[str, Quantity],
    growth: Mapping[str, Quantity],
    stands: Mapping[str, Quantity],
) -> ResourceList:
    """What of the growth the pods to come lack where spec.hard is `without` a compensation, all of them together: the
    one that comes first takes the headroom of another. What `stands` is not lowered while a pod is refused."""
    to_come = total(vm.to_come for vm in vms if vm.stage >= Stage.WANTED)
    used = {name: quantity_of(quota.used, name) for name in growth}
    short = {
        name: min(most, shortage(used[name], to_come.get(name, ZERO), without[name])) for name, most in growth.items()
    }
    lacking = maximum(short, minimum(stands, growth))
    return {name: amount for name, amount in lacking.items() if amount > ZERO}


def compensates_more(annotations: Mapping[str, str], changes: Mapping[str, str | None]) -> bool:
    """Whether the changes raise the compensation that stands."""
    if constants.ANNOTATION_MIGRATING_COMPENSATION not in changes:
        return False
    after = {key: text for key, text in {**annotations, **changes}.items() if text is not None}
    stands, wanted = (Entries(each).compensation_or_none() for each in (annotations, after))
    return any(amount > stands.get(name, ZERO) for name, amount in wanted.items())


def compensate(
    wanted: Mapping[str, Quantity],
    stands: Mapping[str, Quantity],
    added: Mapping[str, Quantity],
    refused: Sequence[Wanted],
    caps: Caps,
    entries: Entries,
) -> list[ResourceQuotaError]:
    """Write the compensation, or what `stands` where the caps let in no more beside what entries have `added`."""
    names = ", ".join(f"VM {each.vm.name}" for each in refused)
    refusal = caps.refuse(f"compensation for {names}", add(added, wanted)) if wanted != stands else None
    entries.compensate(stands if refusal else wanted)
    return [refusal] if refusal else []


def overhead_growth(facts: Facts, rendering: Rendering) -> ResourceList:
    """By how much the namespace's running VMs can have outgrown the base because the overhead ratio was raised: the
    one reason for which pods that were all let in can be more than the base and the entries."""
    if factor_of(rendering.ratio) <= factor_of(rendering.usual_ratio):
        return {}
    pods = controlled_pods(facts)
    grown: list[ResourceList] = []
    for name, vmi in facts.instances.items():
        if (vmi.status.phase or constants.PHASE_RUNNING) == constants.PHASE_RUNNING and pods.of(vmi.uid):
            key = ("growth", vmi.namespace, name, rendering.quota_limits)
            with suppress(Exception):  # said of the VM
                work_out = partial(_growth, vmi, rendering)
                grown.append(facts.cache.made(key, (vmi, facts.rendering), work_out))
    return total(grown)


def _growth(vmi: VirtualMachineInstance, rendering: Rendering) -> ResourceList:
    overhead = overhead_of(vmi, rendering)

    def at(ratio: str) -> ResourceList:
        pod = rendered_pod(vmi, rendering, overhead.at(ratio).value())
        return pod_usage(pod, releases=rendering.kubernetes)

    before, now = at(rendering.usual_ratio), at(rendering.ratio)
    more = {name: now[name] - before[name] for name in now if name in before}
    return {name: amount for name, amount in more.items() if amount > ZERO}


def compensate_as_harvester(
    quota: ResourceQuota, base: Mapping[str, Quantity], vms: Sequence[Vm], entries: Entries
) -> None:
    """Write the compensation beside Harvester for the largest of the refused target pods, where it has to change."""
    refused = [vm for vm in vms if vm.stage is Stage.REFUSED and not vm.target and entries.keys_of(vm.name, vm.uid)]
    need = max(((vm.need or {}).get(LIMITS_MEMORY, ZERO) for vm in refused), default=ZERO)
    limit, used = (quantity_of(each, LIMITS_MEMORY) for each in (quota.hard, quota.used))
    if need.is_zero() or limit.is_zero() or LIMITS_MEMORY not in base:
        return
    try:
        stands = entries.compensation.get(LIMITS_MEMORY, ZERO)
        without = hard(base, entries.added())[LIMITS_MEMORY] - stands
    except InvalidEntry:  # as upstream, what is missing of the limit that there is
        stands, without = ZERO, limit
    wanted = compensation_for(used, without, stands, need)
    if wanted != stands:
        entries.compensate({LIMITS_MEMORY: wanted})


def compensation_for(used: Quantity, without: Quantity, stands: Quantity, need: Quantity) -> Quantity:
    """The compensation under which a pod of `need` bytes fits; the one that stands when it is enough. `without` is the
    limit without one.

    Upstream measures what is missing against a limit that already holds the old compensation and then
    replaces it, which can swing between two values for ever. Its value is kept where it settles (the old one
    is at most 128Mi); elsewhere the whole shortage is compensated, which settles at once.
    """
    missing = shortage(used, need, without + stands)
    if missing.is_zero():
        return stands
    replaced = missing + COMPENSATION_MARGIN
    if shortage(used, need, without + replaced).is_zero():
        return replaced
    return shortage(used, need, without) + COMPENSATION_MARGIN
