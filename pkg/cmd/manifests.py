"""Reads objects from a file or a pipe: YAML documents, JSON (also several in a row), JSON lines, lists of objects.

Promises: reads as it goes where the form allows it (JSON lines, YAML documents); whatever is wrong is a ManifestError
of one line that names the document. Forbids: trusting what it reads."""

import codecs
import contextlib
import io
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from kubeloop.errors import ReportedError, one_line
from pkg.cmd.options import remark
from pkg.util.constants import COLLECTED

_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_SPACE = re.compile(r"\s*")
_PIPES = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/", "/dev/null")
"""Names that shells give to a pipe, as in `headroom delta -f <(kubectl get vmi -o yaml)`, and to nothing."""


class ManifestError(ReportedError):
    """Input that cannot be read as objects."""


class Foreign(Exception):
    """An object of a kind that the command does not read."""


@contextlib.contextmanager
def reading(file: str) -> Iterator[BinaryIO]:
    """Opens the file, "-" for stdin, or a folder of `headroom collect`; ManifestErrors name it. Raises OSError."""
    if file == "-":
        yield sys.stdin.buffer
        return
    collected = Path(file) / COLLECTED
    with reading_file(collected) if collected.exists() else reading_file(Path(file), is_named=True) as stream:
        yield stream


@contextlib.contextmanager
def reading_file(path: Path, *, is_named: bool = False) -> Iterator[BinaryIO]:
    """Opens a file of a folder by others; `is_named`: of a person's choice, or a shell's pipe. Raises as `reading`."""
    try:
        # A FIFO waits for ever, a device has no end.
        if not is_named and (path.is_symlink() or not path.is_file()):
            raise ManifestError("it is missing, or a link, a pipe or a device")
        if path.exists() and not (path.is_file() or path.is_dir() or str(path).startswith(_PIPES)):
            raise ManifestError("it is a pipe or a device, not a file: name a file, or - to read a pipe")
        with path.open("rb") as stream:
            yield stream
    except ManifestError as error:
        raise ManifestError(f"{path}: {error}") from error


def describe_each(
    file: str, kinds: Sequence[str], describe: Callable[[Mapping[str, Any]], Mapping[str, Any] | None]
) -> int:
    """Prints what `describe` says of each object of the file as a JSON line; returns the exit code. One of the `kinds`
    that a line is printed for may be wrong: it is named on stderr, Foreign ones at the end. Raises ManifestError where
    the file cannot be read, another object is wrong (the lines depend on it), or none is of these kinds."""
    kind_names = ", ".join(kinds[:-1]) + f" or {kinds[-1]}"
    lines = faults = 0
    foreign: list[str] = []
    try:
        with reading(file) as stream:
            for place, document in read_objects(stream):
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
    finally:
        sys.stdout.flush()
    skipped = f"{foreign[0]}{f' and {len(foreign) - 1} more' if foreign[1:] else ''}" if foreign else ""
    if not lines and not faults:
        raise ManifestError(f"{skipped or file}: {'not' if skipped else 'it has no'} {kind_names}")
    if skipped:
        remark(f"skipped: {skipped}, not {kind_names}")
    return 1 if faults else 0


def read_objects(stream: BinaryIO) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields every object in the stream with its place; the items of a List one by one. Raises ManifestError."""
    try:
        for number, document in enumerate(_documents(stream), start=1):
            for item, value in _values(document):
                if not isinstance(value, dict):
                    raise ManifestError(f"document {number}{item}: not an object")
                yield f"document {number}{item}", _without_nulls(value)
    except RecursionError:
        raise ManifestError("nested too deeply") from None
    except UnicodeDecodeError:
        raise ManifestError("not UTF-8 text") from None


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


def _documents(stream: BinaryIO) -> Iterator[Any]:
    lines = _lines(stream)
    first_line = next((line for line in lines if line.strip()), "")
    read = _json_documents if first_line.lstrip().startswith(("{", "[")) else _yaml_documents
    return read(itertools.chain([first_line], lines)) if first_line else iter(())


def _lines(stream: BinaryIO) -> Iterator[str]:
    """Yields lines of text; a file in UTF-16, as PowerShell writes it, says so by its first two bytes."""
    first_line = stream.readline()
    if first_line.startswith(_UTF_16):
        return io.StringIO((first_line + stream.read()).decode("utf-16"))
    return codecs.iterdecode(itertools.chain([first_line], stream), "utf-8-sig")


def _json_documents(lines: Iterator[str]) -> Iterator[Any]:
    """Yields JSON lines as they come; from the first one that is no document, documents in a row; and from the first
    that is none, what only YAML takes for documents."""
    for line in lines:
        try:
            if line.strip():
                yield msgspec.json.decode(line)
        except msgspec.DecodeError:
            break
    else:
        return
    text, decoder, end = "".join([line, *lines]), json.JSONDecoder(), 0
    while (start := _SPACE.match(text, end).end()) < len(text):  # type: ignore[union-attr]  # matches everywhere
        try:
            document, end = decoder.raw_decode(text, start)
        except ValueError:
            yield from _yaml_documents(io.StringIO(text[start:]))
            return
        yield document


def _yaml_documents(lines: Iterator[str]) -> Iterator[Any]:
    from pkg.cmd.manifest_loader import load_documents  # JSON needs none of it, and it is the dearest import here

    return load_documents(lines)


def name_of(place: str, document: Mapping[str, Any]) -> str:
    """Returns how an object is called in an error: kind and key, or its place if it has no name."""
    kind, metadata = document.get("kind"), document.get("metadata")
    parts = [metadata.get("namespace"), metadata.get("name")] if isinstance(metadata, dict) else []
    key = "/".join(part for part in parts if isinstance(part, str) and part)
    return one_line(f"{kind} {key}" if isinstance(kind, str) and key else key or place)
