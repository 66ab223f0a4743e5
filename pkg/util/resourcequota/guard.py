"""The guard of quotas while VMs migrate: which limits a write may not lower, and in which namespaces the webhook has to
see pods, because they hold headroom. Pure."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from kubeloop.api.core import Namespace, ResourceQuota, ValidatingWebhookConfiguration
from kubeloop.api.meta import RawQuantity
from kubeloop.api.quantity import Quantity, QuantityError
from kubeloop.api.resource_list import ResourceList, marshal, parse_resource_list
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.kubevirt.migration import is_finished
from pkg.util.resourcequota.base import applied_to, base_of, granted_by_record, hard, quantity_of
from pkg.util.resourcequota.entries import has_headroom, read
from pkg.util.resourcequota.facts import pointer
from pkg.util.resourcequota.managed import is_default, is_managed, is_off, is_served, switched_off
from pkg.util.resourcequota.policy import Policy
from pkg.util.resourcequota.rancher import annotation_of, granted_to, request_of

FAIL: Final = "Fail"
"""The failurePolicy by which the API server refuses what no webhook answers."""


def lowered_too_far(
    old: ResourceQuota,
    new: ResourceQuota,
    policy: Policy,
    namespace: Namespace | None,
    *,
    of_status: bool = False,
    grants: bool = False,
) -> ResourceList:
    """Returns the limits that a write lowers too far, each with the lowest allowed value: the base and the headroom
    that is added to it. `of_status`: it is one of the status; `grants`: it is Rancher's, and its limits are a new
    grant.

    The entries are those of the object as it would be stored, so a writer that ends a migration's entry may lower the
    limit in the same write. The base is from before the write. Outside migrations everything is allowed. While headroom
    requests what it adds of Rancher, Rancher's own writes already hold that, and nobody else's are let through."""
    if not is_managed(old) or switched_off(new) or is_off(new.annotations):
        return {}
    if namespace is not None and (switched_off(namespace) or request_of(namespace)):
        return {}
    if of_status:
        return _status_too_low(old, new)
    lowered = [name for name, value in new.hard.items() if name not in old.hard or _is_less(value, old.hard[name])]
    headroom = read(new.annotations).total
    if not lowered or not headroom:
        return {}
    granted = granted_to(old, namespace)
    if granted is not None and grants:
        with suppress(QuantityError):
            granted = {**granted, **parse_resource_list(new.hard)}
    names = {**new.hard, **old.hard} if is_default(old) else old.hard
    old_quota = replace(old, spec=replace(old.spec, hard=names))
    lowest = hard(base_of(old_quota, annotation_of(namespace), policy, granted).limits or {}, headroom)
    return {name: lowest[name] for name in sorted(lowered) if name in lowest and _is_less(new.hard[name], lowest[name])}


def _status_too_low(old: ResourceQuota, new: ResourceQuota) -> ResourceList:
    """Returns the limits that a write of status.hard, by which quota admission goes, lowers too far, each with the
    lowest allowed value: spec.hard, to which anybody may bring it (resource_quota_controller.go's syncResourceQuota),
    or what it is already where that is less. Only limits with headroom of migrating VMs are held."""
    enforced, lowest = new.status.hard or {}, ResourceList()
    for name in sorted(read(new.annotations).total):
        limits = [limits[name] for limits in (old.hard, old.status.hard or {}) if name in limits]
        if name in enforced and limits and all(_is_less(enforced[name], limit) for limit in limits):
            lowest[name] = min(map(Quantity.parse, limits))
    return lowest


def _is_less(value: RawQuantity, than: RawQuantity | Quantity) -> bool:
    try:
        return Quantity.parse(value) < (than if isinstance(than, Quantity) else Quantity.parse(than))
    except QuantityError:  # the API server refuses it by itself
        return False


def postponed_change(old: ResourceQuota, new: ResourceQuota) -> str:
    """Returns which change of a managed quota's marks and records a write makes that has to wait, or ""."""
    if is_managed(old) and not is_managed(new):
        return "its label can be removed"
    if constants.ANNOTATION_OWNER in old.annotations and is_off(new.annotations):
        return f"{constants.ANNOTATION_OWNER} can be removed"
    base = old.annotations.get(constants.ANNOTATION_BASE)
    is_changed = base is not None and base != new.annotations.get(constants.ANNOTATION_BASE)
    return f"{constants.ANNOTATION_BASE} can be changed" if is_changed else ""


def records_of_correction(
    old: ResourceQuota, new: ResourceQuota, corrected: Mapping[str, Quantity]
) -> list[dict[str, str]]:
    """Returns the patch by which a corrected write of Rancher's is recorded as its grant, on a quota with records."""
    if not is_default(old) or constants.ANNOTATION_BASE not in old.annotations:
        return []
    records = {
        constants.ANNOTATION_BASE: marshal({**granted_by_record(old), **parse_resource_list(new.hard)}),
        constants.ANNOTATION_APPLIED: marshal({**applied_to(old), **corrected}),
    }
    return [{"op": "add", "path": pointer("/metadata/annotations", k), "value": v} for k, v in records.items()]


def holds(quotas: Iterable[ResourceQuota], migrations: Iterable[VirtualMachineInstanceMigration]) -> bool:
    """Reports whether a namespace with these objects has added headroom, or is about to."""
    states = [holding_state_of(quota) for quota in quotas]
    is_migrating = not all(map(is_finished, migrations))
    return any(served and (has_added or is_migrating) for served, has_added in states)


def holding_state_of(quota: ResourceQuota) -> tuple[bool, bool]:
    """Returns whether headroom raises the quota, and whether it has headroom, or had some by which quota admission
    still goes: it reads status.hard. Not which migrations have an entry, nor how large it is."""
    allowed = quota.status.hard or {}
    admits_more = quota.status.hard != quota.spec.hard and any(
        quantity_of(allowed, name) > quantity_of(quota.hard, name) for name in quota.hard
    )
    return is_served(quota), has_headroom(quota.annotations) or admits_more


def policy_for_pods(registrations: Iterable[ValidatingWebhookConfiguration]) -> str:
    """Returns the failurePolicy of the webhook that is about pods; "" when there is none."""
    for webhook in (webhook for registration in registrations for webhook in registration.webhooks or ()):
        if any("pods" in (rule.get("resources") or ()) for rule in webhook.get("rules") or ()):
            return str(webhook.get("failurePolicy") or FAIL)
    return ""
