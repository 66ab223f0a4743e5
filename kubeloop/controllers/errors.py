"""The exceptions by which a handler decides about its key, and those of a start."""

from kubeloop.errors import ReportedError, one_line

_CACHE_RETRY = 5.0
"""Seconds after which a handler is called again that needs a cache which cannot tell it the truth."""


class Skip(Exception):
    """Nothing more to do for this key now (lasso's ErrSkip)."""


class TerminalError(Exception):
    """An error that no retry repairs (controller-runtime's TerminalError): the handler waits for the next change."""


class RetryAfter(Exception):
    """Call the handler with this key again in `seconds`; this is not a failure."""

    def __init__(self, seconds: float, reason: str = "") -> None:
        super().__init__(reason or f"again in {seconds:g} s")
        self.seconds = seconds


class CacheForbidden(RetryAfter):
    """The cache that a handler reads could never be filled: the rights are missing. What it would show is not true."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(_CACHE_RETRY, f"the cache of {kind} is empty: {reason}")


class CacheIncomplete(RetryAfter):
    """An index that a handler reads has holes: what it would list may lack objects."""

    def __init__(self, reason: str) -> None:
        super().__init__(_CACHE_RETRY, reason)


class BindError(ReportedError):
    """An address that cannot be listened on; the text is one line for the person who chose it."""

    exit_code = 2


def described(error: BaseException) -> str:
    """Returns `Class: message` in one line for a log, even if `__str__` fails."""
    try:
        text = one_line(error)
    except Exception:
        text = "(no text)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
