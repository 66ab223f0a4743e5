"""The parallel limits, over caches and over what is about to be created."""

from __future__ import annotations

import pytest

from lab.kubevirt.gate import Gate
from pkg.util.kubevirt.parallel_migrations import Limits, hindrance
from tests.lab.kubevirt.fakes import Cluster
from tests.lab.kubevirt.samples import NAMESPACE, launcher, running, vmim

HINDRANCES = {
    "nothing runs": ([], Limits(5, 2), ""),
    "one leaves the node": ([{"n1"}], Limits(5, 2), ""),
    "two leave the node": ([{"n1"}, {"n1"}], Limits(5, 2), "2 migrations leave n1, 2 may"),
    "two leave another node": ([{"n2"}, {"n2"}], Limits(5, 2), ""),
    "a VMI that has moved on counts where it came from": (
        [{"n1", "n3"}, {"n1"}],
        Limits(5, 2),
        "2 migrations leave n1, 2 may",
    ),
    "five run": ([{"n2"}] * 5, Limits(5, 9), "5 migrations run, 5 may"),
    "the cluster's limit comes first": ([{"n1"}] * 5, Limits(5, 2), "5 migrations run, 5 may"),
    "none may": ([], Limits(0, 2), "0 migrations run, 0 may"),
}


@pytest.mark.parametrize(("running_", "limits", "reason"), HINDRANCES.values(), ids=HINDRANCES.keys())
def test_hindrance(running_: list[set[str]], limits: Limits, reason: str) -> None:
    assert hindrance([frozenset(nodes) for nodes in running_], "n1", limits) == reason


class Setup:
    """VMIs vm0… on alternating nodes with a Pending migration each, and a gate that notes whom it wakes."""

    def __init__(self, count: int = 8, limits: Limits | None = None, nodes: int = 4) -> None:
        self.cluster = Cluster()
        self.limits = limits or Limits(5, 2)
        self.woken: list[str] = []
        for number in range(count):
            status = {"nodeName": f"node-{number % nodes}"}
            self.cluster.instances.seed(running(f"vm{number}", status=status))
            self.cluster.migrations.seed(vmim(f"m{number}", phase="Pending", vmi_name=f"vm{number}"))
        self.gate = Gate(
            self.cluster.found_migrations,
            self.cluster.instances.cache,
            self.cluster.found_pods,
            lambda: self.limits,
            self.woken.append,
            self.cluster.clock,
        )

    def enter(self, number: int, nodes: int = 4) -> str:
        return self.gate.enter(f"{NAMESPACE}/m{number}", f"node-{number % nodes}")


def test_no_more_come_in_than_may_run() -> None:
    setup = Setup()
    assert [bool(setup.enter(number)) for number in range(8)] == [False] * 5 + [True] * 3


def test_no_more_come_in_than_may_leave_a_node() -> None:
    setup = Setup(nodes=1)
    assert [bool(setup.enter(number, nodes=1)) for number in range(4)] == [False, False, True, True]


def test_who_leaves_lets_the_next_in_order_in() -> None:
    setup = Setup()
    for number in range(8):
        setup.enter(number)
    setup.gate.leave("t1/m0")
    assert setup.woken == ["t1/m5"]
    assert setup.enter(5) == ""


def test_one_that_may_not_leave_its_node_does_not_hold_up_the_others() -> None:
    setup = Setup(limits=Limits(3, 1), nodes=2)
    assert [setup.enter(number, nodes=2) for number in (0, 1)] == ["", ""]
    assert setup.enter(2, nodes=2)
    assert setup.enter(3, nodes=2)
    setup.gate.leave("t1/m1")
    assert setup.woken == ["t1/m3"]


def test_a_migration_that_runs_counts() -> None:
    setup = Setup(limits=Limits(1, 2))
    setup.cluster.migrations.seed(vmim("m1", phase="Running", vmi_name="vm1"))
    assert setup.enter(0) == "1 migrations run, 1 may"


ENDED = ("Succeeded", "Failed")


@pytest.mark.parametrize("phase", ENDED)
def test_a_migration_that_has_ended_does_not_count_although_its_pod_still_runs(phase: str) -> None:
    setup = Setup(limits=Limits(1, 2))
    setup.cluster.migrations.seed(vmim("m1", phase=phase, vmi_name="vm1"))
    setup.cluster.pods.seed(launcher("target", job="m1", vmi_name="vm1"))
    assert setup.enter(0) == ""


def test_a_pending_migration_with_a_target_pod_counts() -> None:
    setup = Setup(limits=Limits(1, 2))
    setup.cluster.pods.seed(launcher("target", job="m1", vmi_name="vm1"))
    assert setup.enter(0) == "1 migrations run, 1 may"


def test_what_the_cache_shows_and_what_was_reserved_count_once() -> None:
    setup = Setup(limits=Limits(2, 2))
    setup.enter(1)
    setup.cluster.pods.seed(launcher("target", job="m1", vmi_name="vm1"))
    assert setup.enter(0) == ""


def test_a_migration_does_not_stand_in_its_own_way() -> None:
    setup = Setup(limits=Limits(1, 1))
    assert setup.enter(0) == ""
    assert setup.enter(0) == ""


def test_a_pod_that_was_just_created_is_awaited_for_a_while() -> None:
    setup = Setup()
    setup.enter(0)
    assert setup.gate.awaits_pod("t1/m0")
    setup.cluster.clock.now += 6
    assert not setup.gate.awaits_pod("t1/m0")


def test_other_limits_let_others_in() -> None:
    setup = Setup(limits=Limits(1, 2))
    for number in range(4):
        setup.enter(number)
    setup.limits = Limits(3, 2)
    setup.gate.wake()
    assert setup.woken == ["t1/m1", "t1/m2"]


def test_no_waiter_is_woken_twice() -> None:
    setup = Setup(limits=Limits(1, 2))
    for number in range(3):
        setup.enter(number)
    setup.gate.leave("t1/m0")
    setup.gate.wake()
    assert setup.woken == ["t1/m1", "t1/m2"]


def test_a_caller_that_is_gone_does_not_wait() -> None:
    setup = Setup(limits=Limits(1, 2))
    for number in range(3):
        setup.enter(number)
    setup.gate.leave("t1/m1")
    setup.gate.leave("t1/m0")
    assert setup.woken == ["t1/m2"]
