"""LeaderElector: acquire the lease, renew it, know by the monotonic clock whether it is still held."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import NoReturn, Protocol

from kubeloop.api.core import EventType, Lease, LeaseSpec
from kubeloop.api.meta import Object, rfc3339
from kubeloop.client.errors import AlreadyExists, ApiError, Conflict, NotFound
from kubeloop.client.retry import retry_on_conflict
from kubeloop.errors import ReportedError
from kubeloop.leaderelection.lease_lock import LeaseLock
from kubeloop.logs import Once
from kubeloop.metrics import FRAMEWORK

log = logging.getLogger(__name__)

_REPEAT = 60.0
"""Seconds after which a failure that lasts is reported again."""
_LATER = 0.01
"""Seconds after another holder's last moment at which it is over for sure, however clocks round."""

MASTER = FRAMEWORK["leader_election_master_status"].gauge()


class LeaseLost(ReportedError):
    """The lease was not renewed in time, or another candidate has it: the process has to end."""


class NotLeader(ApiError):
    """A write that was not sent, because the lease is not ours at this moment."""


@dataclass(frozen=True, slots=True)
class LeaderElectionConfig:
    """Seconds, client-go's defaults. ValueError where a candidate could write beside another, or never renew."""

    lease_duration: float = 15.0
    """The time that others wait after the last renewal that they saw."""
    renew_deadline: float = 10.0
    """The time that the leader goes on after the last renewal that succeeded; the rest is for writes on their way."""
    retry_period: float = 2.0
    """Between two attempts, of the leader to renew and of the others to acquire."""

    def __post_init__(self) -> None:
        if not self.lease_duration > self.renew_deadline > self.retry_period > 0:
            given = f"{self.lease_duration:g}, {self.renew_deadline:g} and {self.retry_period:g} s are given"
            order = "the lease duration must be longer than the renew deadline, and that longer than the retry period"
            raise ValueError(f"leader election: {order}: {given}")


class Recorder(Protocol):
    def event(self, obj: Object, type: EventType, reason: str, message: str) -> None: ...


@dataclass(eq=False, repr=False)
class LeaderElector:
    """A candidate for the leadership. `run` it in a task and give `before_write` to the transport of everything that a
    leader writes. `clock` gives seconds that never go back and go on while the process is stopped (time.monotonic)."""

    lock: LeaseLock
    config: LeaderElectionConfig | None = None
    _: KW_ONLY
    clock: Callable[[], float] = time.monotonic
    tell: Callable[[str], None] = lambda _: None
    """Gets what is logged as a warning: why the lease can't be read or written, once a minute."""
    on_new_leader: Callable[[str], None] = lambda _: None
    """Gets the identity of each holder that is seen, this one too (client-go's OnNewLeader)."""
    recorder: Recorder | None = None
    """A factory's: writes client-go's events on the Lease, became leader and stopped leading."""

    def __post_init__(self) -> None:
        self._config = self.config or LeaderElectionConfig()
        self._observed: Lease | None = None
        self._observed_at = 0.0
        # Invariant: when `_observed.spec` was first seen here; another holder is left its whole duration from then on.
        self._renewed_at: float | None = None
        # Invariant: None while the lease is not ours, else when the last renewal that succeeded was sent. Not when it
        # was answered: others may have seen it as early as that.
        self._freed_event = asyncio.Event()
        self._trouble = ""
        self._reports = Once(_REPEAT, clock=self.clock)
        self._answered_at = float("-inf")
        # The time of the last answer to an attempt, whichever candidate holds the lease.
        MASTER.labels(str(self.lock)).set(0)

    def unready(self) -> list[str]:
        """Returns the reason for which this candidate could not lead: it can't read or write the lease."""
        if self.clock() < self._answered_at + self._config.renew_deadline:
            return []
        return [f"lease {self.lock}: {self._trouble or 'not read yet'}"]

    def is_leader(self) -> bool:
        """Reports whether this candidate holds the lease now."""
        return self._renewed_at is not None and self.clock() < self._renewed_at + self._config.renew_deadline

    def before_write(self) -> None:
        """Raises NotLeader unless the lease is ours at this moment. The transport asks it at every send."""
        if not self.is_leader():
            raise NotLeader(f"not written: the lease {self.lock} is not held")

    def get_leader(self) -> str:
        """The identity of the holder that was seen last, "" for none."""
        return (self._observed.spec.holder_identity or "") if self._observed is not None else ""

    async def run(self, on_started_leading: Callable[[], None]) -> NoReturn:
        """Acquires the lease, calls `on_started_leading`, renews until cancelled. Raises LeaseLost."""
        await self.acquire()
        on_started_leading()
        await self.renew()

    async def acquire(self) -> None:
        """Returns once the lease is ours."""
        watch = asyncio.create_task(self._watch(), name=f"watch of lease {self.lock}")
        try:
            while True:
                self._freed_event.clear()
                await self._attempt(self._config.renew_deadline)
                if self.is_leader():
                    break
                await self._pause()
        finally:
            watch.cancel()
            await asyncio.wait([watch])
        log.info("holding the lease %s as %s", self.lock, self.lock.identity)
        self._record("became leader", 1)

    async def renew(self) -> NoReturn:
        """Keeps the lease. Raises LeaseLost when that fails for `renew_deadline` seconds, also where no other
        replica took it meanwhile: what was decided before may be decided otherwise by now."""
        while self._renewed_at is not None:
            deadline = self._renewed_at + self._config.renew_deadline
            await asyncio.sleep(min(self._config.retry_period, max(0.0, deadline - self.clock())))
            if self.clock() < deadline:
                await self._attempt(deadline - self.clock())
            if self.clock() >= deadline:
                cause = f": {self._trouble}" if self._trouble else ""
                self._trouble = f"not renewed for {self._config.renew_deadline:g} s{cause}"
                break
        self._renewed_at = None
        self._record("stopped leading", 0)
        raise LeaseLost(f"lost the lease {self.lock}: {self._trouble}")

    async def release(self) -> bool:
        """Gives the lease up, and reports whether that was written. Call it after `run` and everything that writes."""
        if not self.is_leader():
            return False
        self._renewed_at = None
        MASTER.labels(str(self.lock)).set(0)
        try:
            async with asyncio.timeout(self._config.retry_period):
                if not await retry_on_conflict(lambda _: self._give_up()):
                    return False
        except (ApiError, TimeoutError) as err:
            log.warning("lease %s not released: %s", self.lock, str(err) or "no answer in time")
            return False
        log.info("released the lease %s", self.lock)
        self._record("stopped leading", 0)
        return True

    async def _give_up(self) -> bool:
        """Releases the lease as it is now: a renewal whose answer was lost may be newer than what was seen."""
        lease = await self.lock.get()
        if lease.spec.holder_identity != self.lock.identity:
            return False
        now, transitions = rfc3339(time.time(), "microseconds"), lease.spec.lease_transitions
        free = LeaseSpec(lease_duration_seconds=1, acquire_time=now, renew_time=now, lease_transitions=transitions)
        await self.lock.update(free, lease.metadata.resource_version)
        return True

    async def try_acquire_or_renew(self) -> bool:
        """Tries once to get or renew the lease, and reports whether this candidate holds it: not if another one was
        faster. Raises ApiError for everything else."""
        # Nothing is read as long as no other replica writes.
        if self._renewed_at is not None and self._observed is not None and await self._write(self._observed):
            return True
        lease = None
        with contextlib.suppress(NotFound):
            self._observe(lease := await self.lock.get())
        if self.get_leader() not in ("", self.lock.identity):
            if self._renewed_at is not None:
                self._renewed_at, self._trouble = None, f"{self.get_leader()} holds it"
                return False
            if self._time_left() > 0:
                return False  # also where the Lease was deleted: its holder may not know yet
        return await self._write(lease)

    async def _write(self, lease: Lease | None) -> bool:
        """Writes this candidate into the lease if it is still `lease` (None: absent), and reports whether it was."""
        sent = self.clock()
        try:
            if lease is None:
                written = await self.lock.create(self._own_spec(LeaseSpec()))
            else:
                written = await self.lock.update(self._own_spec(lease.spec), lease.metadata.resource_version)
        except (AlreadyExists, Conflict):
            return False
        except NotFound:
            if lease is None:
                raise  # it is the namespace that does not exist: no later attempt will do better
            return False
        self._observe(written)
        self._renewed_at = sent
        return True

    def _own_spec(self, spec: LeaseSpec) -> LeaseSpec:
        now, transitions = rfc3339(time.time(), "microseconds"), spec.lease_transitions or 0
        is_renewal = spec.holder_identity == self.lock.identity
        return LeaseSpec(
            holder_identity=self.lock.identity,
            lease_duration_seconds=math.ceil(self._config.lease_duration),
            acquire_time=spec.acquire_time if is_renewal else now,
            renew_time=now,
            # An int32: one more than the last would be refused for ever.
            lease_transitions=transitions if is_renewal or not spec.acquire_time else min(transitions + 1, 2**31 - 1),
        )

    def _observe(self, lease: Lease) -> None:
        observed, holder = self._observed, self.get_leader()
        self._observed = lease
        if observed is None or observed.spec != lease.spec:
            self._observed_at = self.clock()
        if self.get_leader() not in (holder, ""):
            if self.get_leader() != self.lock.identity:
                log.info("the lease %s is held by %s", self.lock, self.get_leader())
            self.on_new_leader(self.get_leader())

    def _record(self, happened: str, leads: int) -> None:
        MASTER.labels(str(self.lock)).set(leads)
        if self.recorder is not None and self._observed is not None:
            self.recorder.event(self._observed, "Normal", "LeaderElection", f"{self.lock.identity} {happened}")

    def _time_left(self) -> float:
        """Seconds that the last seen holder must still be left, by its own duration, which may differ from ours."""
        if not self.get_leader() or self._observed is None:
            return 0.0
        duration = self._observed.spec.lease_duration_seconds or self._config.lease_duration
        return self._observed_at + duration - self.clock()

    async def _attempt(self, seconds: float) -> None:
        """Calls try_acquire_or_renew without an exception, within a time that leaves room for another attempt."""
        try:
            async with asyncio.timeout(min(seconds, self._config.renew_deadline / 2)):
                await self.try_acquire_or_renew()
        except (ApiError, TimeoutError) as err:
            # The last attempt may have hardly any time: what failed before says more.
            self._note_failure(str(err) or self._trouble or "no answer in time")
        else:
            self._answered_at = self.clock()
            if self._renewed_at is not None:
                self._trouble = ""

    def _note_failure(self, reason: str) -> None:
        if self._reports.is_due(reason, self._renewed_at):  # after a renewal it is another failure
            message = f"lease {self.lock}: not acquired or renewed: {reason}"
            log.warning("%s", message)
            self.tell(message)
        self._trouble = reason

    async def _pause(self) -> None:
        """Waits until the lease is free, or `retry_period` is over."""
        period = self._config.retry_period
        if (time_left := self._time_left()) > 0:
            period = min(period, time_left + _LATER)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._freed_event.wait(), period)

    async def _watch(self) -> NoReturn:
        """Watches the Lease: releases are seen at once, and renewals when they happen."""
        while True:
            try:
                async with contextlib.aclosing(self.lock.watch()) as leases:
                    async for lease in leases:
                        self._observe(lease)
                        if not self.get_leader():
                            self._freed_event.set()
            except ApiError as err:
                log.debug("lease %s: not watched: %s", self.lock, err)
            except Exception:
                log.exception("lease %s: not watched", self.lock)
            await asyncio.sleep(self._config.retry_period)
