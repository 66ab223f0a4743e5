"""Metrics of the locks."""

from __future__ import annotations

from collections.abc import Mapping

from pkg.util.metrics import METRICS
from pkg.util.quantity import Quantity

LOCK_SECONDS = METRICS["headroom_mtq_lock_seconds"].histogram(
    (0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
)
RELEASED = METRICS["headroom_mtq_quota_released_total"].counter()
WRITES = METRICS["headroom_mtq_writes_total"].counter()
LIMIT_REACHED = METRICS["headroom_mtq_lock_limit_reached_total"].counter()

_NANO = 1e-9


def released(before: Mapping[str, Quantity], after: Mapping[str, Quantity]) -> None:
    """Count what was added to a quota."""
    for name, limit in after.items():
        if name in before and limit > before[name]:
            RELEASED.labels(name).inc((limit - before[name]).nanos * _NANO)
