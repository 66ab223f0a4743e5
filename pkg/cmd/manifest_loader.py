"""Loads YAML as Kubernetes' tools read it, one document at a time, and safe against hostile nesting.

Imported only when YAML is read: PyYAML is the slowest import of the offline commands."""

from collections.abc import Iterator
from math import inf
from typing import Any

import yaml

from kubeloop.errors import one_line
from pkg.cmd.manifests import ManifestError

_MAX_REPEATED = 100_000
"""Values that aliases and merge keys may add to what is written: a kilobyte can stand for more than a memory holds."""


class _Stream:
    """Lines as the file that PyYAML reads."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self.is_template = False

    def read(self, _size: int = -1, /) -> str:
        line = next(self._lines, "")
        self.is_template = self.is_template or "{{" in line
        return line


class _Loader(yaml.SafeLoader):
    """PyYAML's own with libyaml's events, where it has them. libyaml's binding would compose faster still, but on the
    C stack, which a deeply nested document overflows; here that is a RecursionError."""

    def __init__(self, stream: _Stream) -> None:
        super().__init__("")
        parser = (yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader)(stream)
        self.check_event = parser.check_event  # type: ignore[method-assign]
        self.peek_event = parser.peek_event  # type: ignore[method-assign]
        self.get_event = parser.get_event  # type: ignore[method-assign]
        self._values: float = 0  # of a document, composed so far, what aliases repeat included
        self._repeated: float = 0
        self._size_of: dict[yaml.Node | None, float] = {}

    def compose_document(self) -> yaml.Node | None:
        self._values, self._repeated, self._size_of = 0, 0, {}
        return super().compose_document()

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Raises yaml.YAMLError, before it makes objects of a document, if they would be many more than are written."""
        is_alias, before = self.check_event(yaml.AliasEvent), self._values
        node = super().compose_node(parent, index)
        if is_alias:
            size = self._size_of.get(node, inf)  # infinite: it holds itself
            self._repeated += size
            if self._repeated > _MAX_REPEATED:
                message = f"its aliases repeat more than {_MAX_REPEATED} values: write out what they stand for"
                raise yaml.YAMLError(message)
            self._values += size
        else:
            self._values += 1
            self._size_of[node] = self._values - before
        return node


_Loader.add_constructor("tag:yaml.org,2002:timestamp", yaml.SafeLoader.construct_yaml_str)  # type: ignore[type-var]
# Times stay strings, as they are in JSON.


def load_documents(lines: Iterator[str]) -> Iterator[Any]:
    """Yields the documents of a YAML stream as they come. Raises ManifestError, RecursionError."""
    stream = _Stream(lines)
    try:
        yield from yaml.load_all(stream, _Loader)
    except UnicodeDecodeError:
        raise  # a ValueError, too
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        hint = "it is a template, render it first (helm template): " if stream.is_template else ""
        raise ManifestError(f"neither JSON nor YAML: {hint}{one_line(error)}") from None
