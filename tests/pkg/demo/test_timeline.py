from __future__ import annotations

import pytest

from pkg.demo.chart import Plateau, Scale, columns, plateaus
from pkg.demo.history import Amounts
from pkg.util.quantity import Quantity

from .builder import BASE, HELD, ONE, RAISED, TWO, sample


def cpu(amounts: Amounts) -> Quantity:
    return amounts.cpu


def quantity(amounts: tuple[str, str]) -> Quantity:
    return Quantity.parse(amounts[0])


SECONDS = Scale(seconds=20.0, columns=20)


@pytest.mark.parametrize(
    ("at", "column"),
    [(0.0, 0), (0.99, 0), (1.0, 1), (19.9, 19), (20.0, 19), (300.0, 19), (-1.0, 0)],
)
def test_which_column_a_moment_lies_in(at: float, column: int) -> None:
    assert SECONDS.column(at) == column


def test_nothing_is_shown_before_the_first_version_and_after_now() -> None:
    found = columns(sample().history.quotas, cpu, SECONDS, now=14.5)
    assert [column is None for column in found] == [True] + [False] * 14 + [True] * 5


@pytest.mark.parametrize(
    ("second", "low", "high", "hard", "used"),
    [
        pytest.param(2, BASE, BASE, BASE, ONE, id="what stands"),
        pytest.param(4, BASE, BASE, BASE, ONE, id="what has stood for a while"),
        pytest.param(6, BASE, RAISED, RAISED, TWO, id="raised within the second"),
        pytest.param(9, BASE, RAISED, RAISED, TWO, id="lowered and repaired within the second"),
        pytest.param(12, RAISED, HELD, HELD, TWO, id="held"),
        pytest.param(18, BASE, HELD, BASE, ONE, id="given back"),
    ],
)
def test_what_a_column_shows(
    second: int,
    low: tuple[str, str],
    high: tuple[str, str],
    hard: tuple[str, str],
    used: tuple[str, str],
) -> None:
    column = columns(sample().history.quotas, cpu, SECONDS, now=20.0)[second]
    assert column is not None
    seen = (column.low, column.high, column.hard, column.used)
    assert seen == tuple(map(quantity, (low, high, hard, used)))


def test_however_few_the_columns_nothing_is_lost() -> None:
    found = columns(sample().history.quotas, cpu, Scale(20.0, 1), now=20.0)
    assert found[0] is not None
    assert (found[0].low, found[0].high) == (quantity(BASE), quantity(HELD))


def test_plateaus_are_runs_of_one_value() -> None:
    found = columns(sample().history.quotas, cpu, SECONDS, now=20.0)
    assert plateaus(found, lambda column: column.hard) == [
        Plateau(1, 5, quantity(BASE)),
        Plateau(6, 6, quantity(RAISED)),
        Plateau(12, 6, quantity(HELD)),
        Plateau(18, 2, quantity(BASE)),
    ]
