"""Assist mode with `--estimate exact`: Harvester's wire format, what quota counts as the value."""

from __future__ import annotations

from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from tests.decisions import namespace
from tests.objects import POD_ENTRY, by_uid, launcher, quota, vmi, vmim

EXACT = Policy(Mode.ASSIST, EstimateKind.EXACT)
HERE = vmi(nodeName="node-1")


def test_the_entry_holds_the_two_limits_that_harvester_reads_support_containers_included() -> None:
    made = plan(namespace(quota(), [vmim()], [launcher(HERE)]), EXACT)
    assert dict(made.annotations) == {by_uid(): POD_ENTRY}
    assert dict(made.hard) == {"limits.cpu": "5015m", "limits.memory": "10040344313"}


def test_a_limit_that_the_quota_does_not_name_is_left_out() -> None:
    made = plan(namespace(quota({"limits.cpu": "3"}), [vmim()], [launcher(HERE)]), EXACT)
    assert dict(made.annotations) == {by_uid(): '{"limits.cpu":"2015m"}'}


def test_a_vm_that_does_not_run_gets_no_room_under_harvesters_estimate_either() -> None:
    pending = vmi(phase="Pending")
    assert not plan(namespace(quota(), [vmim()], [], [pending]), Policy(Mode.ASSIST))


def test_a_vm_without_a_status_is_upstreams_case() -> None:
    unseen = vmi(phase=None)
    assert plan(namespace(quota(), [vmim()], [], [unseen]), Policy(Mode.ASSIST)).annotations
