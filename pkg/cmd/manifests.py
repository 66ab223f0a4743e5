"""Reads objects from a file or a pipe: YAML documents, JSON (also several in a row), JSON lines, lists of objects.

Promises: reads as it goes where the form allows it (JSON lines, YAML documents); whatever is wrong is a ManifestError
of one line that names the document. Forbids: trusting what it reads."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from kubeloop.errors import ReportedError, one_line
from kubeloop.text import printable
from pkg.util.constants import COLLECTED

_BOM = b"\xef\xbb\xbf"
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
    """Opens the file, "-" for stdin, or a folder of `headroom collect`. Raises ManifestError if it cannot be opened;
    what is raised inside names it."""
    path = Path(file)
    collected = path.is_dir() and (path / COLLECTED).is_file()
    if file == "-":
        yield sys.stdin.buffer
        return
    with reading_file(path / COLLECTED if collected else path, links=not collected) as stream:
        yield stream


@contextlib.contextmanager
def reading_file(path: Path, *, links: bool = False) -> Iterator[BinaryIO]:
    """Opens the file of a folder that others have made; with `links` one that a person has named. What is no file is
    not opened: a FIFO waits for ever, a device has no end. Raises as `reading`."""
    file = str(path)
    try:
        if file_type := _refused_type(path, links=links):
            raise ManifestError(f"{file_type}, not a file: name a file, or - to read a pipe")
        try:
            stream = open(path, "rb")  # noqa: SIM115  (an error inside may be another file's: of the output, for one)
        except (OSError, ValueError) as error:
            raise ManifestError(getattr(error, "strerror", None) or str(error)) from error
        with stream:
            yield stream
    except ManifestError as error:
        raise ManifestError(f"{file}: {error}") from error


def _refused_type(path: Path, *, links: bool) -> str:
    """Returns the type of a path that is not read; "" for a file, for what a shell names a pipe, and for a path that
    does not exist."""
    if links and str(path).startswith(_PIPES):
        return ""
    if not links and path.is_symlink():
        return "a link"
    return "a pipe or a device" if path.exists() and not (path.is_file() or path.is_dir()) else ""


def describe_each(
    file: str, kinds: Sequence[str], describe: Callable[[Mapping[str, Any]], Mapping[str, Any] | None]
) -> int:
    """Prints what `describe` says of each object of the file as a JSON line; returns the exit code.

    One of the `kinds` that a line is printed for may be wrong: it is named on stderr, and the next one follows. Foreign
    objects are named at the end. Raises ManifestError where the file cannot be read, where another object is wrong
    (what the lines depend on), and where none is of these kinds.
    """
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
                    continue
                except (ValueError, OverflowError, RecursionError, msgspec.MsgspecError, ManifestError) as error:
                    if document.get("kind", kinds[0]) not in kinds:
                        raise ManifestError(f"{name_of(place, document)}: {one_line(error)}") from error
                    faults += 1
                    _print_remark(f"{name_of(place, document)}: {one_line(error)}")
                    continue
                if line is not None:
                    lines += 1
                    sys.stdout.write(json.dumps(line) + "\n")
    finally:
        sys.stdout.flush()
    skipped = f"{foreign[0]}{f' and {len(foreign) - 1} more' if foreign[1:] else ''}" if foreign else ""
    if not lines and not faults:
        raise ManifestError(f"{skipped or file}: {'not' if skipped else 'it has no'} {kind_names}")
    if skipped:
        _print_remark(f"skipped: {skipped}, not {kind_names}")
    return 1 if faults else 0


def _print_remark(text: str) -> None:
    print(f"headroom: {printable(text)}", file=sys.stderr)


def read_objects(stream: BinaryIO) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields every object in the stream with its place; the items of a List one by one."""
    for number, document in enumerate(_documents(stream), start=1):
        if document is None:
            continue
        items = _items(document)
        if items is None:
            yield _as_object(f"document {number}", document)
            continue
        for index, item in enumerate(items, start=1):
            yield _as_object(f"document {number}, item {index}", item)


def _items(document: Any) -> list[Any] | None:
    """Returns the items of a list; in one of a kind's own, such as a PodList, the API server does not say the kind
    again."""
    if isinstance(document, list):
        return document
    if not isinstance(document, dict) or not isinstance(document.get("kind"), str):
        return None
    items, kind = document.get("items", ...), document["kind"].removesuffix("List")
    if kind == document["kind"] or not isinstance(items, list | None):
        return None
    return [{"kind": kind, **item} if kind and isinstance(item, dict) else item for item in items or ()]


def _as_object(place: str, value: Any) -> tuple[str, Mapping[str, Any]]:
    if not isinstance(value, dict):
        raise ManifestError(f"{place}: not an object")
    try:
        return place, _without_nulls(value)
    except RecursionError:
        raise ManifestError(f"{place}: nested too deeply") from None


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
    lines = _as_utf_8(stream)
    first_line = next((line for line in lines if line.removeprefix(_BOM).strip()), b"").removeprefix(_BOM)
    if first_line.lstrip()[:1] in (b"{", b"["):
        yield from _json_documents(first_line, lines)
    elif first_line:
        yield from _yaml_documents(itertools.chain([first_line], lines))


def _as_utf_8(stream: BinaryIO) -> Iterator[bytes]:
    """Yields the lines; a file in UTF-16, as PowerShell writes it, says so by its first two bytes."""
    first_line = stream.readline()
    if not first_line.startswith(_UTF_16):
        return itertools.chain([first_line], stream)
    try:
        text = (first_line + stream.read()).decode("utf-16")
    except UnicodeDecodeError:
        raise ManifestError("neither UTF-8 nor UTF-16 text") from None
    return iter(text.encode().splitlines(keepends=True))


def _json_documents(first_line: bytes, lines: Iterator[bytes]) -> Iterator[Any]:
    """Yields JSON lines as they come; from the first line that is not a document of its own, the rest as a whole."""
    for line in itertools.chain([first_line], lines):
        if not line.strip():
            continue
        try:
            document = msgspec.json.decode(line)
        except msgspec.DecodeError:
            yield from _concatenated(b"".join([line, *lines]))
            return
        except RecursionError:
            raise ManifestError("nested too deeply") from None
        yield document


def _concatenated(data: bytes) -> Iterator[Any]:
    """Yields JSON documents in a row, or what only YAML takes for documents."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ManifestError("not UTF-8 text") from None
    decoder, position = json.JSONDecoder(), _end_of_space(text, 0)
    try:
        while position < len(text):
            document, end = decoder.raw_decode(text, position)
            yield document
            position = _end_of_space(text, end)
    except RecursionError:
        raise ManifestError("nested too deeply") from None
    except ValueError as error:
        yield from _yaml_instead(text[position:], error)


def _end_of_space(text: str, start: int) -> int:
    return _SPACE.match(text, start).end()  # type: ignore[union-attr]  # matches everywhere


def _yaml_instead(text: str, json_error: ValueError) -> Iterator[Any]:
    documents = _yaml_documents(text.encode().splitlines(keepends=True))
    try:
        first_document = next(documents, None)
    except ManifestError:
        raise _neither(json_error, is_template="{{" in text) from None
    yield first_document
    yield from documents


def _neither(error: Exception, *, is_template: bool) -> ManifestError:
    hint = "it is a template, render it first (helm template): " if is_template else ""
    return ManifestError(f"neither JSON nor YAML: {hint}{one_line(error)}")


def _yaml_documents(lines: Iterable[bytes]) -> Iterator[Any]:
    from yaml import YAMLError  # JSON needs none of it, and it is the dearest import here

    from pkg.cmd.manifest_loader import load_documents

    is_template = False

    def watched_lines() -> Iterator[bytes]:
        nonlocal is_template
        for line in lines:
            is_template = is_template or b"{{" in line
            yield line

    try:
        yield from load_documents(watched_lines())
    except RecursionError:
        raise ManifestError("nested too deeply") from None
    except UnicodeDecodeError:
        raise ManifestError("not UTF-8 text") from None
    except (YAMLError, ValueError, OverflowError) as error:
        raise _neither(error, is_template=is_template) from None


def name_of(place: str, document: Mapping[str, Any]) -> str:
    """Returns how an object is called in an error: kind and key, or its place if it has no name."""
    metadata = document.get("metadata")
    parts: Iterable[object] = ()
    if isinstance(metadata, dict):
        parts = (metadata.get("namespace"), metadata.get("name"))
    key = "/".join(part for part in parts if isinstance(part, str) and part)
    kind = document.get("kind")
    return one_line(f"{kind} {key}" if isinstance(kind, str) and key else key or place)
