"""The lowest limits that a ResourceQuota may have now. Pure, and nothing of it is computed here: the request's object
takes the cached one's place, the controller's own plan is made for it, and what that plan would raise is too low.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import msgspec

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import RawQuantity, RawResourceList
from pkg.util import constants
from pkg.util.names import migrating_key
from pkg.util.quantity import ZERO, Quantity, QuantityError
from pkg.util.resource_list import ResourceList
from pkg.util.resourcequota.errors import InvalidEntry
from pkg.util.resourcequota.facts import Facts, Plan, Timers
from pkg.util.resourcequota.journal import Entry, entries, parse_resources
from pkg.util.resourcequota.managed import is_managed, is_off
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import Policy

_LEAST = "1n"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a write lowers too far: resource name to the lowest allowed value, and the VMs that need it.

    False when it is fine.
    """

    lowest: Mapping[str, Quantity] = field(default_factory=dict)
    migrating: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.lowest)


FINE = Verdict()


def lowered(old: ResourceQuota, new: ResourceQuota) -> set[str]:
    """The limits that fall; one that is new where there was none counts, one that goes does not."""
    before = old.hard
    return {name for name, value in new.hard.items() if name not in before or _less(value, before[name])}


def judge(old: ResourceQuota, observed: Facts, policy: Policy) -> Verdict:
    """Whether the write that makes `observed.quota` of `old` leaves the migrations under way what they need."""
    names = lowered(old, observed.quota)
    if not names:
        return FINE
    planned = _plan(_unedited(_without_zeros(observed)), policy)
    after = _after(observed.quota.annotations, planned)
    standing = list(entries(after))
    if not standing and constants.ANNOTATION_MIGRATING_COMPENSATION not in after:
        return FINE  # outside migrations everything is allowed, and repaired where need be
    generous = _beyond_the_journal(standing, old.annotations)
    lowest: dict[str, Quantity] = {}
    for name in sorted(names):
        wanted = planned.hard.get(name)
        if wanted is not None:
            least = Quantity.parse(wanted) - generous.get(name, ZERO)
            if _less(observed.quota.hard[name], least):
                lowest[name] = least
    return Verdict(lowest, _names(standing, observed)) if lowest else FINE


def judge_by_journal(old: ResourceQuota, observed: Facts, policy: Policy) -> Verdict:
    """The same by the entries that stand on the request's own object, each taken as needed: they hold
    that headroom, whatever a cache knows of the migration that an entry was just written for."""
    verdict = judge(old, replace(observed, migrations=(), pods=(), instances={}), policy)
    return replace(verdict, migrating=names_of_entries(observed)) if verdict else FINE


def at_most(verdict: Verdict, other: Verdict) -> bool:
    """Whether a verdict asks for nothing that the other does not."""
    return all(value <= other.lowest.get(name, ZERO) for name, value in verdict.lowest.items())


def names_of_entries(observed: Facts) -> tuple[str, ...]:
    """The VMs that stand on the quota, as `migrating` names them."""
    return _names(entries(observed.quota.annotations), observed)


def migrating(observed: Facts, policy: Policy) -> tuple[str, ...]:
    """The names of the VMs that stand on the quota, or should, in order; a VMI's uid where no name is known."""
    quota = observed.quota
    if not is_managed(quota) or observed.namespace_off or is_off(quota.annotations, policy.mode):
        return ()
    return _names(entries(_after(quota.annotations, _plan(observed, policy))), observed)


def _plan(observed: Facts, policy: Policy) -> Plan:
    """An entry that no migration explains is as good as new here: whether it has stood for too long, only the
    controller knows, and when it drops it, it lowers the limit in the same write."""
    memory = Timers(unexplained={entry.key: observed.now for entry in entries(observed.quota.annotations)})
    return plan(replace(observed, timers=memory), policy)


def _after(annotations: Mapping[str, str], planned: Plan) -> dict[str, str]:
    after = dict(annotations)
    for key, value in planned.annotations.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = value
    return after


def _beyond_the_journal(standing: Iterable[Entry], journal: Mapping[str, str]) -> ResourceList:
    """By how much our entries are above those that the quota's writer had put down.

    It is the writer that decides how much a migration needs: where it estimates less than we do, its own writes
    must not run into us.
    """
    beyond: ResourceList = {}
    for entry in standing:
        if entry.key not in journal:
            continue
        with suppress(InvalidEntry):
            theirs = parse_resources(entry.key, journal[entry.key])
            for name, quantity in entry.resources.items():
                more = quantity - theirs.get(name, ZERO)
                if more > ZERO:
                    beyond[name] = beyond.get(name, ZERO) + more
    return beyond


def _without_zeros(observed: Facts) -> Facts:
    """A quota whose limits are all zero is not scaled (upstream). That must not be a way out of here."""
    quota = observed.quota
    hard: RawResourceList = {name: _LEAST if _is_zero(value) else value for name, value in quota.hard.items()}
    spec = msgspec.structs.replace(quota.spec, hard=hard)
    return replace(observed, quota=msgspec.structs.replace(quota, spec=spec))


def _unedited(observed: Facts) -> Facts:
    """The request is judged by the base that is recorded. Once it is let in, it is an edit of the base."""
    annotations = {k: v for k, v in observed.quota.annotations.items() if k != constants.ANNOTATION_APPLIED}
    metadata = msgspec.structs.replace(observed.quota.metadata, annotations=annotations)
    return replace(observed, quota=msgspec.structs.replace(observed.quota, metadata=metadata))


def _names(standing: Iterable[Entry], observed: Facts) -> tuple[str, ...]:
    return tuple(sorted({_name(entry, observed) for entry in standing}))


def _name(entry: Entry, observed: Facts) -> str:
    target = entry.target
    if target.kind == "uid":
        by_uid = {vmi.uid: name for name, vmi in observed.instances.items()}
        return by_uid.get(target.value, target.value)
    if target.kind == "hashed":
        names = {migration.spec.vmi_name for migration in observed.migrations}
        return next((name for name in sorted(names) if migrating_key(name) == entry.key), target.value)
    return target.value


def _is_zero(value: RawQuantity) -> bool:
    try:
        return Quantity.parse(value).is_zero()
    except QuantityError:
        return False


def _less(value: RawQuantity, than: RawQuantity | Quantity) -> bool:
    try:
        return Quantity.parse(value) < (than if isinstance(than, Quantity) else Quantity.parse(than))
    except QuantityError:  # the API server refuses it by itself
        return False
