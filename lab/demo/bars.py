"""Migrations, headroom and Rancher's agent as bars on the chart's time axis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import cycle
from typing import NamedTuple

from lab import questions
from lab.demo.chart import BAD, DIM, GOOD, ON_BAR, TITLE, Canvas, Scale
from lab.record import Mark, Record, Track
from pkg.util import constants

_TICKS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
_MARKER = "▲"
PENDING = ("#a07d1c", ("Pending",))
_REFUSED = ("#b8403a", ("Pending: refused", "refused"))
_LOOKS = {constants.PHASE_UNSET: PENDING, constants.PHASE_PENDING: PENDING}
_LOOKS[constants.PHASE_RUNNING] = ("#3d64c4", ("Running",))
_PREPARING = "#3c7f8c"
LINGERING = ("#6a5a8c", ("old pod counts", "old pod"))
_HEADROOM = ("#3b7d4b", "#4f8f3a")
"""One run, and the next."""


class Span(NamedTuple):
    """From `start` to `end`, in seconds. The first of `texts` that fits stands in it."""

    start: float
    end: float
    colour: str
    texts: tuple[str, ...]


def spans_of(record: Record, track: Track, now: float) -> Iterator[Span]:
    """A migration's phases, and its old pod for as long as that counts afterwards."""
    ends = [change.at for change in track.phases[1:]] + [now]
    for change, end in zip(track.phases, ends, strict=True):
        look = _LOOKS.get(change.phase, (_PREPARING, (change.phase,)))
        if change.phase not in constants.FINAL_PHASES:
            yield Span(change.at, end, *(_REFUSED if look is PENDING and track.refused is not None else look))
    source, ended = questions.source_of(record, track.name), track.ended
    if source is not None and ended is not None:
        gone = source.ended.at if source.ended else now
        yield Span(ended.at, max(gone, ended.at), *LINGERING)


def runs_of_headroom(record: Record, now: float) -> Iterator[Span]:
    """When headroom ran, and with what: the whole command line, its flags, its last flag."""
    marks = _marks(record, "headroom")
    ends = [mark.at for mark in marks[1:]] + [now]
    colours = cycle(_HEADROOM)
    for mark, end in zip(marks, ends, strict=False):
        if mark.text:
            flags = mark.text.removeprefix("headroom controller ")
            yield Span(mark.at, end, next(colours), (mark.text, flags, flags[max(0, flags.rfind("--")) :]))


def bar(spans: Iterable[Span], scale: Scale) -> Canvas:
    """One row. A span is one column wide at least: short phases are seen, too."""
    canvas = Canvas(scale.columns)
    for span in spans:
        first = scale.column(span.start)
        length = max(1, scale.column(span.end) - first)
        canvas.write(first, 0, " " * length)
        for column in range(first, first + length):
            canvas.paint(column, 0, span.colour)
        text = next((text for text in span.texts if len(text) < length), "")
        canvas.write(first + (len(text) + 1 < length), 0, text, ON_BAR)
    return canvas


def rancher(record: Record, scale: Scale) -> Canvas:
    """When Rancher's agent restarted, and what came of it."""
    canvas = Canvas(scale.columns)
    restarts = _marks(record, "rancher")
    ends = [scale.column(mark.at) for mark in restarts[1:]] + [scale.columns]
    for mark, end in zip(restarts, ends, strict=False):
        later = record.marks[record.marks.index(mark) :]
        said = next((m for m in later if m.kind in ("note", "good")), None)
        text = mark.text + (f": {said.text}" if said else "")
        colour = GOOD if said and said.kind == "good" else BAD
        column = scale.column(mark.at)
        before = column - 1 - len(text)
        to_the_left = column + 2 + len(text) > end and canvas.is_free(before, 0, len(text))
        canvas.write(before if to_the_left else column + 2, 0, text, colour)
        canvas.write(column, 0, _MARKER, colour)
    return canvas


def steps(record: Record, scale: Scale) -> Canvas:
    """Where each step begins, with as much of its title's first words as there is room for."""
    canvas = Canvas(scale.columns)
    marks = _marks(record, "step")
    starts = [scale.column(mark.at) for mark in marks] + [scale.columns + 1]
    for mark, start, following in zip(marks, starts, starts[1:], strict=False):
        room, title = following - start - 1, mark.text.partition(":")[0]
        canvas.write(start, 0, title if len(title) <= room else title[:3], TITLE)
    return canvas


def axis(scale: Scale) -> Canvas:
    """Seconds."""
    canvas = Canvas(scale.columns)
    step = next((tick for tick in _TICKS if scale.seconds / tick <= 8), _TICKS[-1])
    for tick in range(0, int(scale.seconds) + 1, step):
        canvas.write(scale.column(tick), 0, f"│{tick}" if tick else "│0 s", DIM)
    return canvas


def _marks(record: Record, kind: str) -> list[Mark]:
    return [mark for mark in record.marks if mark.kind == kind]
