"""A plan that was not written: it waits for a better moment, or the API server was away."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import Mode, Policy
from tests.decisions import drawn, remembering
from tests.pkg.util.resourcequota.test_planner_properties import modes, said, worlds


@modes
@given(worlds(), st.sampled_from([0.0, 0.25, 59.0, 60.0]))
@drawn
def test_it_is_made_again(mode: Mode, seen: Facts, passed: float) -> None:
    """What is remembered says since when something is seen, not what was decided."""
    policy = Policy(mode)
    seen = remembering(seen, plan(seen, policy).timers, seen.now + passed)
    made = plan(seen, policy)
    assert said(plan(remembering(seen, made.timers, seen.now), policy)) == said(made)
