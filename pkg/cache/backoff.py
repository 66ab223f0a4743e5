"""Jittered exponential backoff between failed lists and watches."""

from __future__ import annotations

import random


class Backoff:
    """Delays double from `base`, each drawn from [d, 2d] so that clients of a restarted server spread out.

    No delay is longer than `maximum` (client-go's last step is jittered beyond its 30 s; here it is not).
    """

    def __init__(self, base: float, maximum: float, rand: random.Random | None = None) -> None:
        self._base = base
        self._maximum = maximum
        self._rand = rand or random.Random()
        self._step = 0.0

    @property
    def calm(self) -> bool:
        """Whether nothing failed since the last reset."""
        return not self._step

    def next(self) -> float:
        """Seconds to wait after one more failure."""
        self._step = min(self._step * 2 if self._step else self._base, self._maximum / 2)
        return self._step * (1 + self._rand.random())

    def reset(self) -> None:
        """The other side was healthy for a while: start from `base` again."""
        self._step = 0.0
