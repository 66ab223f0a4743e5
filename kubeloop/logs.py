"""Log lines for people or for programs, with what is being handled: its kind, its key, and a number of the call; how
often they are written, and texts of others in them.

Promises: nothing that is printed moves the cursor, changes colours or the direction of what follows."""

import contextlib
import itertools
import json
import logging
import sys
import time
from collections.abc import Callable, Hashable, Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import NamedTuple

from cachetools import TTLCache

_LONGEST = 500
"""Characters of a quotation."""


class Reconcile(NamedTuple):
    """A call of a key's handlers; `id` differs for every call of this process."""

    kind: str
    key: str
    id: int


_CURRENT: ContextVar[Reconcile | None] = ContextVar("reconcile", default=None)
_IDS = itertools.count(1)


@contextlib.contextmanager
def reconciling(kind: str, key: str) -> Iterator[None]:
    """Adds the call to all records meanwhile, those of tasks too that are started in it."""
    token = _CURRENT.set(Reconcile(kind, key, next(_IDS)))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current() -> Reconcile | None:
    """Returns the call that this task is part of: for records of another kind (traces, events)."""
    return _CURRENT.get()


def stream_handler(*, as_json: bool) -> logging.Handler:
    """Writes to stderr: one JSON object a line, with `kind`, `key` and `reconcile`, a traceback as a text in it; or
    lines for people that end with ` [kind key #number]`. Outside of handlers neither has these."""
    handler = logging.StreamHandler(sys.stderr)
    form = "%(asctime)s %(levelname)-7s %(message)s"
    handler.setFormatter(_JSONFormatter() if as_json else _TextFormatter(form, "%H:%M:%S"))
    return handler


class _TextFormatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:
        line, now = printable(super().formatMessage(record)), current()
        return line if now is None else f"{line} [{now.kind} {now.key} #{now.id}]"


class _JSONFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (now := current()) is not None:
            line |= {"kind": now.kind, "key": now.key, "reconcile": now.id}
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = repr(record.exc_info[1])
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class Once:
    """The states that were reported within the last `seconds` of a clock; the last `most` of them."""

    def __init__(self, seconds: float, *, most: int = 1000, clock: Callable[[], float] = time.monotonic) -> None:
        self._reported: TTLCache[Hashable, bool] = TTLCache(most, ttl=seconds, timer=clock)

    def is_due(self, *state: Hashable) -> bool:
        """Reports whether this state is to be reported now; from then on it counts as reported."""
        is_due = state not in self._reported
        if is_due:
            self._reported[state] = True
        return is_due


def printable(text: str) -> str:
    """The text, with an escape in place of each control and format character, line ends too."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def quoted(text: str) -> str:
    """The text in quotation marks, which it can't end, escaped and cut: as words of somebody else."""
    return repr(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…")
