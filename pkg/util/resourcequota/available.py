"""What a namespace has left for something that is no migration: base − (used − what migrations hold). Pure.

Source: Harvester pkg/util/resourcequota/calculator.go; the entries stand for the migrations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from pkg.api.core import Pod, ResourceQuota
from pkg.util.quantity import ZERO, Quantity
from pkg.util.resource_list import total
from pkg.util.resourcequota.annotations import entries
from pkg.util.resourcequota.calculator import quantity_of
from pkg.util.resourcequota.demand import is_finished
from pkg.util.resourcequota.model import Observed
from pkg.util.resourcequota.sides import assign, sides_by_vm


def held_by_entries(quota: ResourceQuota) -> Mapping[str, Quantity]:
    """The sum of all migrating entries on a quota. Raises InvalidEntry."""
    return total(entry.resources for entry in entries(quota.annotations))


def pods_of_migrations(observed: Observed) -> list[Pod]:
    """Every counted pod of a VM that is not of the side it lives in: targets, and what is left over of sources."""
    active: dict[str, set[str]] = defaultdict(set)
    for migration in observed.migrations:
        if not is_finished(migration):
            active[migration.spec.vmi_name].add(migration.uid)
    pods: list[Pod] = []
    for name, sides in sides_by_vm(observed.pods).items():
        placed = assign(sides, observed.instances.get(name), active[name])
        for side in (*placed.old, *([placed.target] if placed.target else ())):
            pods += side.pods
    return pods


def available(
    base: Mapping[str, Quantity], quota: ResourceQuota, held: Mapping[str, Quantity], name: str
) -> Quantity | None:
    """What is left of one resource, maybe less than nothing; None where the base does not limit it."""
    limit = base.get(name, ZERO)
    if limit.is_zero():
        return None
    return limit - (quantity_of(quota.used, name) - held.get(name, ZERO))
