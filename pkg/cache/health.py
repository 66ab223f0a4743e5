"""Signs of life of one watch, and its troubles: said once, not at every retry."""

from __future__ import annotations

import logging

from pkg.client.errors import ApiError, Gone, Unreachable

log = logging.getLogger(__name__)


class Silent(Unreachable):
    """A watch without a sign of life: a dead connection, or a kind that nothing happens to."""


# Both are part of a watch's life. If the connection is dead, the next failure says so.
_LEVELS = ((Silent, logging.DEBUG), (Gone, logging.INFO))


class Health:
    """What a reflector knows about its connection. Times are the loop's, in seconds."""

    def __init__(self, kind: str, stale_after: float) -> None:
        self._kind = kind
        self._stale_after = stale_after
        self._last_heard: float | None = None
        self._trouble: ApiError | None = None

    def started(self, now: float) -> None:
        """From here on signs of life are expected."""
        if self._last_heard is None:
            self._last_heard = now

    def heard(self, now: float) -> None:
        """The server answered, or a watch brought something."""
        self._last_heard = now

    def failed(self, err: ApiError) -> None:
        """Logs a failure when it is of another sort than the one before; the rest is for debugging."""
        before, self._trouble = self._trouble, err
        changed = before is None or (type(before), before.status) != (type(err), err.status)
        level = next((level for sort, level in _LEVELS if isinstance(err, sort)), logging.WARNING)
        log.log(level if changed else logging.DEBUG, "%s: list or watch failed: %s", self._kind, err)

    def recovered(self) -> None:
        """Everything is well again."""
        if self._trouble is not None:
            log.info("%s: in touch with the server again", self._kind)
            self._trouble = None

    def problems(self, now: float) -> list[str]:
        """One line when nothing was heard for too long."""
        if self._last_heard is None or now - self._last_heard <= self._stale_after:
            return []
        why = f" ({self._trouble})" if self._trouble is not None else ""
        return [f"{self._kind}: nothing heard from the server for {now - self._last_heard:.0f} s{why}"]
