"""Observes one ResourceQuota and applies the plan for it.

Any number of migrations that turn Pending together cost a handful of patches: events only enqueue the quota's
key, and the more migrations are under way the longer the next patch waits for more of them (`timers`).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Final

import msgspec

from kubeloop.api.core import Event, Namespace, Pod, ResourceQuota
from kubeloop.api.meta import RawResourceList
from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.resource_list import ResourceList
from kubeloop.client.errors import ApiError, NotFound
from kubeloop.client.resource_client import ResourceClient
from kubeloop.client.retry import retry_on_conflict
from kubeloop.controllers.cache_reader import newer
from kubeloop.controllers.errors import RetryAfter
from kubeloop.controllers.events import EventRecorder
from kubeloop.metrics import LateGauge
from pkg.api.rancher import Project
from pkg.config.metrics import METRICS
from pkg.config.rancher_quotas import ProjectTurns, RancherWrites
from pkg.config.reverts import LOWERS, Reverts
from pkg.config.time_slices import TimeSlices
from pkg.controller.resourcequota.devices import lacking_devices
from pkg.controller.resourcequota.pace import waits
from pkg.util import constants
from pkg.util.amounts import format_amounts
from pkg.util.constants import ANNOTATION_TOUCHED, EVENT_GIVEN_BACK, EVENT_RAISED
from pkg.util.problems import Problem
from pkg.util.resourcequota.base import base_of, quantity_of
from pkg.util.resourcequota.compensation import compensates_more
from pkg.util.resourcequota.entries import entry_keys, parse_resources
from pkg.util.resourcequota.errors import EVENT_PROJECT_FULL, EVENT_REVERTED
from pkg.util.resourcequota.facts import Facts, Plan
from pkg.util.resourcequota.lowering import UNTIL_COUNTED, may_lower_after, waiting_for_target
from pkg.util.resourcequota.managed import RECORDS
from pkg.util.resourcequota.observe import Listed, Observer
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import Policy
from pkg.util.resourcequota.rancher import SILENCE, is_granted, project_of, request_of
from pkg.util.resourcequota.rancher_project import left_in, text_of
from pkg.util.resourcequota.summary import names_of, summarized
from pkg.util.resourcequota.timers import LONGEST, Timers, batch_until
from pkg.util.resourcequota.vms import vms_one_by_one

log = logging.getLogger(__name__)

BeforeRaise = Callable[[str], Awaitable[None]]
"""Called with a namespace's name before a quota of its is raised; may raise RetryAfter."""
_FEW: Final = 48
"""Objects that need no slices: those of a VM take a millisecond, where they have changed."""
_TURN: Final = 0.05
"""Seconds after which a namespace looks again whether the request of another one of its Rancher project is answered."""
_GONE: Final = 60.0
"""Seconds after which a problem that was no longer found is reported again when it comes back."""

_WRITES = METRICS["headroom_resourcequota_patches_total"].counter()
_TOUCHES = METRICS["headroom_resourcequota_touches_total"].counter()
_LAST_DECISION = LateGauge(METRICS["headroom_last_decision_timestamp_seconds"])


@dataclass(slots=True)
class _Remembered:
    """What is kept of a quota between two reconciles. Losing it costs a conflict or a wait, never correctness."""

    timers: Timers = field(default_factory=Timers)
    lower_since: float | None = None
    """Headroom is to be given back, and nothing is to be added."""
    decided_at: float = float("-inf")
    """The last decision, with its patch if it made one."""
    written_at: float = float("-inf")
    """The last patch."""
    written: ResourceQuota | None = None
    """What our last patch returned: newer than the cache until the watch has caught up. Where Rancher is asked, the
    quota as it was at the last request."""
    namespace: Namespace | None = None
    """The namespace as our last request left it."""
    said: Mapping[str, float] = field(default_factory=dict)
    """The keys of problems that were reported, and when each was last seen."""
    would_write: str = ""


@dataclass(eq=False)
class Handler:
    """Handles ResourceQuotas: the one writer of those that the annotation strategy raises."""

    quotas: ResourceClient[ResourceQuota]
    namespaces: ResourceClient[Namespace]
    pods: ResourceClient[Pod]
    event_reader: ResourceClient[Event]
    projects: ResourceClient[Project]
    rancher: RancherWrites
    reverts: Reverts
    observer: Observer
    events: EventRecorder
    policy: Policy
    _: KW_ONLY
    clock: Callable[[], float]
    before_raise: BeforeRaise | None = None
    dry_run: bool = False
    slices: TimeSlices = field(default_factory=TimeSlices)
    _remembered: dict[str, _Remembered] = field(default_factory=dict, init=False)
    _turns: ProjectTurns = field(default_factory=ProjectTurns, init=False)

    async def on_resource_quota_changed(self, key: str, quota: ResourceQuota | None) -> None:
        """Bring the quota to where its namespace's migrations want it.

        Raises RetryAfter when the quota has to be re-checked later.
        """
        if quota is None:
            self._remembered.pop(key, None)
            return
        kept = self._remembered.setdefault(key, _Remembered())
        quota = newer(quota, kept.written)
        self._batch(quota, kept)
        await self.rancher.look()
        try:
            decided = await self._settle(quota, kept)
        except ApiError as exc:
            if not self.rancher.learn(exc):
                raise
            await self.rancher.look()
            decided = await self._settle(quota, kept)
        _LAST_DECISION.set(kept.decided_at)
        if decided.recheck_after is not None:
            raise RetryAfter(decided.recheck_after)

    def is_as_written(self, quota: ResourceQuota) -> bool:
        """Whether the quota is as our last patch left it."""
        kept = self._remembered.get(quota.key)
        written = kept.written if kept else None
        return written is not None and written.metadata.resource_version == quota.metadata.resource_version

    async def _settle(self, quota: ResourceQuota, kept: _Remembered) -> Plan:
        """Plan and write; after a conflict with another writer again, with what it wrote."""

        async def attempt(again: bool) -> Plan:
            if not again:
                return await self._plan_and_write(quota, kept)
            log.debug("%s: conflict, retrying", quota.key)
            now = await self.quotas.get(name=quota.name, namespace=quota.namespace)
            if self.rancher.asks(now) or kept.namespace is not None:
                kept.namespace = await self.namespaces.get(name=quota.namespace)
            return await self._plan_and_write(now, kept)

        try:
            return await retry_on_conflict(attempt)
        except NotFound:
            return Plan()  # the quota went meanwhile

    async def _plan_and_write(self, quota: ResourceQuota, kept: _Remembered) -> Plan:
        """Raises Conflict when the quota is no longer what was decided from."""
        await self._work_out_many(self.observer.observe(quota, self.clock()))
        kept.decided_at = now = self.clock()
        observed = self._observe(quota, now, kept)
        decided = self._plan(observed, kept)
        if live := compensates_more(quota.annotations, decided.annotations):
            observed = await self._observe_live(observed)
            quota, decided = observed.quota, self._plan(observed, kept)
        kept.timers = decided.timers
        kept.lower_since = kept.lower_since if decided.hard else None
        await self._say(observed, kept, decided.problems)
        if not decided or self._only_say(quota, kept, decided):
            return decided
        used = quota.used if live else await self._wait_to_lower(observed, kept, decided)
        if self.before_raise is not None and _raises(quota, decided):
            await self.before_raise(quota.namespace)
        if decided.annotations or (decided.hard and not decided.asks):
            if lowered := _lowered_by_others(quota, kept.written, decided):
                await self._say(observed, kept, await self._reverted(quota, lowered))
            names = names_of(entry_keys([*quota.annotations, *decided.annotations]), observed.instances)
            decided = summarized(decided, quota, names)
            await self._write(quota, kept, decided, used)
            self._tell(observed, decided, names)
        if decided.namespace:
            await self._request(observed, kept, decided)
        if decided.annotations.get(ANNOTATION_TOUCHED) and ANNOTATION_TOUCHED in quota.annotations:
            await self._say(observed, kept, await lacking_devices(self.event_reader, observed))
        return decided

    async def _work_out_many(self, seen: Facts) -> None:
        """The VMs of a large namespace in slices of time: the decision finds them in the facts' cache."""
        if len(seen.migrations) + len(seen.instances) + len(seen.pods) > _FEW:
            base = base_of(seen.quota, seen.limits, self.policy)
            await self.slices.take(vms_one_by_one(seen, self.policy, base))

    def _observe(self, quota: ResourceQuota, now: float, kept: _Remembered) -> Facts:
        cached = self.observer.source.namespaces.get(name=quota.namespace)
        if cached is not None and kept.namespace is not None:
            kept.namespace = newer(cached, kept.namespace)
            if kept.namespace is cached:
                kept.namespace = None
        observed = self.observer.observe(quota, now, kept.timers, namespace=kept.namespace)
        request = request_of(observed.rancher.namespace) if observed.rancher.asks else None
        if request is None or is_granted(request, quota):
            self._turns.end(project_of(observed.rancher.namespace), quota.namespace)
        return observed

    async def _request(self, observed: Facts, kept: _Remembered, decided: Plan) -> None:
        """Have Rancher write the quota, or end a request of ours. Raises RetryAfter while another namespace of the
        project has the turn, Invalid when the namespace is no longer what was decided from."""
        namespace, now = observed.rancher.namespace, self.clock()
        project = project_of(namespace)
        if decided.namespace.get(constants.ANNOTATION_REQUEST) and (
            left := self._turns.wait(project, namespace.name, now)
        ):
            raise RetryAfter(min(left, _TURN), "another namespace of the Rancher project has a request under way")
        if decided.namespace.get(constants.ANNOTATION_REQUEST):
            self._turns.take(project, namespace.name, now + SILENCE)
        kept.namespace = await self.namespaces.json_patch(decided.namespace_patch(namespace), name=namespace.name)
        kept.written, kept.written_at, kept.decided_at, kept.lower_since = observed.quota, now, now, None
        _WRITES.labels("requested").inc()
        log.info("%s: requested of Rancher: %s", observed.quota.key, _summary(observed.quota, decided))

    async def _observe_live(self, seen: Facts) -> Facts:
        """With pods as they are now: a target pod that is counted already lacks nothing. The quota is read first, so
        that no pod is in its count that is not in the list."""
        quota = await self.quotas.get(name=seen.quota.name, namespace=seen.quota.namespace)
        pods = await self.pods.list(quota.namespace, label_selector=constants.LABEL_APP)
        source = replace(self.observer.source, pods=Listed(pods))
        namespace = seen.rancher.namespace if seen.rancher.asks else None
        return self.observer.observe(quota, seen.now, seen.timers, source=source, namespace=namespace)

    def _plan(self, observed: Facts, kept: _Remembered) -> Plan:
        """With the records of our last write, where it raised the quota and another client has removed them both:
        without them what was added could not be told from the base."""
        quota, written = observed.quota, kept.written
        ours = written.annotations if written and written.uid == quota.uid else {}
        records = {key: text for key, text in ours.items() if key in RECORDS}
        if observed.rancher.asks or records.keys() != RECORDS or not RECORDS.isdisjoint(quota.annotations):
            return plan(observed, self.policy)
        metadata = msgspec.structs.replace(quota.metadata, annotations={**quota.annotations, **records})
        recorded = msgspec.structs.replace(quota, metadata=metadata)
        decided = plan(replace(observed, quota=recorded), self.policy)
        return replace(decided, annotations={**records, **decided.annotations})

    def _batch(self, quota: ResourceQuota, kept: _Remembered) -> None:
        """Soon after a decision the next one waits, after a patch an urgent one too; unless another client changed
        spec.hard: a repair never waits."""
        if kept.written is None or quota.hard != kept.written.hard:
            return
        now, source = self.clock(), self.observer.source
        urgent = waits(source, quota, source.migrations.list(quota.namespace))
        since = kept.written_at if urgent else kept.decided_at
        left = batch_until(quota.annotations, since, urgent=urgent) - now
        if 0 < left <= LONGEST:  # more than that: the clock was set back
            raise RetryAfter(left)

    async def _wait_to_lower(self, observed: Facts, kept: _Remembered, decided: Plan) -> RawResourceList:
        """Giving headroom back waits a moment; taking back what another client added does not wait for status.used.
        Returns the status.used that the patch is bound to, {}: to none. It is read live, since the cache can be older
        than the admission of a pod, but not for longer than it is waited for: a tenant can change it all the time.
        Targets that are just being tried must fit beside it. Raises RetryAfter, ApiError."""
        quota = observed.quota
        if not decided.hard or _raises(quota, decided) or decided.annotations.get(ANNOTATION_TOUCHED):
            return {}
        now = self.clock()
        since = kept.lower_since = now if kept.lower_since is None else kept.lower_since
        migrations, to_come = observed.migrations, waiting_for_target(observed, decided)
        ours = kept.written is not None and quota.hard == kept.written.hard

        def wait(used: RawResourceList) -> None:
            still_counted = ours and _exceeds(used, to_come, decided)
            left = may_lower_after(since, now, migrations, still_counted=still_counted)
            if left > 0:
                raise RetryAfter(left)

        wait(quota.used)
        if not ours or now >= since + UNTIL_COUNTED:
            return {}
        used = (await self.quotas.get(name=quota.name, namespace=quota.namespace)).used
        wait(used)
        return used

    async def _write(self, quota: ResourceQuota, kept: _Remembered, decided: Plan, used: RawResourceList) -> None:
        now, patch = self.clock(), decided.patch(quota, used)
        quotas = self.rancher.quotas(quota)
        kept.written = await quotas.json_patch(patch, name=quota.name, namespace=quota.namespace)
        kept.written_at = kept.decided_at = now
        kept.lower_since = None
        _WRITES.labels("written").inc()
        if decided.annotations.get(ANNOTATION_TOUCHED):
            _TOUCHES.inc()
        log.info("%s: %s", quota.key, _summary(quota, decided))

    def _tell(self, observed: Facts, decided: Plan, names: Mapping[str, str]) -> None:
        """An event on a VM's VMI when something was added for it, and when that has been given back."""
        quota = observed.quota
        for key, name in names.items():
            if key not in decided.annotations or name not in observed.instances:
                continue
            before, after = quota.annotations.get(key), decided.annotations[key]
            if before is None and after is not None:
                what = (
                    f"quota {quota.name} is raised by {format_amounts(parse_resources(key, after))} for its migration"
                )
                self.events.event(observed.instances[name], "Normal", EVENT_RAISED, what)
            elif before is not None and after is None:
                what = f"quota {quota.name}: what was added for its migration has been given back"
                self.events.event(observed.instances[name], "Normal", EVENT_GIVEN_BACK, what)

    def _only_say(self, quota: ResourceQuota, kept: _Remembered, decided: Plan) -> bool:
        """With --dry-run: what would be written, once until it changes."""
        if self.dry_run and kept.would_write != (would_write := _summary(quota, decided)):
            kept.would_write = would_write
            _WRITES.labels("dry-run").inc()
            log.info("%s: would write: %s", quota.key, would_write)
        return self.dry_run

    async def _say(self, observed: Facts, kept: _Remembered, problems: Sequence[Problem]) -> None:
        """An event for what people have to know, about the VM that it concerns or the quota: one for each state."""
        now = self.clock()
        before = {state: at for state, at in kept.said.items() if now - at < _GONE}
        kept.said = before | {problem.key: now for problem in problems}
        for problem in problems:
            if problem.key in before:
                continue
            log.warning("%s: %s", observed.quota.key, problem, exc_info=problem.cause)
            about = observed.instances.get(problem.vm) or observed.quota
            more = await self._room_of_project(observed) if problem.reason == EVENT_PROJECT_FULL else ""
            self.events.event(about, problem.kind, problem.reason, f"{problem}{more}")

    async def _reverted(self, quota: ResourceQuota, lowered: Sequence[str]) -> list[Problem]:
        """Returns what has to be known of another writer that lowered these limits again, once it does so often."""
        manager = await self.reverts.note(quota, lowered)
        return [Problem(EVENT_REVERTED, f"field manager {manager} {LOWERS}")] if manager else []

    async def _room_of_project(self, observed: Facts) -> str:
        """Returns what is left in the namespace's Rancher project, as text; "" where the project cannot be read: it is
        in the cluster of Rancher's server."""
        cluster, _, name = project_of(observed.rancher.namespace).partition(":")
        try:
            project = await self.projects.get(name=name, namespace=cluster)
        except ApiError as exc:
            log.debug("%s: the Rancher project is not read: %s", observed.quota.key, exc)
            return ""
        left = left_in(project, self.observer.source.namespaces.list(), observed.quota.namespace)
        return f"; {text_of(left, observed.quota.hard)}"


def _raises(quota: ResourceQuota, decided: Plan) -> bool:
    """Whether the plan adds headroom somewhere."""
    return any(Quantity.parse(to) > quantity_of(quota.hard, name) for name, to in decided.hard.items())


def _lowered_by_others(quota: ResourceQuota, written: ResourceQuota | None, decided: Plan) -> list[str]:
    """Returns the limits that another client has set below our last patch, and that the plan sets to the same again."""
    if written is None or written.uid != quota.uid:
        return []
    return [
        name
        for name, to in decided.hard.items()
        if written.hard.get(name) == to and quantity_of(quota.hard, name) < Quantity.parse(to)
    ]


def _exceeds(used: RawResourceList, to_come: ResourceList, decided: Plan) -> bool:
    """Whether more is counted, or will be in a moment, than the plan leaves."""
    return any(
        quantity_of(used, name) + to_come.get(name, ZERO) > Quantity.parse(to) for name, to in decided.hard.items()
    )


def _summary(quota: ResourceQuota, decided: Plan) -> str:
    changes = [f"{name} {quota.hard.get(name, 'unset')} -> {to}" for name, to in decided.hard.items()]
    if decided.annotations.get(ANNOTATION_TOUCHED):
        changes.append("touched, so that KubeVirt retries")
    return ", ".join(changes) or "annotations only"
