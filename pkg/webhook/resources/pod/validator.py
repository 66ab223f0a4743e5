"""Pod CREATE, and a resize, in a namespace that holds added room: the room is for the migrations.

Without this a tenant's pod takes it, the target is refused, and the tenant stays above its quota for good.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from pkg.api.core import Pod, ResourceQuota
from pkg.util import constants
from pkg.util.kubevirt.migration import is_finished
from pkg.util.quantity import ZERO, Quantity
from pkg.util.quotacount.usage import counted, pod_usage
from pkg.util.resource_list import ResourceList, parse_resource_list
from pkg.util.resourcequota.managed import is_managed, is_off
from pkg.util.resourcequota.policy import Policy
from pkg.webhook.admission import ALLOW, AdmissionRequest, Decision, UserInfo, deny
from pkg.webhook.deadline import NoAnswer
from pkg.webhook.options import Options
from pkg.webhook.resources.pod.ledger import YOUNG, Ledger
from pkg.webhook.resources.pod.looks import SharedLooks
from pkg.webhook.resources.pod.room import Room, room
from pkg.webhook.resources.pod.tally import Sums, Tally
from pkg.webhook.resources.resourcequota.guard import names_of_entries
from pkg.webhook.view import View

_OF_MIGRATION: Final = (constants.APP_VIRT_LAUNCHER, constants.APP_HOTPLUG_DISK)
LOOKS: Final = 6
"""Times that status.used is read while it and our own count disagree about whether a pod fits."""
PAUSE: Final = 0.05
"""Seconds between them."""


@dataclass(frozen=True, slots=True)
class _Place:
    """One quota that counts pods of the namespace."""

    quota: ResourceQuota
    room: Room
    migrating: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Snapshot:
    places: Sequence[_Place]
    seen: Mapping[str, str | None]
    """The pods that `places` count: uid to resourceVersion."""


@dataclass(frozen=True, slots=True)
class _Pod:
    """What a request asks for: the pod, what of it is new, its uid, and the resourceVersion that a resize replaces."""

    pod: Pod
    need: ResourceList
    uid: str
    replaced: str | None = None


class Validator:
    """Reads the quotas from the API server for every pod: a cached status.used is too old to share out the last of a
    base by."""

    def __init__(
        self,
        view: View,
        policy: Policy,
        options: Options,
        makes_targets: Callable[[UserInfo], bool],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._view = view
        self._policy = policy
        self._options = options
        self._makes_targets = makes_targets
        self._clock = clock
        self._sleep = sleep
        self._ledger = Ledger()
        self._tally = Tally(clock)
        self._looks = SharedLooks(self._look)
        self._live_looks = SharedLooks(self._look_live)

    async def validate(self, request: AdmissionRequest) -> Decision:
        """CREATE of pods, UPDATE of pods/resize. A review that is not known to be the API server's gets its answer, but
        the pod is not remembered, and nothing is watched for a namespace of which no review would come."""
        if not self._options.reserve:
            return ALLOW
        if not request.authenticated and not self._view.holds_room(request.namespace):
            return ALLOW
        asked = _asked(request)
        if request.operation != "UPDATE" and await self._is_of_migration(asked.pod, request):
            return ALLOW
        for look in range(LOOKS):
            if look:
                await self._sleep(PAUSE)
            snapshot = await self._looks.fresh(request.namespace)
            # From here on nothing is awaited: two pods never share out the same place.
            refusal = self._refusal(snapshot, asked, by_status=False)
            if refusal is not None:
                # A watch may be behind: whether pods are gone, or over, is asked before a refusal.
                snapshot = await self._live_looks.fresh(request.namespace)
                refusal = self._refusal(snapshot, asked, by_status=False)
            if refusal is not None:
                return deny(refusal, reason="no-room")
            refusal = self._refusal(snapshot, asked, by_status=True)
            if refusal is None:
                if request.authenticated and not request.dry_run:
                    self._admit(snapshot, asked)
                return ALLOW
        return deny(refusal or "", reason="no-room")

    def _refusal(self, snapshot: _Snapshot, asked: _Pod, *, by_status: bool) -> str | None:
        """Why the pod does not fit into a base; None when it does."""
        namespace, now = asked.pod.namespace, self._clock()
        self._ledger.settle(namespace, snapshot.seen, now)
        for place in snapshot.places:
            if not counted(asked.pod, place.quota.spec):
                continue
            name = place.quota.name
            if by_status:
                young = self._ledger.pending(namespace, name, now - YOUNG)
                short = place.room.short_by_status(young, asked.need)
            else:
                short = place.room.short_by_count(self._ledger.pending(namespace, name), asked.need)
            if short:
                return refusal_of(place.quota, asked.need, short, place.migrating)
        return None

    def _admit(self, snapshot: _Snapshot, asked: _Pod) -> None:
        """Remember the pod until it is seen; one that quota will most likely refuse only for a moment."""
        places = [place for place in snapshot.places if counted(asked.pod, place.quota.spec)]
        if places:
            doubtful = any(place.room.exceeds_quota(asked.need) for place in places)
            names = frozenset(place.quota.name for place in places)
            now = self._clock()
            self._ledger.admit(
                asked.pod.namespace,
                asked.uid,
                asked.need,
                names,
                now,
                doubtful=doubtful,
                replaced=asked.replaced,
            )

    async def _is_of_migration(self, pod: Pod, request: AdmissionRequest) -> bool:
        """A target or attachment pod of a migration under way, made by KubeVirt: every tenant can write a label."""
        migration = pod.labels.get(constants.LABEL_MIGRATION_JOB_UID)
        if not migration or pod.labels.get(constants.LABEL_APP) not in _OF_MIGRATION:
            return False
        if not self._makes_targets(request.user_info):
            return False
        known = self._view.migrations(request.namespace)
        if not any(m.uid == migration for m in known):
            try:
                known = await self._view.migrations_live(request.namespace)
            except NoAnswer:
                return True  # KubeVirt's own pod is not held up because the API server is slow
        return any(m.uid == migration and not is_finished(m) for m in known)

    async def _look(self, namespace: str) -> _Snapshot:
        return await self._snapshot(namespace, self._view.pods)

    async def _look_live(self, namespace: str) -> _Snapshot:
        return await self._snapshot(namespace, self._pods_live)

    async def _pods_live(self, namespace: str) -> list[Pod] | None:
        with suppress(NoAnswer):
            return await self._view.pods_live(namespace)
        return await self._view.pods(namespace)

    async def _snapshot(
        self, namespace: str, look: Callable[[str], Awaitable[list[Pod] | None]]
    ) -> _Snapshot:
        ours = [
            quota
            for quota in self._view.quotas(namespace)
            if is_managed(quota) and not is_off(quota.annotations, self._policy.mode)
        ]
        if not ours:
            return _Snapshot([], {})  # of namespaces without a quota of ours nothing is watched
        quotas = await asyncio.gather(*(self._view.quota_live(quota) for quota in ours))
        # After the quotas: what they count has been there before.
        pods = await look(namespace)
        places = []
        for quota in quotas:
            observed = self._view.observe(quota)
            if observed.namespace_off:
                continue
            if pods is None:
                sums = Sums(parse_resource_list(quota.used), {})
            else:
                observed, sums = replace(observed, pods=pods), self._tally.of(quota, pods)
            found = room(observed, self._policy, sums)
            if found is not None:
                places.append(_Place(quota, found, names_of_entries(observed)))
        return _Snapshot(places, {pod.uid: pod.metadata.resource_version for pod in pods or ()})


def refusal_of(
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


def _asked(request: AdmissionRequest) -> _Pod:
    pod = request.new(Pod)
    if request.operation != "UPDATE":
        return _Pod(pod, pod_usage(pod), pod.uid or request.uid)
    old = request.old(Pod)
    before = pod_usage(old)
    grown = {name: quantity - before.get(name, ZERO) for name, quantity in pod_usage(pod).items()}
    more = {name: quantity for name, quantity in grown.items() if quantity > ZERO}
    return _Pod(pod, more, pod.uid, old.metadata.resource_version)
