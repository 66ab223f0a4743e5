"""The objects of a fake cluster, their history, and what a test changes without the API."""

import asyncio
import bisect
import contextlib
import copy
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from kubeloop.api.bodies import check_body
from kubeloop.api.meta import Object, rfc3339
from kubeloop.api.objects import plain_mapping
from kubeloop.api.registry import BY_TYPE, Resource
from kubeloop.client import errors
from kubeloop.client.decode import INITIAL_EVENTS_END, decoder_for
from kubeloop.controllers.enqueue import check_key
from kubeloop.testing.fake.metadata import is_of_kubernetes
from kubeloop.testing.fake.patches import Managers, Matches, Raw

T = TypeVar("T", bound=Object)


@dataclass(frozen=True, slots=True)
class Request:
    """A request, as reactors and tests see it; `verb`: get, list, watch, create, update, patch or delete."""

    verb: str
    plural: str
    key: str
    subresource: str
    body: Any


_NOT_SPEC = ("apiVersion", "kind", "metadata", "status")
Answer = Mapping[str, Any] | Object | None
Reactor = Callable[[Request], Awaitable[Answer] | Answer]
"""Called before a request is served (client-go's PrependReactor): raises an ApiError, waits, or changes objects. It
returns the answer, or None: then the request goes on."""


@dataclass(frozen=True, slots=True)
class _Change:
    version: int
    old: Raw | None
    new: Raw | None


class Objects:
    """The objects, and what a test changes without the API."""

    def __init__(self, *resources: Resource[Any]) -> None:
        """`resources`: the kinds that are installed; default: every one that is defined. `requests` are those that were
        made; `reactors` are called before each; `open`, cleared, keeps watches silent (caches lag)."""
        self.requests: list[Request] = []
        self.reactors: list[Reactor] = []
        self.clock: Callable[[], float] = time.time
        self.open = asyncio.Event()
        self.open.set()
        self.resources = list(dict.fromkeys(resources or BY_TYPE.values()))
        self._objects: dict[str, dict[str, Raw]] = {}
        self._changes: defaultdict[str, list[_Change]] = defaultdict(list)
        self._forgotten: defaultdict[str, int] = defaultdict(int)
        # The version of a kind's last change that is forgotten.
        self._compacted = 0
        self._version = 1
        self._dry_run = False
        self._watches: defaultdict[str, list[asyncio.Event]] = defaultdict(list)
        # By kind: set once there is news for an open watch.
        self._pages: dict[str, tuple[list[Raw], int]] = {}
        self.managers: dict[str, Managers] = {}
        # By uid: who applied what.

    def put(self, resource: Resource[T], obj: T | Mapping[str, Any]) -> T:
        """Creates or replaces an object with its status, which no client can do through the API. Raises TypeError for a
        field in Python's name, ValueError without its namespace."""
        check_body(resource.type, obj)
        raw: Raw = msgspec.to_builtins(dict(obj) if isinstance(obj, Mapping) else obj, enc_hook=plain_mapping)
        metadata = raw.setdefault("metadata", {})
        key = key_of(metadata.get("namespace", ""), metadata["name"])
        check_key(resource, key)
        old = self.raw(resource).get(key)
        metadata.setdefault("uid", old["metadata"]["uid"] if old else str(uuid.uuid4()))
        metadata.setdefault("creationTimestamp", rfc3339(self.clock()))
        if resource.group:
            was = old["metadata"].get("generation", 1) if old else 1
            changed = old is not None and spec_of(raw, resource) != spec_of(old, resource)
            metadata.setdefault("generation", was + changed)
        return self._typed(resource, self.store(resource, key, old, raw))

    def raw(self, resource: Resource[Any]) -> dict[str, Raw]:
        """The objects of a kind by key, as JSON; only to be read."""
        return self._objects.setdefault(resource.path(), {})

    def get(self, resource: Resource[T], key: str) -> T | None:
        """Returns the object of a key (`namespace/name`, or `name`), or None. Raises ValueError for what is no key."""
        check_key(resource, key)
        raw = self.raw(resource).get(key)
        return None if raw is None else self._typed(resource, raw)

    def all(self, resource: Resource[T]) -> list[T]:
        return [self._typed(resource, raw) for raw in self.raw(resource).values()]

    @property
    def watches(self) -> int:
        """The number of open watches."""
        return sum(map(len, self._watches.values()))

    def remove(self, resource: Resource[Any], key: str) -> None:
        """The object is gone at once, finalizers or not."""
        self.store(resource, key, self.raw(resource)[key], None)

    def install(self, resource: Resource[Any], installed: bool = True) -> None:
        """A CRD comes or goes, with its objects."""
        if installed and resource not in self.resources:
            self.resources.append(resource)
        elif not installed:
            for key in list(self.raw(resource)):
                self.remove(resource, key)
            self.resources = [kind for kind in self.resources if kind.path() != resource.path()]

    def compact(self) -> None:
        """Forgets the changes up to now: a watch that resumes from before gets 410."""
        self._forgotten |= {path: changes[-1].version for path, changes in self._changes.items() if changes}
        self._changes.clear()
        self._compacted = self._version
        self._pages.clear()

    def asked(self, verb: str, plural: str = "") -> list[Any]:
        """The bodies of the requests of a verb."""
        return [r.body for r in self.requests if r.verb == verb and plural in ("", r.plural)]

    @contextlib.contextmanager
    def dry_run(self, enabled: bool) -> Iterator[None]:
        """Makes the writes meanwhile dry runs: none is stored."""
        self._dry_run = enabled
        try:
            yield
        finally:
            self._dry_run = False

    def find(self, group: str, version: str, plural: str) -> Resource[Any]:
        for resource in self.resources:
            if (resource.group, resource.version, resource.plural) == (group, version, plural):
                return resource
        raise errors.NotServed("404 page not found")

    def existing(self, resource: Resource[Any], namespace: str, name: str) -> Raw:
        raw = self.raw(resource).get(key_of(namespace, name))
        if raw is None:
            raise errors.not_found(resource, name)
        return raw

    def store(self, resource: Resource[Any], key: str, old: Raw | None, new: Raw | None) -> Raw:
        """Writes an object, None to remove it; returns it with its new version."""
        written = copy.deepcopy(new if new is not None else old) or {}
        written |= {"apiVersion": resource.api_version, "kind": resource.kind}
        if self._dry_run:
            return written
        self._version += 1
        written["metadata"]["resourceVersion"] = str(self._version)
        if new is None:
            self.raw(resource).pop(key, None)
            change = _Change(self._version, written, None)
        else:
            self.raw(resource)[key] = written
            change = _Change(self._version, old, written)
        self._changes[resource.path()].append(change)
        for news in self._watches[resource.path()]:
            news.set()
        return written

    def page(self, resource: Resource[Any], matches: Matches, params: Mapping[str, str]) -> Raw:
        limit = int(params.get("limit") or 0)
        if token := params.get("continue", ""):
            if token not in self._pages:
                raise errors.Gone("The provided continue parameter is too old")
            items, version = self._pages.pop(token)
        else:
            items, version = (sorted(filter(matches, self.raw(resource).values()), key=raw_key), self._version)
        metadata: Raw = {"resourceVersion": str(version)}
        if limit and len(items) > limit:
            metadata |= {"continue": uuid.uuid4().hex, "remainingItemCount": len(items) - limit}
            self._pages[metadata["continue"]] = (items[limit:], version)
        # As kube-apiserver: items of its own kinds do not say what they are.
        hidden = ("apiVersion", "kind") if is_of_kubernetes(resource) else ()
        items = [{k: v for k, v in item.items() if k not in hidden} for item in items[: limit or None]]
        type_meta = {"apiVersion": resource.api_version, "kind": f"{resource.kind}List"}
        return {**type_meta, "metadata": metadata, "items": items}

    async def events(
        self, resource: Resource[Any], matches: Matches, params: Mapping[str, str]
    ) -> AsyncGenerator[Raw, None]:
        """A watch: what happened since resourceVersion, then what happens, until `timeoutSeconds` are over."""
        initial = params.get("sendInitialEvents") == "true"
        version = params.get("resourceVersion", "")
        since = int(version) if version not in ("", "0") else 0 if not initial else self._version
        if version not in ("", "0") and since < self._compacted:
            yield _expired_event(since)
            return
        if not since or initial:
            since = self._version
            for raw in list(self.raw(resource).values()):
                if matches(raw):
                    yield {"type": "ADDED", "object": raw}
            if initial or params.get("allowWatchBookmarks") == "true":
                yield _bookmark(resource, since, {INITIAL_EVENTS_END: "true"})
        news, path = asyncio.Event(), resource.path()
        self._watches[path].append(news)
        try:
            async with asyncio.timeout(float(params.get("timeoutSeconds") or 3600)):
                while True:
                    await self.open.wait()
                    news.clear()  # before looking: what is written while a reader is slow is no less news
                    if since < self._forgotten[path]:
                        yield _expired_event(since)
                        return
                    changes = self._changes[path]
                    for change in changes[bisect.bisect_right(changes, since, key=lambda c: c.version) :]:
                        since = change.version
                        if event := _event(change, matches):
                            yield event
                    await news.wait()
        except TimeoutError:
            if params.get("allowWatchBookmarks") == "true":
                yield _bookmark(resource, since if news.is_set() else self._version, {})
        finally:
            self._watches[path].remove(news)

    @staticmethod
    def _typed(resource: Resource[T], raw: Raw) -> T:
        typed: T = decoder_for(resource.type).object(msgspec.json.encode(raw))
        return typed


def _event(change: _Change, matches: Matches) -> Raw | None:
    """Returns the event that a watch with a selector sends: an object that begins or ceases to match comes or goes."""
    old = change.old if change.old is not None and matches(change.old) else None
    if change.new is None or not matches(change.new):
        if old is None:
            return None
        metadata = {**old["metadata"], "resourceVersion": str(change.version)}
        return {"type": "DELETED", "object": {**old, "metadata": metadata}}
    return {"type": "ADDED" if old is None else "MODIFIED", "object": change.new}


def _bookmark(resource: Resource[Any], version: int, annotations: Mapping[str, str]) -> Raw:
    metadata = {"resourceVersion": str(version), "creationTimestamp": None, "annotations": dict(annotations)}
    type_meta = {"apiVersion": resource.api_version, "kind": resource.kind}
    return {"type": "BOOKMARK", "object": {**type_meta, "metadata": metadata}}


def _expired_event(since: int) -> Raw:
    status = {"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired"}
    return {"type": "ERROR", "object": {**status, "message": f"too old resource version: {since}"}}


def spec_of(raw: Raw, resource: Resource[Any]) -> Raw:
    """Returns the fields that count for the generation: all but metadata, and status where that is a subresource."""
    ignored = _NOT_SPEC if resource.status_subresource else _NOT_SPEC[:3]
    return {name: value for name, value in raw.items() if name not in ignored}


def key_of(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name


def raw_key(raw: Raw) -> str:
    return key_of(raw["metadata"].get("namespace", ""), raw["metadata"]["name"])
