"""Instead of Harvester: entries follow the migrations and the pods that quota counts. Pure.

    base → the entries that there shall be → the journal → spec.hard

Whatever happens to the annotations or to spec.hard, the same patch that would have followed it puts things right: the
truth is VMIMs and pods, the annotations are the journal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pkg.api.core import ResourceQuota
from pkg.util import constants
from pkg.util.kubevirt.evidence import minimum
from pkg.util.kubevirt.migration import Stage
from pkg.util.names import migrating_key
from pkg.util.quantity import ZERO, Quantity
from pkg.util.quotacount.usage import COUNT_PODS
from pkg.util.resource_list import ResourceList, add, maximum, parse_resource_list, subtract, total
from pkg.util.resourcequota.base import Base, base_of, difference, quantity_of, scaled_hard, shortage
from pkg.util.resourcequota.caps import Caps, refuse_size
from pkg.util.resourcequota.claims import Claim, Claims, claims, overhead_growth
from pkg.util.resourcequota.compensation import Settled, settled
from pkg.util.resourcequota.errors import HoldLimitReached, InvalidEntry, ResourceQuotaError
from pkg.util.resourcequota.journal import Journal, drop_unexplained, unexplained
from pkg.util.resourcequota.managed import is_default
from pkg.util.resourcequota.model import Memory, Observed, Plan, earliest
from pkg.util.resourcequota.policy import Policy


def plan(observed: Observed, policy: Policy) -> Plan:
    """The patch for one ResourceQuota that is ours: marks, entries, compensation and spec.hard together."""
    held = _hold(observed, policy, claims(observed, policy))
    base = base_of(observed, policy)
    wanted = _wanted(observed, policy, held.claims, base.limits or {})
    written = _written(observed, policy, held.claims, base, wanted)
    scaled = _scaled(observed, policy, held.claims, base, written)
    changes_at = held.claims.changes_at
    return Plan(
        annotations=written.journal.changes(),
        hard=scaled.hard,
        problems=(*held.claims.problems, *held.problems, *base.problems, *written.problems, *scaled.problems),
        memory=Memory(written.waiting, scaled.settled.since, held.since),
        look_again=earliest(
            held.look_again,
            written.look_again,
            scaled.settled.look_again,
            None if changes_at is None else changes_at - observed.now,
        ),
    )


# ---- holds ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Held:
    """The claims without the old sides whose time is over, and since when each of the others is left over."""

    claims: Claims
    since: Mapping[str, float]
    problems: Sequence[ResourceQuotaError]
    look_again: float | None


def _hold(observed: Observed, policy: Policy, found: Claims) -> _Held:
    """A side that never ends keeps its room no longer than the limit, whatever else its VM does meanwhile."""
    since: dict[str, float] = {}
    problems: list[ResourceQuotaError] = []
    kept: dict[str, Claim] = {}
    for name, claim in found.by_vm.items():
        old = []
        for side in claim.old:
            first = min(observed.memory.held_since.get(side.uid, observed.now), side.ended or observed.now)
            since[side.uid] = first
            if first + policy.hold_limit > observed.now:
                old.append(side)
        if len(old) < len(claim.old):
            limit = f"{policy.hold_limit:g} s"
            said = f"VM {name}: a pod of the old side still counts {limit} after the migration"
            problems.append(HoldLimitReached(said, vm=name))
        kept[name] = replace(claim, old=tuple(old))
    left = [at + policy.hold_limit - observed.now for at in since.values()]
    look_again = earliest(*(seconds for seconds in left if seconds > 0))
    return _Held(replace(found, by_vm=kept), since, problems, look_again)


# ---- the entries that there shall be -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Wanted:
    """An entry that there shall be. `stands` is what stands for the VM now, under whatever key, None: nothing."""

    claim: Claim
    key: str
    value: ResourceList
    stands: ResourceList | None


def _wanted(observed: Observed, policy: Policy, found: Claims, base: Mapping[str, Quantity]) -> list[_Wanted]:
    """Those that stand first, then in the order of the migrations."""
    journal = Journal(observed.quota.annotations)
    wanted = []
    for claim in found.by_vm.values():
        stands = journal.standing(claim.vm_name, claim.vmi_uid)
        value = add(_value(claim, stands or {}, policy), _ended(observed.quota, claim, base))
        value = {n: q for n, q in value.items() if n in base and q > ZERO}
        if value:
            wanted.append(_Wanted(claim, migrating_key(claim.vm_name), value, stands))
    return sorted(wanted, key=lambda each: (each.stands is None, each.claim.since))


def _value(claim: Claim, stands: Mapping[str, Quantity], policy: Policy) -> ResourceList:
    """What stands stays as far as it is used, or will be if the migration goes on; nothing else does."""
    return maximum(claim.wanted(policy), minimum(stands, claim.may_stay()))


def _ended(quota: ResourceQuota, claim: Claim, base: Mapping[str, Quantity]) -> ResourceList:
    """Launchers that are over and that KubeVirt has left, as far as the base has no room for them beside what runs."""
    there = quantity_of(quota.used, COUNT_PODS) - claim.target.get(COUNT_PODS, ZERO)
    beyond = max(ZERO, there - base.get(COUNT_PODS, ZERO))
    return {COUNT_PODS: min(claim.ended, beyond)} if claim.stage >= Stage.WANTED else {}


# ---- the journal ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Written:
    """The journal with the entries in it, what they add up to, and what a compensation may be at most; since when each
    foreign entry waits for its end."""

    journal: Journal
    added: ResourceList
    known: ResourceList
    waiting: Mapping[str, float]
    problems: Sequence[ResourceQuotaError]
    look_again: float | None


def _written(
    observed: Observed, policy: Policy, found: Claims, base: Base, wanted: Sequence[_Wanted]
) -> _Written:
    """What is over goes before others ask for its room."""
    quota = observed.quota
    journal = Journal(quota.annotations)
    if is_default(quota):
        journal.set(constants.ANNOTATION_SKIP_AUTO_SCALING, "true")
        journal.set(constants.ANNOTATION_OWNER, constants.OWNER)
    if base.record is not None:
        journal.put(constants.ANNOTATION_BASE, base.record)
    for each in wanted:
        journal.adopt(each.claim.vm_name, each.claim.vmi_uid)
    waiting = _drop(journal, observed, policy, found, base, {each.key for each in wanted})
    known = _known(observed, policy, wanted)
    added, problems = _enter(journal, observed, base.limits or {}, wanted, known)
    if base.limits is not None and journal.is_true(constants.ANNOTATION_RESYNC_NEEDED):
        journal.set(constants.ANNOTATION_RESYNC_NEEDED, "false")
    look_again = min(waiting.values()) + policy.foreign_grace - observed.now if waiting else None
    return _Written(journal, added, known, waiting, problems, look_again)


def _drop(
    journal: Journal, observed: Observed, policy: Policy, found: Claims, base: Base, entries: set[str]
) -> dict[str, float]:
    """Remove what nothing accounts for any longer; since when each foreign entry waits for its end."""
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
        observed.memory.unexplained,
        ours=_is_ours(observed.quota),
        now=observed.now,
        grace=policy.foreign_grace,
    )[1]


def _is_ours(quota: ResourceQuota) -> bool:
    """Whether the quota was ours already when it was observed: then its name keys are ours too."""
    mark = constants.ANNOTATION_OWNER if is_default(quota) else constants.ANNOTATION_BASE
    return mark in quota.annotations


def _enter(
    journal: Journal,
    observed: Observed,
    base: Mapping[str, Quantity],
    wanted: Sequence[_Wanted],
    known: Mapping[str, Quantity],
) -> tuple[ResourceList, list[ResourceQuotaError]]:
    """Write the entries, as long as the caps and the annotations have room; what they add up to, and who waits."""
    caps = Caps(observed.quota.annotations.get(constants.ANNOTATION_MAX_EXTRA, ""), observed.max_extra)
    compensation = minimum(journal.compensation_or_none(), known)
    added = total(
        {n: q for n, q in entry.readable().items() if n in base}
        for entry in journal.entries()
        if entry.key not in {each.key for each in wanted}
    )
    problems: list[ResourceQuotaError] = []
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


@dataclass(frozen=True, slots=True)
class _Scaled:
    """What changes in spec.hard; whether a shortage is believed."""

    hard: Mapping[str, str | None] = field(default_factory=dict)
    problems: Sequence[ResourceQuotaError] = ()
    settled: Settled = field(default_factory=Settled)


def _scaled(observed: Observed, policy: Policy, found: Claims, base: Base, written: _Written) -> _Scaled:
    """spec.hard = base + entries + compensation. Garbage in an entry, or in the base: spec.hard is left alone."""
    journal, quota = written.journal, observed.quota
    if base.limits is None:
        return _Scaled()
    if not base.limits:
        return _retired(observed, journal)
    try:
        deltas = [entry.resources for entry in journal.entries()]
    except InvalidEntry as exc:
        return _Scaled(problems=[exc])
    compensated = _compensated(observed, policy, found, written, scaled_hard(base.limits, deltas, {}))
    if compensated.value:
        journal.put(constants.ANNOTATION_MIGRATING_COMPENSATION, compensated.value)
    else:
        journal.remove(constants.ANNOTATION_MIGRATING_COMPENSATION)
    wanted = scaled_hard(base.limits, deltas, compensated.value)
    if wanted == base.limits or is_default(quota):
        journal.remove(constants.ANNOTATION_APPLIED)
    else:
        journal.put(constants.ANNOTATION_APPLIED, wanted)
    return _Scaled(difference(quota.hard, wanted), compensated.problems, compensated.settled)


def _retired(observed: Observed, journal: Journal) -> _Scaled:
    """The namespace lost its annotation: what we added goes, and with it the reason for every entry."""
    quota, before = observed.quota, Journal(observed.quota.annotations)
    if not (is_default(quota) and _is_ours(quota) and not observed.limits):
        return _Scaled()
    foreign = observed.memory.unexplained  # found when the quota was taken over, and perhaps never applied
    ours = [e for e in journal.entries() if e.target.kind != "uid" and e.key not in foreign]
    went = [e for e in before.entries() if e.target.kind != "uid" and e.key not in foreign]
    problems: list[ResourceQuotaError] = [e.problem for e in went if e.problem is not None]
    added = total([*(entry.readable() for entry in went), before.compensation_or_none()])
    for entry in ours:
        journal.remove(entry.key)
    journal.remove(constants.ANNOTATION_MIGRATING_COMPENSATION)
    hard = parse_resource_list({name: raw for name, raw in quota.hard.items() if name in added})
    lowered = subtract(hard, {name: added[name] for name in hard})
    return _Scaled(difference(quota.hard, {n: q for n, q in lowered.items() if q >= ZERO}), problems)


@dataclass(frozen=True, slots=True)
class _Compensated:
    """The compensation that shall stand."""

    value: ResourceList = field(default_factory=dict)
    problems: Sequence[ResourceQuotaError] = ()
    settled: Settled = field(default_factory=Settled)


def _compensated(
    observed: Observed, policy: Policy, found: Claims, written: _Written, without: Mapping[str, Quantity]
) -> _Compensated:
    """Room for target pods that quota refused although their entries are applied, as far as there is a reason for it:
    VMs that have outgrown the base by a raised overhead ratio, and an estimate that is known to be short. What
    is missing because other pods took the room is not made up for: they would take that too."""
    journal = written.journal
    refused = [
        claim
        for claim in found.by_vm.values()
        if claim.stage is Stage.REFUSED and claim.to_come and journal.has(migrating_key(claim.vm_name))
    ]
    if not refused or not policy.compensate:
        return _Compensated()
    missing = minimum(_missing(observed.quota, found, refused, journal, without), written.known)
    stands = minimum(journal.compensation_or_none(), written.known)
    if all(stands.get(name, ZERO) >= short for name, short in missing.items()):
        return _Compensated(stands)
    applied = total([without, {n: q for n, q in stands.items() if n in without}])
    shown = all(quantity_of(observed.quota.hard, name) >= limit for name, limit in applied.items())
    lasting = settled(observed, policy, applied=shown)
    if not lasting.believed:
        return _Compensated(stands, settled=lasting)
    names = ", ".join(claim.vm_name for claim in refused)
    caps = Caps(observed.quota.annotations.get(constants.ANNOTATION_MAX_EXTRA, ""), observed.max_extra)
    refusal = caps.refuse(f"compensation for {names}", total([written.added, missing]))
    if refusal is not None:
        return _Compensated(stands, [refusal], lasting)
    return _Compensated(missing, settled=lasting)


def _known(observed: Observed, policy: Policy, wanted: Sequence[_Wanted]) -> ResourceList:
    """The most that can be missing for a known reason: what the VMs have outgrown the base by, and what Harvester's
    estimate leaves out. Nothing while no target pod is refused."""
    refused = [each for each in wanted if each.claim.stage is Stage.REFUSED and each.claim.to_come]
    if not refused:
        return {}
    left_out = [subtract(each.claim.room, each.value) for each in refused]
    more = (
        {n: q for n, q in short.items() if q > ZERO and n in each.value}
        for each, short in zip(refused, left_out, strict=True)
    )
    return total([overhead_growth(observed, policy), *more])


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
    """The room of target pods that are still to come and were not refused: the pod that comes first may take it,
    so a refused pod does not fit as long as it fits only into another's room."""
    for claim in found.by_vm.values():
        key = migrating_key(claim.vm_name)
        if claim.stage >= Stage.WANTED and claim not in refused and journal.has(key):
            there = total([claim.left_over, claim.target])
            free = subtract(journal.resources(key), there)
            yield {name: amount for name, amount in free.items() if amount > ZERO}
