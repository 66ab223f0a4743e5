"""Observes one ResourceQuota and applies the plan for it. The more migrations are under way, the longer the next patch
waits for more of them (`timing`): any number that turn Pending together cost a handful of patches."""

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Final

from cachetools import TTLCache

from kubeloop.api.core import Event, Namespace, ObjectReference, ResourceQuota
from kubeloop.api.meta import RawResourceList
from kubeloop.api.objects import edit
from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.registry import EVENTS, NAMESPACES, PODS, RESOURCE_QUOTAS
from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError, NotFound
from kubeloop.client.retry import retry_on_conflict
from kubeloop.controllers.cache_reader import newer
from kubeloop.controllers.errors import RetryAfter
from kubeloop.controllers.events import EventRecorder
from kubeloop.metrics import LateGauge
from pkg.api.harvesterhci import PROJECTS
from pkg.config.causes import LOWERS, Reverts
from pkg.config.metrics import METRICS
from pkg.config.rancher_quotas import ProjectTurns, RancherWrites
from pkg.config.time_slices import TimeSlices
from pkg.util import constants
from pkg.util.amounts import format_amounts
from pkg.util.kubevirt.migration import extra_devices_text, is_refused, refusing_quota
from pkg.util.problems import EVENT_DEVICE, EVENT_PROJECT_FULL, EVENT_REVERTED, Problem
from pkg.util.resourcequota import timing
from pkg.util.resourcequota.base import quantity_of
from pkg.util.resourcequota.compensation import compensates_more
from pkg.util.resourcequota.draft import with_summary
from pkg.util.resourcequota.entries import keys_of, names_by_key, parse_resources, present_entry, read
from pkg.util.resourcequota.facts import Facts, Plan, Timers
from pkg.util.resourcequota.managed import RECORDS
from pkg.util.resourcequota.observe import Listed, Source
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import Policy
from pkg.util.resourcequota.rancher import is_granted, project_of, request_of
from pkg.util.resourcequota.rancher_request import project_room

log = logging.getLogger(__name__)

BeforeRaise = Callable[[str], Awaitable[None]]
"""Called with a namespace's name before a quota of its is raised; may raise RetryAfter."""
_TURN: Final = 0.05  # seconds after which a namespace looks whether the request before it is answered
_GONE: Final = 60.0  # seconds without a problem after which it is reported anew
_MOST_PROBLEMS: Final = 10_000
_LONGEST: Final = 2048
"""Characters that are read of an event's texts: a tenant may write a million, into as many events as it likes."""

_WRITES = METRICS["headroom_resourcequota_patches_total"].counter()
_TOUCHES = METRICS["headroom_resourcequota_touches_total"].counter()
_LAST_DECISION = LateGauge(METRICS["headroom_last_decision_timestamp_seconds"])


@dataclass(slots=True)
class _QuotaState:
    """The state of a quota between two reconciles. Losing it costs a conflict or a wait, never correctness."""

    timers: Timers = field(default_factory=Timers)
    lower_since: float | None = None  # headroom is to be given back, and nothing is to be added
    decided_at: float = float("-inf")
    written_at: float = float("-inf")
    written: ResourceQuota | None = None
    """What our last patch returned, which the cache may lack yet. Where Rancher is asked, what the last request saw."""
    namespace: Namespace | None = None  # as our last request left it, until the watch has caught up
    granted_entries: Mapping[str, str] | None = None  # of the last request that Rancher has granted
    would_write: str = ""


@dataclass(eq=False)
class ResourceQuotaHandler:
    """Handles ResourceQuotas: the one writer of those that the annotation strategy raises."""

    client: Client
    rancher: RancherWrites
    reverts: Reverts
    source: Source
    events: EventRecorder
    policy: Policy
    _: KW_ONLY
    before_raise: BeforeRaise | None = None
    dry_run: bool = False
    _slices: TimeSlices = field(default_factory=TimeSlices, init=False)
    _states: defaultdict[str, _QuotaState] = field(default_factory=lambda: defaultdict(_QuotaState), init=False)
    _turns: ProjectTurns = field(default_factory=ProjectTurns, init=False)

    def __post_init__(self) -> None:
        self._quotas, self._namespaces = self.client.resource(RESOURCE_QUOTAS), self.client.resource(NAMESPACES)
        self._clock = self.client.transport.server_clock
        # By a quota's uid and the key of its problem.
        self._reported: TTLCache[tuple[str, str], bool] = TTLCache(_MOST_PROBLEMS, _GONE, self._clock)

    async def on_resource_quota_changed(self, key: str, quota: ResourceQuota | None) -> None:
        """Brings the quota to where its namespace's migrations need it. Raises RetryAfter when it has to be re-checked
        later; soon after a decision, and for an urgent one soon after a patch, it only waits for more events."""
        if quota is None:
            self._states.pop(key, None)
            return
        state, source = self._states[key], self.source
        quota = newer(quota, state.written)
        if state.written and quota.hard == state.written.hard:  # else another client changed it: a repair never waits
            urgent = timing.is_urgent(quota, source.migrations.list(quota.namespace), source.instances)
            since = state.written_at if urgent else state.decided_at
            seconds_left = timing.batch_until(quota.annotations, since, urgent=urgent) - self._clock()
            if 0 < seconds_left <= timing.LONGEST:  # more than that: the clock was set back
                raise RetryAfter(seconds_left)
        await self.rancher.look()
        try:
            decided = await self._apply_with_retry(quota, state)
        except ApiError as exc:
            if not self.rancher.learn(exc):
                raise
            await self.rancher.look()
            decided = await self._apply_with_retry(quota, state)
        _LAST_DECISION.set(state.decided_at)
        if decided.recheck_after is not None:
            raise RetryAfter(decided.recheck_after)

    def is_as_written(self, quota: ResourceQuota) -> bool:
        """Reports whether the quota is as our last patch left it."""
        written = self._states[quota.key].written if quota.key in self._states else None
        return written is not None and written.metadata.resource_version == quota.metadata.resource_version

    async def _apply_with_retry(self, quota: ResourceQuota, state: _QuotaState) -> Plan:
        """Plans and writes; after a conflict with another writer again, with what it wrote."""

        async def attempt(again: bool) -> Plan:
            now = quota
            if again:
                log.debug("%s: conflict, retrying", quota.key)
                now = await self._quotas.get(name=quota.name, namespace=quota.namespace)
                if self.rancher.asks(now) or state.namespace is not None:
                    state.namespace = await self._namespaces.get(name=quota.namespace)
            return await self._plan_and_write(now, state)

        try:
            return await retry_on_conflict(attempt)
        except NotFound:
            return Plan()  # the quota went meanwhile

    async def _plan_and_write(self, quota: ResourceQuota, state: _QuotaState) -> Plan:
        """Plans and writes once. Raises Conflict when the quota is no longer what was decided from."""
        await self._slices.work_out(self.source.observe(quota, self._clock()), self.policy, charges=False)
        state.decided_at = self._clock()
        observed, decided = self._decide(quota, state, self.source)
        if live := compensates_more(quota, decided):  # a target pod that is counted already lacks nothing
            # The quota first, so that no pod is in its count that is not in the list.
            quota = await self._quotas.get(name=quota.name, namespace=quota.namespace)
            pods = await self.client.resource(PODS).list(quota.namespace, label_selector=constants.KUBEVIRT_PODS)
            observed, decided = self._decide(quota, state, replace(self.source, pods=Listed(pods)))
        state.timers = decided.timers
        if observed.rancher.asks:
            self._note_grant(observed, state)
        state.lower_since = state.lower_since if decided.hard else None
        await self._report_problems(observed, decided.problems)
        if decided and self.dry_run and state.would_write != (would_write := _summary(quota, decided)):
            state.would_write = would_write
            _WRITES.labels("dry-run").inc()
            log.info("%s: would write: %s", quota.key, would_write)
        if not decided or self.dry_run:
            return decided
        used = quota.used if live else await self._wait_to_lower(observed, state, decided)
        if self.before_raise is not None and _raises(quota, decided):
            await self.before_raise(quota.namespace)
        if decided.annotations or (decided.hard and not decided.asks):
            if lowered := _lowered_by_others(quota, state.written, decided):
                manager = await self.reverts.note(quota, lowered)
                reverted = Problem(EVENT_REVERTED, f"field manager {manager} {LOWERS}")
                await self._report_problems(observed, [reverted] if manager else [])
            decided = with_summary(observed, decided)
            await self._write(quota, state, decided, used)
            self._report_entries(observed, quota.annotations, {**quota.annotations, **decided.annotations})
        if decided.namespace:
            await self._request(observed, state, decided)
        if decided.annotations.get(constants.ANNOTATION_TOUCHED) and constants.ANNOTATION_TOUCHED in quota.annotations:
            await self._report_problems(observed, await self._lacking_devices(observed))
        return decided

    def _decide(self, quota: ResourceQuota, state: _QuotaState, source: Source) -> tuple[Facts, Plan]:
        """Observes and plans. Uses the records of our last write if it raised the quota and another client has removed
        them both: what was added could not be told from the base."""
        cached, written = source.namespaces.get(name=quota.namespace), state.written
        if cached is not None and newer(cached, state.namespace) is cached:
            state.namespace = None
        observed = source.observe(quota, state.decided_at, state.timers, state.namespace)
        own_annotations = written.annotations if written and written.uid == quota.uid else {}
        records = {key: text for key, text in own_annotations.items() if key in RECORDS}
        if observed.rancher.asks or records.keys() != RECORDS or not RECORDS.isdisjoint(observed.quota.annotations):
            return observed, plan(observed, self.policy)
        recorded = edit(observed.quota, metadata={"annotations": {**observed.quota.annotations, **records}})
        decided = plan(replace(observed, quota=recorded), self.policy)
        return observed, replace(decided, annotations={**records, **decided.annotations})

    async def _request(self, observed: Facts, state: _QuotaState, decided: Plan) -> None:
        """Has Rancher write the quota, or ends a request of ours. Raises RetryAfter while another namespace of the
        project has the turn, Invalid when the namespace is no longer what was decided from."""
        namespace, now = observed.rancher.namespace, self._clock()
        requests = decided.namespace.get(constants.ANNOTATION_REQUEST)
        if requests and not self._turns.take(project_of(namespace), namespace.name):
            raise RetryAfter(_TURN, "another namespace of the Rancher project has a request under way")
        state.namespace = await self._namespaces.json_patch(decided.namespace_patch(namespace), name=namespace.name)
        state.written, state.written_at, state.decided_at, state.lower_since = observed.quota, now, now, None
        _WRITES.labels("requested").inc()
        log.info("%s: requested of Rancher: %s", observed.quota.key, _summary(observed.quota, decided))

    async def _wait_to_lower(self, observed: Facts, state: _QuotaState, decided: Plan) -> RawResourceList:
        """Raises RetryAfter until headroom may be given back; taking back what another client added does not wait for
        status.used. Returns the status.used that the patch is bound to, {}: to none. It is read live, since the cache
        can be older than the admission of a pod, but not for longer than it is waited for: a tenant can change it all
        the time. Targets that are just being tried must fit beside it."""
        quota = observed.quota
        if not decided.hard or _raises(quota, decided) or decided.annotations.get(constants.ANNOTATION_TOUCHED):
            return {}
        now = self._clock()
        since = state.lower_since = now if state.lower_since is None else state.lower_since
        migrations, pending_usage = observed.migrations, timing.waiting_for_target(observed, decided)
        is_own_limit = state.written is not None and quota.hard == state.written.hard
        limits = {name: Quantity.parse(limit) for name, limit in decided.hard.items()}

        def wait(used: RawResourceList) -> None:
            is_more = any(quantity_of(used, n) + pending_usage.get(n, ZERO) > limit for n, limit in limits.items())
            seconds_left = timing.may_lower_after(since, now, migrations, still_counted=is_own_limit and is_more)
            if seconds_left > 0:
                raise RetryAfter(seconds_left)

        wait(quota.used)
        if not is_own_limit or now >= since + timing.UNTIL_COUNTED:
            return {}
        used = (await self._quotas.get(name=quota.name, namespace=quota.namespace)).used
        wait(used)
        return used

    async def _write(self, quota: ResourceQuota, state: _QuotaState, decided: Plan, used: RawResourceList) -> None:
        now, quotas, patch = self._clock(), self.rancher.quotas(quota), decided.patch(quota, used)
        state.written = await quotas.json_patch(patch, name=quota.name, namespace=quota.namespace)
        state.written_at, state.decided_at, state.lower_since = now, now, None
        _WRITES.labels("written").inc()
        if decided.annotations.get(constants.ANNOTATION_TOUCHED):
            _TOUCHES.inc()
        log.info("%s: %s", quota.key, _summary(quota, decided))

    def _report_entries(self, observed: Facts, old: Mapping[str, str | None], new: Mapping[str, str | None]) -> None:
        """Reports on a VM's VMI that something was added for it or given back, by its entry in the annotations."""
        for key, name in names_by_key([*old, *new], observed.migrations, observed.instances.values()).items():
            vmi, text = observed.instances.get(name), new.get(key)
            if vmi is None or (old.get(key) is None) == (text is None):
                continue
            reason, change = constants.EVENT_GIVEN_BACK, ": what was added for its migration has been given back"
            if text is not None:
                amounts = format_amounts(parse_resources(key, text))
                reason, change = constants.EVENT_RAISED, f" is raised by {amounts} for its migration"
            self.events.event(vmi, "Normal", reason, f"quota {observed.quota.name}{change}")

    def _note_grant(self, observed: Facts, state: _QuotaState) -> None:
        """Ends the namespace's turn once Rancher has written the quota by its request, and reports the entries of that,
        or their end. What was granted before this process came is not reported."""
        request = request_of(observed.rancher.namespace)
        if request is None or is_granted(request, observed.quota):
            self._turns.end(project_of(observed.rancher.namespace), observed.quota.namespace)
            entries = request.entries if request else {}
            if state.granted_entries is not None:
                self._report_entries(observed, state.granted_entries, entries)
            state.granted_entries = entries

    async def _report_problems(self, observed: Facts, problems: Sequence[Problem]) -> None:
        """Reports each problem, once while it lasts, by an event about the VM that it concerns or the quota."""
        for problem in problems:
            state = observed.quota.uid, problem.key
            if state not in self._reported:
                log.warning("%s: %s", observed.quota.key, problem, exc_info=problem.cause)
                subject = observed.instances.get(problem.vm) or observed.quota
                room = await self._project_room(observed) if problem.reason == EVENT_PROJECT_FULL else ""
                self.events.event(subject, problem.kind, problem.reason, f"{problem}{room}")
            self._reported[state] = True

    # What events say beyond what decisions read. No decision goes by it: a tenant may write events.

    async def _lacking_devices(self, observed: Facts) -> list[Problem]:
        """Returns the devices that only a refused VM's target asks for, by KubeVirt's events, and the base lacks."""
        quota, entries, problems = observed.quota, read(observed.quota.annotations).by_key, []
        try:
            events = self.client.resource(EVENTS).transformed(as_read)
            listed = await events.list(quota.namespace, field_selector=f"reason={constants.EVENT_FAILED_CREATE}")
        except ApiError as exc:
            log.debug("%s: events are not read: %s", quota.key, exc)
            return []
        for migration in filter(is_refused, observed.migrations):
            name, since = migration.spec.vmi_name, migration.metadata.creation_timestamp or ""
            entry = present_entry(entries, keys_of(entries, name, observed.instances.get(name)))
            of_vm = [event for event in listed if event.involved_object.name == name]
            at, message = max(((event.last_timestamp or "", event.message) for event in of_vm), default=("", ""))
            devices = extra_devices_text(message, entry) if entry and at >= since else ""
            if devices and refusing_quota(message) == quota.name:
                problems.append(Problem(EVENT_DEVICE, f"VM {name}: {devices}", vm=name))
        return problems

    async def _project_room(self, observed: Facts) -> str:
        """Returns what is left in the namespace's Rancher project, as text; "" where that is in another cluster."""
        cluster, _, name = project_of(observed.rancher.namespace).partition(":")
        try:
            project = await self.client.resource(PROJECTS).get(name=name, namespace=cluster)
        except ApiError as exc:
            log.debug("%s: the Rancher project is not read: %s", observed.quota.key, exc)
            return ""
        return project_room(project, self.source.namespaces.list(), observed.quota)


def as_read(event: Event) -> Event:
    """Returns the fields of an event that are read."""
    subject = ObjectReference(name=event.involved_object.name[:_LONGEST])
    return Event(involved_object=subject, message=event.message[:_LONGEST], last_timestamp=event.last_timestamp)


def _raises(quota: ResourceQuota, decided: Plan) -> bool:
    """Reports whether the plan adds headroom somewhere."""
    return any(Quantity.parse(limit) > quantity_of(quota.hard, name) for name, limit in decided.hard.items())


def _lowered_by_others(quota: ResourceQuota, written: ResourceQuota | None, decided: Plan) -> list[str]:
    """Returns the limits that another client has set below our last patch, and that the plan sets to the same again."""
    own = written.hard if written is not None and written.uid == quota.uid else {}
    again = {name: Quantity.parse(limit) for name, limit in decided.hard.items() if own.get(name) == limit}
    return [name for name, limit in again.items() if quantity_of(quota.hard, name) < limit]


def _summary(quota: ResourceQuota, decided: Plan) -> str:
    changes = [f"{name} {quota.hard.get(name, 'unset')} -> {limit}" for name, limit in decided.hard.items()]
    if decided.annotations.get(constants.ANNOTATION_TOUCHED):
        changes.append("touched, so that KubeVirt retries")
    return ", ".join(changes) or "annotations only"
