"""Arithmetic of a raised quota: what is added to spec.hard, and what it was before. Pure.

Only resources that the quota limits are added to, under exactly the names that the budget uses (upstream).
"""

from __future__ import annotations

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import RawResourceList
from pkg.util.managedtenantquota.record import Record
from pkg.util.quantity import ZERO
from pkg.util.resource_list import ResourceList, parse_resource_list
from pkg.util.resourcequota.base import difference


def to_raise(hard: RawResourceList, record: Record) -> dict[str, str]:
    """The change of a quota that says what it said originally; empty when nothing is added. A limit that says less than
    that, or more than it would be raised to, stays. Raises QuantityError."""
    now, before, added = _parsed(hard, record)
    raised = {name: limit + added.get(name, ZERO) for name, limit in before.items()}
    return difference(
        hard, {n: raised[n] for n, limit in before.items() if n in now and limit <= now[n] < raised[n]}
    )


def to_restore(hard: RawResourceList, record: Record, *, exactly: bool) -> dict[str, str]:
    """The change that takes back what was added; no limit rises by it. Raises QuantityError.

    `exactly`: only a limit that says what it was raised to. Any other value was written by a person, and stays.
    """
    now, before, added = _parsed(hard, record)
    ours = {
        name: limit
        for name, limit in before.items()
        if name in now and limit < now[name] and (not exactly or now[name] == limit + added.get(name, ZERO))
    }
    return difference(hard, ours)


def _parsed(hard: RawResourceList, record: Record) -> tuple[ResourceList, ResourceList, ResourceList]:
    return parse_resource_list(hard), parse_resource_list(record.hard), parse_resource_list(record.added)


def is_enforced(quota: ResourceQuota) -> bool:
    """Whether quota admission goes by spec.hard already, or by less: it reads status.hard, which the controller manager
    copies."""
    now, used = parse_resource_list(quota.hard), parse_resource_list(quota.status.hard)
    return all(used[name] <= limit for name, limit in now.items() if name in used)
