"""Reconcile metrics under controller-runtime's names. `controller` is the name of a handler."""

from __future__ import annotations

from kubeloop.metrics import FRAMEWORK

RESULTS = SUCCESS, ERROR, REQUEUE, REQUEUE_AFTER = ("success", "error", "requeue", "requeue_after")
"""The values of the label `result`."""


# controller-runtime's buckets, seconds.
_BUCKETS = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0),
    *(1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0, 25.0, 30.0),
    *(40.0, 50.0, 60.0),
)

RECONCILE_TOTAL = FRAMEWORK["controller_runtime_reconcile_total"].counter()
RECONCILE_ERRORS = FRAMEWORK["controller_runtime_reconcile_errors_total"].counter()
RECONCILE_TIME = FRAMEWORK["controller_runtime_reconcile_time_seconds"].histogram(_BUCKETS)
BLOCKED_SECONDS = FRAMEWORK["event_loop_blocked_seconds_total"].counter()
ACTIVE_WORKERS = FRAMEWORK["controller_runtime_active_workers"].gauge()
MAX_CONCURRENT_RECONCILES = FRAMEWORK["controller_runtime_max_concurrent_reconciles"].gauge()


class ReconcileMetrics:
    """The metrics of one handler; every series exists from the start, as dashboards expect."""

    def __init__(self, handler: str, workers: int) -> None:
        self._totals = {result: RECONCILE_TOTAL.labels(handler, result) for result in RESULTS}
        self._errors = RECONCILE_ERRORS.labels(handler)
        self._time = RECONCILE_TIME.labels(handler)
        self.active = ACTIVE_WORKERS.labels(handler)
        self.blocked = BLOCKED_SECONDS.labels(handler)
        MAX_CONCURRENT_RECONCILES.labels(handler).set(workers)

    def observe(self, result: str, seconds: float) -> None:
        """One call of the handler ended."""
        self._totals[result].inc()
        self._time.observe(seconds)
        if result == ERROR:
            self._errors.inc()
