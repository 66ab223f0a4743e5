"""Charts of an amount and its limit, and bars, as the cells that a terminal shows."""

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from kubeloop.api.quantity import Quantity
from lab.plot import GUTTER, USED, Canvas, Column, Sample, Scale, bars, chart, columns


def q(value: float) -> Quantity:
    return Quantity.of(round(value))


def column(hard: float, used: float = 0, *, low: float | None = None, high: float | None = None) -> Column:
    return Column(q(hard if low is None else low), q(hard if high is None else high), q(hard), q(used))


def plain(canvas: Canvas) -> list[str]:
    return [row.plain[GUTTER + 1 :] for row in canvas.rows()]


def draw(series: Sequence[Column | None], *, base: float = 0) -> list[str]:
    """Ten units, a row each; row 0 is the top."""
    return plain(chart(series, base=q(base), top=q(10), height=10))


@pytest.mark.parametrize(
    ("series", "rows"),
    [
        pytest.param([column(3)] * 4, {6: "────"}, id="a level"),
        pytest.param([column(3), column(3), column(5), column(5)], {4: "  ╭─", 5: "3 │ ", 6: "──╯ "}, id="a step up"),
        pytest.param([column(5), column(3), column(3)], {4: "─╮ ", 5: " │ ", 6: " ╰─"}, id="a step down"),
        pytest.param(
            [column(5), column(5, low=3), column(5)], {4: "─┬─", 5: " │ ", 6: " ╵ "}, id="a dip within a column"
        ),
        pytest.param(
            [column(3), column(3, high=5), column(3)], {4: " ╷ ", 5: "3│ ", 6: "─┴─"}, id="a peak within a column"
        ),
        pytest.param([None, column(3), None], {6: " ─ "}, id="nothing before and after"),
        pytest.param([column(99)] * 2, {0: "──"}, id="more than there is room for"),
    ],
)
def test_the_line(series: list[Column | None], rows: dict[int, str]) -> None:
    base_row = 9
    lines = draw(series)
    assert {row: lines[row] for row in rows} == rows
    other_lines = [line.strip() for row, line in enumerate(lines) if row not in rows and row != base_row]
    assert set("".join(other_lines)) <= set("0123456789 ")


def test_the_base_is_dashed_where_the_limit_is_elsewhere() -> None:
    assert draw([column(3), column(5)], base=3)[6] == "─╯"
    assert draw([column(5), column(5)], base=3)[6] == "╌╌"


@pytest.mark.parametrize(
    ("used", "hard", "rows"),
    [
        pytest.param(4, 8, 4, id="whole rows"),
        pytest.param(0, 8, 0, id="nothing"),
        pytest.param(8, 8, 8, id="full: up to the line, not through it"),
        pytest.param(8, 3, 8, id="more than allowed: past the line"),
    ],
)
def test_the_area(used: float, hard: float, rows: int) -> None:
    canvas = chart([column(hard, used)], base=q(0), top=q(10), height=10)
    assert sum(canvas.is_painted(0, row, 1, USED) for row in range(10)) == rows


def test_labels_that_would_touch_go_a_row_higher() -> None:
    low, high = Quantity.parse("5001m"), Quantity.parse("5002m")
    series = [Column(v, v, v, q(0)) for v in [low] * 5 + [high] * 8]
    lines = plain(chart(series, base=q(3), top=q(10), height=10))
    assert (lines[3].strip(), lines[2].strip()) == ("5001m", "5002m")


def test_what_falls_outside_a_canvas_is_cut_off() -> None:
    canvas = Canvas(2, 1)
    canvas.write(1, 0, "long")
    canvas.paint(5, 5, USED)
    assert plain(canvas) == [" l"]
    assert not canvas.is_free(0, 0, 3)


def test_however_few_the_columns_nothing_is_lost() -> None:
    samples = [Sample(moment, q(hard), q(moment)) for moment, hard in ((1, 3), (9, 5), (9.5, 2), (18, 4))]
    assert columns(samples, Scale(20.0, 1), now=20.0) == [column(4, 18, low=2, high=5)]


def test_bars_are_parts_of_the_longest_of_their_group() -> None:
    console = Console(file=io.StringIO(), width=90, color_system=None)
    with console.capture() as captured:
        console.print(bars({"one": [("a", 2000.0), ("b", 1000.0)], "two": [("c", 0.001), ("d", 0.0)]}, {"a"}))
    rows = [(line.split()[0], line.count("▆"), line.split()[-1]) for line in captured.get().splitlines() if "▆" in line]
    assert rows == [("a", 45, "2,000"), ("b", 22, "1,000"), ("c", 45, "0.001"), ("d", 1, "0")]
