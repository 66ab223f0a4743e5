"""admissionregistration.k8s.io/v1: webhooks and policies stay as they are on the wire, they are compared whole."""

from __future__ import annotations

from typing import Any

import msgspec

from kubeloop.api.meta import Object


class ValidatingWebhookConfiguration(Object):
    webhooks: list[dict[str, Any]] | None = None


class MutatingWebhookConfiguration(Object):
    webhooks: list[dict[str, Any]] | None = None


class ValidatingAdmissionPolicy(Object):
    spec: dict[str, Any] = msgspec.field(default_factory=dict)


class ValidatingAdmissionPolicyBinding(Object):
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
