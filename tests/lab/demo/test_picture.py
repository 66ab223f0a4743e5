import io

import pytest
from rich.console import Console

from lab.demo.lines import Check, Report
from lab.demo.picture import LINGERING, PENDING, Span, bar, label_of, rancher, runs_of_headroom, spans_of, svg, view
from lab.plot import BAD, GOOD, GUTTER, Scale
from tests.lab.builder import REFUSAL, RecordBuilder, sample


def text_of(builder: RecordBuilder, report: Report) -> list[str]:
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    with console.capture() as captured:
        console.print(view(builder.record, report, now=20.0, width=WIDTH, rows=ROWS))
    return captured.get().splitlines()


def checked(*checks: Check) -> Report:
    report = Report()
    for check in checks:
        report.add(check)
    return report


WIDTH, ROWS = 100, 6
STORY = """\
A namespace's quota while its VMs migrate, as the API server shows it   demo: 1 passed, 1 failed
limits.cpu    ─ allowed  █ used  ╌ base 3
                                       5                         5015m
                                       ╭──────────────┬────────────────────────────────────╮
                                       │              │                                    │
              ╌╌╌╌─────────────────────╯╌╌╌╌╌╌╌╌╌╌╌╌╌╌╵╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╰────────
                       2015m            4030m                                               2015m

limits.memory ─ allowed  █ used  ╌ base 5000Mi
                                       9980344313                10040344313
                                       ╭──────────────┬────────────────────────────────────╮
                                       │              │                                    │
              ╌╌╌╌─────────────────────╯╌╌╌╌╌╌╌╌╌╌╌╌╌╌╵╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╰────────
                       4797464313

              │0 s                 │5                    │10                  │15                  │
              (a) refused          (b) with headroom
headroom                            headroom controller --estimate harvester
Rancher                                             ▲ Rancher's agent restarts: reverted, repaired a
m1 of vm1                  Pending: refused      Running          old pod counts

✓ (a) quota says why: exceeded quota: default-abc, requested: limits.cpu=2015m
FAILED  (b) raised: expected 1; seen 2
"""
SAID = Check("a", "quota says why", REFUSAL, REFUSAL, headline=True)


@pytest.mark.parametrize(
    ("name", "vm", "label"),
    [
        pytest.param("m1", "vm1", "m1 of vm1", id="a short name"),
        pytest.param("kubevirt-evacuation-x7kq2", "vm3", "x7kq2 of vm3", id="a generated name"),
        pytest.param("kubevirt-evacuation-x7kq2", "database-4", "of database-4", id="a long VM"),
    ],
)
def test_a_label_fits_beside_the_bars(name: str, vm: str, label: str) -> None:
    builder = RecordBuilder()
    builder.migration(1.0, "Pending", name=name, vm=vm)
    assert label_of(builder.record.migrations[name]) == label


def test_it_tells_the_whole_story() -> None:
    lines = text_of(sample(), checked(SAID, Check("b", "raised", 1, 2)))
    assert [line.rstrip() for line in lines] == STORY.splitlines()
    assert max(map(len, lines)) <= WIDTH


def test_before_anything_was_seen_there_is_no_chart() -> None:
    assert "allowed" not in "".join(text_of(RecordBuilder(), Report())[1:])


def test_the_picture_loads_nothing_and_has_colours_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = svg(sample().record, checked(SAID), 20.0)
    assert drawn.startswith("<svg")
    assert "exceeded&#160;quota:&#160;default-abc" in drawn
    assert "http" not in drawn.replace("http://www.w3.org/2000/svg", "")
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb"), ("COLUMNS", "40")):
        monkeypatch.setenv(name, value)
    assert svg(sample().record, checked(SAID), 20.0) == drawn


# ---- bars on the time axis

SCALE = Scale(20.0, 40)


def test_a_migration_under_way_reaches_to_now() -> None:
    builder = RecordBuilder()
    builder.migration(1, "Pending")
    (span,) = spans_of(builder.record, builder.record.migrations["m1"], 9.0)
    assert (span.start, span.end, span.colour) == (1, 9.0, PENDING[0])


def test_an_old_pod_that_still_counts_reaches_to_now() -> None:
    builder = RecordBuilder()
    builder.pod(1, "source", "Running")
    builder.migration(1, "Running")
    builder.pod(2, "target", "Running", job="m1")
    builder.migration(3, "Succeeded")
    *_, span = spans_of(builder.record, builder.record.migrations["m1"], 9.0)
    assert (span.start, span.end, span.colour) == (3, 9.0, LINGERING[0])


def test_the_longest_text_that_fits_stands_in_a_bar() -> None:
    spans = [Span(0, 10, "#000000", ("much too long for that", "this fits")), Span(10, 11, "#ffffff", ("no",))]
    (line,) = bar(iter(spans), SCALE).rows()
    assert line.plain.strip() == "this fits"


def test_a_short_phase_is_seen_too() -> None:
    canvas = bar(iter([Span(5.0, 5.01, "#123456", ())]), SCALE)
    assert canvas.is_painted(10, 0, 1, "#123456")
    assert not canvas.is_painted(11, 0, 1, "#123456")


def test_a_short_run_shows_its_last_flag() -> None:
    builder = RecordBuilder()
    builder.mark(10, "headroom", "headroom controller --estimate harvester --webhook")
    (line,) = bar(runs_of_headroom(builder.record, 16.0), SCALE).rows()
    assert line.plain.strip() == "--webhook"


def test_ranchers_restart_says_what_came_of_it() -> None:
    text = "Rancher's agent restarts: reverted, repaired after 10 ms"
    (right_row,) = rancher(sample().record, Scale(20.0, 120)).rows()
    (left_row,) = rancher(sample().record, Scale(12.0, 100)).rows()
    (short_row,) = rancher(sample().record, Scale(20.0, 60)).rows()
    assert (right_row.plain.index("▲"), right_row.plain.strip()) == (GUTTER + 55, f"▲ {text}")
    assert (left_row.plain.index("▲"), left_row.plain.strip()) == (GUTTER + 76, f"{text} ▲")
    assert (short_row.plain.index("▲"), short_row.plain.strip()) == (GUTTER + 28, f"▲ {text[:31]}")


def test_two_restarts_do_not_write_over_each_other() -> None:
    builder = RecordBuilder()
    builder.mark(8, "rancher", "restarts")
    builder.mark(8.1, "note", "reverted")
    builder.mark(10, "rancher", "restarts ×5")
    builder.mark(11, "good", "no revert visible")
    (line,) = rancher(builder.record, Scale(20.0, 80)).rows()
    assert line.plain.strip() == "restarts: reverted ▲       ▲ restarts ×5: no revert visible"
    colours = {str(span.style) for span in line.spans if line.plain[span.start] == "▲"}
    assert colours == {BAD, GOOD}
