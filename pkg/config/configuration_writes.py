"""Logs and counts what is written of webhook configurations: an account that may create one sees and changes what the
API server admits, and Kubernetes asks no admission policy about them."""

from __future__ import annotations

import logging
from typing import Any

from kubeloop.api.registry import Resource
from pkg.config.metrics import METRICS

log = logging.getLogger(__name__)
WRITES = METRICS["headroom_webhook_configuration_writes_total"].counter()


def written(resource: Resource[Any], name: str, operation: str) -> None:
    """Records one write that has succeeded: `created`, `updated` or `removed`."""
    WRITES.labels(resource.kind, operation).inc()
    log.info("%s %s %s", resource.kind, name, operation)
