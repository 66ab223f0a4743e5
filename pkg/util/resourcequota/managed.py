"""The management of ResourceQuotas: managed, switched off, owned. Pure."""

from collections.abc import Mapping
from enum import Enum

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import Object
from kubeloop.api.resource_list import parse_resource_list
from pkg.util import constants

RECORDS = frozenset({constants.ANNOTATION_APPLIED, constants.ANNOTATION_BASE})
"""Of a quota without Rancher, or one whose limits Rancher has validated; both are there while it is raised."""

OWN_MARKS = {constants.ANNOTATION_SKIP_AUTO_SCALING: constants.TRUE, constants.ANNOTATION_OWNER: constants.OWNER}
"""Harvester leaves a default quota with these alone."""


class QuotaManagement(Enum):
    NONE = "what is headroom's on it goes"
    OFF = "Harvester's controllers go on"
    SKIPPED = "only what is over goes"
    SERVED = "it is raised"


def management_of(quota: ResourceQuota, *, namespace_off: bool = False) -> QuotaManagement:
    """Returns the management by the first row that fits. `namespace_off`: the whole namespace is switched off."""
    is_labelled = quota.labels.get(constants.LABEL_MANAGED) == constants.TRUE
    rows = (
        (namespace_off, QuotaManagement.OFF),
        (quota.deleting, QuotaManagement.NONE),
        (switched_off(quota), QuotaManagement.OFF),
        (not is_default(quota) and not is_labelled, QuotaManagement.NONE),
        (was_default(quota), QuotaManagement.NONE),
        (is_off(quota.annotations), QuotaManagement.SKIPPED),
    )
    return next((management for fits, management in rows if fits), QuotaManagement.SERVED)


def is_served(quota: ResourceQuota, *, namespace_off: bool = False) -> bool:
    """Reports whether headroom raises a quota."""
    return management_of(quota, namespace_off=namespace_off) is QuotaManagement.SERVED


def is_managed(quota: ResourceQuota) -> bool:
    """Reports whether headroom raises a quota, unless a person has switched auto-scaling off on it."""
    return management_of(quota) in (QuotaManagement.SERVED, QuotaManagement.SKIPPED)


def is_default(quota: ResourceQuota) -> bool:
    """Reports whether a quota is Rancher's default ResourceQuota."""
    return quota.labels.get(constants.LABEL_DEFAULT_RESOURCE_QUOTA) == "true"


def switched_off(obj: Object) -> bool:
    """Reports whether a person has switched headroom off, by label or annotation, on a quota or a namespace. "false" in
    one wins over "true" in the other."""
    return constants.FALSE in (obj.labels.get(constants.LABEL_MANAGED), obj.annotations.get(constants.LABEL_MANAGED))


def is_off(annotations: Mapping[str, str]) -> bool:
    """Reports whether a person has switched auto-scaling off there. With headroom's mark the skip is headroom's."""
    skipped = annotations.get(constants.ANNOTATION_SKIP_AUTO_SCALING) == "true"
    return skipped and constants.ANNOTATION_OWNER not in annotations


def is_ours(quota: ResourceQuota) -> bool:
    """Reports whether a quota is owned, so that there is something to give back: headroom's mark on a default one, one
    of its records on another."""
    marks = {constants.ANNOTATION_OWNER} if is_default(quota) else RECORDS
    return not marks.isdisjoint(quota.annotations) or was_default(quota)


def was_default(quota: ResourceQuota) -> bool:
    """Reports whether headroom took the quota over as Rancher's default one, whose label it has lost since: nothing on
    it records the base, which is the namespace's annotation."""
    taken = constants.ANNOTATION_OWNER in quota.annotations and RECORDS.isdisjoint(quota.annotations)
    return taken and not is_default(quota)


def unenforced(quota: ResourceQuota) -> list[str]:
    """Returns the limits by which quota admission does not go yet: it reads status.hard, to which
    kube-controller-manager copies spec.hard (resource_quota_controller.go). Raises QuantityError."""
    limits, enforced = parse_resource_list(quota.hard), parse_resource_list(quota.status.hard or {})
    return [name for name in sorted({**limits, **enforced}) if limits.get(name) != enforced.get(name)]
