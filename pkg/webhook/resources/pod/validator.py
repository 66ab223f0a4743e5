"""Pod CREATE, and a resize, in a namespace that holds added room: the room is for the migrations.

Without this a tenant's pod takes it, the target is refused, and the tenant stays above its quota for good.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pkg.api.core import Pod, ResourceQuota
from pkg.util import constants
from pkg.util.quantity import ZERO, Quantity
from pkg.util.resource_list import ResourceList
from pkg.util.resourcequota.demand import is_finished
from pkg.util.resourcequota.model import Policy
from pkg.util.resourcequota.participation import is_off, takes_part
from pkg.util.resourcequota.usage import counted, pod_usage
from pkg.webhook.admission import ALLOW, AdmissionRequest, Decision, deny
from pkg.webhook.options import Options
from pkg.webhook.resources.pod.ledger import Ledger
from pkg.webhook.resources.pod.looks import SharedLooks
from pkg.webhook.resources.pod.room import Room, pending_usage, room
from pkg.webhook.resources.resourcequota.guard import migrating
from pkg.webhook.view import View

_OF_MIGRATION: Final = (constants.APP_VIRT_LAUNCHER, constants.APP_HOTPLUG_DISK)
RESIZE: Final = "resize"


@dataclass(frozen=True, slots=True)
class _Place:
    """One quota that counts pods of the namespace."""

    quota: ResourceQuota
    room: Room
    migrating: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Snapshot:
    places: Sequence[_Place]
    seen: frozenset[str]
    """Uids of all pods."""


class Validator:
    """Looks at the API server for every pod: status.used in a cache is too old to share out the last of a base by."""

    def __init__(
        self, view: View, policy: Policy, options: Options, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._view = view
        self._policy = policy
        self._options = options
        self._clock = clock
        self._ledger = Ledger()
        self._looks = SharedLooks(self._look)

    async def validate(self, request: AdmissionRequest) -> Decision:
        """CREATE of pods, UPDATE of pods/resize."""
        if not self._options.reserve:
            return ALLOW
        pod = request.new(Pod)
        before = request.old(Pod) if request.operation == "UPDATE" else None
        if before is None and await self._is_of_migration(pod, request):
            return ALLOW
        need = _increase(pod_usage(pod), pod_usage(before) if before else {})
        snapshot = await self._looks.fresh(request.namespace)
        # From here to the end nothing is awaited: two pods never share out the same place.
        self._ledger.settle(request.namespace, snapshot.seen, self._clock())
        places = [place for place in snapshot.places if counted(pod, place.quota.spec)]
        for place in places:
            pending = pending_usage(self._ledger.pending(request.namespace, place.quota.name))
            short = place.room.short(pending, need)
            if short:
                return deny(refusal(place.quota, need, short, place.migrating))
        if places and not request.dry_run and not any(place.room.exceeds_quota(need) for place in places):
            uid = f"{RESIZE}/{pod.uid}" if before else pod.uid or request.uid
            names = frozenset(place.quota.name for place in places)
            self._ledger.admit(request.namespace, uid, need, names, self._clock())
        return ALLOW

    async def _is_of_migration(self, pod: Pod, request: AdmissionRequest) -> bool:
        """A target or attachment pod of a migration under way, made by KubeVirt: anybody can write a label."""
        migration = pod.labels.get(constants.LABEL_MIGRATION_JOB_UID)
        if not migration or pod.labels.get(constants.LABEL_APP) not in _OF_MIGRATION:
            return False
        if not self._options.is_kubevirt(request.user_info):
            return False
        known = self._view.migrations(request.namespace)
        if not any(m.uid == migration for m in known):
            known = await self._view.migrations_live(request.namespace) or ()
        return any(m.uid == migration and not is_finished(m) for m in known)

    async def _look(self, namespace: str) -> _Snapshot:
        known_before = frozenset(pod.uid for pod in self._view.pods(namespace))
        quotas = await self._view.quotas_live(namespace)
        pods = await self._view.pods_live(namespace) if quotas is not None else None
        if quotas is None or pods is None:
            quotas, pods = self._view.quotas(namespace), self._view.pods(namespace)
        places = []
        for quota in quotas:
            if not takes_part(quota) or is_off(quota.annotations, self._policy.mode):
                continue
            observed = replace(self._view.observe(quota), pods=pods)
            found = room(observed, self._policy, known_before)
            if found is not None:
                places.append(_Place(quota, found, migrating(observed, self._policy)))
        return _Snapshot(places, frozenset(pod.uid for pod in pods))


def refusal(
    quota: ResourceQuota,
    need: Mapping[str, Quantity],
    short: Mapping[str, Quantity],
    names: Sequence[str],
) -> str:
    """What a tenant reads: which quota, what is left of it, and whose the rest is."""
    wants = ", ".join(
        f"{name} {need[name]} is requested and {max(left, ZERO)} is left"
        for name, left in sorted(short.items())
    )
    whose = f" ({', '.join(names[:10])})" if names else ""
    return (
        f"resource quota {quota.key} is used up: {wants}; "
        f"the room that headroom added to it is reserved for migrating VMs{whose}"
    )


def _increase(after: Mapping[str, Quantity], before: Mapping[str, Quantity]) -> ResourceList:
    grown = {name: quantity - before.get(name, ZERO) for name, quantity in after.items()}
    return {name: quantity for name, quantity in grown.items() if quantity > ZERO}
