"""Which entries there shall be: what is wanted for each VM, what goes, and what the caps let in. Pure.

Every function changes the Entries that it is given and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from kubeloop.api.core import ResourceQuota
from pkg.util import constants
from pkg.util.kubevirt.migration import Stage
from pkg.util.names import migrating_key, migrating_uid_key
from pkg.util.quantity import ZERO, Quantity
from pkg.util.quotacount.usage import COUNT_PODS
from pkg.util.resource_list import ResourceList, add, maximum, minimum, subtract, total
from pkg.util.resourcequota.base import HARVESTERS, Base, quantity_of
from pkg.util.resourcequota.caps import Caps
from pkg.util.resourcequota.entries import Entries
from pkg.util.resourcequota.errors import EVENT_HOLD_LIMIT, ResourceQuotaError
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.managed import Rules
from pkg.util.resourcequota.policy import Policy
from pkg.util.resourcequota.vm import Vm


class Wanted(NamedTuple):
    """A wanted entry. `stands` is the VM's present entry, under any form of the key; None: there is none."""

    vm: Vm
    key: str
    value: ResourceList
    stands: ResourceList | None

    @property
    def grows(self) -> bool:
        stands = self.stands or {}
        return self.stands is None or any(q > stands.get(n, ZERO) for n, q in self.value.items())


def hold(
    facts: Facts, policy: Policy, vms: Sequence[Vm]
) -> tuple[list[Vm], Mapping[str, float], list[ResourceQuotaError]]:
    """A side that never ends keeps its headroom for the hold limit at most, whatever else its VM does: the VMs without
    such sides, since when each old side is left over by the uid of its launcher, and what is to be said."""
    since: dict[str, float] = {}
    problems: list[ResourceQuotaError] = []
    kept: list[Vm] = []
    if not any(vm.old for vm in vms):
        return list(vms), since, problems
    for vm in vms:
        for side in vm.old:
            first = facts.timers.held_since.get(side.uid, facts.now)
            since[side.uid] = min(first, side.ended or facts.now)
        over = [side for side in vm.old if since[side.uid] + policy.hold_limit <= facts.now]
        kept.append(vm.without(over) if over else vm)
        if over:
            limit = f"{policy.hold_limit:g} s"
            said = f"VM {vm.name}: a pod of the old side still counts {limit} after the migration"
            problems.append(ResourceQuotaError(said, EVENT_HOLD_LIMIT, vm=vm.name))
    return kept, since, problems


def mark(entries: Entries, rules: Rules, base: Base) -> None:
    """The quota is ours: Harvester leaves it alone, or its base is recorded."""
    if rules.mark:
        entries.set({constants.ANNOTATION_SKIP_AUTO_SCALING: "true", constants.ANNOTATION_OWNER: constants.OWNER})
    elif base.record is not None:
        entries.put(constants.ANNOTATION_BASE, base.record)


def wanted_of(
    quota: ResourceQuota, rules: Rules, base: Mapping[str, Quantity], vms: Sequence[Vm], entries: Entries
) -> list[Wanted]:
    """Existing entries first, then in the order of the migrations."""
    beyond = _pods_beyond(quota, base, vms)
    once_more: Mapping[str, Quantity] = base
    # The base pays for the disks once: those that fill what is added for one VM are not doubled for the next.
    wanted = []
    for vm in vms:
        if not rules.follow:
            value = _once(quota, vm) if base and not entries.keys_of(vm.name, vm.uid) else None
            if value is not None:
                wanted.append(Wanted(vm, migrating_uid_key(vm.uid), value, None))
            continue
        stands = entries.of(vm.name, vm.uid)
        ended = min(vm.ended, beyond) if vm.stage >= Stage.WANTED else ZERO
        beyond -= ended
        # An existing entry is kept as far as it is used, or will be if the migration continues.
        value = maximum(vm.wanted, minimum(stands, vm.upper_bound)) if stands else vm.wanted
        value = add(value, {COUNT_PODS: ended}) if ended else value
        if vm.doubled:
            volumes = minimum(vm.doubled, once_more)
            value, once_more = add(value, volumes), subtract(once_more, volumes)
        value = {n: q for n, q in value.items() if n in base and q > ZERO}
        if value:
            wanted.append(Wanted(vm, migrating_key(vm.name), value, stands))
    return sorted(wanted, key=lambda each: (each.stands is None, each.vm.since))


def _pods_beyond(quota: ResourceQuota, base: Mapping[str, Quantity], vms: Sequence[Vm]) -> Quantity:
    """How many pods of the namespace the base has no room for: launchers that are over count as objects."""
    if COUNT_PODS not in base:
        return ZERO
    granted = total(vm.granted for vm in vms).get(COUNT_PODS, ZERO)
    return max(ZERO, quantity_of(quota.used, COUNT_PODS) - granted - base[COUNT_PODS])


def _once(quota: ResourceQuota, vm: Vm) -> ResourceList | None:
    """What an entry beside Harvester says: of what its formula scales, what the quota limits."""
    need = vm.need if vm.stage >= Stage.WANTED else None
    return None if need is None else {n: need[n] for n in HARVESTERS if n in need and n in quota.hard}


def drop(
    facts: Facts, rules: Rules, base: Base, vms: Sequence[Vm], wanted: Sequence[Wanted], entries: Entries
) -> tuple[bool, set[str]]:
    """Remove what nothing accounts for any longer: entries of VMs whose migrations are over, and other forms of the
    keys that are wanted. Whether there was any, and the keys that are accounted for."""
    explained = {each.key for each in wanted}
    removed = False
    for vm in vms:
        keys = entries.keys_of(vm.name, vm.uid)
        under_way = vm.stage >= Stage.ANNOUNCED if rules.follow else vm.stage > Stage.FINISHED
        if under_way and not (rules.follow and base.limits):
            explained.update(keys)  # it stands as it was written, or there is nothing to add it to
        elif vm.migrations or migrating_key(vm.name) in explained:
            removed |= entries.remove(*(key for key in keys if key not in explained))
    if not rules.follow and any(vm.vmi is None and vm.stage > Stage.FINISHED for vm in vms):
        explained.update(entry.key for entry in entries if entry.by_uid)  # one may be its own
    return removed, explained


def drop_unexplained(
    facts: Facts, rules: Rules, grace: float, explained: Collection[str], entries: Entries
) -> tuple[bool, Mapping[str, float]]:
    """Drop entries that no migration explains: our own at once, others after `grace` seconds. Whether one went, and
    since when each of the others is seen: also one that goes, for the drop may not be written, and is then due at once.

    A name key on a quota that carried our mark already is our own, unless it was found there when the quota was taken
    over: then the timers have it.
    """
    ours, since = is_marked(facts.quota, rules), facts.timers.unexplained
    removed = False
    seen: dict[str, float] = {}
    for entry in [entry for entry in entries if entry.key not in explained]:
        own = ours and not entry.by_uid and entry.key not in since
        if not own:
            seen[entry.key] = since.get(entry.key, facts.now)
        if own or facts.now - seen[entry.key] >= grace:
            removed |= entries.remove(entry.key)
    return removed, seen


def is_marked(quota: ResourceQuota, rules: Rules) -> bool:
    """Whether the quota was ours already when it was observed: then its name keys are ours too."""
    recorded = rules.follow and not rules.mark
    return (constants.ANNOTATION_BASE if recorded else constants.ANNOTATION_OWNER) in quota.annotations


def enter(
    base: Mapping[str, Quantity],
    wanted: Sequence[Wanted],
    compensation: Mapping[str, Quantity],
    caps: Caps,
    entries: Entries,
) -> tuple[ResourceList, list[ResourceQuotaError]]:
    """Write the entries, as long as the caps and the annotations have room; what they add up to, and who waits."""
    keys = {each.key for each in wanted}
    added = total(
        {n: q for n, q in entry.readable().items() if n in base} for entry in entries if entry.key not in keys
    )
    problems: list[ResourceQuotaError] = []
    for each in wanted:
        value: ResourceList | None = each.value
        if each.grows:
            what = f"migration of VM {each.vm.name}"
            size = entries.size_with(each.key, each.value) if each.stands is None else 0
            refusal = caps.refuse(what, total([added, each.value, compensation]), size)
            if refusal is not None:
                problems.append(refusal)
                value = None if each.stands is None else minimum(each.value, each.stands)
        if value is None:
            entries.remove(each.key)
        else:
            entries.put(each.key, value)
            added = add(added, value)
    return added, problems
