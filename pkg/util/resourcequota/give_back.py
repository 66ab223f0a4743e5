"""Giving a ResourceQuota back: no entry, spec.hard at its base, none of our marks. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.resource_list import subtract
from pkg.util import constants
from pkg.util.kubevirt.migration import is_finished
from pkg.util.resourcequota.base import HARVESTERS, applied_to, base_of, difference, limits_are_empty, quantity_of
from pkg.util.resourcequota.entries import changes, entry_keys, is_entry, keys_of, migrating_uid_key, read, remove
from pkg.util.resourcequota.facts import Facts, Plan
from pkg.util.resourcequota.managed import OWN_MARKS, RECORDS, is_default, is_ours, was_default
from pkg.util.resourcequota.policy import EXACT

_FOR_ENTRIES = (constants.ANNOTATION_TOUCHED, constants.ANNOTATION_SUMMARY)


def give_back(facts: Facts, *, to_harvester: bool = False) -> Plan:
    """Returns the plan after which nothing of headroom's is left; an empty one for a quota that is not owned.

    `to_harvester`: its own controllers go on from here on a default quota. The entries of migrations under way stay,
    under the key that Harvester looks for when it restores, and spec.hard gets at once the value that Harvester's next
    sync, which the resync flag orders, would give it: resources that Harvester does not scale are at the base."""
    quota = facts.quota
    if not is_ours(quota):
        return Plan()
    annotations = dict(quota.annotations)
    if to_harvester and is_default(quota):
        hard = hand_over(facts, annotations)
        annotations[constants.ANNOTATION_RESYNC_NEEDED] = constants.TRUE
    else:
        hard = lowered(facts, read(annotations).total)
        marks = (constants.ANNOTATION_RESYNC_NEEDED, *OWN_MARKS) if constants.ANNOTATION_OWNER in annotations else ()
        remove(annotations, *_FOR_ENTRIES, *RECORDS, *marks, *filter(is_entry, quota.annotations))
    return Plan(annotations=changes(quota.annotations, annotations), hard=hard)


def hand_over(facts: Facts, annotations: dict[str, str]) -> dict[str, str]:
    """Takes headroom's marks off a default quota, and its entries but those of migrations under way, which get the key
    that Harvester looks for. Returns the changes of spec.hard: resources that Harvester does not scale are at the
    base."""
    headroom = read(annotations).total
    _keep_under_way(facts, annotations)
    remove(annotations, *_FOR_ENTRIES, *OWN_MARKS, *RECORDS)
    entries = read(annotations)
    if entries.invalid:  # Harvester leaves spec.hard alone too
        return {}
    return lowered(facts, headroom, {name: amount for name, amount in entries.total.items() if name in HARVESTERS})


def lowered(
    facts: Facts, headroom: Mapping[str, Quantity], kept_headroom: Mapping[str, Quantity] | None = None
) -> dict[str, str]:
    """Returns the changes of spec.hard that take `headroom` away except for `kept_headroom`: the limits that were
    raised are at the base, or lower by the headroom where no base is known. Garbage changes nothing."""
    quota, kept = facts.quota, kept_headroom or {}
    default, is_scaled = is_default(quota), not limits_are_empty(quota.hard)
    base = {} if was_default(quota) else base_of(quota, facts.limits, EXACT, facts.rancher.granted).limits
    if base is None:
        return {}
    if base or (default and facts.limits):
        names = {*headroom, *applied_to(quota)} - ({*HARVESTERS} if default else set())
        names |= {*HARVESTERS} if default and is_scaled else set()  # upstream: else it is not scaled
        return difference(quota.hard, {name: base[name] + kept.get(name, ZERO) for name in names if name in base})
    current = {name: quantity_of(quota.hard, name) for name in headroom if name in quota.hard}
    reduced = subtract(current, {name: headroom[name] - kept.get(name, ZERO) for name in current})
    return difference(quota.hard, {name: limit for name, limit in reduced.items() if limit >= ZERO})


def _keep_under_way(facts: Facts, annotations: dict[str, str]) -> None:
    """Removes all entries but those of migrations under way, one a VM, under the VMI's uid; with the last one goes the
    compensation."""
    needed: set[str] = set()
    for migration in facts.migrations:
        vmi = facts.instances.get(migration.spec.vmi_name)
        keys = keys_of(annotations, migration.spec.vmi_name, vmi)
        if is_finished(migration) or not keys:
            continue
        if vmi is not None:
            if (uid_key := migrating_uid_key(vmi.uid)) not in needed:
                annotations[uid_key] = annotations[keys[0]]
            keys = [uid_key]
        needed.update(keys)
    remove(annotations, *(key for key in entry_keys(annotations) if key not in needed))
    if not needed:  # Harvester removes it with the last entry only
        remove(annotations, constants.ANNOTATION_MIGRATING_COMPENSATION)
