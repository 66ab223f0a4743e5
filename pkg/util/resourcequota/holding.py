"""Which namespaces hold added headroom, so that the webhook has to see their pods. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kubeloop.api.admissionregistration import ValidatingWebhookConfiguration
from kubeloop.api.core import ResourceQuota
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.kubevirt.migration import is_finished
from pkg.util.resourcequota.base import quantity_of
from pkg.util.resourcequota.entries import has_migrating_vm
from pkg.util.resourcequota.managed import is_served

FAIL: Final = "Fail"
"""The failurePolicy by which the API server refuses what no webhook answers."""


def holds(quotas: Iterable[ResourceQuota], migrations: Iterable[VirtualMachineInstanceMigration]) -> bool:
    """Whether a namespace with these objects holds added headroom, or is about to."""
    ours = [quota for quota in quotas if is_served(quota)]
    return bool(ours) and (any(map(holds_headroom, ours)) or not all(map(is_finished, migrations)))


def read_of_quota(quota: ResourceQuota) -> object:
    """Returns all that `holds` reads of a quota: which migrations have an entry, and how much, is not."""
    return is_served(quota), holds_headroom(quota)


def policy_for_pods(registrations: Iterable[ValidatingWebhookConfiguration]) -> str:
    """The failurePolicy of the webhook that is about pods; "" when there is none."""
    for webhook in (each for registration in registrations for each in registration.webhooks or ()):
        if any("pods" in (rule.get("resources") or ()) for rule in webhook.get("rules") or ()):
            return str(webhook.get("failurePolicy") or FAIL)
    return ""


def admits_more(quota: ResourceQuota) -> bool:
    """Whether quota admission goes by a higher limit than spec.hard says: it goes by status.hard."""
    if quota.status.hard == quota.spec.hard:
        return False
    allowed = quota.status.hard or {}
    return any(quantity_of(allowed, name) > quantity_of(quota.hard, name) for name in quota.hard)


def holds_headroom(quota: ResourceQuota) -> bool:
    """Whether something is added to the quota, or was and is still enforced."""
    annotations = quota.annotations
    added = has_migrating_vm(annotations) or constants.ANNOTATION_MIGRATING_COMPENSATION in annotations
    return added or admits_more(quota)
