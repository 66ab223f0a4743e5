"""Compensation: headroom for target pods that quota refused although their entries are applied. Pure.

The namespace uses more than its base then, for example after the overhead ratio was raised (Harvester issue 9435).
While a migration is refused, what the VMs of its namespace can have grown by is added, as far as it is missing: bounded
by what operators have changed, whatever other pods use. Beside Harvester its own rule holds: `limits.memory` only, what
is missing plus 128Mi. status.used counts a target pod before a cache shows it: the controller reads the pods live."""

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
from pkg.util.problems import Problem, not_understood
from pkg.util.quotacount.usage import pod_usage
from pkg.util.resourcequota.base import Base, hard, quantity_of
from pkg.util.resourcequota.entries import put, read
from pkg.util.resourcequota.facts import Facts, Plan
from pkg.util.resourcequota.vm import VmUsage, controlled_pods, rendering_of

_MARGIN = Quantity.parse("128Mi")
"""Upstream's allowance for what KubeVirt's own estimate leaves out (additionalCompensationMemory)."""


def max_compensation(
    facts: Facts, base: Base, refused: Iterable[tuple[ResourceList, ResourceList]], problems: list[Problem]
) -> ResourceList:
    """Returns the most that is added while target pods are refused: what Harvester's estimate leaves out for the
    refused ones, each given by the target's limit and by its entry, and how much the namespace's running VMs can have
    outgrown the base because the overhead ratio was raised: the one reason for which pods that were all admitted can
    exceed the base and the entries. A VM that is not understood is added to `problems`."""
    growths = [
        positive({name: allowed.get(name, ZERO) - amount for name, amount in entry.items()})
        for allowed, entry in refused
    ]
    rendering, pods = rendering_of(facts, base), controlled_pods(facts)
    is_higher = rendering.factor > factor_of(rendering.usual_ratio)
    for name, vmi in facts.instances.items() if is_higher else ():
        if is_running(vmi) and vmi.uid in pods.sides:
            key, work_out = ("growth", vmi.namespace, name, rendering.quota_limits), partial(_growth, vmi, rendering)
            try:
                growths.append(facts.cache.get_or_compute(key, (vmi, facts.rendering), work_out))
            except Exception as exc:
                problems.append(not_understood(name, exc))
    return {name: amount for name, amount in total(growths).items() if name in (base.limits or {})}


def missing_compensation(
    quota: ResourceQuota, vms: Iterable[VmUsage], without: ResourceList, growth: ResourceList, present: ResourceList
) -> ResourceList:
    """Returns the part of the growth that all pending target pods together lack where spec.hard is `without` a
    compensation: the first of them takes the headroom of another. The `present` compensation is not lowered while a pod
    is refused."""
    pending_usage = total(vm.pending_usage for vm in vms if vm.stage >= Stage.ACTIVE)
    lacking: ResourceList = {}
    for name, most in growth.items():
        missing = quantity_of(quota.used, name) + pending_usage.get(name, ZERO) - without[name]
        lacking[name] = max(min(most, missing), present.get(name, ZERO))
    return positive(lacking)


def compensates_more(quota: ResourceQuota, plan: Plan) -> bool:
    """Reports whether a plan raises the present compensation."""
    if constants.ANNOTATION_MIGRATING_COMPENSATION not in plan.annotations:
        return False
    present, desired = read(quota.annotations).compensation, read(plan.annotations_of(quota)).compensation
    return any(amount > present.get(name, ZERO) for name, amount in desired.items())


def _growth(vmi: VirtualMachineInstance, rendering: Rendering) -> ResourceList:
    usual, current = (
        pod_usage(rendered_pod(vmi, replace(rendering, ratio=ratio)), releases=rendering.kubernetes)
        for ratio in (rendering.usual_ratio, rendering.ratio)
    )
    return positive({name: current[name] - usual[name] for name in current if name in usual})


def compensate_as_harvester(
    quota: ResourceQuota, base: Mapping[str, Quantity], vms: Sequence[VmUsage], annotations: dict[str, str]
) -> None:
    """Writes the compensation beside Harvester for the largest of the refused target pods, where it has to change."""
    waiting = [vm for vm in vms if vm.stage is Stage.REFUSED and not vm.target]
    refused = [vm for vm in waiting if not annotations.keys().isdisjoint(vm.keys)]
    need = max(((vm.need or {}).get(LIMITS_MEMORY, ZERO) for vm in refused), default=ZERO)
    limit, used = (quantity_of(resources, LIMITS_MEMORY) for resources in (quota.hard, quota.used))
    if need.is_zero() or limit.is_zero() or LIMITS_MEMORY not in base:
        return
    entries = read(annotations)
    present = entries.compensation.get(LIMITS_MEMORY, ZERO)
    without = hard(base, total(entries.by_key.values()))[LIMITS_MEMORY]
    if entries.invalid:  # as upstream, what is missing below the present limit
        present, without = ZERO, limit
    desired = compensation_for(used, without, present, need)
    if desired != present:
        put(annotations, constants.ANNOTATION_MIGRATING_COMPENSATION, {LIMITS_MEMORY: desired})


def compensation_for(used: Quantity, without: Quantity, present: Quantity, need: Quantity) -> Quantity:
    """Returns the compensation under which a pod of `need` bytes fits: the present one when it is enough. `without` is
    the limit without one.

    Upstream measures what is missing against a limit that already holds the old compensation and then replaces it,
    which can swing between two values for ever. Its value is kept where it settles (the old one is at most 128Mi);
    elsewhere the whole shortage is compensated, which settles at once."""
    shortage = max(ZERO, used + need - without)
    if shortage <= present:
        return present
    replaced = shortage - present + _MARGIN
    return replaced if shortage <= replaced else shortage + _MARGIN
