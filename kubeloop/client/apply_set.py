"""Objects that are applied together: wrangler's `apply` with a set ID, by server-side apply."""

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from kubeloop.api.meta import Object
from kubeloop.api.objects import applied
from kubeloop.api.registry import Resource, kind_of
from kubeloop.client.client import Client
from kubeloop.client.errors import NotFound
from kubeloop.client.resource_reader import list_installed

_PREFIX = "objectset.rio.cattle.io/"
HASH = _PREFIX + "hash"
"""Wire format: the label and annotations of wrangler's sets, so that one can be taken over."""


class ApplySet:
    """A set that is applied again and again; what was in it before and no longer is gets deleted. `kinds` are all that
    it may hold, in the order in which they are applied; `namespace` is where all are, "" for several and for kinds
    without one. Two sets with the same `set_id` and `owner` are one. Needs the rights to list, patch and delete."""

    def __init__(
        self,
        client: Client,
        set_id: str,
        kinds: Sequence[Resource[Any]],
        *,
        field_manager: str,
        owner: Object | None = None,
        namespace: str = "",
    ) -> None:
        self._client = client
        self._kinds = kinds
        self._field_manager = field_manager
        self._namespace = namespace
        self._annotations = {_PREFIX + "id": set_id}
        if owner is not None:
            api_version, kind = kind_of(owner)
            group, _, version = api_version.rpartition("/")
            self._annotations |= {  # in the order in which wrangler hashes them
                _PREFIX + "owner-gvk": f"{group}/{version}, Kind={kind}",
                _PREFIX + "owner-name": owner.name,
                _PREFIX + "owner-namespace": owner.namespace,
            }
        digest = hashlib.sha1("".join(self._annotations.values()).encode(), usedforsecurity=False)
        self._labels = {HASH: digest.hexdigest()}

    async def apply(
        self, objects: Mapping[Resource[Any], Sequence[Mapping[str, Any] | Object]], *, force: bool = False
    ) -> list[Object]:
        """Applies `objects`, then deletes the others of the set; returns them as the server answered. Raises ValueError
        for a kind that is not one of the set's, Conflict for a field of another manager (`force` takes it over)."""
        if unknown := [kind.plural for kind in objects if kind not in self._kinds]:
            raise ValueError(f"{', '.join(unknown)}: not among the kinds of the set: name them when it is made")
        options: dict[str, Any] = {"field_manager": self._field_manager, "force": force, "namespace": self._namespace}
        written = [
            await self._client.resource(kind).apply(self._with_marks(body), **options)
            for kind in self._kinds
            for body in objects.get(kind, ())
        ]
        applied_uids, selector = {obj.uid for obj in written}, f"{HASH}={self._labels[HASH]}"
        for kind in reversed(self._kinds):
            metadata = self._client.resource(kind.metadata())
            for obj in await list_installed(metadata, self._namespace, label_selector=selector):
                if obj.uid not in applied_uids and not obj.deleting:
                    with contextlib.suppress(NotFound):
                        await metadata.delete(name=obj.name, namespace=obj.namespace, uid=obj.uid)
        return written

    def _with_marks(self, obj: Mapping[str, Any] | Object) -> dict[str, Any]:
        body = applied(obj)
        for name, values in (("labels", self._labels), ("annotations", self._annotations)):
            body["metadata"][name] = (body["metadata"].get(name) or {}) | values
        return body
