"""Whether a pod fits into the base of a ResourceQuota that holds added room. Pure.

Of what is used, the migrations' pods are taken off: the target beside the source, and what is left over of a source.
They may take what was added for them, and everybody else together the base:

    used − what the migrations take + the pod ≤ base        for each resource that is scaled

What the migrations take counts at most as far as room was added: so the room that is not taken yet stays free.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pkg.util.quantity import ZERO, Quantity
from pkg.util.resource_list import ResourceList, add, maximum, parse_resource_list
from pkg.util.resourcequota.available import pods_of_migrations
from pkg.util.resourcequota.errors import ResourceQuotaError
from pkg.util.resourcequota.exact import usage_of
from pkg.util.resourcequota.granted import granted_by_namespace, granted_by_record, scaled_base
from pkg.util.resourcequota.model import Observed, Policy
from pkg.util.resourcequota.participation import is_default


@dataclass(frozen=True, slots=True)
class Room:
    """One quota at one moment. `used` and `hard` are by every name, `base` by those that are scaled."""

    base: ResourceList
    hard: ResourceList
    used: ResourceList
    migrations: ResourceList

    def left(self, name: str) -> Quantity:
        """What others than migrations may still take of a resource, maybe less than nothing."""
        base = self.base[name]
        added = max(ZERO, self.hard.get(name, base) - base)
        taken = min(self.migrations.get(name, ZERO), added)
        return base + taken - self.used.get(name, ZERO)

    def short(self, pending: Mapping[str, Quantity], need: Mapping[str, Quantity]) -> dict[str, Quantity]:
        """The resources in which the pod does not fit, and what is left of each; `pending` is taken already."""
        found = {}
        for name in self.base:
            wanted = need.get(name, ZERO)
            left = self.left(name) - pending.get(name, ZERO)
            if wanted > ZERO and wanted > left:
                found[name] = left
        return found

    def exceeds_quota(self, need: Mapping[str, Quantity]) -> bool:
        """Whether quota admission will refuse the pod by itself."""
        return any(
            name in need and need[name] > ZERO and self.used.get(name, ZERO) + need[name] > limit
            for name, limit in self.hard.items()
        )


def room(observed: Observed, policy: Policy, known_before: Collection[str] | None = None) -> Room | None:
    """The room of `observed.quota`; None where nothing says what its base is.

    `observed.pods` are all pods of the namespace, listed after the quota was read. Only a pod that was there before
    that too (`known_before`, uids) is sure to be counted in it: one that came in between is not taken off yet.
    """
    quota = observed.quota
    try:
        granted = granted_by_namespace(observed.limits) if is_default(quota) else granted_by_record(quota)
        base = scaled_base(granted, quota.hard, policy)
    except ResourceQuotaError:
        return None
    of_migrations = [
        pod for pod in pods_of_migrations(observed) if known_before is None or pod.uid in known_before
    ]
    # The controller manager sets status.used by its own caches from time to time, and may miss new pods for a moment.
    used = maximum(parse_resource_list(quota.used), usage_of(observed.pods, quota.spec))
    return Room(
        base=base,
        hard=parse_resource_list(quota.hard),
        used=used,
        migrations=usage_of(of_migrations, quota.spec),
    )


def pending_usage(usages: Iterable[Mapping[str, Quantity]]) -> ResourceList:
    """What was let through and is not counted yet."""
    result: ResourceList = {}
    for usage in usages:
        result = add(result, usage)
    return result
