"""Giving a ResourceQuota back: no entry, spec.hard at its base, none of our marks. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.resource_list import ResourceList, subtract
from pkg.util import constants
from pkg.util.kubevirt.migration import is_finished
from pkg.util.resourcequota.base import HARVESTERS, applied_to, base_of, difference, limits_are_empty, quantity_of
from pkg.util.resourcequota.entries import changes, entry_keys, keys_of, migrating_uid_key, read, remove
from pkg.util.resourcequota.facts import Facts, Plan
from pkg.util.resourcequota.managed import RECORDS, is_default, is_ours
from pkg.util.resourcequota.policy import EXACT

_FOR_ENTRIES = (constants.ANNOTATION_TOUCHED, constants.ANNOTATION_SUMMARY)
_WITH_ENTRIES = (constants.ANNOTATION_MIGRATING_COMPENSATION, *_FOR_ENTRIES)
_MARKS = (constants.ANNOTATION_RESYNC_NEEDED, constants.ANNOTATION_SKIP_AUTO_SCALING, constants.ANNOTATION_OWNER)


def give_back(facts: Facts, *, to_harvester: bool = False) -> Plan:
    """The patch after which nothing of ours is left; empty for a quota not ours.

    `to_harvester`: its own controllers go on from here on a default quota. The entries of migrations under way stay,
    under the key that it looks for when it restores, and spec.hard gets at once the value that its next sync, which
    the resync flag orders, would give it: what it does not scale is at its base.
    """
    quota = facts.quota
    if not is_ours(quota):
        return Plan()
    default = is_default(quota)
    annotations = dict(quota.annotations)
    if to_harvester and default:
        hard = hand_over(facts, annotations)
        annotations[constants.ANNOTATION_RESYNC_NEEDED] = constants.TRUE
    else:
        hard = lowered(facts, read(annotations).total)
        remove(annotations, *_WITH_ENTRIES, *RECORDS, *(_MARKS if default else ()), *entry_keys(annotations))
    return Plan(annotations=changes(quota.annotations, annotations), hard=hard)


def hand_over(facts: Facts, annotations: dict[str, str]) -> dict[str, str]:
    """Takes our marks off a default quota, and its entries but those of migrations under way, which get the key that
    Harvester looks for; what changes of spec.hard: what Harvester does not scale is at its base."""
    before = read(annotations).total
    _keep_under_way(facts, annotations)
    marks = *_FOR_ENTRIES, constants.ANNOTATION_SKIP_AUTO_SCALING, constants.ANNOTATION_OWNER
    remove(annotations, *marks, *RECORDS)
    kept = read(annotations)
    if kept.invalid:  # Harvester leaves spec.hard alone too
        return {}
    return lowered(facts, before, {name: amount for name, amount in kept.total.items() if name in HARVESTERS})


def lowered(facts: Facts, added: Mapping[str, Quantity], kept: Mapping[str, Quantity] | None = None) -> dict[str, str]:
    """What of spec.hard changes where all that was `added` goes but what is `kept`: the limits that were raised are at
    the base; where nothing says what that is, less what was added. Garbage: nothing changes."""
    quota, kept = facts.quota, kept or {}
    base = base_of(quota, facts.limits, EXACT, facts.rancher.granted).limits
    names = {*added, *applied_to(quota), *(HARVESTERS if is_default(quota) else ())}
    if is_default(quota) and limits_are_empty(quota.hard):  # upstream: it is not scaled
        names -= {*HARVESTERS}
    if base is None:
        return {}
    hard: ResourceList = {name: base[name] + kept.get(name, ZERO) for name in names if name in base}
    if not base and not (is_default(quota) and facts.limits):
        now = {name: quantity_of(quota.hard, name) for name in added if name in quota.hard}
        less = subtract(now, {name: added[name] - kept.get(name, ZERO) for name in now})
        hard = {name: limit for name, limit in less.items() if limit >= ZERO}
    return difference(quota.hard, hard)


def _keep_under_way(facts: Facts, annotations: dict[str, str]) -> None:
    """Only entries of migrations under way, one a VM, under the VMI's uid; with the last one goes the compensation."""
    needed: set[str] = set()
    for migration in facts.migrations:
        vmi = facts.instances.get(migration.spec.vmi_name)
        keys = keys_of(annotations, migration.spec.vmi_name, vmi)
        if is_finished(migration) or not keys:
            continue
        if vmi is not None:
            if (ours := migrating_uid_key(vmi.uid)) not in needed:
                annotations[ours] = annotations[keys[0]]
            keys = [ours]
        needed.update(keys)
    remove(annotations, *(key for key in entry_keys(annotations) if key not in needed))
    if not needed:  # Harvester removes it with the last entry only
        remove(annotations, constants.ANNOTATION_MIGRATING_COMPENSATION)
