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
