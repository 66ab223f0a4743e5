"""What a namespace has left for something that is no migration: base − (used − what migrations hold). Pure.

Source: Harvester pkg/util/resourcequota/calculator.go; the entries stand for the migrations.
"""

from __future__ import annotations

from collections.abc import Mapping

from pkg.api.core import ResourceQuota
from pkg.util.quantity import ZERO, Quantity
from pkg.util.resource_list import total
from pkg.util.resourcequota.annotations import entries
from pkg.util.resourcequota.calculator import quantity_of


def held_by_entries(quota: ResourceQuota) -> Mapping[str, Quantity]:
    """The sum of all migrating entries on a quota. Raises InvalidEntry."""
    return total(entry.resources for entry in entries(quota.annotations))


def available(
    base: Mapping[str, Quantity], quota: ResourceQuota, held: Mapping[str, Quantity], name: str
) -> Quantity | None:
    """What is left of one resource, maybe less than nothing; None where the base does not limit it."""
    limit = base.get(name, ZERO)
    if limit.is_zero():
        return None
    return limit - (quantity_of(quota.used, name) - held.get(name, ZERO))
