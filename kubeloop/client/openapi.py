"""The schemas that a server publishes (`/openapi/v3`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kubeloop.client.transport import Transport

Schema = Mapping[str, Any]
Definitions = Mapping[str, Schema]
"""Schemas by the name that references have."""


async def served_schema(transport: Transport, api_version: str, kind: str) -> tuple[Schema, Definitions]:
    """The schema of a kind, and what its references name. Raises ApiError, KeyError where the server has none."""
    group, _, version = api_version.rpartition("/")
    answer = await transport.request("GET", f"/openapi/v3/{'apis' if group else 'api'}/{api_version}")
    definitions: Definitions = msgspec.json.decode(answer)["components"]["schemas"]
    wanted = {"group": group, "version": version, "kind": kind}
    for schema in definitions.values():
        if wanted in schema.get("x-kubernetes-group-version-kind", ()):
            return schema, definitions
    raise KeyError(f"{kind} is not among the schemas of {api_version}")


def reference(schema: Schema) -> str:
    """The name of what the schema refers to, "" for one that does not; a server writes `allOf: [{$ref: …}]` where it
    adds a default or a text."""
    parts = schema.get("allOf", ())
    found: str = schema.get("$ref") or (parts[0].get("$ref", "") if len(parts) == 1 else "")
    return found.rpartition("/")[2]


def resolved(schema: Schema, definitions: Definitions) -> Schema:
    """Behind references."""
    while name := reference(schema):
        schema = definitions[name]
    return schema
