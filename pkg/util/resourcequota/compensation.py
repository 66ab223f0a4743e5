"""Compensation: headroom for target pods that quota refused although their entries are applied. Pure.

It happens when the namespace already uses more than its base, for example after the overhead ratio was raised
(Harvester issue 9435). While a migration is refused, what the VMs of its namespace can have grown by is added, as far
as it is missing: bounded by what operators have changed, whatever other pods use. Beside Harvester its own rule holds:
`limits.memory` only, what is missing plus 128Mi. status.used counts a target pod before a cache shows it: what is to be
compensated for is decided with pods that are read live (resourcequota_controller).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from kubeloop.api.core import ResourceQuota
from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.resource_list import ResourceList, positive, total
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.util import constants
from pkg.util.constants import LIMITS_MEMORY
from pkg.util.kubevirt.evidence import is_running
from pkg.util.kubevirt.launcher import rendered_pod
from pkg.util.kubevirt.migration import Stage
from pkg.util.kubevirt.rendering import Rendering, factor_of
from pkg.util.problems import Problem
from pkg.util.quotacount.usage import pod_usage
from pkg.util.resourcequota.balance import shortage
from pkg.util.resourcequota.base import Base, hard, quantity_of
from pkg.util.resourcequota.entries import put, read
from pkg.util.resourcequota.errors import not_understood
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.vm import VmUsage
from pkg.util.resourcequota.vms import controlled_pods, rendering_of

_MARGIN = Quantity.parse("128Mi")
"""Upstream's allowance for what KubeVirt's own estimate leaves out (additionalCompensationMemory)."""


def promised(
    facts: Facts, base: Base, refused: Iterable[tuple[ResourceList, ResourceList]], problems: list[Problem]
) -> ResourceList:
    """The most that is added while target pods are refused: what the namespace's VMs have outgrown the base by, and
    what Harvester's estimate leaves out of the refused ones': what each is allowed, and what its entry says.
    A VM that is not understood is added to `problems`."""
    left_out = [{name: allowed.get(name, ZERO) - said for name, said in entry.items()} for allowed, entry in refused]
    most = total([overhead_growth(facts, rendering_of(facts, base), problems), *map(positive, left_out)])
    return {name: amount for name, amount in most.items() if name in (base.limits or {})}


def lack(
    quota: ResourceQuota,
    vms: Iterable[VmUsage],
    without: Mapping[str, Quantity],
    growth: Mapping[str, Quantity],
    stands: Mapping[str, Quantity],
) -> ResourceList:
    """What of the growth the pods to come lack where spec.hard is `without` a compensation, all of them together: the
    one that comes first takes the headroom of another. What `stands` is not lowered while a pod is refused."""
    to_come = total(vm.to_come for vm in vms if vm.stage >= Stage.WANTED)
    lacking: ResourceList = {}
    for name, most in growth.items():
        short = shortage(quantity_of(quota.used, name), to_come.get(name, ZERO), without[name])
        lacking[name] = max(min(most, short), stands.get(name, ZERO))
    return positive(lacking)


def compensates_more(annotations: Mapping[str, str], changes: Mapping[str, str | None]) -> bool:
    """Whether the changes raise the compensation that stands."""
    if constants.ANNOTATION_MIGRATING_COMPENSATION not in changes:
        return False
    after = {key: text for key, text in {**annotations, **changes}.items() if text is not None}
    stands, wanted = read(annotations).compensation, read(after).compensation
    return any(amount > stands.get(name, ZERO) for name, amount in wanted.items())


def overhead_growth(facts: Facts, rendering: Rendering, problems: list[Problem]) -> ResourceList:
    """By how much the namespace's running VMs can have outgrown the base because the overhead ratio was raised: the
    one reason for which pods that were all let in can be more than the base and the entries."""
    if rendering.factor <= factor_of(rendering.usual_ratio):
        return {}
    pods, grown = controlled_pods(facts), list[ResourceList]()
    for name, vmi in facts.instances.items():
        if is_running(vmi) and vmi.uid in pods.sides:
            key = ("growth", vmi.namespace, name, rendering.quota_limits)
            try:
                grown.append(facts.cache.made(key, (vmi, facts.rendering), partial(_growth, vmi, rendering)))
            except Exception as exc:
                problems.append(not_understood(name, exc))
    return total(grown)


def _growth(vmi: VirtualMachineInstance, rendering: Rendering) -> ResourceList:
    before, now = (
        pod_usage(rendered_pod(vmi, replace(rendering, ratio=ratio)), releases=rendering.kubernetes)
        for ratio in (rendering.usual_ratio, rendering.ratio)
    )
    return positive({name: now[name] - before[name] for name in now if name in before})


def compensate_as_harvester(
    quota: ResourceQuota, base: Mapping[str, Quantity], vms: Sequence[VmUsage], annotations: dict[str, str]
) -> None:
    """Write the compensation beside Harvester for the largest of the refused target pods, where it has to change."""
    waiting = [vm for vm in vms if vm.stage is Stage.REFUSED and not vm.target]
    refused = [vm for vm in waiting if not annotations.keys().isdisjoint(vm.keys)]
    need = max(((vm.need or {}).get(LIMITS_MEMORY, ZERO) for vm in refused), default=ZERO)
    limit, used = (quantity_of(each, LIMITS_MEMORY) for each in (quota.hard, quota.used))
    if need.is_zero() or limit.is_zero() or LIMITS_MEMORY not in base:
        return
    entries = read(annotations)
    stands = entries.compensation.get(LIMITS_MEMORY, ZERO)
    without = hard(base, total(entries.said.values()))[LIMITS_MEMORY]
    if entries.invalid:  # as upstream, what is missing of the limit that there is
        stands, without = ZERO, limit
    wanted = compensation_for(used, without, stands, need)
    if wanted != stands:
        put(annotations, constants.ANNOTATION_MIGRATING_COMPENSATION, {LIMITS_MEMORY: wanted})


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
    replaced = missing + _MARGIN
    if shortage(used, need, without + replaced).is_zero():
        return replaced
    return shortage(used, need, without) + _MARGIN
