"""Beside Harvester: the fixpoint of its vmim and rq controllers, in one patch. Pure.

Sources: Harvester vmim_controller.go (scale, restore, compensate) and resourcequota_controller.go. Entries are
written once and stay as they are; everything that upstream leaves alone is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kubeloop.api.core import ResourceQuota
from pkg.util import constants
from pkg.util.constants import LIMITS_CPU, LIMITS_MEMORY
from pkg.util.kubevirt.migration import Demand, Stage, demands
from pkg.util.names import migrating_uid_key
from pkg.util.quantity import ZERO, Quantity
from pkg.util.resourcequota.base import (
    difference,
    limits_are_empty,
    parse_base,
    quantity_of,
    scaled_hard,
)
from pkg.util.resourcequota.claims import claims
from pkg.util.resourcequota.compensation import MemoryState, Scaled, Settled, compensation_for, settled
from pkg.util.resourcequota.errors import (
    InvalidEntry,
    InvalidNamespaceAnnotation,
    ResourceQuotaError,
)
from pkg.util.resourcequota.facts import Claim, Claims, Facts, Plan, Timers, earliest
from pkg.util.resourcequota.journal import (
    Journal,
    Unexplained,
    drop_finished,
    drop_unexplained,
    explained_keys,
    unexplained,
)
from pkg.util.resourcequota.managed import is_off
from pkg.util.resourcequota.policy import EstimateKind, Policy
from pkg.util.resourcequota.release import hand_over, is_ours

SCALED = (LIMITS_CPU, LIMITS_MEMORY)
"""The resources that Harvester scales."""


def plan(facts: Facts, policy: Policy) -> Plan:
    """The patch for one default ResourceQuota; one that is switched off is only restored. What mode takeover has left
    there is handed over to Harvester in the same patch."""
    journal, off = Journal(facts.quota.annotations), is_off(facts.quota.annotations)
    beyond = hand_over(journal, facts) if is_ours(facts.quota) else {}
    asked = demands(facts.migrations, facts.instances)
    dropped = _drop(journal, facts, policy, asked, off=off)
    base = _Base(None) if off else _base(facts, policy)
    found = Claims({}, ()) if base.limits is None else claims(facts, policy)
    scaled = Scaled()
    if base.limits:
        _add(journal, facts, policy, found, asked)
        scaled = _scaled(journal, facts, policy, found, base.limits)
    _flag(journal, dropped.dropped, settled=base.limits is not None)
    return Plan(
        annotations=journal.changes(),
        hard={**beyond, **scaled.hard},
        problems=(*base.problems, *found.problems, *scaled.problems),
        timers=Timers(dropped.since, scaled.settled.since),
        recheck_after=earliest(dropped.recheck_after, scaled.settled.recheck_after),
    )


# ---- what is over --------------------------------------------------------------------------------------------


def _drop(
    journal: Journal, facts: Facts, policy: Policy, asked: Mapping[str, Demand], *, off: bool
) -> Unexplained:
    """Entries that are no longer needed go; with them, beside Harvester, the compensation (as upstream)."""
    finished = drop_finished(journal, asked.values())
    orphans = unexplained(
        journal,
        explained_keys(journal, asked.values()),
        uids_unknown=any(c.vmi is None and c.stage is not Stage.FINISHED for c in asked.values()),
    )
    dropped = drop_unexplained(
        journal,
        () if off else orphans,
        facts.timers.unexplained,
        ours=False,
        now=facts.now,
        grace=policy.foreign_grace,
    )
    if finished or dropped.dropped:
        journal.remove(constants.ANNOTATION_MIGRATING_COMPENSATION)
    return replace(dropped, dropped=finished or dropped.dropped)


def _flag(journal: Journal, dropped: bool, *, settled: bool) -> None:
    """migratingScalingResyncNeeded: "true" is the order to Harvester's rq controller to compute again.

    One patch does both here, so the order is only left standing where spec.hard was not looked at.
    """
    if not settled and dropped:
        journal.set(constants.ANNOTATION_RESYNC_NEEDED, "true")
    elif settled and journal.is_true(constants.ANNOTATION_RESYNC_NEEDED):
        journal.set(constants.ANNOTATION_RESYNC_NEEDED, "false")


# ---- base and entries ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Base:
    """The non-zero limits that entries are added to; empty: spec.hard is not ours to scale. None: the quota is switched
    off, or the namespace's annotation is garbage, and the resync flag stays as it is."""

    limits: Mapping[str, Quantity] | None
    problems: Sequence[ResourceQuotaError] = ()


def _base(facts: Facts, policy: Policy) -> _Base:
    if not facts.limits:
        return _Base({})
    try:
        limits = parse_base(facts.limits)
    except InvalidNamespaceAnnotation as exc:
        return _Base(None, [exc])
    except ResourceQuotaError as exc:
        return _Base({}, [exc])
    if policy.render:
        return _Base(limits)
    if limits_are_empty(facts.quota.hard):
        return _Base({})
    return _Base({name: limits[name] for name in SCALED if name in limits and not limits[name].is_zero()})


def _add(journal: Journal, facts: Facts, policy: Policy, found: Claims, asked: Mapping[str, Demand]) -> None:
    """An entry for every VM that needs one and has none yet."""
    for claim in found.by_vm.values():
        wanted = claim.stage >= Stage.WANTED and asked[claim.vm_name].vmi is not None
        if not wanted or journal.keys_of(claim.vm_name, claim.vmi_uid):
            continue
        need = estimated(claim, policy, facts.quota)
        if need is not None:
            journal.put(migrating_uid_key(claim.vmi_uid), need)


def estimated(claim: Claim, policy: Policy, quota: ResourceQuota) -> Mapping[str, Quantity] | None:
    """What an entry of the VM has, of the two resources that Harvester reads there. None: the VM limits neither."""
    need = claim.room if policy.estimate is EstimateKind.EXACT else claim.formula
    if need is None:
        return None
    return {name: need[name] for name in SCALED if name in need and name in quota.hard}


# ---- spec.hard -----------------------------------------------------------------------------------------------


def _scaled(
    journal: Journal, facts: Facts, policy: Policy, found: Claims, base: Mapping[str, Quantity]
) -> Scaled:
    """spec.hard = base + entries + compensation. Garbage in one of them: spec.hard is left alone."""
    deltas: list[Mapping[str, Quantity]] | None = None
    standing: Mapping[str, Quantity] | None = None
    problems: list[ResourceQuotaError] = []
    try:
        deltas = [entry.resources for entry in journal.entries()]
    except InvalidEntry as exc:
        problems.append(exc)
    try:
        standing = journal.compensation
    except InvalidEntry as exc:
        problems.append(exc)
    compensation, lasting = _compensated(journal, facts, policy, found, base, deltas, standing)
    if deltas is None or compensation is None:
        return Scaled({}, problems, lasting)
    hard = difference(facts.quota.hard, scaled_hard(base, deltas, compensation))
    return Scaled(hard, problems, lasting)


def _compensated(
    journal: Journal,
    facts: Facts,
    policy: Policy,
    found: Claims,
    base: Mapping[str, Quantity],
    deltas: Sequence[Mapping[str, Quantity]] | None,
    standing: Mapping[str, Quantity] | None,
) -> tuple[Mapping[str, Quantity] | None, Settled]:
    """Headroom for refused target pods whose entry does not suffice (limits.timers only, as upstream), and what stands.
    None for `deltas` or `standing`: garbage."""
    needs = _refused_needs(journal, facts.quota, policy, found)
    hard, used = (quantity_of(each, LIMITS_MEMORY) for each in (facts.quota.hard, facts.quota.used))
    if not needs or hard.is_zero() or LIMITS_MEMORY not in base:
        return standing, Settled()
    stands = None if standing is None else standing.get(LIMITS_MEMORY, ZERO)
    if deltas is None or stands is None:
        state = MemoryState(used, hard, ZERO, fixed=True)
    else:
        state = MemoryState(used, scaled_hard(base, deltas, {})[LIMITS_MEMORY], stands)
    wanted = compensation_for(state, max(needs))
    # Beside garbage Harvester adds what is missing, and takes nothing away.
    if wanted == (stands or ZERO) or (deltas is None and wanted.is_zero()):
        return standing, Settled()
    lasting = settled(facts, policy, applied=hard == state.limit(state.stands))
    if not lasting.believed:
        return standing, lasting
    journal.put(constants.ANNOTATION_MIGRATING_COMPENSATION, {LIMITS_MEMORY: wanted})
    return {LIMITS_MEMORY: wanted}, lasting


def _refused_needs(journal: Journal, quota: ResourceQuota, policy: Policy, found: Claims) -> list[Quantity]:
    """limits.timers of the target pods that quota refused, of the VMs whose entry stands."""
    refused = [
        claim
        for claim in found.by_vm.values()
        if claim.stage is Stage.REFUSED and journal.keys_of(claim.vm_name, claim.vmi_uid)
    ]
    needs = [(estimated(claim, policy, quota) or {}).get(LIMITS_MEMORY, ZERO) for claim in refused]
    return [need for need in needs if not need.is_zero()]
