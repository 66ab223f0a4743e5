"""Which migrating entries stand on a ResourceQuota: added, adopted and dropped by what the migrations say.

Every function changes the Journal it is given and nothing else.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from functools import reduce

from pkg.util.names import migrating_key
from pkg.util.quantity import Quantity
from pkg.util.resource_list import maximum
from pkg.util.resourcequota.annotations import Entry, Journal
from pkg.util.resourcequota.demand import Demand, Standing
from pkg.util.resourcequota.errors import InvalidEntry


def drop_finished(journal: Journal, claims: Iterable[Demand]) -> bool:
    """Remove every key form of the VMs whose migrations are all over; whether anything was there.

    As upstream, nothing is done once the VMI is gone; its entry ends as one that nothing explains.
    """
    removed = False
    for claim in claims:
        if claim.standing is Standing.FINISHED and claim.vmi is not None:
            for key in journal.keys_of(claim.vm_name, claim.vmi_uid):
                removed |= journal.remove(key)
    return removed


def explained_keys(journal: Journal, claims: Iterable[Demand]) -> set[str]:
    """The keys of the VMs that have a migration under way."""
    under_way = [claim for claim in claims if claim.standing is not Standing.FINISHED]
    return {key for claim in under_way for key in journal.keys_of(claim.vm_name, claim.vmi_uid)}


def unexplained(journal: Journal, explained: Container[str], *, uids_unknown: bool) -> list[Entry]:
    """The entries that no migration accounts for.

    While some migration's VMI is unknown, so is its UID (`uids_unknown`): a UID key might then be its entry and
    counts as explained.
    """
    return [
        entry
        for entry in journal.entries()
        if entry.key not in explained and not (uids_unknown and entry.target.kind == "uid")
    ]


def drop_unexplained(
    journal: Journal,
    orphans: Iterable[Entry],
    since: Mapping[str, float],
    *,
    ours: bool,
    now: float,
    grace: float,
) -> tuple[bool, dict[str, float]]:
    """Drop entries that no migration explains: our own at once, foreign ones after `grace` seconds.

    Whether anything was dropped, and since when each one that is left has been waiting. A name key on a quota
    that already carries our mark is our own, unless it was found there when the quota was taken over.
    """
    removed = False
    waiting: dict[str, float] = {}
    for entry in orphans:
        first_seen = since.get(entry.key, now)
        own = ours and entry.target.kind != "uid" and entry.key not in since
        if own or now - first_seen >= grace:
            removed |= journal.remove(entry.key)
        else:
            waiting[entry.key] = first_seen
    return removed, waiting


def adopt(journal: Journal, vm_name: str, vmi_uid: str) -> None:
    """One VM counts once: gather every form of its key under our own, the greatest value of each resource kept.

    Garbage is left out; where nothing readable is left, the key goes and the entry is made afresh.
    """
    ours = migrating_key(vm_name)
    keys = journal.keys_of(vm_name, vmi_uid)
    readable: list[Mapping[str, Quantity]] = []
    for key in keys:
        try:
            readable.append(journal.resources(key))
        except InvalidEntry:
            continue
    for key in keys:
        if key != ours or not readable:
            journal.remove(key)
    if readable:
        journal.put(ours, reduce(maximum, readable))
