"""Which limits a write to a quota may not lower while VMs migrate, and which VMs these are. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import RawQuantity
from kubeloop.api.quantity import Quantity, QuantityError
from kubeloop.api.resource_list import ResourceList
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util.resourcequota.base import base_of, hard
from pkg.util.resourcequota.entries import entries, migrating_key, migrating_uid_key, read
from pkg.util.resourcequota.managed import is_default, is_off
from pkg.util.resourcequota.policy import Policy


def too_low(
    old: ResourceQuota, new: ResourceQuota, limits: str, policy: Policy, granted: Mapping[str, Quantity] | None = None
) -> ResourceList:
    """Returns the limits that a write of spec.hard lowers too far, each with the lowest allowed value: the base and
    the headroom that is added to it; empty when it is fine. `limits` is the namespace's annotation, `granted` Rancher's
    grant.

    The entries are those of the object as it would be stored, so a writer that ends a migration's entry may lower the
    limit in the same write. The base is from before the write."""
    lowered = [name for name, value in new.hard.items() if name not in old.hard or _less(value, old.hard[name])]
    added = read(new.annotations).total
    if not lowered or not added or is_off(new.annotations):
        return {}  # outside migrations everything is allowed, and repaired where need be
    names = {**new.hard, **old.hard} if is_default(old) else old.hard
    before = replace(old, spec=replace(old.spec, hard=names))
    lowest = hard(base_of(before, limits, policy, granted).limits or {}, added)
    return {name: lowest[name] for name in sorted(lowered) if name in lowest and _less(new.hard[name], lowest[name])}


def status_too_low(old: ResourceQuota, new: ResourceQuota) -> ResourceList:
    """Returns the limits that a write of status.hard, by which quota admission goes, lowers too far, each with the
    lowest allowed value: spec.hard, to which anybody may bring it (resource_quota_controller.go's syncResourceQuota),
    or what it is already where that is less. Only limits with headroom of migrating VMs are held."""
    if is_off(new.annotations):
        return {}
    enforced, enforced_before = new.status.hard or {}, old.status.hard or {}
    lowest: ResourceList = {}
    for name in sorted(read(new.annotations).total):
        limits = [hard_limits[name] for hard_limits in (old.hard, enforced_before) if name in hard_limits]
        if name in enforced and limits and all(_less(enforced[name], limit) for limit in limits):
            lowest[name] = min(map(Quantity.parse, limits))
    return lowest


def migrating_vms(
    quota: ResourceQuota,
    migrations: Iterable[VirtualMachineInstanceMigration],
    instances: Iterable[VirtualMachineInstance],
) -> tuple[str, ...]:
    """Returns the names of the VMs whose entries stand on a quota, in order; a VMI's uid where no name is known."""
    names = {migrating_key(each.spec.vmi_name): each.spec.vmi_name for each in migrations}
    names |= {migrating_uid_key(vmi.uid): vmi.name for vmi in instances}
    return tuple(sorted({names.get(entry.key, entry.vm) for entry in entries(quota.annotations)}))


def _less(value: RawQuantity, than: RawQuantity | Quantity) -> bool:
    try:
        return Quantity.parse(value) < (than if isinstance(than, Quantity) else Quantity.parse(than))
    except QuantityError:  # the API server refuses it by itself
        return False
