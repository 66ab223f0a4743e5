"""Which ResourceQuotas are managed, which are switched off, and which are ours. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import Object
from kubeloop.api.resource_list import parse_resource_list
from pkg.util import constants

RECORDS = frozenset({constants.ANNOTATION_APPLIED, constants.ANNOTATION_BASE})
"""Of a quota without Rancher, or one whose limits Rancher has validated; both are there while it is raised."""


def is_default(quota: ResourceQuota) -> bool:
    """Rancher's default ResourceQuota, whose base is the namespace's annotation."""
    return quota.labels.get(constants.LABEL_DEFAULT_RESOURCE_QUOTA) == "true"


def is_labelled(quota: ResourceQuota) -> bool:
    """A ResourceQuota without Rancher that is managed by label, with a recorded base of its own."""
    return quota.labels.get(constants.LABEL_MANAGED) == "true" and not is_default(quota)


def is_managed(quota: ResourceQuota) -> bool:
    """Whether headroom scales a ResourceQuota: one of both kinds, and not being deleted."""
    return not quota.deleting and not switched_off(quota) and (is_default(quota) or is_labelled(quota))


def switched_off(obj: Object) -> bool:
    """Whether a person has switched headroom off, by label or annotation, on a quota or a namespace. "false" in one
    wins over "true" in the other."""
    return constants.FALSE in (obj.labels.get(constants.LABEL_MANAGED), obj.annotations.get(constants.LABEL_MANAGED))


def is_off(annotations: Mapping[str, str]) -> bool:
    """Whether a person has switched auto-scaling off there. Our own mark says that the skip is ours."""
    skipped = annotations.get(constants.ANNOTATION_SKIP_AUTO_SCALING) == "true"
    return skipped and constants.ANNOTATION_OWNER not in annotations


def is_served(quota: ResourceQuota) -> bool:
    """Whether headroom scales a ResourceQuota and no one has switched that off on it."""
    return is_managed(quota) and not is_off(quota.annotations)


def is_ours(quota: ResourceQuota) -> bool:
    """Whether there is anything to give back: our mark on a default quota, one of our records on another."""
    return not ({constants.ANNOTATION_OWNER} if is_default(quota) else RECORDS).isdisjoint(quota.annotations)


def unenforced(quota: ResourceQuota) -> list[str]:
    """Returns the limits by which quota admission does not go yet: it reads status.hard, to which
    kube-controller-manager copies spec.hard (resource_quota_controller.go). Raises QuantityError."""
    limits, enforced = parse_resource_list(quota.hard), parse_resource_list(quota.status.hard or {})
    return [name for name in sorted({**limits, **enforced}) if limits.get(name) != enforced.get(name)]
