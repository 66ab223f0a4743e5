"""Takeover mode: entries follow the migrations and the pods that quota counts. Pure.

    base → the entries that there shall be → the journal → spec.hard

Whatever happens to the annotations or to spec.hard, the next patch repairs it: the
truth is VMIMs and pods, the annotations are the journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kubeloop.api.core import ResourceQuota
from pkg.util import constants
from pkg.util.kubevirt.migration import Stage
from pkg.util.names import migrating_key
from pkg.util.quantity import ZERO, Quantity
from pkg.util.quotacount.usage import COUNT_PODS
from pkg.util.resource_list import ResourceList, add, maximum, minimum, parse_resource_list, subtract, total
from pkg.util.resourcequota.base import Base, base_of, difference, quantity_of, scaled_hard
from pkg.util.resourcequota.caps import Caps, idle, refuse_size
from pkg.util.resourcequota.claims import claims
from pkg.util.resourcequota.compensation import Scaled, compensated, known_shortage
from pkg.util.resourcequota.errors import HoldLimitReached, InvalidEntry, ResourceQuotaError
from pkg.util.resourcequota.facts import Claim, Claims, Facts, Plan, Timers, earliest
from pkg.util.resourcequota.journal import Journal, Unexplained, drop_unexplained, unexplained
from pkg.util.resourcequota.managed import is_default
from pkg.util.resourcequota.policy import Policy


def plan(facts: Facts, policy: Policy) -> Plan:
    """The patch for one ResourceQuota that is ours: marks, entries, compensation and spec.hard together."""
    held = _hold(facts, policy, claims(facts, policy))
    base = base_of(facts, policy)
    wanted = _wanted(facts, policy, held.claims, base.limits or {})
    written = _written(facts, policy, held.claims, base, wanted)
    scaled = _scaled(facts, policy, held.claims, base, written)
    changes_at = held.claims.changes_at
    return Plan(
        annotations=written.journal.changes(),
        hard=scaled.hard,
        problems=(*held.claims.problems, *held.problems, *base.problems, *written.problems, *scaled.problems),
        timers=Timers(written.unexplained.since, scaled.settled.since, held.since),
        recheck_after=earliest(
            held.recheck_after,
            written.unexplained.recheck_after,
            scaled.settled.recheck_after,
            None if changes_at is None else changes_at - facts.now,
        ),
    )


# ---- holds ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Held:
    """The claims without the old sides whose hold limit is over, and since when each of the others is left over."""

    claims: Claims
    since: Mapping[str, float]
    problems: Sequence[ResourceQuotaError]
    recheck_after: float | None


def _hold(facts: Facts, policy: Policy, found: Claims) -> _Held:
    """A side that never ends keeps its headroom for the hold limit at most, whatever else its VM does."""
    since: dict[str, float] = {}
    problems: list[ResourceQuotaError] = []
    kept: dict[str, Claim] = {}
    for name, claim in found.by_vm.items():
        old = []
        for side in claim.old:
            first = min(facts.timers.held_since.get(side.uid, facts.now), side.ended or facts.now)
            since[side.uid] = first
            if first + policy.hold_limit > facts.now:
                old.append(side)
        kept[name] = claim
        if len(old) < len(claim.old):
            limit = f"{policy.hold_limit:g} s"
            said = f"VM {name}: a pod of the old side still counts {limit} after the migration"
            problems.append(HoldLimitReached(said, vm=name))
            kept[name] = replace(claim, old=tuple(old))
    left = [at + policy.hold_limit - facts.now for at in since.values()]
    recheck_after = earliest(*(seconds for seconds in left if seconds > 0))
    return _Held(replace(found, by_vm=kept), since, problems, recheck_after)


# ---- the entries that there shall be -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A wanted entry. `stands` is the VM's present entry, under any form of the key; None: there is none."""

    claim: Claim
    key: str
    value: ResourceList
    stands: ResourceList | None


def _wanted(facts: Facts, policy: Policy, found: Claims, base: Mapping[str, Quantity]) -> list[_Wanted]:
    """Existing entries first, then in the order of the migrations."""
    journal = Journal(facts.quota.annotations)
    beyond = _pods_beyond(facts.quota, found, base)
    wanted = []
    for claim in found.by_vm.values():
        if claim.stage < Stage.ANNOUNCED and not claim.old:
            continue
        stands = journal.standing(claim.vm_name, claim.vmi_uid)
        ended = min(claim.ended, beyond) if claim.stage >= Stage.WANTED else ZERO
        beyond -= ended
        value = add(_value(claim, stands or {}, policy), {COUNT_PODS: ended})
        value = {n: q for n, q in value.items() if n in base and q > ZERO}
        if value:
            wanted.append(_Wanted(claim, migrating_key(claim.vm_name), value, stands))
    return sorted(wanted, key=lambda each: (each.stands is None, each.claim.since))


def _value(claim: Claim, stands: Mapping[str, Quantity], policy: Policy) -> ResourceList:
    """An existing entry is kept as far as it is used, or will be if the migration continues."""
    return maximum(claim.wanted(policy), minimum(stands, claim.may_stay()))


def _pods_beyond(quota: ResourceQuota, found: Claims, base: Mapping[str, Quantity]) -> Quantity:
    """How many pods of the namespace the base has no room for, without those that are granted to VMs: launchers that
    are over and that KubeVirt has left count as objects."""
    granted = total(claim.granted for claim in found.by_vm.values()).get(COUNT_PODS, ZERO)
    return max(ZERO, quantity_of(quota.used, COUNT_PODS) - granted - base.get(COUNT_PODS, ZERO))


# ---- the journal ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Written:
    """The journal with the entries in it, what they add up to, and what a compensation may be at most; what of its
    entries no migration explains."""

    journal: Journal
    added: ResourceList
    known: ResourceList
    unexplained: Unexplained
    problems: Sequence[ResourceQuotaError]


def _written(facts: Facts, policy: Policy, found: Claims, base: Base, wanted: Sequence[_Wanted]) -> _Written:
    """Entries of finished migrations are removed before others get their headroom."""
    quota = facts.quota
    journal = Journal(quota.annotations)
    if is_default(quota):
        journal.set(constants.ANNOTATION_SKIP_AUTO_SCALING, "true")
        journal.set(constants.ANNOTATION_OWNER, constants.OWNER)
    if base.record is not None:
        journal.put(constants.ANNOTATION_BASE, base.record)
    for each in wanted:
        journal.adopt(each.claim.vm_name, each.claim.vmi_uid)
    dropped = _drop(journal, facts, policy, found, base, {each.key for each in wanted})
    known = known_shortage(facts, policy, ((each.claim, each.value) for each in wanted))
    added, problems = _enter(journal, facts, base.limits or {}, wanted, known)
    if base.limits is not None and journal.is_true(constants.ANNOTATION_RESYNC_NEEDED):
        journal.set(constants.ANNOTATION_RESYNC_NEEDED, "false")
    return _Written(journal, added, known, dropped, problems)


def _drop(
    journal: Journal, facts: Facts, policy: Policy, found: Claims, base: Base, entries: set[str]
) -> Unexplained:
    """Remove what nothing accounts for any longer."""
    explained = set(entries)
    for claim in found.by_vm.values():
        keys = journal.keys_of(claim.vm_name, claim.vmi_uid)
        if not base.limits and claim.stage >= Stage.ANNOUNCED:
            explained.update(keys)  # nothing to add them to: they are left as they are
        elif claim.migrates:
            for key in set(keys) - entries:
                journal.remove(key)
    return drop_unexplained(
        journal,
        unexplained(journal, explained),
        facts.timers.unexplained,
        ours=_is_ours(facts.quota),
        now=facts.now,
        grace=policy.foreign_grace,
    )


def _is_ours(quota: ResourceQuota) -> bool:
    """Whether the quota was ours already when it was facts: then its name keys are ours too."""
    mark = constants.ANNOTATION_OWNER if is_default(quota) else constants.ANNOTATION_BASE
    return mark in quota.annotations


def _enter(
    journal: Journal,
    facts: Facts,
    base: Mapping[str, Quantity],
    wanted: Sequence[_Wanted],
    known: Mapping[str, Quantity],
) -> tuple[ResourceList, list[ResourceQuotaError]]:
    """Write the entries, as long as the caps and the annotations have room; what they add up to, and who waits."""
    given = (facts.quota.annotations.get(constants.ANNOTATION_MAX_EXTRA, ""), facts.max_extra)
    caps = Caps(*given)
    compensation = minimum(journal.compensation_or_none(), known)
    keys = {each.key for each in wanted}
    added = total(
        {n: q for n, q in entry.readable().items() if n in base}
        for entry in journal.entries()
        if entry.key not in keys
    )
    problems = idle(*given, facts.quota.hard)
    for each in wanted:
        what = f"migration of VM {each.claim.vm_name}"
        value: ResourceList | None = each.value
        if _grows(each):
            refusal = caps.refuse(what, total([added, each.value, compensation]))
            if refusal is None and each.stands is None:
                refusal = refuse_size(what, journal.with_entry(each.key, each.value))
            if refusal is not None:
                problems.append(refusal)
                value = None if each.stands is None else minimum(each.value, each.stands)
        if value:
            journal.put(each.key, value)
            added = total([added, value])
        else:
            journal.remove(each.key)
    return added, problems


def _grows(wanted: _Wanted) -> bool:
    stands = wanted.stands or {}
    return wanted.stands is None or any(q > stands.get(n, ZERO) for n, q in wanted.value.items())


# ---- spec.hard -----------------------------------------------------------------------------------------------


def _scaled(facts: Facts, policy: Policy, found: Claims, base: Base, written: _Written) -> Scaled:
    """spec.hard = base + entries + compensation. An invalid entry or base: spec.hard is left alone."""
    journal, quota = written.journal, facts.quota
    if base.limits is None:
        return Scaled()
    if not base.limits:
        return _retired(facts, journal)
    try:
        deltas = [entry.resources for entry in journal.entries()]
    except InvalidEntry as exc:
        return Scaled(problems=[exc])
    without = scaled_hard(base.limits, deltas, {})
    made = compensated(facts, policy, found, journal, without, added=written.added, known=written.known)
    if made.value:
        journal.put(constants.ANNOTATION_MIGRATING_COMPENSATION, made.value)
    else:
        journal.remove(constants.ANNOTATION_MIGRATING_COMPENSATION)
    wanted = scaled_hard(base.limits, deltas, made.value)
    if wanted == base.limits or is_default(quota):
        journal.remove(constants.ANNOTATION_APPLIED)
    else:
        journal.put(constants.ANNOTATION_APPLIED, wanted)
    return Scaled(difference(quota.hard, wanted), made.problems, made.settled)


def _retired(facts: Facts, journal: Journal) -> Scaled:
    """The namespace lost its annotation: what we added is removed, and with it every entry."""
    quota, before = facts.quota, Journal(facts.quota.annotations)
    if not (is_default(quota) and _is_ours(quota) and not facts.limits):
        return Scaled()
    foreign = facts.timers.unexplained  # found when the quota was taken over, and perhaps never applied
    ours = [e for e in journal.entries() if e.target.kind != "uid" and e.key not in foreign]
    went = [e for e in before.entries() if e.target.kind != "uid" and e.key not in foreign]
    problems: list[ResourceQuotaError] = [e.problem for e in went if e.problem is not None]
    added = total([*(entry.readable() for entry in went), before.compensation_or_none()])
    for entry in ours:
        journal.remove(entry.key)
    journal.remove(constants.ANNOTATION_MIGRATING_COMPENSATION)
    hard = parse_resource_list({name: raw for name, raw in quota.hard.items() if name in added})
    lowered = subtract(hard, {name: added[name] for name in hard})
    return Scaled(difference(quota.hard, {n: q for n, q in lowered.items() if q >= ZERO}), problems)
