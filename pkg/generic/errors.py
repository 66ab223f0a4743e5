"""How a handler says what is to become of its key, and what can go wrong at start."""

from __future__ import annotations


class Skip(Exception):
    """Nothing more to do for this key now, although the handler did not get to its end (lasso's ErrSkip)."""


class RetryAfter(Exception):
    """Call the handler with this key again in `seconds`; this is not a failure."""

    def __init__(self, seconds: float, reason: str = "") -> None:
        super().__init__(reason or f"again in {seconds:g} s")
        self.seconds = seconds


class BindError(Exception):
    """An address that cannot be listened on; the text is one line for the person who chose it."""


def one_line(error: BaseException) -> str:
    """`Class: message` for a log line, whatever the message holds or its `__str__` does."""
    try:
        text = " ".join(str(error).split())
    except Exception:
        text = "(its text cannot be had)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
