"""The API server's side of a fake cluster: paths, discovery, and the rules for writes."""

import asyncio
import contextlib
import copy
import inspect
import random
import uuid
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import msgspec

from kubeloop.api.bodies import unknown_names
from kubeloop.api.meta import rfc3339
from kubeloop.api.objects import type_info
from kubeloop.api.registry import SECRETS, Resource
from kubeloop.client import errors
from kubeloop.client.client import Client
from kubeloop.client.config import ClientConfig
from kubeloop.client.decode import decoder_for
from kubeloop.client.transport import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, R, Transport
from kubeloop.testing.fake import metadata as rules
from kubeloop.testing.fake.objects import Answer, Objects, Request, key_of, raw_key, spec_of
from kubeloop.testing.fake.patches import Matches, Raw, applied, field_selector, json_patched, label_selector, merged

_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
_LONGEST_PREFIX = 58
"""Characters of a generateName: with five letters the name is no longer than a label."""
_REVIEWS = ("authorization.k8s.io", "authentication.k8s.io")
"""Groups of kinds whose objects are questions: a create is answered, and nothing is kept."""
_DELETION = ("deletionTimestamp", "deletionGracePeriodSeconds")
_KEPT = ("name", "namespace", "uid", "creationTimestamp", "generation", *_DELETION)


class FakeCluster(Objects):
    """The fake API server, described in its package."""

    def client(self, *, strict: bool = False) -> Client:
        """A client of this cluster, as programs get one. `strict`: a write with a field that the kind's struct does not
        declare is refused (fieldValidation=Strict), but of kubeloop's own structs, which are declared in part."""
        return Client(FakeTransport(self, strict=strict))


class FakeTransport(Transport):
    """The API server's side of a Transport: requests are answered out of a FakeCluster, by the API server's rules."""

    checked_caches = True

    def __init__(self, cluster: Objects, *, strict: bool = False) -> None:
        super().__init__(ClientConfig("http://fake.invalid"))
        self._cluster = cluster
        self._refuses_unknown = strict

    def separate(self) -> Transport:
        """Returns itself: here no request holds up another one."""
        return self

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        **_: Any,
    ) -> bytes:
        """Answers a request as Transport does, without retries."""
        await asyncio.sleep(0)
        if (answer := self._discovery(path)) is not None:
            return msgspec.json.encode(answer)
        resource, namespace, name, subresource = self._parsed(path)
        sent: Any = msgspec.json.decode(body) if body else None
        verb = {"GET": "get" if name else "list", "POST": "create", "PUT": "update"}.get(method, method.lower())
        options = dict(params or {})
        key = key_of(namespace, name) if name else namespace
        request = Request(verb, resource.plural, key, subresource, options if verb == "list" else sent)
        if (reaction := await self._react(request)) is not None:
            return msgspec.json.encode(reaction)
        subresources = {"status": resource.status_subresource, "eviction": resource.path() == "/api/v1/pods"}
        if subresource and not subresources.get(subresource):
            raise errors.NotFound("the server could not find the requested resource")
        if verb == "list":
            matches = _selector_of(resource, namespace, options)
            return msgspec.json.encode(self._cluster.page(resource, matches, options))
        with self._cluster.dry_run("dryRun" in (sent if verb == "delete" and sent else options)):
            if self._refuses_unknown and isinstance(sent, dict) and verb != "delete" and subresource in ("", "status"):
                _check_names(resource, sent)
            if content_type == APPLY_PATCH:
                return msgspec.json.encode(self._apply(resource, namespace, name, subresource, sent, options))
            if verb == "create" and not subresource:
                return msgspec.json.encode(self._create(resource, namespace, sent))
            current = self._cluster.existing(resource, namespace, name)
            if subresource == "eviction":
                current = self._delete(resource, current, sent.get("deleteOptions") or {})
            elif verb == "delete":
                current = self._delete(resource, current, sent or {})
            elif verb != "get":
                changed = sent if verb == "update" else _patched(current, sent, content_type)
                current = self._write(resource, current, changed, subresource)
            return msgspec.json.encode(current)

    async def read_answer(
        self, read: Callable[[AsyncIterator[bytes]], Awaitable[R]], method: str, path: str, **options: Any
    ) -> R:
        async def body() -> AsyncIterator[bytes]:
            yield await self.request(method, path, **options)

        return await read(body())

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, str] | None = None, read_timeout: float = 0.0, accept: str = ""
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        await asyncio.sleep(0)
        resource, namespace, _, _ = self._parsed(path)
        await self._react(Request("watch", resource.plural, namespace, "", dict(params or {})))
        events = self._cluster.events(resource, _selector_of(resource, namespace, params or {}), params or {})

        async def lines() -> AsyncGenerator[bytes, None]:
            async for event in events:
                yield msgspec.json.encode(event)

        sent = lines()
        try:
            yield sent
        finally:
            await sent.aclose()
            await events.aclose()

    async def _react(self, request: Request) -> Answer:
        self._cluster.requests.append(request)
        for reactor in list(self._cluster.reactors):
            answer = reactor(request)
            if inspect.isawaitable(answer):
                answer = await answer
            if answer is not None:
                return answer
        return None

    def _parsed(self, path: str) -> tuple[Resource[Any], str, str, str]:
        """Returns resource, namespace, name and subresource of a path."""
        prefix, *parts = path.strip("/").split("/")
        group = "" if prefix == "api" else parts.pop(0)
        version = parts.pop(0)
        namespace = ""
        if parts[0] == "namespaces" and len(parts) > 2 and parts[2] not in ("status", "finalize"):
            namespace, parts = parts[1], parts[2:]
        plural, name, subresource = [*parts, "", ""][:3]
        return self._cluster.find(group, version, plural), namespace, name, subresource

    def _discovery(self, path: str) -> Raw | None:
        prefix, _, version = path.strip("/").partition("/")
        if path == "/apis":
            groups: dict[str, set[str]] = {}
            for resource in self._cluster.resources:
                if resource.group:
                    groups.setdefault(resource.group, set()).add(resource.api_version)
            listed = [
                {"name": group, "versions": [{"groupVersion": v, "version": v.split("/")[1]} for v in sorted(versions)]}
                for group, versions in groups.items()
            ]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
        if version.count("/") != (prefix == "apis"):
            return None
        kinds = [
            {"name": name, "kind": r.kind, "namespaced": r.namespaced, "verbs": []}
            for r in self._cluster.resources
            if r.api_version == version
            for name in (r.plural, *[f"{r.plural}/status"] * bool(r.status_subresource))
        ]
        if not kinds:
            raise errors.NotServed("404 page not found")
        return {"kind": "APIResourceList", "groupVersion": version, "resources": kinds}

    def _create(self, resource: Resource[Any], namespace: str, body: Raw) -> Raw:
        if resource.namespaced and not namespace:
            message = "the server does not allow this method on the requested resource"
            raise errors.ApiError(message, status=405, reason="MethodNotAllowed")
        if resource.group and "kind" not in body:
            message = f"the object provided is unrecognized (must be of type {resource.kind}): Object 'Kind' is missing"
            raise errors.BadRequest(message)
        raw = copy.deepcopy(body)
        metadata = raw.setdefault("metadata", {})
        if resource.group in _REVIEWS and resource.kind.endswith("Review"):
            return {"apiVersion": resource.api_version, "kind": resource.kind, **raw}  # an answer, which nothing keeps
        if metadata.get("resourceVersion"):
            raise errors.ServerError("resourceVersion should not be set on objects to be created")
        rules.check_namespace(metadata, namespace)
        if namespace:
            metadata["namespace"] = namespace
        name = metadata.get("name") or ""
        if not name and metadata.get("generateName"):
            name = metadata["generateName"][:_LONGEST_PREFIX] + "".join(random.choices(_LETTERS, k=5))
        rules.check_name(resource, name)
        rules.check_metadata(resource, metadata, {})
        _check_types(resource, raw, errors.BadRequest)
        if key_of(namespace, name) in self._cluster.raw(resource):
            raise errors.AlreadyExists(f'{resource.group_resource} "{name}" already exists')
        for field in _DELETION:
            metadata.pop(field, None)
        metadata |= {"name": name, "uid": str(uuid.uuid4()), "creationTimestamp": rfc3339(self._cluster.clock())}
        if resource.group:
            metadata["generation"] = 1
        if resource.status_subresource:
            raw.pop("status", None)
        return self._cluster.store(resource, key_of(namespace, name), None, raw)

    def _write(self, resource: Resource[Any], current: Raw, changed: Raw, subresource: str) -> Raw:
        """Writes an update or patch; one that changes nothing leaves the object as it is."""
        metadata, was = changed.setdefault("metadata", {}), current["metadata"]
        rules.check_identity(resource, metadata, was)
        rules.check_metadata(resource, metadata, was)
        _check_types(resource, changed, errors.Invalid)
        if resource.status_subresource is None and changed.get("status") != current.get("status"):
            raise ValueError(f"say status_subresource of {resource.kind}: the fake cannot know whether it has one")
        new = copy.deepcopy(current if subresource else changed)
        if subresource or resource.status_subresource:
            source = changed if subresource else current
            new.pop("status", None)
            if "status" in source:
                new["status"] = copy.deepcopy(source["status"])
        for name in (*_KEPT, "resourceVersion"):
            new["metadata"].pop(name, None)
            if name in was:
                new["metadata"][name] = was[name]
        new |= {"apiVersion": resource.api_version, "kind": resource.kind}
        if _without_empty(new) == _without_empty(current):
            return current
        if resource.group and spec_of(new, resource) != spec_of(current, resource):
            new["metadata"]["generation"] = was.get("generation", 0) + 1
        key = raw_key(current)
        if new["metadata"].get("deletionTimestamp") and not new["metadata"].get("finalizers"):
            self._cluster.store(resource, key, new, None)
            return new
        return self._cluster.store(resource, key, current, new)

    def _apply(
        self, resource: Resource[Any], namespace: str, name: str, subresource: str, body: Raw, options: dict[str, str]
    ) -> Raw:
        current = self._cluster.raw(resource).get(key_of(namespace, name))
        managers = self._cluster.managers.get(current["metadata"]["uid"], {}) if current else {}
        force = options.get("force") == "true"
        changed, managers = applied(current or {}, body, options["fieldManager"], managers, force=force)
        changed.setdefault("metadata", {})["name"] = name
        if current is None:
            changed |= {"apiVersion": resource.api_version, "kind": resource.kind}
            written = self._create(resource, namespace, changed)
        else:
            version = body["metadata"].get("resourceVersion")
            changed["metadata"] |= {"resourceVersion": version} if version else {}
            written = self._write(resource, current, changed, subresource)
        if "dryRun" not in options:
            self._cluster.managers[written["metadata"]["uid"]] = managers
        return written

    def _delete(self, resource: Resource[Any], current: Raw, options: Raw) -> Raw:
        metadata = current["metadata"]
        for field, name in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
            value, now = (options.get("preconditions") or {}).get(field), metadata[field]
            if value not in (None, now):
                reason = f"Precondition failed: {name} in precondition: {value}, {name} in object meta: {now}"
                raise rules.conflict(resource, metadata["name"], reason)
        key = raw_key(current)
        if not metadata.get("finalizers"):
            self._cluster.store(resource, key, current, None)
            return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        if metadata.get("deletionTimestamp"):
            return current
        marked = copy.deepcopy(current)
        marked["metadata"] |= {"deletionTimestamp": rfc3339(self._cluster.clock()), "deletionGracePeriodSeconds": 0}
        return self._cluster.store(resource, key, current, marked)


def _patched(current: Raw, sent: Any, content_type: str) -> Raw:
    if content_type == MERGE_PATCH:
        result: Raw = merged(current, sent)
        return result
    if content_type == JSON_PATCH:
        return json_patched(current, sent)
    raise errors.ApiError(f"{content_type} is not supported by the fake", status=415, reason="UnsupportedMediaType")


def _check_names(resource: Resource[Any], body: Raw) -> None:
    unknown = [f'unknown field "{name.path}"' for name in unknown_names(type_info(resource.type), body)]
    if unknown and not resource.type.__module__.startswith("kubeloop.api."):
        raise errors.BadRequest(f"strict decoding error: {', '.join(unknown)}")


def _check_types(resource: Resource[Any], raw: Raw, refusal: type[errors.ApiError]) -> None:
    """Raises `refusal` for a value that the struct cannot hold; writes a Secret's stringData into its data."""
    try:
        if resource.path() == SECRETS.path():
            texts = {key: b64encode(t.encode()).decode() for key, t in (raw.pop("stringData", None) or {}).items()}
            if texts:
                raw["data"] = (raw.get("data") or {}) | texts
            for value in (raw.get("data") or {}).values():
                b64decode(str(value), validate=True)
        decoder_for(resource.type).object(msgspec.json.encode(raw))
    except (errors.ServerError, ValueError) as error:
        kind, version = resource.kind, resource.version
        raise refusal(f'{kind} in version "{version}" cannot be handled as a {kind}: {error}') from error


def _selector_of(resource: Resource[Any], namespace: str, params: Mapping[str, str]) -> Matches:
    labels = label_selector(params.get("labelSelector", ""))
    fields = field_selector(params.get("fieldSelector", ""), resource.plural)

    def matches(raw: Raw) -> bool:
        return namespace in ("", raw["metadata"].get("namespace")) and labels(raw) and fields(raw)

    return matches


def _without_empty(value: Any) -> Any:
    """Removes empty maps and lists of metadata, as the API server does."""
    metadata = {name: part for name, part in value["metadata"].items() if part not in ({}, [], None)}
    return {**value, "metadata": metadata}
