"""What follows the end of a list or watch: how long to wait, and whether to list again. Decisions only, no I/O."""

from __future__ import annotations

import random
from dataclasses import dataclass

from pkg.cache.backoff import Backoff
from pkg.cache.options import ReflectorOptions
from pkg.client.errors import (
    ApiError,
    Forbidden,
    Gone,
    NotFound,
    ServiceUnavailable,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)

_SHORT = 1.0
"""A watch that the server ends within this many seconds, without an event, is suspect (client-go: very short watch)."""
_SHORT_IN_A_ROW = 3
_WOKEN_POLL = 0.25
"""First poll for a missing kind after `woken`: a CRD is served a moment after it is there."""

KEEPS_POSITION = (Unreachable, TooManyRequests, ServiceUnavailable, Unauthorized, Forbidden)
"""These say nothing against the resourceVersion: the watch goes on where it stopped."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of one list-and-watch: whether its watch was opened, how long it lasted, how many events it brought."""

    opened: bool = False
    lasted: float = 0.0
    events: int = 0


@dataclass(frozen=True, slots=True)
class Next:
    """What to do: after `delay` seconds resume the watch, or list again. `missing`: the kind is not installed."""

    delay: float
    resume: bool = True
    missing: bool = False


class Recovery:
    """The memory between attempts: backoff, watches that end at once, polls for a missing kind."""

    def __init__(self, options: ReflectorOptions, rand: random.Random) -> None:
        self._options = options
        self._rand = rand
        self._backoff = Backoff(options.backoff_base, options.backoff_max, rand)
        self._poll = options.missing_poll
        self._short_watches = 0
        self._unreachable_before = False
        self._lost_before = False
        self._not_found_before = False

    def woken(self) -> None:
        """Somebody says that the kind or the server is back: look more often for a while."""
        self._poll = min(_WOKEN_POLL, self._options.missing_poll)

    def listed(self) -> None:
        """A list came through."""
        self._not_found_before = False

    def after_end(self, attempt: Attempt) -> Next:
        """The server closed the watch properly."""
        self._forget_troubles_before(attempt)
        if attempt.lasted >= _SHORT or attempt.events:
            self._short_watches = 0
            return Next(0.0 if attempt.lasted >= _SHORT else self._soon())
        self._short_watches += 1
        return Next(self._backoff.next(), resume=self._short_watches < _SHORT_IN_A_ROW)

    def after_failure(self, attempt: Attempt, err: Exception, *, filled: bool) -> Next:
        """A list or watch failed. `filled`: the store has (or had) objects of a kind that was installed."""
        self._forget_troubles_before(attempt)
        if isinstance(err, NotFound):
            return self._not_found(filled)
        if not isinstance(err, ApiError):
            # Not the server's doing: a bug of ours. The store may have half an event, so it is listed again.
            return Next(self._backoff.next(), resume=False)
        if self._unreachable_before and not isinstance(err, Unreachable):
            self._backoff.reset()  # it answers again: what it says now has nothing to do with the long pauses before
        self._unreachable_before = isinstance(err, Unreachable)
        if position_lost(err):
            # Every watch gets this from a server that was restarted: its watch cache begins anew.
            delay = self._backoff.next() if self._lost_before else 0.0
            self._lost_before = True
        else:
            delay = self._soon() if attempt.opened else self._backoff.next()
        return Next(max(delay, err.retry_after or 0.0), resume=isinstance(err, KEEPS_POSITION))

    def _forget_troubles_before(self, attempt: Attempt) -> None:
        if attempt.lasted >= self._options.healthy_after:
            self._backoff.reset()
            self._lost_before = False

    def _soon(self) -> float:
        """For a connection that worked: at once after a healthy while, else as the backoff says."""
        calm = self._backoff.calm
        delay = self._backoff.next()
        return 0.0 if calm else delay

    def _not_found(self, filled: bool) -> Next:
        """The kind is not served. What was there is gone with its CRD, but only if the server says so twice."""
        if filled and not self._not_found_before:
            self._not_found_before = True
            return Next(self._backoff.next(), resume=False)
        delay = self._poll * (0.8 + 0.4 * self._rand.random())
        self._poll = min(self._poll * 2, self._options.missing_poll)
        return Next(delay, resume=False, missing=True)


def position_lost(err: ApiError) -> bool:
    """Whether the server no longer has a resourceVersion (expired), or does not have it yet (too large).

    The latter is a 504 with reason Timeout, as of a server whose etcd was restored from a backup.
    """
    return (
        isinstance(err, Gone)
        or err.reason in ("Expired", "Gone")
        or (err.status, err.reason) == (504, "Timeout")
    )
