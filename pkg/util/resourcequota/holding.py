"""The namespaces with added headroom, whose pods the webhook has to see. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kubeloop.api.core import ResourceQuota, ValidatingWebhookConfiguration
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.util.kubevirt.migration import is_finished
from pkg.util.resourcequota.base import quantity_of
from pkg.util.resourcequota.entries import has_headroom
from pkg.util.resourcequota.managed import is_served

FAIL: Final = "Fail"
"""The failurePolicy by which the API server refuses what no webhook answers."""


def holds(quotas: Iterable[ResourceQuota], migrations: Iterable[VirtualMachineInstanceMigration]) -> bool:
    """Reports whether a namespace with these objects has added headroom, or is about to."""
    served = [quota for quota in quotas if is_served(quota)]
    return bool(served) and (any(map(holds_headroom, served)) or not all(map(is_finished, migrations)))


def holding_state_of(quota: ResourceQuota) -> object:
    """Returns all that `holds` reads of a quota: not which migrations have an entry, nor how large it is."""
    return is_served(quota), holds_headroom(quota)


def policy_for_pods(registrations: Iterable[ValidatingWebhookConfiguration]) -> str:
    """Returns the failurePolicy of the webhook that is about pods; "" when there is none."""
    for webhook in (webhook for registration in registrations for webhook in registration.webhooks or ()):
        if any("pods" in (rule.get("resources") or ()) for rule in webhook.get("rules") or ()):
            return str(webhook.get("failurePolicy") or FAIL)
    return ""


def admits_more(quota: ResourceQuota) -> bool:
    """Reports whether quota admission goes by a higher limit than spec.hard has: it reads status.hard."""
    if quota.status.hard == quota.spec.hard:
        return False
    allowed = quota.status.hard or {}
    return any(quantity_of(allowed, name) > quantity_of(quota.hard, name) for name in quota.hard)


def holds_headroom(quota: ResourceQuota) -> bool:
    """Reports whether the quota has headroom, or had some that is still enforced."""
    return has_headroom(quota.annotations) or admits_more(quota)
