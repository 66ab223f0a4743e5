"""What the API server refused, and when it is worth asking again."""

from __future__ import annotations

from dataclasses import dataclass

from pkg.client.errors import ApiError, Forbidden
from pkg.workqueue.rate_limiters import ItemExponentialFailureRateLimiter

QUOTA_EXCEEDED = "exceeded quota"
"""What quota admission says; KubeVirt looks for these words, the status does not tell quota from other refusals."""

_QUICK = (0.05, 0.2, 0.8)
"""Seconds. An event of a quota may be ahead of the admission plugin's own cache by a moment."""
_OTHER_FIRST, _OTHER_MAX = 0.1, 30.0


def is_quota_refusal(error: ApiError) -> bool:
    """Whether quota, and nothing else, said no."""
    return isinstance(error, Forbidden) and QUOTA_EXCEEDED in error.message


@dataclass(frozen=True, slots=True)
class Refusal:
    """A pod that was not created. `not_before` is a loop time; `generation` counts the namespace's quota events."""

    message: str
    by_quota: bool
    generation: int
    not_before: float
    quick: int = 0


class Refusals:
    """The last refusal of each key, and its backoff: `first` seconds doubled up to `maximum`.

    A change of the namespace's quotas makes a key due at once. Memory only: after a restart everything is tried again.
    """

    def __init__(self, first: float = 5.0, maximum: float = 300.0) -> None:
        self._quota: ItemExponentialFailureRateLimiter[str] = ItemExponentialFailureRateLimiter(
            first, maximum
        )
        self._other: ItemExponentialFailureRateLimiter[str] = ItemExponentialFailureRateLimiter(
            _OTHER_FIRST, _OTHER_MAX
        )
        self._last: dict[str, Refusal] = {}
        self._generations: dict[str, int] = {}

    def quota_changed(self, namespace: str) -> list[str]:
        """Note a change of a quota; the keys that are due by it."""
        self._generations[namespace] = self.generation(namespace) + 1
        prefix = f"{namespace}/"
        return [key for key in self._last if key.startswith(prefix)]

    def generation(self, namespace: str) -> int:
        """Changes of quotas in the namespace so far."""
        return self._generations.get(namespace, 0)

    def last(self, key: str) -> Refusal | None:
        """The key's last refusal, None when there was none since it was forgotten."""
        return self._last.get(key)

    def wait(self, key: str, now: float) -> float:
        """Seconds until the key may be tried again, 0 when it may now."""
        last = self._last.get(key)
        if last is None or (last.by_quota and last.generation != self._generation_of(key)):
            return 0.0
        return max(0.0, last.not_before - now)

    def refused(self, key: str, error: ApiError, *, generation: int, now: float) -> float:
        """Note a refusal; seconds until the next try. `generation` is the one before the request was sent."""
        by_quota = is_quota_refusal(error)
        quick = self._quick(key, generation) if by_quota else len(_QUICK)
        slow = self._quota if by_quota else self._other
        delay = _QUICK[quick] if quick < len(_QUICK) else slow.when(key)
        self._last[key] = Refusal(error.message, by_quota, generation, now + delay, quick)
        return delay

    def forget(self, key: str) -> None:
        """The key got what it wanted, or is gone."""
        self._last.pop(key, None)
        self._quota.forget(key)
        self._other.forget(key)

    def _quick(self, key: str, generation: int) -> int:
        """Which of the quick tries this was: they begin with the first refusal after a quota changed."""
        last = self._last.get(key)
        if last is None or not last.by_quota:
            return len(_QUICK)
        return 0 if last.generation != generation else min(last.quick + 1, len(_QUICK))

    def _generation_of(self, key: str) -> int:
        return self.generation(key.partition("/")[0])
