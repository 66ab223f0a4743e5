"""Writing one kind: create, patch, delete. Objects are never sent back whole."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from kubeloop.api.bodies import check_body, check_patch
from kubeloop.api.meta import Object, PropagationPolicy
from kubeloop.api.objects import applied, difference, guarded, metadata_difference, plain_mapping
from kubeloop.client.decode import decoder_for
from kubeloop.client.discovery import served_names
from kubeloop.client.errors import AlreadyExists, BadRequest, Forbidden, NotFound, check_namespace
from kubeloop.client.resource_reader import ResourceReader
from kubeloop.client.transport import APPLY_PATCH, JSON, JSON_PATCH, MERGE_PATCH

T = TypeVar("T", bound=Object)
R = TypeVar("R", bound=Object)


class ResourceClient(ResourceReader[T]):
    """The requests of one kind."""

    _options: Mapping[str, str] = MappingProxyType({})
    """The parameters of every write."""
    _has_status: bool | None = None
    """The answer of discovery, if the Resource does not say it."""

    def dry_run(self) -> "ResourceClient[T]":
        """Returns this client, whose writes the server judges and does not keep (Go's NewDryRunClient)."""
        return self._with(_options={"dryRun": "All"})

    def transformed(self, transform: Callable[[T], T] | None) -> "ResourceClient[T]":
        """Returns this client, whose lists contain what `transform` leaves of each object, as a cache with it does."""
        return self._with(_transform=transform)

    async def create(self, body: Mapping[str, Any] | T, *, namespace: str = "") -> T:
        """Creates the object and returns it; `body` is a mapping, which need not say apiVersion and kind, and may say
        its namespace, or an object, of which what is at its default is left out. For a kind of questions
        (SubjectAccessReview) it returns the answer. Raises TypeError for a Python name, AlreadyExists, Unreachable when
        the answer was lost: it may have been created, and is not sent again by itself."""
        body = applied(body)
        name, namespace = _name_of(body, namespace)
        check_namespace(self.resource, namespace)
        check_body(self.resource.type, body)
        answer = await self._write("POST", self._collection_path(namespace), self._of_kind(body))
        is_named = name or (body.get("metadata") or {}).get("generateName")
        return self._answer("", answer, may_be_nameless=not is_named)

    async def create_or_update(
        self, body: Mapping[str, Any] | T, change: Callable[[T], T], *, namespace: str = ""
    ) -> T:
        """The object of `body` (with metadata.name): created if it is not there, else `change(what is there)` written
        (controllerutil.CreateOrUpdate). Raises Conflict, and what `update` raises."""
        body = applied(body)
        name, namespace = _name_of(body, namespace)
        try:
            current = await self.get(name=name, namespace=namespace)
        except NotFound:
            try:
                return await self.create(body, namespace=namespace)
            except AlreadyExists:
                current = await self.get(name=name, namespace=namespace)
        return await self.update(current, change(current))

    async def update(self, old: T, new: T) -> T:
        """Writes the declared fields in which `new` (`edit`) differs from `old`, as Go's Update: in one merge patch,
        bound to the resourceVersion of `old`; no request when none does. Returns the object as it is then. Raises
        Conflict, PartlyDeclared, BadRequest if status differs and is written by `update_status`."""
        patch = difference(old, msgspec.structs.replace(new, metadata=old.metadata))
        if metadata := metadata_difference(old, new):
            patch["metadata"] = metadata
        return await self.patch(old, patch) if patch else old

    async def update_status(self, old: T, new: T) -> T:
        """Writes status alone, through the subresource, as Go's UpdateStatus; whatever else differs is ignored."""
        current: Any = new
        status = difference(old, msgspec.structs.replace(old, status=current.status)).get("status")
        return await self.patch(old, {"status": status}, subresource="status") if status else old

    async def patch(self, obj: T, patch: Mapping[str, Any], *, subresource: str = "") -> T:
        """A merge patch of `obj`, bound to its resourceVersion. Raises Conflict."""
        return await self.merge_patch(
            guarded(obj, patch), name=obj.name, namespace=obj.namespace, subresource=subresource
        )

    async def merge_patch(
        self, patch: Mapping[str, Any], *, name: str, namespace: str = "", subresource: str = ""
    ) -> T:
        """Sends a JSON merge patch (RFC 7396): null removes a key. With metadata.resourceVersion in it: raises
        Conflict, and is sent again when a connection breaks. Raises TypeError for a field in Python's name."""
        check_body(self.resource.type, patch)
        await self._check_status("status" in patch, subresource)
        bound = bool((patch.get("metadata") or {}).get("resourceVersion"))
        path = self._object_path(name, namespace, subresource)
        return self._answer(name, await self._write("PATCH", path, patch, MERGE_PATCH, repeatable=bound))

    async def json_patch(
        self, ops: Sequence[Mapping[str, Any]], *, name: str, namespace: str = "", subresource: str = ""
    ) -> T:
        """Sends a JSON patch (RFC 6902), again when a connection breaks if it tests something or replaces the
        resourceVersion. Raises PatchConflict when a `test` does not hold or a path does not exist (a `replace` adds a
        missing key), TypeError for a field in Python's name."""
        check_patch(self.resource.type, ops)
        paths = [op.get("path", "") for op in ops if op.get("op") != "test"]
        await self._check_status(any(path.startswith("/status") for path in paths), subresource)
        bound = any(op["op"] == "test" or op.get("path") == "/metadata/resourceVersion" for op in ops)
        path = self._object_path(name, namespace, subresource)
        return self._answer(name, await self._write("PATCH", path, ops, JSON_PATCH, repeatable=bound))

    async def apply(
        self,
        body: Mapping[str, Any] | T,
        *,
        field_manager: str,
        force: bool = False,
        namespace: str = "",
        subresource: str = "",
    ) -> T:
        """Applies `body` server-side (with metadata.name; or of an object, without the fields at their defaults): what
        `field_manager` wants, and no more; fields that it applied before and that are missing now are removed. Raises
        Conflict where another manager has set a field otherwise; `force` takes it over."""
        body = applied(body)
        check_body(self.resource.type, body)
        await self._check_status("status" in body, subresource)
        name, namespace = _name_of(body, namespace)
        path = self._object_path(name, namespace, subresource)
        params = {"fieldManager": field_manager, "force": str(force).lower()}
        answer = await self._write("PATCH", path, self._of_kind(body), APPLY_PATCH, repeatable=True, **params)
        return self._answer(name, answer)

    async def delete(
        self,
        *,
        name: str,
        namespace: str = "",
        grace_period_seconds: int | None = None,
        propagation_policy: PropagationPolicy | None = None,
        uid: str | None = None,
    ) -> None:
        """Deletes one object; with `uid` only that one, again when a connection breaks. Raises NotFound, Conflict."""
        body = self._delete_options(grace_period_seconds, propagation_policy, uid)
        path = self._object_path(name, namespace)
        await self._write("DELETE", path, body, repeatable=uid is not None)

    async def evict(
        self, *, name: str, namespace: str, grace_period_seconds: int | None = None, uid: str | None = None
    ) -> None:
        """Deletes a pod as `kubectl drain`. Raises as `delete`; TooManyRequests: a PodDisruptionBudget forbids it."""
        options = self._delete_options(grace_period_seconds, None, uid)
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "deleteOptions": options}
        await self.create_subresource("eviction", body, Object, name=name, namespace=namespace)

    async def get_subresource(self, subresource: str, kind: type[R], *, name: str, namespace: str = "") -> R:
        """A subresource that is an object of another kind: `get_subresource("scale", Scale, ...)`. To change it:
        `merge_patch({"spec": {"replicas": 3}}, ..., subresource="scale")`. Raises NotFound."""
        path = self._object_path(name, namespace, subresource)
        return decoder_for(kind).object(await self.transport.request("GET", path))

    async def create_subresource(
        self, subresource: str, body: Mapping[str, Any], kind: type[R], *, name: str, namespace: str = ""
    ) -> R:
        """Posts `body` (with apiVersion and kind) to a subresource; the answer is a `kind`. Raises ApiError."""
        check_body(kind, body)
        path = self._object_path(name, namespace, subresource)
        metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
        return decoder_for(kind).object(await self._write("POST", path, {"metadata": metadata, **body}))

    async def _write(
        self, method: str, path: str, body: Any, content_type: str = JSON, *, repeatable: bool = False, **params: str
    ) -> bytes:
        return await self.transport.request(
            method,
            path,
            params={**self._options, **params},
            body=msgspec.json.encode(body, enc_hook=plain_mapping),
            content_type=content_type,
            accept=self._accept,
            repeatable=repeatable,
        )

    def _delete_options(
        self, grace_period_seconds: int | None, propagation_policy: PropagationPolicy | None, uid: str | None
    ) -> dict[str, Any]:
        options = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": grace_period_seconds,
            "propagationPolicy": propagation_policy,
            "preconditions": {"uid": uid} if uid is not None else None,
            # Beside a body the server does not read the query's.
            "dryRun": ["All"] if self._options else None,
        }
        return {name: value for name, value in options.items() if value is not None}

    def _of_kind(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {"apiVersion": self.resource.api_version, "kind": self.resource.kind, **body}

    async def _check_status(self, writes_status: bool, subresource: str) -> None:
        """The API server ignores a status outside the subresource, and knows no object under one that is not there."""
        if subresource not in ("", "status") or not (writes_status or subresource):
            return
        has_status = self._has_status if self.resource.status_subresource is None else self.resource.status_subresource
        if has_status is None:
            with contextlib.suppress(Forbidden):
                names = await served_names(self.transport, self.resource.api_version)
                if names is not None and self.resource.plural in names:
                    has_status = self._has_status = f"{self.resource.plural}/status" in names
        if has_status is False and subresource:
            raise BadRequest(f"status of {self.resource.kind} is written as any field: it has no status subresource")
        if has_status and not subresource:
            how = 'through its subresource alone: update_status, or subresource="status"'
            raise BadRequest(f"status of {self.resource.kind} is written {how}")


def _name_of(body: Mapping[str, Any], namespace: str) -> tuple[str, str]:
    """The name and namespace of the object of a body, "" for what neither it nor the caller says."""
    metadata = body.get("metadata") or {}
    return metadata.get("name") or "", namespace or metadata.get("namespace") or ""
