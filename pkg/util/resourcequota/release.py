"""Giving a ResourceQuota back to Harvester: the reverse of taking it over. Pure."""

from __future__ import annotations

from contextlib import suppress

from pkg.util import constants
from pkg.util.names import migrating_uid_key
from pkg.util.resourcequota.annotations import Journal
from pkg.util.resourcequota.base import parse_base
from pkg.util.resourcequota.calculator import (
    LIMITS_CPU,
    LIMITS_MEMORY,
    difference,
    limits_are_empty,
    scaled_hard,
)
from pkg.util.resourcequota.demand import Standing, demands
from pkg.util.resourcequota.errors import ResourceQuotaError
from pkg.util.resourcequota.planner import Observed, Plan


def release(observed: Observed) -> Plan:
    """The patch after which Harvester's own controllers go on from where we stop; empty for a quota not ours.

    The entries of migrations under way stay, under the key that Harvester looks for when it restores; all
    others go. spec.hard says at once what it says after Harvester's next look, which the resync flag orders.
    """
    if constants.ANNOTATION_OWNER not in observed.quota.annotations:
        return Plan()
    journal = Journal(observed.quota.annotations)
    journal.remove(constants.ANNOTATION_OWNER)
    journal.remove(constants.ANNOTATION_SKIP_AUTO_SCALING)
    _rename_entries(journal, observed)
    journal.set(constants.ANNOTATION_RESYNC_NEEDED, "true")
    hard: dict[str, str] = {}
    with suppress(ResourceQuotaError):  # garbage: spec.hard stays, Harvester leaves it alone too
        hard = _hard(journal, observed)
    return Plan(annotations=journal.changes(), hard=hard)


def _rename_entries(journal: Journal, observed: Observed) -> None:
    claims = demands(observed.migrations, observed.instances)
    needed: set[str] = set()
    for claim in claims.values():
        keys = journal.keys_of(claim.vm_name, claim.vmi_uid)
        if claim.standing is Standing.FINISHED or not keys:
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


def _hard(journal: Journal, observed: Observed) -> dict[str, str]:
    if not observed.limits or limits_are_empty(observed.quota.hard):
        return {}
    base = {n: q for n, q in parse_base(observed.limits).items() if n in (LIMITS_CPU, LIMITS_MEMORY)}
    deltas = [entry.resources for entry in journal.entries()]
    return difference(observed.quota.hard, scaled_hard(base, deltas, journal.compensation))
