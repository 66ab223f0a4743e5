"""Compensation: headroom for a target pod that quota refused although its entry is applied. Pure.

It happens when the namespace already uses more than its base, for example after the overhead ratio was raised
(Harvester issue 9435). Whether to believe in a shortage is one question for both modes. How much it is, is upstream's
answer in assist mode (`limits.memory` only, what is missing plus 128Mi), and in takeover what is missing for a reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from kubeloop.api.core import ResourceQuota
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.util import constants
from pkg.util.kubevirt.evidence import sides_of
from pkg.util.kubevirt.migration import Stage
from pkg.util.kubevirt.observed_overhead import overhead_of
from pkg.util.kubevirt.overhead import factor_of
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.kubevirt.target import rendered_pod, shape_of
from pkg.util.names import migrating_key
from pkg.util.quantity import ZERO, Quantity
from pkg.util.quotacount.usage import pod_usage
from pkg.util.resource_list import ResourceList, add, minimum, subtract, total
from pkg.util.resourcequota.base import COMPENSATION_MARGIN, quantity_of, shortage
from pkg.util.resourcequota.caps import Caps
from pkg.util.resourcequota.claims import controlled_pods, migrations_by_vm, rendering_of
from pkg.util.resourcequota.errors import ResourceQuotaError
from pkg.util.resourcequota.facts import Claim, Claims, Facts
from pkg.util.resourcequota.journal import Journal
from pkg.util.resourcequota.policy import Policy


@dataclass(frozen=True, slots=True)
class Settled:
    """Whether a shortage is believed, since when it is seen, and in how many seconds to ask again."""

    believed: bool = False
    since: float | None = None
    recheck_after: float | None = None


@dataclass(frozen=True, slots=True)
class Scaled:
    """What changes in spec.hard; whether a shortage is believed."""

    hard: Mapping[str, str | None] = field(default_factory=dict)
    problems: Sequence[ResourceQuotaError] = ()
    settled: Settled = field(default_factory=Settled)


def settled(facts: Facts, policy: Policy, *, applied: bool) -> Settled:
    """Whether to believe in a shortage now; `applied`: spec.hard has the headroom already.

    One that is seen before the headroom was made is real. Afterwards KubeVirt may just have created the target
    pod: status.used counts it already while the condition still says refused. That passes by itself.
    """
    if not applied:
        return Settled(believed=True)
    since = facts.now if facts.timers.short_since is None else facts.timers.short_since
    left = since + policy.settle - facts.now
    return Settled(believed=left <= 0, since=since, recheck_after=left if left > 0 else None)


# ---- assist --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemoryState:
    """limits.timers of a quota: `used` by the pods, `without` compensation the limit it shall have, and the
    compensation that `stands`. `fixed`: the limit cannot be computed and stays whatever is compensated."""

    used: Quantity
    without: Quantity
    stands: Quantity
    fixed: bool = False

    def limit(self, compensation: Quantity) -> Quantity:
        return self.without if self.fixed else self.without + compensation


def compensation_for(state: MemoryState, need: Quantity) -> Quantity:
    """The compensation under which a pod of `need` bytes fits; the one that stands when it is enough.

    Upstream measures what is missing against a limit that already holds the old compensation and then
    replaces it, which can swing between two values for ever. Its value is kept where it settles (the old one
    is at most 128Mi); elsewhere the whole shortage is compensated, which settles at once.
    """
    missing = shortage(state.used, need, state.limit(state.stands))
    if missing.is_zero():
        return state.stands
    replaced = missing + COMPENSATION_MARGIN
    if state.fixed or shortage(state.used, need, state.limit(replaced)).is_zero():
        return replaced
    return shortage(state.used, need, state.without) + COMPENSATION_MARGIN


# ---- takeover ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compensated:
    """The compensation that shall stand."""

    value: ResourceList = field(default_factory=dict)
    problems: Sequence[ResourceQuotaError] = ()
    settled: Settled = field(default_factory=Settled)


def compensated(
    facts: Facts,
    policy: Policy,
    found: Claims,
    journal: Journal,
    without: Mapping[str, Quantity],
    *,
    added: ResourceList,
    known: ResourceList,
) -> Compensated:
    """Headroom for target pods that quota refused although their entries are applied, as far as there is a reason:
    VMs that have outgrown the base by a raised overhead ratio, and an estimate that is known to be short. What
    is missing because other pods took the headroom is not made up for: they would take that too.

    `without`: spec.hard without a compensation; `added`: what the entries add; `known`: see `known_shortage`."""
    refused = [
        claim
        for claim in found.by_vm.values()
        if claim.stage is Stage.REFUSED and claim.to_come and journal.has(migrating_key(claim.vm_name))
    ]
    if not refused or not policy.compensate:
        return Compensated()
    missing = minimum(_missing(facts.quota, found, refused, journal, without), known)
    stands = minimum(journal.compensation_or_none(), known)
    if all(stands.get(name, ZERO) >= short for name, short in missing.items()):
        return Compensated(stands)
    applied = total([without, {n: q for n, q in stands.items() if n in without}])
    shown = all(quantity_of(facts.quota.hard, name) >= limit for name, limit in applied.items())
    lasting = settled(facts, policy, applied=shown)
    if not lasting.believed:
        return Compensated(stands, settled=lasting)
    names = ", ".join(f"VM {claim.vm_name}" for claim in refused)
    caps = Caps(facts.quota.annotations.get(constants.ANNOTATION_MAX_EXTRA, ""), facts.max_extra)
    refusal = caps.refuse(f"compensation for {names}", total([added, missing]))
    if refusal is not None:
        return Compensated(stands, [refusal], lasting)
    return Compensated(missing, settled=lasting)


def known_shortage(
    facts: Facts, policy: Policy, wanted: Iterable[tuple[Claim, ResourceList]]
) -> ResourceList:
    """The most that can be missing for a known reason: what the VMs have outgrown the base by, and what Harvester's
    estimate leaves out. Nothing while no target pod is refused."""
    refused = [(claim, value) for claim, value in wanted if claim.stage is Stage.REFUSED and claim.to_come]
    if not refused:
        return {}
    more = []
    for claim, value in refused:
        left_out = subtract(claim.room, value)
        more.append({name: q for name, q in left_out.items() if q > ZERO and name in value})
    return total([overhead_growth(facts, policy), *more])


def _missing(
    quota: ResourceQuota,
    found: Claims,
    refused: Sequence[Claim],
    journal: Journal,
    without: Mapping[str, Quantity],
) -> ResourceList:
    """What the refused pods lack against base and entries, by resource."""
    needed = total([*(claim.to_come for claim in refused), *_reserved(found, refused, journal)])
    asked = {name for claim in refused for name in claim.to_come}
    short = {
        name: shortage(quantity_of(quota.used, name), needed.get(name, ZERO), limit)
        for name, limit in without.items()
        if name in asked
    }
    return {name: amount for name, amount in short.items() if amount > ZERO}


def _reserved(found: Claims, refused: Sequence[Claim], journal: Journal) -> Iterable[ResourceList]:
    """The headroom of target pods that are still to come and were not refused: the pod that comes first may take it,
    so a refused pod does not fit as long as it fits only into another's headroom."""
    for claim in found.by_vm.values():
        key = migrating_key(claim.vm_name)
        if claim.stage >= Stage.WANTED and claim not in refused and journal.has(key):
            there = total([claim.left_over, claim.target])
            free = subtract(journal.resources(key), there)
            yield {name: amount for name, amount in free.items() if amount > ZERO}


def overhead_growth(facts: Facts, policy: Policy) -> ResourceList:
    """By how much the namespace's running VMs can have outgrown the base because the overhead ratio was raised: the
    one reason for which pods that were all let in can be more than the base and the entries."""
    rendering = rendering_of(facts, policy)
    grown: ResourceList = {}
    if factor_of(rendering.ratio) <= factor_of(rendering.usual_ratio):
        return grown
    pods = controlled_pods(facts)
    of_vm = migrations_by_vm(facts)
    for name, vmi in facts.instances.items():
        with suppress(Exception):  # said by its claim
            if sides_of(vmi, of_vm.get(name, ()), pods).home:
                key = ("growth", shape_of(vmi, ()), rendering.quota_limits)
                work_out = partial(_growth, vmi, rendering)
                grown = add(grown, facts.cache.made(key, (facts.rendering,), work_out))
    return grown


def _growth(vmi: VirtualMachineInstance, rendering: Rendering) -> ResourceList:
    overhead = overhead_of(vmi, rendering)

    def at(ratio: str) -> ResourceList:
        pod = rendered_pod(vmi, rendering, overhead.at(ratio).value())
        return pod_usage(pod, releases=rendering.kubernetes)

    before, now = at(rendering.usual_ratio), at(rendering.ratio)
    more = {name: now[name] - before[name] for name in now if name in before}
    return {name: amount for name, amount in more.items() if amount > ZERO}
