"""Event handlers that enqueue: they map changes of objects, of the queue's own kind or another, to its keys."""

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Iterator, KeysView, Sequence, ValuesView
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kubeloop.api.meta import Object
from kubeloop.api.registry import Resource
from kubeloop.workqueue.queue import DEFAULT_PRIORITY, LOW_PRIORITY

log = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)

Keys = list[str] | tuple[str, ...] | set[str] | frozenset[str] | Iterator[str] | KeysView[str] | ValuesView[str]
"""Any iterable of keys but a str, which would be one of letters."""

Resolver = Callable[[T], Keys]
"""Names the keys, in a list, that an object of another kind concerns (wrangler's relatedresource.Resolver)."""

Reads = Callable[[T], object]
"""The part of an object that handlers read: other changes are not theirs (controller-runtime's predicates)."""


def generation(obj: Object) -> object:
    """A `reads` function: what a person or program wants of the object, not its status, labels or annotations
    (controller-runtime's GenerationChangedPredicate). Of a kind without generations every change counts."""
    meta = obj.metadata
    return (meta.uid, meta.deletion_timestamp, meta.resource_version if meta.generation is None else meta.generation)


@dataclass(eq=False)
class EnqueueHandler(Generic[T]):
    """An informer's event handler: `enqueue` gets each key (and a priority) that `keys_of` returns for an object that
    was added, changed (old and new) or deleted; with `reads`, only changes in what one of them returns. It raises
    ValueError or TypeError for what is not a key."""

    keys_of: Resolver[T]
    enqueue: Callable[[str, int], None]
    reads: Sequence[Reads[T]] | None = None

    def on_add(self, obj: T, is_in_initial_list: bool) -> None:
        self._enqueue_all(LOW_PRIORITY if is_in_initial_list else DEFAULT_PRIORITY, obj)

    def on_update(self, old: T, new: T) -> None:
        if old is new:
            self._enqueue_all(LOW_PRIORITY, new)  # a resync: nothing happened, look again when there is time
        elif self.reads is None or any(_differ(reads, old, new) for reads in self.reads):
            self._enqueue_all(DEFAULT_PRIORITY, new, old)

    def on_delete(self, obj: T, final_state_unknown: bool) -> None:
        self._enqueue_all(DEFAULT_PRIORITY, obj)

    def _enqueue_all(self, priority: int, *objects: T) -> None:
        # Ordered and without repeats. All keys are known before the first is enqueued; a resolver that fails on
        # `old` must not cost what it said about `new`.
        keys: dict[str, None] = {}
        for obj in objects:
            try:
                resolved = self.keys_of(obj)
                if isinstance(resolved, str):
                    raise TypeError(f"a list of keys is expected, not the text {resolved!r}")
                keys.update(dict.fromkeys(resolved))
            except Exception:
                log.exception("%s cannot map %s to keys", described(self.keys_of), obj.key)
        for key in keys:
            try:
                self.enqueue(key, priority)
            except (TypeError, ValueError) as error:
                log.error("%s returned for %s: %s", described(self.keys_of), objects[0].key, error)


def owners(resource: Resource[Any], any_owner: bool) -> Resolver[Object]:
    """The keys of an object's owners of a kind, whatever the version that the references name."""

    def keys(obj: Object) -> list[str]:
        prefix = f"{obj.namespace}/" if resource.namespaced else ""
        return [
            prefix + owner.name
            for owner in obj.metadata.owner_references or ()
            if owner.kind == resource.kind and owner.api_version.rpartition("/")[0] == resource.group
            if any_owner or owner.controller
        ]

    return keys


def check_key(resource: Resource[Any], key: str) -> None:
    """Raises ValueError for what is no key of the kind, TypeError for no str: handlers would see a deleted object."""
    if not isinstance(key, str):
        raise TypeError(f"a key is a str, not {key!r}")
    namespace, slash, name = key.partition("/")
    if resource.namespaced and not (namespace and name and "/" not in name):
        raise ValueError(f"{key!r} is not a key of {resource.plural}: {resource.kind} has a namespace: namespace/name")
    if not resource.namespaced and (slash or not key):
        raise ValueError(f"{key!r} is not a key of {resource.plural}: {resource.kind} has no namespace: its name alone")


def check_handler(handler: Callable[..., object]) -> None:
    """Raises TypeError for a `def` where an `async def` is needed: its call could not be awaited."""
    function = _innermost(handler)
    if not (inspect.isfunction(function) or inspect.ismethod(function)) or inspect.iscoroutinefunction(function):
        return
    returned = str(inspect.signature(function).return_annotation)
    if function.__name__ != "<lambda>" and not any(word in returned for word in ("Awaitable", "Coroutine", "Future")):
        raise TypeError(f"{described(handler)} is a plain function: handlers and hooks are `async def`s")


def check_resolver(resolver: Callable[..., object], kind: type[Object]) -> None:
    """Raises TypeError for a resolver that returns a str: by its annotation, or by what a lambda makes of an object."""
    function = _innermost(resolver)
    if not inspect.isroutine(function):
        return
    is_str = inspect.get_annotations(function).get("return") in (str, "str")
    if function.__name__ == "<lambda>":
        with contextlib.suppress(Exception):  # an empty object may not be what it is made for
            is_str = isinstance(resolver(kind()), str)
    if is_str or inspect.iscoroutinefunction(function):
        raise TypeError(f"{described(resolver)}: a resolver is a plain function that returns a list of keys, no str")


def described(function: Callable[..., object]) -> str:
    """Returns `module.name` of a function, for a message."""
    inner = _innermost(function)
    return f"{getattr(inner, '__module__', '?')}.{getattr(inner, '__qualname__', repr(inner))}"


def _innermost(function: Callable[..., object]) -> Any:
    """Returns the function without partial() and decorators."""
    function = inspect.unwrap(function)
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    return function


def _differ(reads: Reads[T], old: T, new: T) -> bool:
    try:
        return reads(old) != reads(new)
    except Exception:
        log.exception("%s failed for %s, which counts as changed", described(reads), new.key)
        return True
