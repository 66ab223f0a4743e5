"""Loads YAML as Kubernetes' tools read it, one document at a time.

Imported only when YAML is read: PyYAML is the slowest import of the offline commands."""

import io
from collections.abc import Iterator
from typing import Any

import yaml

from kubeloop.errors import one_line
from pkg.cmd.manifests import ManifestError


class _Loader(yaml.SafeLoader):
    """PyYAML's own with libyaml's events, where it has them. libyaml's binding would compose faster still, but on the
    C stack, which a deeply nested document overflows; here that is a RecursionError."""

    def __init__(self, stream: io.StringIO) -> None:
        super().__init__("")
        parser = (yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader)(stream)
        self.check_event = parser.check_event  # type: ignore[method-assign]
        self.peek_event = parser.peek_event  # type: ignore[method-assign]
        self.get_event = parser.get_event  # type: ignore[method-assign]


_Loader.add_constructor("tag:yaml.org,2002:timestamp", yaml.SafeLoader.construct_yaml_str)  # type: ignore[type-var]
# Times stay strings, as they are in JSON.


def load_documents(text: str) -> Iterator[Any]:
    """Yields the documents of YAML text. Raises ManifestError, RecursionError."""
    try:
        yield from yaml.load_all(io.StringIO(text), _Loader)
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        hint = "it is a template, render it first (helm template): " if "{{" in text else ""
        raise ManifestError(f"neither JSON nor YAML: {hint}{one_line(error)}") from None
