"""Arithmetic of a raised quota: what is added to spec.hard, and what it was before. Pure.

Only resources that the quota limits are added to, under exactly the names that the budget uses (upstream).
"""

from __future__ import annotations

from collections.abc import Mapping

from kubeloop.api.meta import RawResourceList
from pkg.util.quantity import ZERO, Quantity
from pkg.util.resource_list import ResourceList, parse_resource_list
from pkg.util.resourcequota.base import difference


def with_budget(hard: RawResourceList, additional: RawResourceList) -> ResourceList:
    """Every limit of spec.hard with what the budget adds to it. Raises QuantityError."""
    added = parse_resource_list(additional)
    return {name: limit + added.get(name, ZERO) for name, limit in parse_resource_list(hard).items()}


def to_raise(hard: RawResourceList, original: RawResourceList, additional: RawResourceList) -> dict[str, str]:
    """The change of a quota that says what it said originally; empty when nothing is added. A limit that says less than
    that stays: what is said to have been saved is no way to a larger quota, for any writer. Raises QuantityError."""
    now, before = parse_resource_list(hard), parse_resource_list(original)
    raised = with_budget(original, additional)
    return difference(hard, {n: raised[n] for n, limit in before.items() if n in now and limit <= now[n]})


def to_restore(
    hard: RawResourceList, original: RawResourceList, additional: RawResourceList, *, locked: bool
) -> dict[str, str]:
    """The change that takes back what was added. Raises QuantityError.

    While the lock stands no other client can have written: the saved limits are the truth. Without it a limit that says
    a value that we did not write was set by a person, and stays. No limit rises by it.
    """
    now, before = parse_resource_list(hard), parse_resource_list(original)
    raised = with_budget(original, additional)
    ours = {
        name: limit
        for name, limit in before.items()
        if name in now and limit < now[name] and (locked or now[name] == raised[name])
    }
    return difference(hard, ours)


def is_enforced(hard: RawResourceList, enforced: RawResourceList, additional: RawResourceList) -> bool:
    """Whether quota admission goes by spec.hard already: it reads status.hard, which the controller manager copies."""
    names = [name for name in additional if name in hard]
    wanted = parse_resource_list({name: hard[name] for name in names})
    return not difference(enforced, wanted)


def exceeded(
    need: Mapping[str, Quantity], used: Mapping[str, Quantity], hard: Mapping[str, Quantity]
) -> list[str]:
    """The resources in which quota admission refuses a pod, sorted. What the pod does not need is not looked at.

    Source: kubernetes apiserver plugin/resourcequota CheckRequest, 1.34.
    """
    return sorted(
        name
        for name, limit in hard.items()
        if need.get(name, ZERO) > ZERO and used.get(name, ZERO) + need[name] > limit
    )
