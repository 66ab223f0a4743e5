"""Assist mode with `--estimate exact`: Harvester's wire format, what quota counts as the value."""

from __future__ import annotations

from pkg.util.resourcequota.model import EstimateKind, Mode, Policy
from pkg.util.resourcequota.planner import plan
from tests.pkg.util.resourcequota.world import by_uid, observed, quota, vmim


def test_the_entry_holds_the_two_limits_that_harvester_reads_support_containers_included() -> None:
    made = plan(observed(quota(), [vmim()]), Policy(Mode.ASSIST, EstimateKind.EXACT))
    assert dict(made.annotations) == {by_uid(): '{"limits.cpu":"2015m","limits.memory":"4797464313"}'}
    assert dict(made.hard) == {"limits.cpu": "5015m", "limits.memory": "10040344313"}


def test_a_limit_that_the_quota_does_not_name_is_left_out() -> None:
    made = plan(observed(quota({"limits.cpu": "3"}), [vmim()]), Policy(Mode.ASSIST, EstimateKind.EXACT))
    assert dict(made.annotations) == {by_uid(): '{"limits.cpu":"2015m"}'}
