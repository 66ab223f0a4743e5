"""`--mode takeover` becomes assist and the other way round, under migrations and without `headroom release`: each mode
goes on from what the other one left."""

from __future__ import annotations

import pytest

from kubeloop.api.core import ResourceQuota
from pkg.util.names import migrating_uid_key
from pkg.util.resourcequota.give_back import give_back
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from tests.decisions import applied, by_value, charged, namespace
from tests.objects import HARD, OWNER, SKIP, by_name, launcher, quota, uid_of, vmi, vmim

HERE = vmi(nodeName="node-1", phase="Running")
SOURCE = launcher(node="node-1")
MOVE = vmim("Running")
TARGET = launcher(node="node-2", migration=MOVE)
HARD_OF_PODS = {**HARD, "pods": "1", "requests.memory": "5000Mi"}
LIMITS = '{"limit":{"limitsCpu":"3","limitsMemory":"5000Mi","pods":"1","requestsMemory":"5000Mi"}}'  # as HARD_OF_PODS
BY_UID = migrating_uid_key(uid_of("vm1"))
MODES = {
    Mode.TAKEOVER: [Policy(Mode.TAKEOVER, kind) for kind in EstimateKind],
    Mode.ASSIST: [Policy(Mode.ASSIST, EstimateKind.HARVESTER)],
}


def settle(rq: ResourceQuota, policy: Policy, *, over: bool = False) -> ResourceQuota:
    """One patch, after which there is nothing to do."""
    pods = [TARGET] if over else [SOURCE, TARGET]
    here = vmi(nodeName="node-2", phase="Running") if over else HERE
    migrations = [vmim("Succeeded")] if over else [MOVE]

    def seen(found: ResourceQuota) -> object:
        return namespace(charged(found, pods), migrations, pods, [here], limits=LIMITS)

    after = applied(rq, plan(seen(rq), policy))  # type: ignore[arg-type]
    assert not plan(seen(after), policy)  # type: ignore[arg-type]
    return after


@pytest.mark.parametrize("takeover", MODES[Mode.TAKEOVER], ids=lambda policy: policy.estimate.value)
@pytest.mark.parametrize("over", [False, True], ids=["it goes on", "it ended meanwhile"])
def test_takeover_becomes_assist_and_takeover_again(takeover: Policy, over: bool) -> None:
    (assist,) = MODES[Mode.ASSIST]
    taken = settle(quota(dict(HARD_OF_PODS)), takeover)
    assert {OWNER, SKIP, by_name()} <= taken.annotations.keys()
    assert by_value(taken.hard)["limits.cpu"] > by_value(HARD)["limits.cpu"]

    beside = settle(taken, assist, over=over)
    assert not {OWNER, SKIP, by_name()} & beside.annotations.keys()
    assert (BY_UID in beside.annotations) is not over
    for name in ("pods", "requests.memory"):  # Harvester would never lower them again
        assert by_value(beside.hard)[name] == by_value(HARD_OF_PODS)[name]
    for name in HARD:
        assert by_value(beside.hard)[name] == by_value(HARD if over else taken.hard)[name]

    again = settle(beside, takeover, over=over)
    assert again.annotations[OWNER] == "headroom"
    ended = settle(again, takeover, over=True)
    assert by_value(ended.hard) == by_value(HARD_OF_PODS)
    assert not {by_name(), BY_UID} & ended.annotations.keys()


def test_what_assist_hands_over_is_what_release_hands_over() -> None:
    """But for the order to Harvester to compute again, which assist has done itself."""
    (assist,) = MODES[Mode.ASSIST]
    taken = settle(quota(dict(HARD_OF_PODS)), MODES[Mode.TAKEOVER][0])
    seen = namespace(charged(taken, [SOURCE, TARGET]), [MOVE], [SOURCE, TARGET], [HERE], limits=LIMITS)
    released, handed = applied(taken, give_back(seen, to_harvester=True)), applied(taken, plan(seen, assist))
    order = {"harvesterhci.io/migratingScalingResyncNeeded": "true"}
    assert released.annotations == {**handed.annotations, **order}
    assert by_value(released.hard) == by_value(handed.hard)
