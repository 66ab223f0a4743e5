"""Admission requests for tests of hooks, as the API server sends them."""

import uuid
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from kubeloop.api.meta import Object
from kubeloop.api.objects import plain_mapping
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
    type_meta = {"apiVersion": resource.api_version, "kind": resource.kind}
    objects = [
        obj if obj is None else type_meta | msgspec.to_builtins(obj, enc_hook=plain_mapping) for obj in (new, old)
    ]
    metadata = (objects[0] or objects[1] or {}).get("metadata", {})
    request = {
        "uid": str(uuid.uuid4()),
        "kind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "resource": {"group": resource.group, "version": resource.version, "resource": resource.plural},
        "name": metadata.get("name", ""),
        "namespace": metadata.get("namespace", ""),
        "operation": operation,
        "userInfo": {"username": username, "groups": ["system:authenticated"]},
        "object": objects[0],
        "oldObject": objects[1],
        **fields,
    }
    body = msgspec.json.encode({"apiVersion": API_VERSION, "kind": KIND, "request": request})
    return decode_review(body)
