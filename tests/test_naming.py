"""Names and sentences of the sources, measured: how many names are a bare participle, pronoun or adverb, how many
docstrings begin with a relative word, and which class names a room has twice.

It measures only: a name that merely dodges the list (`said_value`) is worse than the one it replaces."""

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
BARE = re.compile(
    r"_*(each|found|said|asked|kept|made|wanted|stands|there|then|after|before|once|given|named|known|told|"
    r"what|who|whose|where|how|why|one|two|own|ours|it|shown|left|over|seen|short|free|ended|begun|beside|"
    r"rest|more|less|last|first|others|other|another|of|at|to|about|same|held|holds|worth|taken|lost|"
    r"moved|moving|grown|standing|added|chosen|followed|handed|released|late|like|made_of|behind|in_use|"
    r"in_time|out|done)"
)
"""Names that say nothing of the thing; who needs one of them argues that in the commit that takes it out."""
RELATIVE = re.compile(
    r"(What|Whether|Which|Who|Whose|Where|Why|How|When|Those|That|Of|By|As|One|With|For|None|Not|In|Also|Also,|Beside"
    r"|Since|From|So|There)\b"
)
SHARED = {"kubeloop": {"Endpoint", "Event"}, "pkg": set[str](), "lab": set[str]()}
"""Class names that two modules of a room may have: Kubernetes has an Event of core and one of events.k8s.io, and an
Endpoint of an EndpointSlice beside that of a webhook."""


class Figures(NamedTuple):
    """Counts of one room; names and docstrings as `bare of all`."""

    bare: list[str]
    names: int
    relative: list[str]
    docstrings: int
    classes: dict[str, set[Path]]


def names_bound(node: ast.AST) -> Iterator[str]:
    """Yields the names that a node binds: assignments, parameters, fields and functions."""
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name


@functools.cache
def figures(room: str) -> Figures:
    """Measures every module of a room."""
    counts = Figures([], 0, [], 0, defaultdict(set))
    names = docstrings = 0
    for path in sorted((ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                counts.classes[node.name].add(path)
            for name in names_bound(node):
                names += 1
                if BARE.fullmatch(name):
                    counts.bare.append(f"{path}:{getattr(node, 'lineno', 1)}: {name}")
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
                text = ast.get_docstring(node)
                docstrings += bool(text)
                if text and RELATIVE.match(text):
                    counts.relative.append(f"{path}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}")
    return counts._replace(names=names, docstrings=docstrings)


@pytest.mark.parametrize(
    ("room", "bare", "relative"),
    [("pkg", 0.02, 0.08), ("kubeloop", 0.015, 0.05), ("lab", 0.03, 0.10), ("tests", 0.03, 0.10)],
)
def test_names_and_sentences(room: str, bare: float, relative: float) -> None:
    counts = figures(room)
    assert len(counts.bare) <= bare * counts.names, "\n".join(counts.bare)
    assert len(counts.relative) <= relative * counts.docstrings, "\n".join(counts.relative)


@pytest.mark.parametrize("room", list(SHARED))
def test_no_room_has_a_class_name_twice(room: str) -> None:
    twice = {name: sorted(map(str, paths)) for name, paths in figures(room).classes.items() if len(paths) > 1}
    assert twice.keys() <= SHARED[room], twice
