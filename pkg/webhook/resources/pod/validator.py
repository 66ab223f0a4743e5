"""Pod CREATE, and a resize, in a namespace that holds added headroom: the headroom is for the migrations.

Without this a tenant's pod takes it, the target is refused, and the tenant stays above its quota for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kubeloop.api.core import Pod, ResourceQuota
from kubeloop.api.quantity import ZERO, Quantity, QuantityError
from kubeloop.api.resource_list import ResourceList
from kubeloop.client.shared_reads import SharedReads
from kubeloop.webhook.admission import ALLOW, AdmissionRequest, BadReview, Decision, UserInfo, deny
from kubeloop.workqueue.queue import loop_time
from pkg.config.settings import Settings
from pkg.config.time_slices import TimeSlices
from pkg.util.kubevirt.evidence import vm_of
from pkg.util.kubevirt.migration import is_finished, migration_of
from pkg.util.quotacount.releases import Releases
from pkg.util.quotacount.usage import counted, pod_usage, resize_usage
from pkg.util.resourcequota.balance import Balance
from pkg.util.resourcequota.base import base_of
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.managed import is_served
from pkg.util.resourcequota.rancher import annotation_of, granted_to
from pkg.webhook.namespace_pods import Pods
from pkg.webhook.resources.pod.ledger import Ledger
from pkg.webhook.resources.pod.room import Room, exceeded, is_raised, refused_by_quota, reserved, room
from pkg.webhook.view import NoAnswer, View, in_time

PATIENCE: Final = 2.5
"""Seconds that a review waits before it refuses a pod that fits beside those that are there: pods on their way may
never arrive, and status.used may be behind. Longer than a pod is remembered, less than a review may take."""
PAUSE: Final = 0.1
"""Seconds after a live look until the next one."""


@dataclass(frozen=True, slots=True)
class _Snapshot:
    rooms: Sequence[Room] = ()
    """Of the quotas that count pods of the namespace."""
    seen: Mapping[str, str | None] = field(default_factory=dict)
    """The pods that they count (see Pods)."""
    behind: bool = False
    """Of a quota to which something is added the base or the pods are unknown, or they do not add up to status.used."""


_Balance = Callable[[Room, Sequence[Mapping[str, Quantity]]], Balance]
"""What is held against a base: one of Room's balances, given the pods of the ledger."""


@dataclass(frozen=True, slots=True)
class _Pod:
    """What a request asks for: the pod, the releases by which it counts, what of it is new, its uid, and the
    resourceVersion that a resize replaces."""

    namespace: str
    pod: Pod
    releases: Releases
    need: ResourceList
    uid: str
    replaced: str | None = None
    migration: str = ""
    """The uid of the migration that KubeVirt made it for."""

    def counts(self, quota: ResourceQuota) -> bool:
        return counted(self.pod, quota.spec, releases=self.releases)

    def rooms(self, snapshot: _Snapshot) -> Iterator[Room]:
        """Those of the quotas that will count it."""
        return (room for room in snapshot.rooms if self.counts(room.quota))


class Validator:
    """Reads the quotas from the API server for every pod: a cached status.used is too old to share out the last of a
    base by."""

    def __init__(self, view: View, settings: Settings, makes_targets: Callable[[UserInfo], bool]) -> None:
        self._view = view
        self._settings = settings
        self._makes_targets = makes_targets
        self._ledger = Ledger()
        self._slices = TimeSlices()
        self._by_watch = SharedReads(self._read_watch)
        self._by_list = SharedReads(self._read_list)

    async def validate(self, request: AdmissionRequest) -> Decision:
        """CREATE of pods, UPDATE of pods/resize."""
        if not self._settings.reserve:
            return ALLOW
        try:
            asked = _asked(request, self._view.releases())
        except QuantityError as exc:  # the API server lets none of these come here
            raise BadReview(f"the pod's resources: {exc}") from exc
        if request.operation != "UPDATE" and self._makes_targets(request.user_info):
            asked = replace(asked, migration=migration_of(asked.pod))
            rooms = asked.rooms(await self._cached(asked)) if asked.migration else ()
            if asked.migration and not any(name in each.base for each in rooms for name in self._need(each, asked)):
                return ALLOW  # it takes nothing of a base: KubeVirt's own is not held up because the API server is slow
        refusal = await self._decide(request, asked)
        if refusal and asked.migration:
            refusal = f"exceeded quota: {refusal}"  # the words by which KubeVirt tries again when the quota changes
        return deny(refusal, reason="no-room") if refusal else ALLOW

    async def _decide(self, request: AdmissionRequest, asked: _Pod) -> str:
        """Why the pod does not fit into a base; "" when it does, and then it is remembered."""
        snapshot, refusal, until = _Snapshot(), "", loop_time() + PATIENCE
        try:
            if refusal := await self._refused_by_quota(asked):
                return refusal
            while True:
                last = loop_time() >= until
                snapshot, there, refusal = await self._look(self._by_watch, asked)
                if refusal or snapshot.behind:
                    # A watch may be behind: nothing is refused by what it shows, nor let in where the pods do not add
                    # up to status.used.
                    snapshot, still, refusal = await self._look(self._by_list, asked)
                    last = last or bool(there and still)
                # Between the last read and the ledger's entry nothing is awaited: no two pods are given the same room.
                if not refusal or last:
                    break
                await asyncio.sleep(PAUSE)
        except NoAnswer:
            self._ledger.keep()
            if not refusal:  # what stood in its way at the last look still does; else the own count decides
                snapshot = await self._cached(asked, self._view.pods(asked.namespace))
                refusal = self._refusal(snapshot, asked, Room.beside_all)
        if not refusal and not request.dry_run:
            self._admit(snapshot, asked)
        return refusal

    async def _cached(self, asked: _Pod, pods: Pods | None = None) -> _Snapshot:
        """Without a request: what the caches have, and `pods` as a watch has brought them."""
        return await self._count(map(self._view.observe, self._view.quotas(asked.namespace)), pods)

    async def _refused_by_quota(self, asked: _Pod) -> str:
        """Why quota itself will refuse the pod, by live status, for what is not held against a base; "": it will not.
        Let through here, the pod would never come, and hold its place for as long as it is remembered."""
        for quota in filter(asked.counts, self._view.quotas(asked.namespace) if asked.need else ()):
            base: Collection[str] = ()
            if is_served(quota):
                namespace = self._view.namespace(asked.namespace)
                granted = granted_to(quota, namespace)
                base = base_of(quota, annotation_of(namespace), self._settings.policy, granted).limits or ()
            rest = {name: amount for name, amount in asked.need.items() if name not in base}
            if refused_by_quota(quota, asked.pod, rest):
                quota = await self._view.quota_live(quota)
                if refusal := refused_by_quota(quota, asked.pod, rest):
                    return refusal
        return ""

    async def _look(self, reads: SharedReads[_Snapshot], asked: _Pod) -> tuple[_Snapshot, str, str]:
        """What is read now, why the pod does not fit beside those that are there, and why it does not fit at all.
        Raises NoAnswer."""
        began = loop_time()
        snapshot = await in_time(reads.fresh(asked.namespace)) or _Snapshot()
        self._ledger.settle(asked.namespace, began)
        there = self._refusal(snapshot, asked, Room.beside)
        return snapshot, there, there or self._refusal(snapshot, asked, Room.beside_all)

    def _refusal(self, snapshot: _Snapshot, asked: _Pod, balance: _Balance) -> str:
        """Why the pod does not fit into a base; "" when it does."""
        for free in asked.rooms(snapshot):
            # Twice: another replica may have let through as much at the same moment, which nothing shows yet.
            pending = list(self._ledger.pending(asked.namespace, free.quota.name, snapshot.seen)) * 2
            need = self._need(free, asked)
            if short := balance(free, pending).short(need):
                return exceeded(free.quota, need, short) + reserved(self._view.migrating(free.quota))
        return ""

    def _admit(self, snapshot: _Snapshot, asked: _Pod) -> None:
        """Remember the pod until it is seen."""
        if usages := {free.quota.name: self._need(free, asked) for free in asked.rooms(snapshot)}:
            self._ledger.admit(asked.namespace, asked.uid, usages, replaced=asked.replaced)

    def _need(self, free: Room, asked: _Pod) -> ResourceList:
        """What a pod takes of a base. A target has what its own VM was granted: KubeVirt copies the labels of a VMI to
        its launcher, so the launcher's VM has to be the one that migrates."""
        of_pod = vm_of(asked.pod)
        for each in free.facts.migrations if asked.migration else ():
            vm = each.spec.vmi_name
            if each.uid == asked.migration and not is_finished(each) and of_pod in ("", vm):
                left = free.left_for_target(vm)
                need = {name: amount - left.get(name, ZERO) for name, amount in asked.need.items()}
                return {name: amount for name, amount in need.items() if amount > ZERO}
        return asked.need

    async def _read_watch(self, namespace: str) -> _Snapshot:
        """Live quotas (a cache does not know of a raise while its watch is late), and after them the pods as a watch
        brings them: what the quotas count has been there before. None is begun at rest: quota's own count is enough."""
        quotas = await self._quotas(namespace)
        pods = self._view.pods(namespace, watch=any(map(is_raised, quotas)))
        return await self._count(map(self._view.observe, quotas), pods)

    async def _read_list(self, namespace: str) -> _Snapshot:
        """All of it live, and at once: one after the other it would be of three moments, between which a migration may
        have begun or ended, and beside a slow API server there would be no time for a second look. Raises NoAnswer."""
        quotas, pods, source = await asyncio.gather(
            self._quotas(namespace), self._view.pods_live(namespace), self._view.source_live(namespace)
        )
        return await self._count([self._view.observe(quota, source) for quota in quotas] if source else (), pods)

    async def _quotas(self, namespace: str) -> list[ResourceQuota]:
        known = list(filter(is_served, self._view.quotas(namespace)))
        if not known:
            # The API server asks about namespaces that hold headroom: it is the cache that knows of no quota yet.
            return list(filter(is_served, await self._view.quotas_live(namespace)))
        return await asyncio.gather(*map(self._view.quota_live, known))

    async def _count(self, found: Iterable[Facts], pods: Pods | None) -> _Snapshot:
        """`pods` None: status.used is all there is."""
        # Also without one that was switched off since the cache was filled.
        served = [each for each in found if not each.namespace_off and is_served(each.quota)]
        for each in served:
            await self._slices.work_out(replace(each, pods=pods.there) if pods else each, self._settings.policy)
        rooms = [room(each, self._settings.policy, pods) for each in served]
        raised = [it for of, it in zip(served, rooms, strict=True) if is_raised(of.quota)]
        behind = any(pods is None or it is None or it.is_behind for it in raised)
        return _Snapshot([each for each in rooms if each is not None], pods.seen() if pods else {}, behind)


def _asked(request: AdmissionRequest, releases: Releases) -> _Pod:
    pod = request.new(Pod)
    if request.operation != "UPDATE":
        need = pod_usage(pod, releases=releases)
        return _Pod(request.namespace, pod, releases, need, pod.uid or request.uid)
    old = request.old(Pod)
    need = resize_usage(old, pod, releases)
    return _Pod(request.namespace, pod, releases, need, pod.uid, old.metadata.resource_version)
