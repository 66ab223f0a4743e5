"""Delays of failed items, in seconds: client-go's `util/workqueue/default_rate_limiters.go`."""

import math
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

from kubeloop.workqueue.queue import loop_time

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)


class RateLimiter(Protocol[K_contra]):
    """The rate limiter of a RateLimitingQueue. `when`: seconds until the item may be tried again; counts a failure.
    `forget`: it is finished, for good or by success: its failures no longer count. `num_requeues`: these failures."""

    def when(self, item: K_contra) -> float: ...
    def forget(self, item: K_contra) -> None: ...
    def num_requeues(self, item: K_contra) -> int: ...


class ItemExponentialFailureRateLimiter(Generic[K]):
    """base * 2^failures of the item, at most `max`."""

    def __init__(self, base: float = 0.005, max: float = 1000.0) -> None:
        self._base = base
        self._max = max
        self._failures: dict[K, int] = {}

    def when(self, item: K) -> float:
        failures = self._failures.get(item, 0)
        self._failures[item] = failures + 1
        return min(math.ldexp(self._base, min(failures, 100)), self._max)  # a float ends near 2^1024

    def forget(self, item: K) -> None:
        self._failures.pop(item, None)

    def num_requeues(self, item: K) -> int:
        return self._failures.get(item, 0)


class BucketRateLimiter(Generic[K]):
    """A token bucket over all items (client-go's flowcontrol): `burst` at once, then `qps` a second, a token a call."""

    def __init__(self, qps: float = 10.0, burst: int = 100) -> None:
        if qps <= 0 or burst < 1:
            raise ValueError(f"qps and burst must be positive, not {qps} and {burst}")
        self._qps = qps
        self._burst = self._tokens = float(burst)
        self._filled_at = 0.0

    def when(self, item: K) -> float:
        now = loop_time()
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._filled_at) * self._qps)
        self._filled_at = now
        # Below zero is a debt: what comes later waits for it too.
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._qps)

    def allow(self, item: K) -> bool:
        """Takes a token if there is one, and reports whether there was."""
        has_token = self.when(item) == 0
        self._tokens += 0.0 if has_token else 1.0
        return has_token

    def forget(self, item: K) -> None:
        """Tokens are not given back."""

    def num_requeues(self, item: K) -> int:
        return 0


class MaxOfRateLimiter(Generic[K]):
    """The longest wait and the highest count of several limiters; every one of them is asked every time."""

    def __init__(self, *limiters: RateLimiter[K]) -> None:
        self._limiters = limiters

    def when(self, item: K) -> float:
        return max((limiter.when(item) for limiter in self._limiters), default=0.0)

    def forget(self, item: K) -> None:
        for limiter in self._limiters:
            limiter.forget(item)

    def num_requeues(self, item: K) -> int:
        return max((limiter.num_requeues(item) for limiter in self._limiters), default=0)


def default_controller_rate_limiter() -> RateLimiter[K]:
    """Returns client-go's rate limiter: 5 ms doubled up to 1000 s an item; over all 10 a second (100 at once)."""
    return MaxOfRateLimiter(ItemExponentialFailureRateLimiter(), BucketRateLimiter())
