"""Reads objects from a file or a pipe: YAML documents, JSON (also several in a row), JSON lines, lists of objects.

Promises: whatever is wrong is a ManifestError of one line that names the document. Forbids: trusting what it reads."""

import codecs
import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from kubeloop.errors import ReportedError, one_line
from pkg.cmd.options import remark
from pkg.util.constants import COLLECTED

_NO_SPACE = re.compile(r"\S")
_PIPES = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/", "/dev/null")
"""Names that shells give to a pipe, as in `headroom delta -f <(kubectl get vmi -o yaml)`, and to nothing."""


class ManifestError(ReportedError):
    """Input that cannot be read as objects."""


class Foreign(Exception):
    """An object of a kind that the command does not read."""


def read_file(path: Path, *, is_named: bool = False) -> bytes:
    """Returns the contents of a file in a folder of others; `is_named`: of one that a person names, or of a shell's
    pipe. A FIFO waits for ever, a device has no end. Raises ManifestError, OSError."""
    if not is_named and (path.is_symlink() or not path.is_file()):
        raise ManifestError(f"{path}: it is missing, or a link, a pipe or a device")
    if path.exists() and not (path.is_file() or path.is_dir() or str(path).startswith(_PIPES)):
        raise ManifestError(f"{path}: it is a pipe or a device, not a file: name a file, or - to read a pipe")
    return path.read_bytes()


def describe_each(
    file: str, kinds: Sequence[str], describe: Callable[[Mapping[str, Any]], Mapping[str, Any] | None]
) -> int:
    """Prints what `describe` says of each object of the file ("-" for stdin, or a folder of `headroom collect`) as a
    JSON line; returns the exit code. One of the `kinds` that a line is printed for may be wrong: it is named on stderr,
    Foreign ones at the end. Raises ManifestError where the file cannot be read, another object is wrong (the lines
    depend on it), or none is of these kinds; OSError."""
    collected = Path(file) / COLLECTED
    if collected.exists():
        file, data = str(collected), read_file(collected)
    else:
        data = sys.stdin.buffer.read() if file == "-" else read_file(Path(file), is_named=True)
    kind_names = ", ".join(kinds[:-1]) + f" or {kinds[-1]}"
    lines, faults, foreign = 0, 0, list[str]()
    try:
        for place, document in read_objects(data):
            try:
                line = describe(document)
            except Foreign:
                foreign.append(name_of(place, document))
            except (ValueError, OverflowError, RecursionError, msgspec.MsgspecError, ManifestError) as error:
                message = f"{name_of(place, document)}: {one_line(error)}"
                if document.get("kind", kinds[0]) not in kinds:
                    raise ManifestError(message) from error
                faults += 1
                remark(message)
            else:
                if line is not None:
                    lines += 1
                    sys.stdout.write(json.dumps(line) + "\n")
    except ManifestError as error:
        raise ManifestError(str(error) if file == "-" else f"{file}: {error}") from error
    finally:
        sys.stdout.flush()
    skipped = f"{foreign[0]}{f' and {len(foreign) - 1} more' if foreign[1:] else ''}" if foreign else ""
    if not lines and not faults:
        raise ManifestError(f"{skipped or file}: {'not' if skipped else 'it has no'} {kind_names}")
    if skipped:
        remark(f"skipped: {skipped}, not {kind_names}")
    return 1 if faults else 0


def read_objects(data: bytes) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields every object with its place; the items of a List one by one. Raises ManifestError. Text in UTF-16, as
    PowerShell writes it, says so by its first two bytes."""
    is_utf_16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = data.decode("utf-16" if is_utf_16 else "utf-8-sig")
        for number, document in enumerate(_documents(text), start=1):
            for item, value in _values(document):
                if not isinstance(value, dict):
                    raise ManifestError(f"document {number}{item}: not an object")
                yield f"document {number}{item}", _without_nulls(value)
    except RecursionError:
        raise ManifestError("nested too deeply") from None
    except UnicodeDecodeError:
        raise ManifestError("not UTF-8 text") from None


def _documents(text: str) -> Iterator[Any]:
    """Yields JSON documents in a row; from the first that is none on, YAML documents."""
    decoder, start = json.JSONDecoder(), 0
    while (first := _NO_SPACE.search(text, start)) and first[0] in "{[":
        try:
            document, start = decoder.raw_decode(text, first.start())
        except ValueError:
            break
        yield document
    if first:
        yield from _yaml_documents(text[start:])


def _yaml_documents(text: str) -> Iterator[Any]:
    """Yields YAML documents, as Kubernetes' tools read them, by PyYAML's own loader with libyaml's events. libyaml's
    binding would compose faster still, but on the C stack, which a deeply nested document overflows; here that is a
    RecursionError. Raises ManifestError, before it makes objects if aliases stand for many more than are written."""
    import yaml  # JSON needs none of it, and it is the dearest import here

    loader: Any = yaml.SafeLoader("")
    # Times stay strings, as they are in JSON.
    times = {"tag:yaml.org,2002:timestamp": yaml.SafeLoader.construct_yaml_str}
    loader.yaml_constructors = loader.yaml_constructors | times
    values = 0
    try:
        parser = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(io.StringIO(text))
        for name in ("check_event", "peek_event", "get_event"):
            setattr(loader, name, getattr(parser, name))
        while loader.check_node():
            node = loader.get_node()
            values += _size_of(node, {})
            if values > len(text) + 100_000:
                raise ManifestError("its aliases repeat too many values: write out what they stand for")
            yield loader.construct_document(node)
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        hint = "it is a template, render it first (helm template): " if "{{" in text else ""
        raise ManifestError(f"neither JSON nor YAML: {hint}{one_line(error)}") from None


def _size_of(node: Any, sizes: dict[Any, int]) -> int:
    """Returns how many values a YAML node stands for, with all that its aliases and merge keys repeat."""
    if node not in sizes:
        pairs = node.value if node.id == "mapping" else ()
        parts = node.value if node.id == "sequence" else chain.from_iterable(pairs)
        sizes[node] = 1 + sum(_size_of(part, sizes) for part in parts)
    return sizes[node]


def _values(document: Any) -> Iterator[tuple[str, Any]]:
    """Yields a document, nothing of an empty one; of a list each item, with its place and its kind: in a PodList the
    API server does not say it again."""
    if isinstance(document, dict) and str(document.get("kind")).endswith("List"):
        kind, items = document["kind"].removesuffix("List"), document.get("items", ...)
        if items is None or isinstance(items, list):
            document = [{"kind": kind, **item} if kind and isinstance(item, dict) else item for item in items or ()]
    if isinstance(document, list):
        yield from ((f", item {index}", value) for index, value in enumerate(document, start=1))
    elif document is not None:
        yield "", document


def _without_nulls(value: Any) -> Any:
    """Returns the value without the fields that are null: the API server takes them for absent."""
    if isinstance(value, list):
        return [_without_nulls(element) for element in value]
    if not isinstance(value, dict):
        return value
    return {name: _without_nulls(part) for name, part in value.items() if part is not None}


def group_of(document: Mapping[str, Any]) -> str | None:
    """Returns the API group, "" for Kubernetes' core; None where the document says none."""
    version = document.get("apiVersion")
    return version.rpartition("/")[0] if isinstance(version, str) else None


def name_of(place: str, document: Mapping[str, Any]) -> str:
    """Returns how an object is called in an error: kind and key, or its place if it has no name."""
    kind, metadata = document.get("kind"), document.get("metadata")
    parts = [metadata.get("namespace"), metadata.get("name")] if isinstance(metadata, dict) else []
    key = "/".join(part for part in parts if isinstance(part, str) and part)
    return one_line(f"{kind} {key}" if isinstance(kind, str) and key else key or place)
