"""rest_client_* metrics, under the names and labels of client-go's `tools/metrics`: dashboards know them."""

from __future__ import annotations

from kubeloop.metrics import FRAMEWORK

_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
ERROR_CODE = "<error>"
"""The code label of a request that got no answer, as in client-go."""

REQUESTS = FRAMEWORK["rest_client_requests_total"].counter()
DURATION = FRAMEWORK["rest_client_request_duration_seconds"].histogram(_BUCKETS)
UNDECODABLE_OBJECTS = FRAMEWORK["rest_client_undecodable_objects_total"].counter()


def observe(method: str, host: str, code: int, seconds: float) -> None:
    """One request sent, or the headers of a watch that came; `code` 0: no answer."""
    REQUESTS.labels(str(code) if code else ERROR_CODE, method, host).inc()
    DURATION.labels(method, host).observe(seconds)
