"""The lowest limits that a ResourceQuota may have now: its base and what stands on it for migrations. Pure.

The entries are those of the object as it would be stored, so a writer that ends a migration's entry may lower the limit
in the same write. The base is from before the write.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import RawQuantity
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util.names import migrating_key, migrating_uid_key
from pkg.util.quantity import Quantity, QuantityError
from pkg.util.resource_list import ResourceList
from pkg.util.resourcequota.base import base_of, hard
from pkg.util.resourcequota.entries import Entries, entries
from pkg.util.resourcequota.managed import is_default, is_off
from pkg.util.resourcequota.policy import Policy


def too_low(old: ResourceQuota, new: ResourceQuota, limits: str, policy: Policy) -> ResourceList:
    """The limits that a write lowers too far, each with the lowest allowed value; empty when it is fine. `limits` is
    the namespace's annotation."""
    lowered = [name for name, value in new.hard.items() if name not in old.hard or _less(value, old.hard[name])]
    added = Entries(new.annotations).readable()
    if not lowered or not added or is_off(new.annotations):
        return {}  # outside migrations everything is allowed, and repaired where need be
    names = {**new.hard, **old.hard} if is_default(old) else old.hard
    before = replace(old, spec=replace(old.spec, hard=names))
    lowest = hard(base_of(before, limits, policy).limits or {}, added)
    return {name: lowest[name] for name in sorted(lowered) if name in lowest and _less(new.hard[name], lowest[name])}


def migrating(
    quota: ResourceQuota,
    migrations: Iterable[VirtualMachineInstanceMigration],
    instances: Iterable[VirtualMachineInstance],
) -> tuple[str, ...]:
    """The names of the VMs whose entries stand on a quota, in order; a VMI's uid where no name is known."""
    names = {migrating_key(each.spec.vmi_name): each.spec.vmi_name for each in migrations}
    names |= {migrating_uid_key(vmi.uid): vmi.name for vmi in instances}
    return tuple(sorted({names.get(entry.key, entry.vm) for entry in entries(quota.annotations)}))


def _less(value: RawQuantity, than: RawQuantity | Quantity) -> bool:
    try:
        return Quantity.parse(value) < (than if isinstance(than, Quantity) else Quantity.parse(than))
    except QuantityError:  # the API server refuses it by itself
        return False
