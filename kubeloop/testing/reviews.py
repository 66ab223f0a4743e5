"""Admission requests for tests of hooks, as the API server sends them."""

import uuid
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from kubeloop.api.meta import Object
from kubeloop.api.registry import Resource
from kubeloop.webhook.admission import API_VERSION, KIND, AdmissionRequest, decode_review

Content = Object | Mapping[str, Any]


def admission_request(
    resource: Resource[Any],
    operation: Literal["CREATE", "UPDATE", "DELETE", "CONNECT"],
    new: Content | None = None,
    old: Content | None = None,
    *,
    username: str = "alice",
    **fields: Any,
) -> AdmissionRequest:
    """A request about an object; `fields` are further ones in JSON's names (`dryRun=True`, `subResource="status"`)."""
    obj: Any = msgspec.to_builtins(new if new is not None else old) or {}
    type_meta = {"apiVersion": resource.api_version, "kind": resource.kind}
    request = {
        "uid": str(uuid.uuid4()),
        "kind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "resource": {"group": resource.group, "version": resource.version, "resource": resource.plural},
        "name": obj.get("metadata", {}).get("name", ""),
        "namespace": obj.get("metadata", {}).get("namespace", ""),
        "operation": operation,
        "userInfo": {"username": username, "groups": ["system:authenticated"]},
        "object": None if new is None else type_meta | msgspec.to_builtins(new),
        "oldObject": None if old is None else type_meta | msgspec.to_builtins(old),
        **fields,
    }
    body = msgspec.json.encode({"apiVersion": API_VERSION, "kind": KIND, "request": request})
    return decode_review(body)
