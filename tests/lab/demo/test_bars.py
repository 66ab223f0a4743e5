from __future__ import annotations

from lab.demo import bars
from lab.demo.chart import BAD, GOOD, Scale
from tests.lab.builder import RecordBuilder, sample

SCALE = Scale(20.0, 40)


def test_a_migration_under_way_reaches_to_now() -> None:
    builder = RecordBuilder()
    builder.migration(1, "Pending")
    (span,) = bars.spans_of(builder.record, builder.record.migrations["m1"], 9.0)
    assert (span.start, span.end, span.colour) == (1, 9.0, bars.PENDING[0])


def test_an_old_pod_that_still_counts_reaches_to_now() -> None:
    builder = RecordBuilder()
    builder.pod(1, "source", "Running")
    builder.migration(1, "Running")
    builder.pod(2, "target", "Running", of="m1")
    builder.migration(3, "Succeeded")
    *_, last = bars.spans_of(builder.record, builder.record.migrations["m1"], 9.0)
    assert (last.start, last.end, last.colour) == (3, 9.0, bars.LINGERING[0])


def test_the_longest_text_that_fits_stands_in_a_bar() -> None:
    spans = [
        bars.Span(0, 10, "#000000", ("much too long for that", "this fits")),
        bars.Span(10, 11, "#ffffff", ("no",)),
    ]
    (line,) = bars.bar(iter(spans), SCALE).lines()
    assert line.plain.strip() == "this fits"


def test_a_short_phase_is_seen_too() -> None:
    canvas = bars.bar(iter([bars.Span(5.0, 5.01, "#123456", ())]), SCALE)
    assert canvas.is_painted(10, 0, 1, "#123456")
    assert not canvas.is_painted(11, 0, 1, "#123456")


def test_a_short_run_shows_its_last_flag() -> None:
    builder = RecordBuilder()
    builder.mark(10, "headroom", "headroom controller --estimate harvester --webhook")
    (line,) = bars.bar(bars.runs_of_headroom(builder.record, 16.0), SCALE).lines()
    assert line.plain.strip() == "--webhook"


def test_ranchers_restart_says_what_came_of_it() -> None:
    said = "Rancher's agent restarts: reverted, repaired after 10 ms"
    (right,) = bars.rancher(sample().record, Scale(20.0, 120)).lines()
    (left,) = bars.rancher(sample().record, Scale(12.0, 100)).lines()
    (cut,) = bars.rancher(sample().record, Scale(20.0, 60)).lines()
    assert (right.plain.index("▲"), right.plain.strip()) == (54, f"▲ {said}")
    assert (left.plain.index("▲"), left.plain.strip()) == (75, f"{said} ▲")
    assert (cut.plain.index("▲"), cut.plain.strip()) == (27, f"▲ {said[:31]}")


def test_two_restarts_do_not_write_over_each_other() -> None:
    builder = RecordBuilder()
    builder.mark(8, "rancher", "restarts")
    builder.mark(8.1, "note", "reverted")
    builder.mark(10, "rancher", "restarts ×5")
    builder.mark(11, "good", "no revert visible")
    (line,) = bars.rancher(builder.record, Scale(20.0, 80)).lines()
    assert line.plain.strip() == "restarts: reverted ▲       ▲ restarts ×5: no revert visible"
    colours = {str(span.style) for span in line.spans if line.plain[span.start] == "▲"}
    assert colours == {BAD, GOOD}
