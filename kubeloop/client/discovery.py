"""Discovery reads the kinds that the server knows, the only proof that one is not installed, and their schemas."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from kubeloop.api.meta import Object, Struct
from kubeloop.api.registry import Resource
from kubeloop.client.errors import STATUS_404, NotInstalled, ServerError
from kubeloop.client.lenient import UNDECODABLE, decode
from kubeloop.client.transport import Transport


class _ApiResource(Struct):
    name: str
    kind: str = ""
    namespaced: bool = False


class _ApiResourceList(Struct):
    kind: str
    group_version: str
    resources: list[_ApiResource] | None


class _ApiGroup(Struct):
    name: str
    versions: list[dict[str, str]]


class _ApiGroupList(Struct):
    kind: str
    groups: list[_ApiGroup]


L = TypeVar("L", _ApiResourceList, _ApiGroupList)
_RESOURCES = msgspec.json.Decoder(_ApiResourceList)
_GROUPS = msgspec.json.Decoder(_ApiGroupList)


async def resource_of(transport: Transport, api_version: str, kind: str) -> Resource[Object]:
    """The Resource of a kind that is known by its name alone, as in a manifest (Go's RESTMapper). Raises NotInstalled
    where the server does not know it, ApiError as `served_names`."""
    listed = {resource.name: resource for resource in await _list_resources(transport, api_version) or ()}
    matches = [resource for name, resource in listed.items() if resource.kind == kind and "/" not in name]
    if not matches:
        raise NotInstalled(f"the server has no kind {kind} of {api_version}: install its CustomResourceDefinition")
    group, _, version = api_version.rpartition("/")
    name, namespaced = matches[0].name, matches[0].namespaced
    return Resource(group, version, name, kind, Object, namespaced, f"{name}/status" in listed)


async def served_names(transport: Transport, api_version: str) -> set[str] | None:
    """Returns the names in a version's APIResourceList, as `pods` and `pods/status`: none where an APIGroupList says
    that the version is not served, None where it is and its list is not. Raises ApiError for everything else: a 404
    may be that of a proxy, or of a server that is starting."""
    listed = await _list_resources(transport, api_version)
    return None if listed is None else {api_resource.name for api_resource in listed}


async def _list_resources(transport: Transport, api_version: str) -> list[_ApiResource] | None:
    prefix = "/apis" if "/" in api_version else "/api"
    try:
        body = await transport.request("GET", f"{prefix}/{api_version}", retry=False)
    except STATUS_404:
        if "/" not in api_version:
            raise  # every server serves v1
        groups = _well_formed(_GROUPS, await transport.request("GET", "/apis", retry=False), "APIGroupList")
        served = {version.get("groupVersion") for group in groups.groups for version in group.versions}
        return None if api_version in served else []
    listed = _well_formed(_RESOURCES, body, "APIResourceList")
    if listed.group_version != api_version:
        raise ServerError(f"discovery answers for {listed.group_version}, not {api_version}")
    return listed.resources or []


def _well_formed(decoder: msgspec.json.Decoder[L], body: bytes, kind: str) -> L:
    try:
        listed = decode(decoder, body)
    except UNDECODABLE as err:
        raise ServerError(f"discovery: the answer is not an {kind}: {err}") from err
    if listed.kind != kind:
        raise ServerError(f"discovery: the answer is a {listed.kind}, not an {kind}")
    return listed


Schema = Mapping[str, Any]
Definitions = Mapping[str, Schema]
"""Schemas by the name that references have."""


async def served_schema(transport: Transport, api_version: str, kind: str) -> tuple[Schema, Definitions]:
    """The schema of a kind, and what its references name. Raises ApiError, KeyError where the server has none."""
    group, _, version = api_version.rpartition("/")
    answer = await transport.request("GET", f"/openapi/v3/{'apis' if group else 'api'}/{api_version}")
    definitions: Definitions = msgspec.json.decode(answer)["components"]["schemas"]
    kind_id = {"group": group, "version": version, "kind": kind}
    for schema in definitions.values():
        if kind_id in schema.get("x-kubernetes-group-version-kind", ()):
            return schema, definitions
    raise KeyError(f"{kind} is not among the schemas of {api_version}: is its CustomResourceDefinition installed?")


def reference(schema: Schema) -> str:
    """The name of what the schema refers to, or ""; `allOf: [{$ref: …}]` is written to add a default or a text."""
    parts = schema.get("allOf", ())
    ref: str = schema.get("$ref") or (parts[0].get("$ref", "") if len(parts) == 1 else "")
    return ref.rpartition("/")[2]


def resolved(schema: Schema, definitions: Definitions) -> Schema:
    while name := reference(schema):
        schema = definitions[name]
    return schema
