"""admissionregistration.k8s.io/v1: webhooks stay as they are on the wire, they are compared and replaced whole."""

from __future__ import annotations

from typing import Any

from pkg.api.meta import Object


class ValidatingWebhookConfiguration(Object):
    """admissionregistration.k8s.io/v1 ValidatingWebhookConfiguration."""

    webhooks: list[dict[str, Any]] | None = None


class MutatingWebhookConfiguration(Object):
    """admissionregistration.k8s.io/v1 MutatingWebhookConfiguration."""

    webhooks: list[dict[str, Any]] | None = None
