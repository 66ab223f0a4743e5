"""Loads YAML as Kubernetes' tools read it, one document at a time, and safe against hostile nesting.

Imported only when YAML is read: PyYAML is the slowest import of the offline commands."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import yaml

_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_MAX_REPEATED = 100_000
"""Values that aliases and merge keys may add to what is written: a kilobyte can stand for more than a memory holds."""
_MAX_C_DEPTH = 5_000
"""libyaml's binding recurses on the C stack and would crash the process somewhere beyond 20,000 levels."""


def _without_timestamps(base: Any) -> dict[str, list[tuple[str, Any]]]:
    """Returns the resolvers of a loader, but times stay strings, as they are in JSON."""
    return {
        character: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
        for character, resolvers in base.yaml_implicit_resolvers.items()
    }


class _Bounded:
    """A loader that refuses a document before it makes objects of it, if they would be many more than are written."""

    def construct_document(self, node: yaml.Node) -> Any:
        """Raises yaml.YAMLError."""
        if _repeated(node) > _MAX_REPEATED:
            raise yaml.YAMLError(f"its aliases repeat more than {_MAX_REPEATED} values: write out what they stand for")
        return super().construct_document(node)  # type: ignore[misc]


class _PythonLoader(_Bounded, yaml.SafeLoader):
    yaml_implicit_resolvers = _without_timestamps(yaml.SafeLoader)


class _CLoader(_Bounded, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    yaml_implicit_resolvers = _without_timestamps(yaml.SafeLoader)


def load_documents(lines: Iterable[bytes]) -> Iterator[Any]:
    """Yields the documents of a YAML stream as they come. yaml.YAMLError, ValueError or RecursionError if it is
    none."""
    for chunk in _chunks(lines):
        text = b"".join(chunk).decode()
        loader = _CLoader if _depth_bound(chunk) < _MAX_C_DEPTH else _PythonLoader
        yield from yaml.load_all(text, loader)


def _chunks(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Yields the stream cut before each document marker. Directives stay with the document that they are for."""
    chunk: list[bytes] = []
    has_content = False
    for line in lines:
        marker = line.split(None, 1)[:1] == [b"---"] and line.startswith(b"---")
        if marker and has_content:
            yield chunk
            chunk = []
        chunk.append(line)
        has_content = marker or has_content or bool(line.strip() and not line.startswith((b"%", b"#")))
    if has_content:
        yield chunk


def _depth_bound(chunk: list[bytes]) -> int:
    """Returns a depth that no document exceeds: every flow level has its bracket, and every block level stands further
    to the right or behind one more indicator on its line. Of the empty lists and objects that Kubernetes' objects are
    full of, one is open at a time."""
    brackets = sum(line.count(b"[") + line.count(b"{") - line.count(b"[]") - line.count(b"{}") for line in chunk)
    indicators = (len(line) - len(line.lstrip()) + line.count(b"-") + line.count(b"?") + 1 for line in chunk)
    return brackets + 1 + max(indicators, default=0)


def _repeated(root: yaml.Node) -> float:
    """Returns how many values aliases add to those that are written; infinite if a value holds itself."""
    sizes: dict[int, float] = {}
    complete: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        parts = _parts(node)
        if id(node) not in sizes:
            sizes[id(node)] = math.inf  # until all of its parts are known
            waiting += [node, *{id(part): part for part in parts if id(part) not in sizes}.values()]
        elif id(node) not in complete:
            complete.add(id(node))
            sizes[id(node)] = 1 + sum(sizes[id(part)] for part in parts)
    return sizes[id(root)] - len(sizes)


def _parts(node: yaml.Node) -> Sequence[yaml.Node]:
    """Returns the keys and values, or the elements, of a node."""
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return node.value if isinstance(node, yaml.SequenceNode) else ()
