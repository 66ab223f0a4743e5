"""compensation_for: enough room, settles at once, never swings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kubeloop.api.quantity import ZERO, Quantity
from pkg.util.resourcequota.compensation import compensation_for
from tests.decisions import drawn

MARGIN = 128 * 2**20


amounts = st.integers(min_value=0, max_value=2**45)
"""Bytes, up to 32Ti."""
State = tuple[Quantity, Quantity, Quantity, Quantity]
"""Used, the limit without a compensation, the one that stands, the pod's need."""
close = st.integers(min_value=-3 * MARGIN, max_value=3 * MARGIN)


@st.composite
def states(draw: st.DrawFn) -> State:
    """Used and need anywhere, often near the limit, where the decision turns."""
    without, stands, need = draw(amounts), draw(amounts), draw(amounts)
    used = max(0, without + stands - need + draw(close)) if draw(st.booleans()) else draw(amounts)
    return Quantity.of(used), Quantity.of(without), Quantity.of(stands), Quantity.of(need)


@drawn
@given(states())
def test_the_pod_fits_afterwards(case: State) -> None:
    used, without, _stands, need = case
    assert used + need <= without + compensation_for(*case)


@drawn
@given(states())
def test_it_settles_at_once_and_never_swings(case: State) -> None:
    used, without, _stands, need = case
    once = compensation_for(*case)
    assert compensation_for(used, without, once, need) == once


@drawn
@given(states())
def test_what_is_enough_is_not_touched(case: State) -> None:
    used, without, stands, need = case
    if used + need <= without + stands:
        assert compensation_for(*case) == stands


@drawn
@given(states())
def test_no_more_is_added_than_what_is_missing_and_the_margin(case: State) -> None:
    used, without, stands, need = case
    missing = used + need - without
    most = max(stands, (missing if missing > ZERO else ZERO) + Quantity.of(MARGIN))
    assert compensation_for(*case) <= most


@drawn
@given(states())
def test_where_upstream_settles_it_is_upstreams_value(case: State) -> None:
    """Upstream: missing of the limit that stands, plus 128Mi, replaces what stands, until nothing is missing."""
    used, without, stands, need = case
    for _ in range(2):
        missing = used + need - without - stands
        if missing <= ZERO:
            assert compensation_for(*case) == stands
            return
        stands = missing + Quantity.of(MARGIN)
