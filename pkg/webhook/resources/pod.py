"""Pod CREATE, and a resize, in a namespace that holds added headroom: the headroom is for the migrations. Without this
a tenant's pod takes it, the target is refused, and the tenant stays above its quota for good.

Pods that were let through are remembered (the ledger): between our answer and quota's own count a pod is in no list.
Each replica remembers its own. What another replica lets through is seen once quota has counted it; until then each
counts its own pods twice, in the other one's place: two replicas together exceed a base by one pod at most."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from kubeloop.api.core import Pod, ResourceQuota
from kubeloop.api.quantity import QuantityError
from kubeloop.client.shared_reads import SharedReads
from kubeloop.metrics import LateGauge
from kubeloop.webhook.admission import ALLOW, AdmissionRequest, BadReview, Decision, UserInfo, deny
from kubeloop.workqueue.queue import loop_time
from pkg.config.metrics import METRICS
from pkg.config.settings import Settings
from pkg.config.time_slices import TimeSlices
from pkg.util.kubevirt.migration import migration_of
from pkg.util.quotacount.usage import pod_usage, resize_usage
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.managed import is_served
from pkg.util.resourcequota.room import Candidate, Look, NamespaceRooms, Pods, Usages, is_raised, refused_by_quota
from pkg.webhook.view import NoAnswer, View, read_in_time

PATIENCE: Final = 2.5
"""Seconds that a review waits before it refuses a pod that fits beside those that are there: pods on their way may
never arrive, and status.used may be behind. Longer than a pod is remembered, less than a review may take."""
EXPIRY: Final = 2.0
"""Seconds after which a pod that never turned up is given up: quota or another webhook refused it. A request that is
held up for longer may find its place taken, by at most its own size; while the API server is silent none is."""
_REMEMBERED = LateGauge(METRICS["headroom_reserve_remembered_pods"])


class PodValidator:
    """Reads the quotas live for every pod: a cached status.used is too old to share out the last of a base by."""

    def __init__(self, view: View, settings: Settings, makes_targets: Callable[[UserInfo], bool]) -> None:
        self._view, self._settings, self._makes_targets = view, settings, makes_targets
        self._ledger, self._slices = Ledger(), TimeSlices()
        self._by_watch, self._by_list = SharedReads(self._read_watch), SharedReads(self._read_list)

    async def validate(self, request: AdmissionRequest) -> Decision:
        if not self._settings.reserve:
            return ALLOW
        candidate = self._candidate(request)
        if candidate.migration and not (await self._cached(candidate)).needs_base(candidate):
            return ALLOW  # KubeVirt's own is not held up because the API server is slow
        refusal = await self._refused_by_quota(candidate)
        if not refusal:
            rooms, _, shortage = await self._wait_for_room(candidate)
            refusal = shortage() if shortage else ""
            if not shortage and not request.dry_run:
                # Between the last read and this nothing is awaited: no two pods are given the same room.
                self._ledger.remember(candidate, rooms.usages(candidate))
        return deny(refusal, reason="no-room") if refusal else ALLOW

    def _candidate(self, request: AdmissionRequest) -> Candidate:
        """Returns the pod that a request is about. Raises BadReview."""
        pod, releases = request.new(Pod), self._view.releases()
        try:
            if request.operation == "UPDATE":
                old = request.old(Pod)
                need = resize_usage(old, pod, releases)
                return Candidate(request.namespace, pod, releases, need, pod.uid, old.metadata.resource_version)
            need = pod_usage(pod, releases=releases)
        except QuantityError as exc:  # the API server lets none of these come here
            raise BadReview(f"the pod's resources: {exc}") from exc
        migration = migration_of(pod) if self._makes_targets(request.user_info) else ""
        return Candidate(request.namespace, pod, releases, need, pod.uid or request.uid, migration=migration)

    async def _refused_by_quota(self, candidate: Candidate) -> str:
        """Returns why quota admission will refuse the pod, by the live status, or "". Admitted here, such a pod would
        never come, and keep its place for as long as it is remembered."""
        namespace, policy = self._view.namespace(candidate.namespace), self._settings.policy
        for quota in filter(candidate.is_counted_by, self._view.quotas(candidate.namespace) if candidate.need else ()):
            if refused_by_quota(quota, candidate, namespace, policy):
                with suppress(NoAnswer):
                    live = await self._view.quota_live(quota)
                    if refusal := refused_by_quota(live, candidate, namespace, policy):
                        return refusal
        return ""

    async def _wait_for_room(self, candidate: Candidate) -> Look:
        """Returns the look that decides: the first one that finds room, or the last one."""
        look, until = None, loop_time() + PATIENCE
        try:
            while True:
                is_last = loop_time() >= until
                look = await self._look(self._by_watch, candidate)
                if look.shortage or look.rooms.counts_differ:
                    # A watch may be behind: nothing is refused by what it shows, nor let in where the pods do not add
                    # up to status.used.
                    watch_look, look = look, await self._look(self._by_list, candidate)
                    is_last = is_last or not (watch_look.fits or look.fits)
                if not look.shortage or is_last:
                    return look
                await asyncio.sleep(0.1)
        except NoAnswer:
            self._ledger.suspend()
            if look and look.shortage:  # what stood in its way at the last look still does
                return look
            rooms = await self._cached(candidate, self._view.pods(candidate.namespace))
            return rooms.look(candidate, self._ledger.unseen(candidate.namespace, rooms.pod_versions))

    async def _look(self, reads: SharedReads[NamespaceRooms], candidate: Candidate) -> Look:
        """Raises NoAnswer."""
        began = loop_time()
        rooms = await read_in_time(reads.fresh(candidate.namespace)) or NamespaceRooms()
        self._ledger.answered(began)
        return rooms.look(candidate, self._ledger.unseen(candidate.namespace, rooms.pod_versions))

    async def _cached(self, candidate: Candidate, pods: Pods | None = None) -> NamespaceRooms:
        """Returns the rooms by the caches, without a request, and by `pods` as a watch has brought them."""
        return await self._rooms(map(self._view.observe, self._view.quotas(candidate.namespace)), pods)

    async def _read_watch(self, namespace: str) -> NamespaceRooms:
        """Live quotas (a cache does not know of a raise while its watch is late), and after them the pods as a watch
        brings them: what the quotas count has been there before. None is begun at rest: quota's own count is enough."""
        quotas = await self._quotas(namespace)
        pods = self._view.pods(namespace, begin=any(map(is_raised, quotas)))
        return await self._rooms(map(self._view.observe, quotas), pods)

    async def _read_list(self, namespace: str) -> NamespaceRooms:
        """Reads all of it live, and at once: else it would be of three moments, between which a migration may begin or
        end, and beside a slow API server there would be no time for a second look. Raises NoAnswer."""
        quotas, pods, source = await asyncio.gather(
            self._quotas(namespace), self._view.pods_live(namespace), self._view.source_live(namespace)
        )
        return await self._rooms([self._view.observe(quota, source) for quota in quotas] if source else (), pods)

    async def _quotas(self, namespace: str) -> list[ResourceQuota]:
        cached = list(filter(is_served, self._view.quotas(namespace)))
        if not cached:
            # The API server asks about namespaces that hold headroom: it is the cache that knows of no quota yet.
            return list(filter(is_served, await self._view.quotas_live(namespace)))
        return await asyncio.gather(*map(self._view.quota_live, cached))

    async def _rooms(self, observed: Iterable[Facts], pods: Pods | None) -> NamespaceRooms:
        quotas = [replace(facts, pods=pods.present) if pods else facts for facts in observed]
        for facts in quotas:
            await self._slices.work_out(facts, self._settings.policy)
        return NamespaceRooms.from_facts(quotas, self._settings.policy, pods)


class Ledger:
    """Remembers admitted pods. Everything is sync: nothing else runs between a read and the entry that follows."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str | None], tuple[str, Usages, float]] = {}
        # Invariant: by uid and replaced version, the oldest first. Not the pod itself: a tenant's may be large.
        self._silent, self._answered_at = False, float("-inf")
        # Invariant: what was let in before the next answer of the API server may be stored as late as that comes.

    def remember(self, pod: Candidate, usages: Usages) -> None:
        if usages:
            self._entries.pop((pod.uid, pod.replaced), None)
            self._entries[pod.uid, pod.replaced] = pod.namespace, usages, loop_time()
            self._forget(loop_time())

    def suspend(self) -> None:
        """Keeps every pod until the API server answers again."""
        self._silent = True

    def answered(self, requested_at: float) -> None:
        """Forgets the pods that had not turned up when a read began that the API server has answered."""
        if self._silent:
            self._silent, self._answered_at = False, loop_time()
        self._forget(requested_at)

    def unseen(self, namespace: str, versions: Mapping[str, str | None]) -> list[Usages]:
        """Returns the usages of the pods that a read did not show; `versions`, by uid, are of those that it did.
        Nothing is forgotten because it was seen: another read, which began earlier, may not show it."""
        return [
            usages
            for (uid, replaced), (of_namespace, usages, _) in self._entries.items()
            if of_namespace == namespace and versions.get(uid, replaced) == replaced
        ]

    def _forget(self, requested_at: float) -> None:
        while self._entries and not self._silent:
            key, (_, _, since) = next(iter(self._entries.items()))
            if requested_at < max(since, self._answered_at) + EXPIRY:
                break
            del self._entries[key]
        _REMEMBERED.set(len(self._entries))
