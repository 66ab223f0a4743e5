"""The decision of the guard: which limits a write to a quota may not lower while VMs migrate. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from msgspec.structs import replace

from kubeloop.api.core import Namespace, ResourceQuota
from kubeloop.api.meta import RawQuantity
from kubeloop.api.quantity import Quantity, QuantityError
from kubeloop.api.resource_list import ResourceList, marshal, parse_resource_list
from pkg.util import constants
from pkg.util.resourcequota.base import applied_to, base_of, granted_by_record, hard
from pkg.util.resourcequota.entries import read
from pkg.util.resourcequota.facts import pointer
from pkg.util.resourcequota.managed import is_default, is_managed, is_off, switched_off
from pkg.util.resourcequota.policy import Policy
from pkg.util.resourcequota.rancher import annotation_of, granted_to, request_of


def lowered_too_far(
    old: ResourceQuota,
    new: ResourceQuota,
    policy: Policy,
    namespace: Namespace | None,
    *,
    of_status: bool = False,
    grants: bool = False,
) -> ResourceList:
    """Returns the limits that a write lowers too far, with the lowest allowed values. `of_status`: it is one of the
    status; `grants`: it is Rancher's, and its limits are a new grant.

    While headroom requests what it adds of Rancher, Rancher's own writes already hold that, and nobody else's are let
    through."""
    if not is_managed(old) or switched_off(new):
        return {}
    if namespace is not None and (switched_off(namespace) or request_of(namespace)):
        return {}
    if of_status:
        return status_too_low(old, new)
    granted = granted_to(old, namespace)
    if granted is not None and grants:
        with suppress(QuantityError):
            granted = {**granted, **parse_resource_list(new.hard)}
    return too_low(old, new, annotation_of(namespace), policy, granted)


def postponed_change(old: ResourceQuota, new: ResourceQuota) -> str:
    """Returns which change of a managed quota's marks and records a write makes that has to wait, or ""."""
    if is_managed(old) and not is_managed(new):
        return "its label can be removed"
    if constants.ANNOTATION_OWNER in old.annotations and is_off(new.annotations):
        return f"{constants.ANNOTATION_OWNER} can be removed"
    base = old.annotations.get(constants.ANNOTATION_BASE)
    if base not in (None, new.annotations.get(constants.ANNOTATION_BASE)):
        return f"{constants.ANNOTATION_BASE} can be changed"
    return ""


def records_of_correction(
    old: ResourceQuota, new: ResourceQuota, corrected: Mapping[str, Quantity]
) -> list[dict[str, str]]:
    """Returns the patch by which a corrected write of Rancher's is recorded as its grant, on a quota that has
    records."""
    if not is_default(old) or constants.ANNOTATION_BASE not in old.annotations:
        return []
    records = {
        constants.ANNOTATION_BASE: marshal({**granted_by_record(old), **parse_resource_list(new.hard)}),
        constants.ANNOTATION_APPLIED: marshal({**applied_to(old), **corrected}),
    }
    return [{"op": "add", "path": pointer("/metadata/annotations", k), "value": v} for k, v in records.items()]


def too_low(
    old: ResourceQuota, new: ResourceQuota, limits: str, policy: Policy, granted: Mapping[str, Quantity] | None = None
) -> ResourceList:
    """Returns the limits that a write of spec.hard lowers too far, each with the lowest allowed value: the base and
    the headroom that is added to it; empty when it is fine. `limits` is the namespace's annotation, `granted` Rancher's
    grant.

    The entries are those of the object as it would be stored, so a writer that ends a migration's entry may lower the
    limit in the same write. The base is from before the write."""
    lowered = [name for name, value in new.hard.items() if name not in old.hard or _is_less(value, old.hard[name])]
    headroom = read(new.annotations).total
    if not lowered or not headroom or is_off(new.annotations):
        return {}  # outside migrations everything is allowed, and repaired where need be
    names = {**new.hard, **old.hard} if is_default(old) else old.hard
    old_quota = replace(old, spec=replace(old.spec, hard=names))
    lowest = hard(base_of(old_quota, limits, policy, granted).limits or {}, headroom)
    return {name: lowest[name] for name in sorted(lowered) if name in lowest and _is_less(new.hard[name], lowest[name])}


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
        if name in enforced and limits and all(_is_less(enforced[name], limit) for limit in limits):
            lowest[name] = min(map(Quantity.parse, limits))
    return lowest


def _is_less(value: RawQuantity, than: RawQuantity | Quantity) -> bool:
    try:
        return Quantity.parse(value) < (than if isinstance(than, Quantity) else Quantity.parse(than))
    except QuantityError:  # the API server refuses it by itself
        return False
