"""The times a reflector lives by. Seconds, all of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReflectorOptions:
    """Defaults for a kube-apiserver; tests shorten them."""

    min_watch_timeout: float = 300.0
    """A watch asks the server to end it after this to twice this, at random (client-go's minWatchTimeout)."""
    watch_grace: float = 30.0
    """How much longer than it asked for a watch may last before this side ends it."""
    silence_limit: float = 120.0
    """Nothing heard on a watch for so long, not even a bookmark (they come every minute): the connection counts
    as dead and the watch is opened anew where it stopped. A kind without any change since the API server started
    gets no bookmarks at all; for it the new watch is the sign of life."""
    initial_silence_limit: float = 15.0
    """The same while a WatchList sends its initial events: a server from before 1.27 never says that they ended."""
    stale_after: float = 270.0
    """No sign of life for so long, retries included: the watch is a problem to report."""
    backoff_base: float = 0.8
    backoff_max: float = 30.0
    healthy_after: float = 10.0
    """A watch that lasted so long ends the backoff: the next failure is retried at once."""
    missing_poll: float = 5.0
    """How often a kind whose CRD is missing is looked for."""
