"""compensation_for: enough room, settles at once, never swings."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from pkg.util.quantity import ZERO, Quantity
from pkg.util.resourcequota.compensation import MemoryState, compensation_for
from tests.decisions import drawn, sentences

MARGIN = 128 * 2**20


@dataclass(frozen=True)
class Case:
    """Bytes: in use, the limit without compensation, the compensation that stands, the pod's need."""

    used: int
    without: int
    stands: int
    need: int
    wanted: int
    fixed: bool = False


CASES = {
    "room enough and nothing stands": Case(0, 100, 0, 100, 0),
    "room enough with what stands": Case(100, 100, 50, 50, 50),
    "one byte is missing": Case(1, 100, 0, 100, 1 + MARGIN),
    "a small one that stands is replaced by what is missing, as upstream": Case(
        1000, 1000, 100, 150, 50 + MARGIN
    ),
    "a large one that stands is not lost when more is missing": Case(
        2**40, 2**40, 2**33, 2**33 + 1, 2**33 + 1 + MARGIN
    ),
    "of a limit that stays whatever is compensated, what is missing of it": Case(
        100, 60, 0, 50, 90 + MARGIN, fixed=True
    ),
    "of a limit that stays, enough is enough": Case(10, 60, 0, 50, 0, fixed=True),
    "a quota used beyond its limit": Case(500, 100, 0, 10, 410 + MARGIN),
}


def of(case: Case) -> MemoryState:
    return MemoryState(
        Quantity.of(case.used), Quantity.of(case.without), Quantity.of(case.stands), fixed=case.fixed
    )


@sentences(CASES)
def test_compensation(case: Case) -> None:
    assert compensation_for(of(case), Quantity.of(case.need)).value() == case.wanted


amounts = st.integers(min_value=0, max_value=2**45)
"""Bytes, up to 32Ti."""
close = st.integers(min_value=-3 * MARGIN, max_value=3 * MARGIN)


@st.composite
def states(draw: st.DrawFn) -> tuple[MemoryState, Quantity]:
    """Used and need anywhere, often near the limit, where the decision turns."""
    without, stands, need = draw(amounts), draw(amounts), draw(amounts)
    used = max(0, without + stands - need + draw(close)) if draw(st.booleans()) else draw(amounts)
    return MemoryState(Quantity.of(used), Quantity.of(without), Quantity.of(stands)), Quantity.of(need)


@drawn
@given(states())
def test_the_pod_fits_afterwards(case: tuple[MemoryState, Quantity]) -> None:
    state, need = case
    assert state.used + need <= state.limit(compensation_for(state, need))


@drawn
@given(states())
def test_it_settles_at_once_and_never_swings(case: tuple[MemoryState, Quantity]) -> None:
    state, need = case
    once = compensation_for(state, need)
    again = MemoryState(state.used, state.without, once)
    assert compensation_for(again, need) == once


@drawn
@given(states())
def test_what_is_enough_is_not_touched(case: tuple[MemoryState, Quantity]) -> None:
    state, need = case
    if state.used + need <= state.limit(state.stands):
        assert compensation_for(state, need) == state.stands


@drawn
@given(states())
def test_no_more_is_added_than_what_is_missing_and_the_margin(case: tuple[MemoryState, Quantity]) -> None:
    state, need = case
    missing = state.used + need - state.without
    most = max(state.stands, (missing if missing > ZERO else ZERO) + Quantity.of(MARGIN))
    assert compensation_for(state, need) <= most


@drawn
@given(states())
def test_where_upstream_settles_it_is_upstreams_value(case: tuple[MemoryState, Quantity]) -> None:
    """Upstream: missing of the limit that stands, plus 128Mi, replaces what stands, until nothing is missing."""
    state, need = case
    stands = state.stands
    for _ in range(2):
        missing = state.used + need - state.limit(stands)
        if missing <= ZERO:
            assert compensation_for(state, need) == stands
            return
        stands = missing + Quantity.of(MARGIN)
