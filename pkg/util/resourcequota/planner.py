"""The decision about one ResourceQuota: from what is observed to one patch. Pure; `plan` is the only way to one.

    facts → base → VMs → entries → spec.hard → plan

Level-triggered: the truth is the migrations and the pods, the annotations say what was added. The same facts always
give the same plan, and a plan applied gives facts whose plan is empty. Whatever happens to the annotations or to
spec.hard, the next patch repairs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kubeloop.api.core import ResourceQuota
from pkg.util import constants
from pkg.util.kubevirt.migration import Stage, is_finished
from pkg.util.resource_list import add, minimum, total
from pkg.util.resourcequota.base import Base, base_of, difference, hard
from pkg.util.resourcequota.caps import Caps
from pkg.util.resourcequota.compensation import compensate, compensate_as_harvester, lack, promised
from pkg.util.resourcequota.entries import Entries, has_migrating_vm
from pkg.util.resourcequota.errors import InvalidEntry, ResourceQuotaError
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.give_back import give_back, hand_over, is_ours, lowered
from pkg.util.resourcequota.managed import Rules, is_default, is_managed, is_served, rules_of, switched_off
from pkg.util.resourcequota.plan import Plan, earliest
from pkg.util.resourcequota.policy import Mode, Policy
from pkg.util.resourcequota.timers import Timers
from pkg.util.resourcequota.touch import has_entry, with_touch, without_touch
from pkg.util.resourcequota.vm import Vm
from pkg.util.resourcequota.vms import vms_of
from pkg.util.resourcequota.writing import Wanted, drop, drop_unexplained, enter, hold, is_marked, mark, wanted_of

_COMPENSATION = constants.ANNOTATION_MIGRATING_COMPENSATION
_AFTER_GRACE = 0.05
"""Seconds: Kubernetes still charges a pod at the very moment at which its grace ends."""


def plan(facts: Facts, policy: Policy) -> Plan:
    """The one patch that makes a ResourceQuota fit its namespace's migrations."""
    quota = facts.quota
    if quota.deleting:
        return Plan()
    if facts.mtq or facts.namespace_off or not is_served(quota):
        return without_touch(quota, _given_back(facts, policy))
    return with_touch(facts, _served(facts, policy))


def _given_back(facts: Facts, policy: Policy) -> Plan:
    """Nothing is added here any longer, and migrations that are refused stay so."""
    quota = facts.quota
    if facts.namespace_off or switched_off(quota):
        return give_back(facts, to_harvester=True)
    if facts.mtq:
        return _left_to_mtq(facts, policy)
    if is_managed(quota):  # a person's skip, which also stops Harvester: only what is over goes
        return _served(facts, policy, off=True) if is_default(quota) else Plan()
    return give_back(facts) if not is_default(quota) else Plan()  # it has lost the label


def _left_to_mtq(facts: Facts, policy: Policy) -> Plan:
    """Never two strategies on one quota. Entries that are not ours run out, nothing is added: Harvester may stay, or
    have left them. A quota without entries is left alone: its limits are the other strategy's."""
    quota = facts.quota
    if is_ours(quota) or not (has_migrating_vm(quota.annotations) and is_default(quota)):
        return give_back(facts)
    entries = Entries(quota.annotations)
    kept = [each for each in facts.migrations if is_finished(each) or has_entry(facts, entries, each)]
    return _served(replace(facts, migrations=kept), replace(policy, mode=Mode.ASSIST))


def _served(facts: Facts, policy: Policy, *, off: bool = False) -> Plan:
    """The line itself: marks, entries, compensation and spec.hard together."""
    quota, entries = facts.quota, Entries(facts.quota.annotations)
    rules = rules_of(quota, policy, off=off)
    base = Base(None) if off else base_of(quota, facts.limits, policy)
    vms, problems = vms_of(facts, policy, base)
    vms, held_since, held = hold(facts, policy, vms) if rules.follow else (vms, {}, [])
    handed: dict[str, str] = {}
    if rules.follow:
        mark(entries, rules, base)
    elif constants.ANNOTATION_OWNER in quota.annotations:  # mode takeover has left it
        handed = hand_over(facts, entries)
    wanted = wanted_of(quota, rules, base.limits or {}, vms, entries)
    over, explained = drop(facts, rules, base, vms, wanted, entries)
    grace = float("inf") if off else policy.foreign_grace
    dropped, unexplained = drop_unexplained(facts, rules, grace, explained, entries)
    _flag(quota, rules, base, entries, dropped=over or dropped)
    changed, told = _raised(facts, policy, rules, base, vms, wanted, entries)
    ends = [at + policy.hold_limit - facts.now for at in held_since.values()]
    charged = [at + _AFTER_GRACE - facts.now for vm in vms for at in vm.charged_until]
    graces = [at + grace - facts.now for key, at in unexplained.items() if entries.get(key) is not None]
    return Plan(
        annotations=entries.changes(),
        hard={name: to for name, to in handed.items() if name not in (base.limits or {})} | changed,
        problems=(*problems, *held, *base.problems, *told),
        timers=Timers(unexplained, held_since),
        recheck_after=earliest(*(at for at in (*ends, *graces) if 0 < at < float("inf")), *charged),
    )


def _flag(quota: ResourceQuota, rules: Rules, base: Base, entries: Entries, *, dropped: bool) -> None:
    """What an entry's end means beside Harvester: its compensation goes (as upstream), and where spec.hard is not
    looked at here, migratingScalingResyncNeeded orders its rq controller to compute again."""
    if dropped and not rules.follow:
        entries.remove(_COMPENSATION)
        if base.limits is None:
            entries.set({constants.ANNOTATION_RESYNC_NEEDED: "true"})
    if base.limits is not None and quota.annotations.get(constants.ANNOTATION_RESYNC_NEEDED) == "true":
        entries.set({constants.ANNOTATION_RESYNC_NEEDED: "false"})


def _raised(
    facts: Facts,
    policy: Policy,
    rules: Rules,
    base: Base,
    vms: Sequence[Vm],
    wanted: Sequence[Wanted],
    entries: Entries,
) -> tuple[dict[str, str], list[ResourceQuotaError]]:
    """spec.hard = base + entries + compensation, as far as it differs. An invalid entry or base: it is left alone."""
    quota = facts.quota
    caps = Caps(quota.annotations.get(constants.ANNOTATION_MAX_EXTRA, ""), facts.max_extra)
    helps = rules.follow and policy.compensate
    refused = [w for w in wanted if helps and w.vm.stage is Stage.REFUSED and w.vm.to_come]
    growth = promised(facts, base, refused) if refused else {}
    stands = minimum(entries.compensation_or_none(), growth) if growth else {}
    added, problems = enter(base.limits or {}, wanted, stands, caps, entries)
    problems += caps.idle(quota.hard) if rules.follow else []
    if not base.limits:
        retired = base.limits is not None and rules.mark and not facts.limits and is_marked(quota, rules)
        return (_retired(facts, entries) if retired else {}), problems
    try:
        if not rules.follow:  # as upstream also where an entry is invalid
            compensate_as_harvester(quota, base.limits, vms, entries)
        entered = entries.added(compensated=False)
        if growth:
            lacking = lack(quota, vms, hard(base.limits, entered), growth, stands)
            problems += compensate(lacking, stands, added, refused, caps, entries)
        elif rules.follow:
            entries.remove(_COMPENSATION)
        wanted_hard = hard(base.limits, add(entered, entries.compensation))
    except InvalidEntry as exc:
        return {}, [*problems, exc]
    if rules.follow and not rules.mark:
        if wanted_hard == base.limits:
            entries.remove(constants.ANNOTATION_APPLIED)
        else:
            entries.put(constants.ANNOTATION_APPLIED, wanted_hard)
    return difference(quota.hard, wanted_hard), problems


def _retired(facts: Facts, entries: Entries) -> dict[str, str]:
    """The namespace lost its annotation: what we added is removed, and with it every entry of ours. One that was found
    when the quota was taken over has perhaps never been applied."""
    quota, foreign = facts.quota, facts.timers.unexplained
    before = Entries(quota.annotations)
    ours = [entry for entry in before if not entry.by_uid and entry.key not in foreign]
    added = total([*(entry.readable() for entry in ours), before.compensation_or_none()])
    entries.remove(_COMPENSATION, *(entry.key for entry in ours))
    return lowered(facts, added)
