"""How long things are as they are, by the loop's clock."""

from __future__ import annotations

from kubeloop.workqueue.queue import loop_time


class Ages:
    """Forgotten at a restart: only the pace depends on it."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[object, float]] = {}

    def of(self, key: str, state: object = None, *, already: float = 0.0) -> float:
        """Seconds since the key was first asked about in this state, and `already` so many before."""
        now = loop_time()
        if key not in self._since or self._since[key][0] != state:
            self._since[key] = (state, now - already)
        return now - self._since[key][1]

    def forget(self, key: str) -> None:
        self._since.pop(key, None)
