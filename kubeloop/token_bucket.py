"""The token bucket that limits the requests of a client and the retries of a queue (client-go's flowcontrol)."""

from __future__ import annotations


class Tokens:
    """`burst` at once, then `qps` a second, by a clock of the caller's, in seconds."""

    def __init__(self, qps: float, burst: int) -> None:
        self._qps = qps
        self._burst = float(burst)
        self._tokens = self._burst
        self._filled_at = 0.0

    def take(self, now: float) -> float:
        """Seconds until the token that is taken with this call may be used."""
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._filled_at) * self._qps)
        self._filled_at = now
        # Below zero is a debt: what comes later waits for it too.
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._qps)

    def give_back(self) -> None:
        """The token that was taken last was not used."""
        self._tokens += 1.0
