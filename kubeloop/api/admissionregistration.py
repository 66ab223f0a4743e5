"""admissionregistration.k8s.io/v1: webhooks and policies stay as they are on the wire, they are compared whole."""

from __future__ import annotations

from typing import Any

import msgspec

from kubeloop.api.meta import Object, ObjectMeta, Struct


class ManagedFieldsEntry(Struct):
    """metav1.ManagedFieldsEntry: which program (the first part of its User-Agent) last wrote which fields."""

    manager: str = ""
    fields_v1: dict[str, Any] | None = msgspec.field(default=None, name="fieldsV1")


class ManagedObjectMeta(ObjectMeta):
    """metav1.ObjectMeta with who wrote what."""

    managed_fields: list[ManagedFieldsEntry] | None = None

    def wrote_annotation(self, manager: str, key: str) -> bool:
        """Whether the annotation's value was last written by a program of that name."""
        return any(
            entry.manager == manager
            and f"f:{key}" in entry_at(entry.fields_v1, "f:metadata", "f:annotations")
            for entry in self.managed_fields or ()
        )


def entry_at(fields: Any, *path: str) -> dict[str, Any]:
    """A node of a fieldsV1 tree, empty where there is none."""
    for key in path:
        fields = fields.get(key) if isinstance(fields, dict) else None
    return fields if isinstance(fields, dict) else {}


class ValidatingWebhookConfiguration(Object):
    """admissionregistration.k8s.io/v1 ValidatingWebhookConfiguration."""

    metadata: ManagedObjectMeta = ManagedObjectMeta()
    webhooks: list[dict[str, Any]] | None = None


class MutatingWebhookConfiguration(Object):
    """admissionregistration.k8s.io/v1 MutatingWebhookConfiguration."""

    webhooks: list[dict[str, Any]] | None = None


class ValidatingAdmissionPolicy(Object):
    """admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy."""

    spec: dict[str, Any] = msgspec.field(default_factory=dict)


class ValidatingAdmissionPolicyBinding(Object):
    """admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding."""

    spec: dict[str, Any] = msgspec.field(default_factory=dict)
