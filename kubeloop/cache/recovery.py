"""Decisions about a list or watch that ended: the wait, whether to list again, the report. No I/O."""

import logging
import random
from dataclasses import dataclass

from kubeloop.client import errors
from kubeloop.client.errors import ApiError, Forbidden, Gone, NotInstalled, TooManyRequests, Unauthorized, Unreachable
from kubeloop.metrics import FRAMEWORK

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReflectorOptions:
    """The settings of a reflector: defaults for a kube-apiserver, tests shorten them. Times in seconds."""

    watch_list: bool = True
    """Start with a WatchList (one object at a time, never a whole page in memory) unless the server refuses it."""
    page_size: int = 500
    """Objects in a page of a list, where there is no WatchList."""
    min_watch_timeout: float = 300.0
    """A watch asks the server to end it after this to twice this, at random (client-go's minWatchTimeout)."""
    watch_grace: float = 30.0
    """The time that a watch may last longer than it asked for before this side ends it."""
    silence_limit: float = 40.0
    """Nothing heard on a watch for so long, not even a bookmark: the connection may be dead, or nothing happens to the
    kind. The watch is opened anew where it stopped, once a probe has shown that watches bring something."""
    probe_limit: float = 10.0
    """The time limit of that probe: a WatchList of one known object, or of none."""
    opening_limit: float = 30.0
    """The time in which the answer to a watch has to begin, as for any request: the server does not wait for news."""
    initial_silence_limit: float = 15.0
    """The same while a WatchList sends its initial events: a server from before 1.27 never says that they ended."""
    stale_after: float = 270.0
    """No sign of life for so long, retries included: the watch is a problem to report."""
    backoff_base: float = 0.8
    backoff_max: float = 30.0
    """The longest pause, jitter included. Only a Retry-After of the server's can be longer."""
    healthy_after: float = 10.0
    """A watch that lasted so long, or brought an event, resets the backoff."""
    missing_poll: float = 60.0
    """The interval at which a missing kind is looked for. Where CRDs may be watched it is found at once."""
    list_poll: float = 30.0
    """The interval of lists of a kind that cannot be watched, or may not."""


SHORT = 1.0
"""A watch that ends within this many seconds, without an event, is suspect (client-go: very short watch)."""
_EMPTY_IN_A_ROW = 3
SLOW_IN_A_ROW = 3
"""The number of WatchLists in silence after which the server is taken for one that does not know them."""
_WOKEN_POLL = 0.25
"""First poll for a missing kind after `woken`: a CRD is served a moment after it is there."""
KEEPS_POSITION = (Unreachable, TooManyRequests, Unauthorized, Forbidden, errors.ServiceUnavailable, *errors.STATUS_404)
"""These say nothing against the resourceVersion: the watch goes on where it stopped."""


class InitialEventsNeverEnded(Exception):
    """The server says nothing more, but not that the initial events are over: slow, or it does not know WatchList."""


class Silent(Unreachable):
    """A watch without a sign of life: a dead connection, or a kind that nothing happens to."""


_SILENT = FRAMEWORK["reflector_silent_watches"].gauge()


@dataclass(slots=True)
class Attempt:
    """The result of a list-and-watch: whether its watch was opened, its duration and its number of events."""

    opened: bool = False
    lasted: float = 0.0
    events: int = 0


@dataclass(frozen=True, slots=True)
class Next:
    """The next step: after `delay` seconds resume the watch, or list again."""

    delay: float
    resume: bool = True


class Recovery:
    """The memory between attempts: backoff, watches that end at once, polls for a missing kind."""

    def __init__(self, options: ReflectorOptions, rand: random.Random) -> None:
        self._options = options
        self._rand = rand
        self._step = 0.0  # of the back-off; 0: nothing failed since it was reset
        self._poll = options.missing_poll
        # In a row: watches that were over within SHORT, and those of them that brought nothing.
        self._short_watches = self._empty_watches = 0
        self._unreachable_before = False
        self._lost_before = False

    def woken(self) -> None:
        """The kind may be back: try more often for a while."""
        self._poll = min(_WOKEN_POLL, self._options.missing_poll)

    def after_end(self, attempt: Attempt) -> Next:
        self._count(attempt)
        if not self._empty_watches:
            return Next(0.0 if not self._short_watches else self._short_delay())
        return Next(self._back_off(), resume=self._empty_watches < _EMPTY_IN_A_ROW)

    def after_failure(self, attempt: Attempt, err: Exception) -> Next:
        self._count(attempt)
        if isinstance(err, NotInstalled):
            delay = self._poll * (0.8 + 0.4 * self._rand.random())
            self._poll = min(self._poll * 2, self._options.missing_poll)
            return Next(delay, resume=False)
        if not isinstance(err, ApiError):
            # Not the server's doing: a bug of ours. The store may have half an event, so it is listed again.
            return Next(self._back_off(), resume=False)
        if self._unreachable_before and not isinstance(err, Unreachable):
            self._step = 0.0  # it answers again: what it says now has nothing to do with the long pauses before
        self._unreachable_before = isinstance(err, Unreachable)
        if err.retry_after:
            # The server knows when: its word takes the place of the back-off, which does not grow by it.
            delay = max(err.retry_after, self._options.backoff_base)
        elif isinstance(err, Gone) or err.reason in ("Expired", "Gone") or (err.status, err.reason) == (504, "Timeout"):
            # The server no longer has the resourceVersion, or not yet (504, as after a restore of etcd). Every watch
            # gets this from a server that was restarted: its watch cache begins anew.
            delay = self._back_off() if self._lost_before else 0.0
            self._lost_before = True
        else:
            delay = self._short_delay() if attempt.opened else self._back_off()
        return Next(delay, resume=isinstance(err, KEEPS_POSITION))

    def _back_off(self) -> float:
        """Returns the wait after one more failure: the step doubles, and each wait is drawn from [step, 2 steps] so
        that clients of a restarted server spread out."""
        longest = self._options.backoff_max / 2
        self._step = min(self._step * 2 if self._step else self._options.backoff_base, longest)
        return self._step * (1 + self._rand.random())

    def _count(self, attempt: Attempt) -> None:
        if attempt.lasted >= self._options.healthy_after or attempt.events:
            self._step = 0.0
            self._lost_before = False
        if attempt.opened:
            is_short = attempt.lasted < SHORT
            self._short_watches = self._short_watches + 1 if is_short else 0
            self._empty_watches = self._empty_watches + 1 if is_short and not attempt.events else 0

    def _short_delay(self) -> float:
        """Returns the wait after a connection that worked: none, unless it broke before or keeps ending at once."""
        is_calm = not self._step and self._short_watches <= 1
        delay = self._back_off()
        return 0.0 if is_calm else delay


class Health:
    """Signs of life of one watch, and its troubles: said once, not at every retry. Times are the loop's, in seconds."""

    def __init__(self, kind: str, options: ReflectorOptions) -> None:
        self._kind = kind
        # A watch that is still allowed to be silent is not stale, nor is the one that follows it.
        self._stale_after = max(options.stale_after, 2 * options.silence_limit)
        self.last_heard: float | None = None
        """When the server answered, a watch brought something, or it was started."""
        self._logged = False
        self.silent_since: float | None = None
        """The time since which the server answers while its watches bring nothing."""
        self.trouble: ApiError | None = None
        """The last failure, until the watch works again."""

    def failed(self, err: ApiError, *, cut: bool = False) -> None:
        """Logs a failure when it differs from the one before, else at debug level. `cut`: a watch broke that had worked
        for a while, as a load balancer ends it; where the next one works that is no news."""
        previous, self.trouble = self.trouble, err
        changed = previous is None or (type(previous), previous.status) != (type(err), err.status)
        level = logging.INFO if isinstance(err, Gone) else logging.WARNING
        if not changed or isinstance(err, Silent) or (cut and previous is None):
            level = logging.DEBUG
        self._logged = self._logged or level > logging.DEBUG
        log.log(level, "%s: list or watch failed: %s", self._kind, err)

    def recovered(self) -> None:
        if self.trouble is not None:
            log.log(logging.INFO if self._logged else logging.DEBUG, "%s: watch re-established", self._kind)
            self.trouble, self._logged = None, False

    def watch_is_silent(self, now: float) -> None:
        """A watch brings nothing, not even what there is."""
        if self.silent_since is None:
            log.warning("%s: watches bring nothing, although the server answers: listing again instead", self._kind)
            self.silent_since = now
            _SILENT.labels(self._kind).inc()

    def watch_works(self) -> None:
        """A watch brought something, or there is nothing to bring; also called at the end."""
        if self.silent_since is not None:
            log.info("%s: watches bring news again", self._kind)
            self.silent_since = None
            _SILENT.labels(self._kind).dec()

    def problems(self, now: float) -> list[str]:
        """Returns a line if no data came for too long, or only by lists."""
        if self.silent_since is not None:
            silent = now - self.silent_since
            return [f"{self._kind}: watches bring nothing for {silent:.0f} s, although the server answers lists"]
        if self.last_heard is None or now - self.last_heard <= self._stale_after:
            return []
        reason = f" ({self.trouble})" if self.trouble is not None else ""
        return [f"{self._kind}: no data from the server for {now - self.last_heard:.0f} s{reason}"]
