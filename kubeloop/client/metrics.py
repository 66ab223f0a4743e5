"""rest_client_* metrics, under the names and labels of client-go's `tools/metrics`: dashboards know them."""

from __future__ import annotations

import functools

from prometheus_client import REGISTRY, CollectorRegistry

from kubeloop.metrics import FRAMEWORK

_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
ERROR_CODE = "<error>"
"""The code label of a request that got no answer, as in client-go."""

UNDECODABLE_OBJECTS = FRAMEWORK["rest_client_undecodable_objects_total"].counter()


class RestClientMetrics:
    """Counts and times requests; a watch is timed until its headers come."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._requests = FRAMEWORK["rest_client_requests_total"].counter(registry)
        self._duration = FRAMEWORK["rest_client_request_duration_seconds"].histogram(_BUCKETS, registry)

    def observe(self, method: str, host: str, code: int, seconds: float) -> None:
        """One request sent; `code` 0: no answer."""
        self._requests.labels(str(code) if code else ERROR_CODE, method, host).inc()
        self._duration.labels(method, host).observe(seconds)


@functools.cache
def default_metrics() -> RestClientMetrics:
    """The process' own, in prometheus-client's default registry, made when first needed."""
    return RestClientMetrics()
