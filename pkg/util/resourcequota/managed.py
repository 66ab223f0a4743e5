"""Which ResourceQuotas are managed, which are switched off, and by whose rules one is raised. Pure.

Source of Harvester's rules: vmim_controller.go (scale, restore, compensate) and resourcequota_controller.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kubeloop.api.core import Namespace, ResourceQuota
from kubeloop.api.meta import Object
from pkg.util import constants
from pkg.util.resourcequota.policy import Mode, Policy


def is_default(quota: ResourceQuota) -> bool:
    """Rancher's default ResourceQuota, whose base is the namespace's annotation."""
    return quota.labels.get(constants.LABEL_DEFAULT_RESOURCE_QUOTA) == "true"


def annotation_of(namespace: Namespace | None) -> str:
    """Rancher's quota annotation, "" where there is none."""
    return namespace.annotations.get(constants.ANNOTATION_RANCHER_RESOURCE_QUOTA, "") if namespace else ""


def is_labelled(quota: ResourceQuota) -> bool:
    """A ResourceQuota without Rancher that is managed by label, with a recorded base of its own."""
    return quota.labels.get(constants.LABEL_MANAGED) == "true" and not is_default(quota)


def is_managed(quota: ResourceQuota) -> bool:
    """Whether headroom scales a ResourceQuota: one of both kinds, and not being deleted."""
    return not quota.deleting and not switched_off(quota) and (is_default(quota) or is_labelled(quota))


def switched_off(*objects: Object) -> bool:
    """Whether a person has switched headroom off, by label or annotation, on one of them: a quota, or its namespace.
    "false" anywhere wins over "true"."""
    return any(
        constants.FALSE in (obj.labels.get(constants.LABEL_MANAGED), obj.annotations.get(constants.LABEL_MANAGED))
        for obj in objects
    )


def is_off(annotations: Mapping[str, str]) -> bool:
    """Whether a person has switched auto-scaling off there. Our own mark says that the skip is ours."""
    skipped = annotations.get(constants.ANNOTATION_SKIP_AUTO_SCALING) == "true"
    return skipped and constants.ANNOTATION_OWNER not in annotations


def is_served(quota: ResourceQuota) -> bool:
    """Whether headroom scales a ResourceQuota and no one has switched that off on it."""
    return is_managed(quota) and not is_off(quota.annotations)


@dataclass(frozen=True, slots=True)
class Rules:
    """Ours, or Harvester's beside its own controllers: data."""

    follow: bool
    """An entry follows the migration and the pods that quota counts, and a refused target gets the growth of the
    overhead. Else an entry is written once, under the VMI's uid, and stays as it is until all migrations of its VM are
    over, with limits.cpu and limits.memory alone; a refused target gets what is missing of limits.memory, and 128Mi."""
    mark: bool
    """The quota is marked as ours, so that Harvester leaves it alone; one that follows without that has its base
    recorded on it."""


_TAKEN_OVER = Rules(follow=True, mark=True)
_WITHOUT_RANCHER = Rules(follow=True, mark=False)
_HARVESTERS = Rules(follow=False, mark=False)


def rules_of(quota: ResourceQuota, policy: Policy, *, off: bool = False) -> Rules:
    """Harvester's controllers know default quotas only: beside them there is nothing to agree with on another. `off`:
    a person has switched auto-scaling off there, and only what is over goes."""
    if not is_default(quota):
        return _WITHOUT_RANCHER
    return _HARVESTERS if off or policy.mode is Mode.ASSIST else _TAKEN_OVER
