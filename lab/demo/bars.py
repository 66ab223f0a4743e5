"""Migrations, headroom and Rancher's agent as bars on the chart's time axis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle

from lab import questions
from lab.demo import palette
from lab.demo.chart import Canvas, Scale
from lab.record import Record, Track
from pkg.util import constants

_TICKS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600)
_MARKER = "▲"
_LINGERS = ("old pod counts", "old pod")


@dataclass(frozen=True, slots=True)
class Span:
    """From `start` to `end`, in seconds. The first of `texts` that fits stands in it."""

    start: float
    end: float
    colour: str
    texts: tuple[str, ...]


def spans_of(record: Record, track: Track, now: float) -> Iterator[Span]:
    """A migration's phases, and its old pod for as long as that counts afterwards."""
    ends = [change.at for change in track.phases[1:]] + [now]
    for change, end in zip(track.phases, ends, strict=True):
        if change.phase not in constants.FINAL_PHASES:
            yield Span(change.at, end, *_look(change.phase, refused=track.refused is not None))
    source, ended = questions.source_of(record, track.name), track.ended
    if source is not None and ended is not None:
        gone = source.ended.at if source.ended else now
        yield Span(ended.at, max(gone, ended.at), palette.LINGERING, _LINGERS)


def _look(phase: str, *, refused: bool) -> tuple[str, tuple[str, ...]]:
    if phase in (constants.PHASE_UNSET, constants.PHASE_PENDING):
        return (palette.REFUSED, ("Pending: refused", "refused")) if refused else (palette.PENDING, ("Pending",))
    if phase == constants.PHASE_RUNNING:
        return palette.MOVING, ("Running",)
    return palette.PREPARING, (phase,)


def runs_of_headroom(record: Record, now: float) -> Iterator[Span]:
    """When headroom ran, and with what."""
    marks = [mark for mark in record.marks if mark.kind == "headroom"]
    ends = [mark.at for mark in marks[1:]] + [now]
    colours = cycle(palette.HEADROOM)
    for mark, end in zip(marks, ends, strict=False):
        if mark.text:
            yield Span(mark.at, end, next(colours), _shorter(mark.text))


def _shorter(command: str) -> tuple[str, ...]:
    """The whole command line, its flags, its last flag."""
    flags = command.removeprefix("headroom controller ")
    return command, flags, flags[max(0, flags.rfind("--")) :]


def bar(spans: Iterator[Span], scale: Scale) -> Canvas:
    """One row. A span is one column wide at least: short phases are seen, too."""
    canvas = Canvas(scale.columns, 1)
    for span in spans:
        first, last = scale.column(span.start), scale.column(span.end)
        length = max(1, last - first)
        for column in range(first, first + length):
            canvas.paint(column, 0, span.colour)
            canvas.put(column, 0, " ")
        text = next((text for text in span.texts if len(text) < length), "")
        canvas.write(first + (1 if len(text) + 1 < length else 0), 0, text, palette.ON_BAR)
    return canvas


def rancher(record: Record, scale: Scale) -> Canvas:
    """When Rancher's agent restarted, and what came of it."""
    canvas = Canvas(scale.columns, 1)
    restarts = [(index, mark) for index, mark in enumerate(record.marks) if mark.kind == "rancher"]
    ends = [scale.column(mark.at) for _, mark in restarts[1:]] + [scale.columns]
    for (index, mark), end in zip(restarts, ends, strict=False):
        said = next((m for m in record.marks[index:] if m.kind in ("note", "good")), None)
        text = mark.text + (f": {said.text}" if said else "")
        colour = palette.GOOD if said and said.kind == "good" else palette.BAD
        column = scale.column(mark.at)
        before = column - 1 - len(text)
        to_the_left = column + 2 + len(text) > end and canvas.is_free(before, 0, len(text))
        canvas.write(before if to_the_left else column + 2, 0, text, colour)
        canvas.put(column, 0, _MARKER, colour)
    return canvas


def steps(record: Record, scale: Scale) -> Canvas:
    """Where each step begins, with as much of its title's first words as there is room for."""
    canvas = Canvas(scale.columns, 1)
    marks = [mark for mark in record.marks if mark.kind == "step"]
    starts = [scale.column(mark.at) for mark in marks] + [scale.columns + 1]
    for mark, start, following in zip(marks, starts, starts[1:], strict=False):
        room, title = following - start - 1, mark.text.partition(":")[0]
        canvas.write(start, 0, title if len(title) <= room else title[:3], palette.TITLE)
    return canvas


def axis(scale: Scale) -> Canvas:
    """Seconds."""
    canvas = Canvas(scale.columns, 1)
    step = next((tick for tick in _TICKS if scale.seconds / tick <= 8), _TICKS[-1])
    for tick in range(0, int(scale.seconds) + 1, step):
        text = f"{tick} s" if tick == 0 else str(tick)
        canvas.write(scale.column(tick), 0, f"│{text}", palette.DIM)
    return canvas
