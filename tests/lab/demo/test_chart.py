from __future__ import annotations

from collections.abc import Sequence

import pytest

from kubeloop.api.quantity import Quantity
from lab.demo.chart import USED, Canvas, Column, Scale, chart, columns
from lab.record import Amounts
from tests.lab.builder import BASE, HELD, sample


def q(value: float) -> Quantity:
    return Quantity.of(round(value))


def column(hard: float, used: float = 0, *, low: float | None = None, high: float | None = None) -> Column:
    return Column(q(hard if low is None else low), q(hard if high is None else high), q(hard), q(used))


def drawn(found: Sequence[Column | None], *, base: float = 0) -> list[str]:
    """Ten units, a row each; row 0 is the top."""
    canvas = chart(found, base=q(base), top=10_000, height=10)
    return [line.plain for line in canvas.lines()]


def painted(found: Sequence[Column | None]) -> list[int]:
    """How many rows of each column are filled from below."""
    canvas = chart(found, base=q(0), top=10_000, height=10)
    return [sum(canvas.is_painted(index, row, 1, USED) for row in range(10)) for index in range(len(found))]


@pytest.mark.parametrize(
    ("found", "rows"),
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
def test_the_line(found: list[Column | None], rows: dict[int, str]) -> None:
    base_row = 9
    lines = drawn(found)
    assert {row: lines[row] for row in rows} == rows
    rest = [line.strip() for row, line in enumerate(lines) if row not in rows and row != base_row]
    assert set("".join(rest)) <= set("0123456789 ")


def test_the_base_is_dashed_where_the_limit_is_elsewhere() -> None:
    assert drawn([column(3), column(5)], base=3)[6] == "─╯"
    assert drawn([column(5), column(5)], base=3)[6] == "╌╌"


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
    assert painted([column(hard, used)]) == [rows]


def test_labels_that_would_touch_go_a_row_higher() -> None:
    first, second = Quantity.parse("5001m"), Quantity.parse("5002m")
    found = [Column(v, v, v, q(0)) for v in [first] * 5 + [second] * 8]
    lines = [line.plain for line in chart(found, base=q(3), top=10_000, height=10).lines()]
    assert (lines[3].strip(), lines[2].strip()) == ("5001m", "5002m")


def test_what_falls_outside_a_canvas_is_cut_off() -> None:
    canvas = Canvas(2, 1)
    canvas.write(1, 0, "long")
    canvas.paint(5, 5, USED)
    assert [line.plain for line in canvas.lines()] == [" l"]
    assert not canvas.is_free(0, 0, 3)


def cpu(amounts: Amounts) -> Quantity:
    return amounts.cpu


def quantity(amounts: tuple[str, str]) -> Quantity:
    return Quantity.parse(amounts[0])


def test_however_few_the_columns_nothing_is_lost() -> None:
    found = columns(sample().record.quotas, cpu, Scale(20.0, 1), now=20.0)
    assert found[0] is not None
    assert (found[0].low, found[0].high) == (quantity(BASE), quantity(HELD))
