"""Giving a ResourceQuota back to Harvester: the reverse of taking it over. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from kubeloop.api.core import ResourceQuota
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.constants import LIMITS_CPU, LIMITS_MEMORY
from pkg.util.kubevirt.migration import Stage, demands, is_finished
from pkg.util.names import migrating_uid_key
from pkg.util.quantity import ZERO
from pkg.util.resource_list import parse_resource_list, subtract, total
from pkg.util.resourcequota.base import (
    difference,
    granted_by_namespace,
    granted_by_record,
    limits_are_empty,
    parse_base,
    scaled_base,
    scaled_hard,
)
from pkg.util.resourcequota.errors import ResourceQuotaError
from pkg.util.resourcequota.facts import Facts, Plan
from pkg.util.resourcequota.journal import Journal, parse_resources
from pkg.util.resourcequota.managed import is_default
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy

_EVERYTHING = Policy(Mode.TAKEOVER, EstimateKind.EXACT)


def release(facts: Facts) -> Plan:
    """The patch after which Harvester's own controllers go on from where we stop; empty for a quota not ours.

    The entries of migrations under way stay, under the key that Harvester looks for when it restores; all
    others go. spec.hard gets at once the value that Harvester's next sync, which the resync flag orders, would give
    it; what Harvester does not scale goes back to its base. So does a quota without Rancher, whole.
    """
    if not is_ours(facts.quota):
        return Plan()
    if not is_default(facts.quota):
        return retire(facts.quota)
    journal = Journal(facts.quota.annotations)
    hard = hand_over(journal, facts)
    journal.set(constants.ANNOTATION_RESYNC_NEEDED, "true")
    with suppress(ResourceQuotaError):
        hard |= _hard(journal, facts)
    return Plan(annotations=journal.changes(), hard=hard)


def hand_over(journal: Journal, facts: Facts) -> dict[str, str]:
    """Takes our marks off a default quota and gives its entries the keys that Harvester looks for; what of spec.hard
    Harvester would never lower again, at its base."""
    for mark in (
        constants.ANNOTATION_OWNER,
        constants.ANNOTATION_SKIP_AUTO_SCALING,
        constants.ANNOTATION_TOUCHED,
    ):
        journal.remove(mark)
    hard: dict[str, str] = {}
    with suppress(ResourceQuotaError):  # garbage: spec.hard stays, Harvester leaves it alone too
        hard = _beyond_harvester(journal, facts)
    _rename_entries(journal, facts)
    return hard


def give_up(facts: Facts) -> Plan:
    """The patch after which nothing of ours is left on a quota that another strategy takes over; empty for one not
    ours. spec.hard is the base again, whatever migrates."""
    quota = facts.quota
    if not is_ours(quota):
        return Plan()
    if not is_default(quota):
        return retire(quota)
    hard: dict[str, str] = {}
    with suppress(ResourceQuotaError):  # garbage: what was added cannot be told
        hard = _lowered(Journal(quota.annotations), facts)
    marks = (
        constants.ANNOTATION_RESYNC_NEEDED,
        constants.ANNOTATION_SKIP_AUTO_SCALING,
        constants.ANNOTATION_OWNER,
    )
    return Plan(annotations=_without(quota, *marks), hard=hard)


def with_entries(facts: Facts) -> list[VirtualMachineInstanceMigration]:
    """The migrations that are over, or that an entry stands for."""
    journal = Journal(facts.quota.annotations)
    return [each for each in facts.migrations if is_finished(each) or has_entry(facts, journal, each)]


def has_entry(facts: Facts, journal: Journal, migration: VirtualMachineInstanceMigration) -> bool:
    vmi = facts.instances.get(migration.spec.vmi_name)
    return bool(journal.keys_of(migration.spec.vmi_name, vmi.uid if vmi else ""))


def _lowered(journal: Journal, facts: Facts) -> dict[str, str]:
    """The limits that entries have raised, back at the base; without a base, less the entries."""
    hard = facts.quota.hard
    added = total([*(entry.resources for entry in journal.entries()), journal.compensation])
    base = scaled_base(granted_by_namespace(facts.limits), hard, _EVERYTHING)
    if base:
        names = {LIMITS_CPU, LIMITS_MEMORY, *added}
        return difference(hard, {name: limit for name, limit in base.items() if name in names})
    now = parse_resource_list({name: raw for name, raw in hard.items() if name in added})
    lowered = subtract(now, {name: added[name] for name in now})
    return difference(hard, {name: limit for name, limit in lowered.items() if limit >= ZERO})


def is_ours(quota: ResourceQuota) -> bool:
    """Whether there is anything to give back: our mark on a default quota, one of our records on another."""
    records = {constants.ANNOTATION_BASE, constants.ANNOTATION_APPLIED}
    marks = {constants.ANNOTATION_OWNER} if is_default(quota) else records
    return not marks.isdisjoint(quota.annotations)


def retire(quota: ResourceQuota) -> Plan:
    """The patch that takes all that is ours from a quota without Rancher: entries, records, and what was added."""
    hard: dict[str, str] = {}
    with suppress(ResourceQuotaError):
        text = quota.annotations.get(constants.ANNOTATION_APPLIED, "")
        raised = parse_resources(constants.ANNOTATION_APPLIED, text) if text else {}
        base = granted_by_record(quota)
        hard = difference(quota.hard, {name: base[name] for name in raised if name in base})
    return Plan(
        annotations=_without(quota, constants.ANNOTATION_APPLIED, constants.ANNOTATION_BASE), hard=hard
    )


def _without(quota: ResourceQuota, *marks: str) -> Mapping[str, str | None]:
    """The changes after which no entry stands, nothing that comes with one, and none of `marks`."""
    journal = Journal(quota.annotations)
    with_them = (constants.ANNOTATION_MIGRATING_COMPENSATION, constants.ANNOTATION_TOUCHED)
    for key in (*(entry.key for entry in journal.entries()), *with_them, *marks):
        journal.remove(key)
    return journal.changes()


def _beyond_harvester(journal: Journal, facts: Facts) -> dict[str, str]:
    """What entries have raised that Harvester would never lower again, at its base."""
    added = total([*(entry.resources for entry in journal.entries()), journal.compensation])
    base = scaled_base(granted_by_namespace(facts.limits), facts.quota.hard, _EVERYTHING)
    lowered = {n: q for n, q in base.items() if n in added and n not in (LIMITS_CPU, LIMITS_MEMORY)}
    return difference(facts.quota.hard, lowered)


def _rename_entries(journal: Journal, facts: Facts) -> None:
    claims = demands(facts.migrations, facts.instances)
    needed: set[str] = set()
    for claim in claims.values():
        keys = journal.keys_of(claim.vm_name, claim.vmi_uid)
        if claim.stage is Stage.FINISHED or not keys:
            continue
        if claim.vmi is None:
            needed.update(keys)
            continue
        ours = migrating_uid_key(claim.vmi_uid)
        journal.move(keys[0], ours)
        needed.add(ours)
    for entry in journal.entries():
        if entry.key not in needed:
            journal.remove(entry.key)
    if not needed:  # Harvester removes it with the last entry only
        journal.remove(constants.ANNOTATION_MIGRATING_COMPENSATION)


def _hard(journal: Journal, facts: Facts) -> dict[str, str]:
    if not facts.limits or limits_are_empty(facts.quota.hard):
        return {}
    base = {n: q for n, q in parse_base(facts.limits).items() if n in (LIMITS_CPU, LIMITS_MEMORY)}
    deltas = [entry.resources for entry in journal.entries()]
    return difference(facts.quota.hard, scaled_hard(base, deltas, journal.compensation))
