"""The picture of a whole demo: charts, migrations, headroom and Rancher's agent on one time axis, and checks; in a
terminal at the end, and as SVG."""

from collections.abc import Callable, Iterable, Iterator
from itertools import cycle
from pathlib import Path
from typing import NamedTuple, TextIO

from rich.console import Console, Group
from rich.text import Text

from kubeloop.api.quantity import Quantity
from lab import plot, questions
from lab.demo.lines import Check, Report
from lab.plot import BAD, DIM, GOOD, GUTTER, HARD, ON_BAR, TITLE, USED, Canvas, Sample, Scale
from lab.record import Amounts, Mark, Record, Track
from pkg.util import constants

_ROOM_ABOVE = 6, 5
"""The scale ends this much above the highest limit: for labels."""
_WIDTH, _ROWS = 118, 14
_CHARTS: dict[str, Callable[[Amounts], Quantity]] = {
    "limits.cpu": lambda amounts: amounts.cpu,
    "limits.memory": lambda amounts: amounts.memory,
}


def show(stream: TextIO, record: Record, report: Report, now: float) -> None:
    console = Console(file=stream)
    console.print(view(record, report, now=now, width=max(console.width, 60), rows=9))


def write(path: Path, record: Record, report: Report, now: float) -> None:
    """The picture into a file. Raises OSError."""
    path.write_text(svg(record, report, now), "utf-8")


def svg(record: Record, report: Report, now: float) -> str:
    return plot.svg(view(record, report, now=now, width=_WIDTH, rows=_ROWS), "headroom demo", _WIDTH)


def view(record: Record, report: Report, *, now: float, width: int, rows: int) -> Group:
    """The whole demo, `width` columns wide; each chart has `rows` rows."""
    scale = Scale(now, width - GUTTER - 1)
    title = Text("A namespace's quota while its VMs migrate, as the API server shows it", TITLE)
    title.append(f"   {report.last_line}", BAD if report.failed_count else GOOD)
    charts = [row for name, read in _CHARTS.items() for row in _chart(name, read, record, scale, now, rows)]
    bands = {
        "": plot.axis(scale),
        " ": _steps(record, scale),
        "headroom": bar(runs_of_headroom(record, now), scale),
        "Rancher": rancher(record, scale),
    }
    for track in list(record.migrations.values()):
        bands[label_of(track)] = bar(spans_of(record, track, now), scale)
    band_rows = [row for label, canvas in bands.items() for row in canvas.rows(label)]
    checks = [_check_line(check) for check in report.checks if check.headline or not check.ok]
    return Group(title, *charts, *band_rows, Text(), *checks)


def label_of(track: Track) -> str:
    """Returns a migration's name and VM; of a long generated name the part by which it differs from others."""
    label = f"{track.name} of {track.vm}"
    return label if len(label) <= GUTTER else f"{track.name.rpartition('-')[2]} of {track.vm}"[-GUTTER:]


def _chart(
    name: str, read: Callable[[Amounts], Quantity], record: Record, scale: Scale, now: float, rows: int
) -> Iterator[Text]:
    samples = [Sample(version.at, read(version.hard), read(version.used)) for version in record.quotas]
    if not samples:
        return
    base = samples[0].hard
    highest = max(base + base, *(sample.hard for sample in samples))
    top = Quantity(highest.nanos * _ROOM_ABOVE[0] // _ROOM_ABOVE[1])
    heading = Text(f"{name:<{GUTTER}} ", TITLE)
    yield heading.append("─ allowed  ", HARD).append("█ used  ", USED).append(f"╌ base {base}", DIM)
    yield from plot.chart(plot.columns(samples, scale, now), top=top, height=rows, base=base).rows()


def _check_line(check: Check) -> Text:
    if not check.ok:
        return Text(str(check), BAD)
    return Text(f"✓ ({check.step}) ", GOOD).append(f"{check.name}: ", "").append(str(check.actual), DIM)


# ---- bars on the time axis

_MARKER = "▲"
PENDING = ("#a07d1c", ("Pending",))
_REFUSED = ("#b8403a", ("Pending: refused", "refused"))
_LOOKS = {constants.PHASE_UNSET: PENDING, constants.PHASE_PENDING: PENDING}
_LOOKS[constants.PHASE_RUNNING] = ("#3d64c4", ("Running",))
_PREPARING = "#3c7f8c"
LINGERING = ("#6a5a8c", ("old pod counts", "old pod"))
_HEADROOM = ("#3b7d4b", "#4f8f3a")
"""The colours of runs, in turn."""


class Span(NamedTuple):
    """A bar from `start` to `end`, in seconds. The first of `texts` that fits stands in it."""

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
    source, final_change = questions.source_of(record, track.name), track.ended
    if source is not None and final_change is not None:
        source_end = source.ended.at if source.ended else now
        yield Span(final_change.at, max(source_end, final_change.at), *LINGERING)


def runs_of_headroom(record: Record, now: float) -> Iterator[Span]:
    """Yields a span for each run of headroom, with its command line, its flags and its last flag as texts."""
    marks = _marks(record, "headroom")
    ends = [mark.at for mark in marks[1:]] + [now]
    colours = cycle(_HEADROOM)
    for mark, end in zip(marks, ends, strict=False):
        if mark.text:
            flags = mark.text.removeprefix("headroom controller ")
            yield Span(mark.at, end, next(colours), (mark.text, flags, flags[max(0, flags.rfind("--")) :]))


def bar(spans: Iterable[Span], scale: Scale) -> Canvas:
    """Returns a row with these spans. A span is at least one column wide, so that short phases are seen, too."""
    canvas = Canvas(scale.columns)
    for span in spans:
        start = scale.column(span.start)
        length = max(1, scale.column(span.end) - start)
        canvas.write(start, 0, " " * length)
        for column in range(start, start + length):
            canvas.paint(column, 0, span.colour)
        text = next((text for text in span.texts if len(text) < length), "")
        canvas.write(start + (len(text) + 1 < length), 0, text, ON_BAR)
    return canvas


def rancher(record: Record, scale: Scale) -> Canvas:
    """Returns a row with the restarts of Rancher's agent and their outcomes."""
    canvas = Canvas(scale.columns)
    restarts = _marks(record, "rancher")
    ends = [scale.column(mark.at) for mark in restarts[1:]] + [scale.columns]
    for mark, end in zip(restarts, ends, strict=False):
        later = record.marks[record.marks.index(mark) :]
        outcome = next((m for m in later if m.kind in ("note", "good")), None)
        text = mark.text + (f": {outcome.text}" if outcome else "")
        colour = GOOD if outcome and outcome.kind == "good" else BAD
        column = scale.column(mark.at)
        left_column = column - 1 - len(text)
        to_the_left = column + 2 + len(text) > end and canvas.is_free(left_column, 0, len(text))
        canvas.write(left_column if to_the_left else column + 2, 0, text, colour)
        canvas.write(column, 0, _MARKER, colour)
    return canvas


def _steps(record: Record, scale: Scale) -> Canvas:
    """Returns a row with the starts of the steps, and as much of each title's first words as there is room for."""
    canvas = Canvas(scale.columns)
    marks = _marks(record, "step")
    starts = [scale.column(mark.at) for mark in marks] + [scale.columns + 1]
    for mark, start, next_start in zip(marks, starts, starts[1:], strict=False):
        room, title = next_start - start - 1, mark.text.partition(":")[0]
        canvas.write(start, 0, title if len(title) <= room else title[:3], TITLE)
    return canvas


def _marks(record: Record, kind: str) -> list[Mark]:
    return [mark for mark in record.marks if mark.kind == kind]
