"""Metrics of the locks."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import Counter, Gauge, Histogram

from pkg.util.quantity import Quantity

LOCKS_HELD = Gauge("headroom_mtq_locks_held", "Namespaces that are locked now.")
LOCK_AGE = Gauge("headroom_mtq_oldest_lock_seconds", "Age of the oldest lock, 0 without one.")
LOCK_SECONDS = Histogram(
    "headroom_mtq_lock_seconds",
    "How long namespaces were locked.",
    buckets=(0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0),
)
RELEASED = Counter(
    "headroom_mtq_quota_released_total",
    "Amount added to quotas during locks: cores, bytes or counts.",
    ["resource"],
)
WRITES = Counter("headroom_mtq_writes_total", "Writes of the sequence.", ["step"])
LIMIT_REACHED = Counter("headroom_mtq_lock_limit_reached_total", "Locks that were ended by their limit.")

_NANO = 1e-9


def released(before: Mapping[str, Quantity], after: Mapping[str, Quantity]) -> None:
    """Count what was added to a quota."""
    for name, limit in after.items():
        if name in before and limit > before[name]:
            RELEASED.labels(name).inc((limit - before[name]).nanos * _NANO)
