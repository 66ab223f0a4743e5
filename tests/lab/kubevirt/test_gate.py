"""The parallel limits, over caches and over what is about to be created."""

from __future__ import annotations

from kubeloop.api.registry import PODS
from lab.kubevirt.creation import Clock
from lab.kubevirt.gate import Gate
from lab.kubevirt.lookup import Migrations, Pods
from lab.kubevirt.objects import INSTANCES, MIGRATIONS
from pkg.util.kubevirt.parallel_migrations import Limits
from tests.kinds import Kind
from tests.lab.kubevirt.samples import NAMESPACE, launcher, running, vmim


class Setup:
    """VMIs vm0… on alternating nodes with a Pending migration each, and a gate that notes whom it wakes."""

    def __init__(self, count: int = 8, limits: Limits | None = None, nodes: int = 4) -> None:
        self.instances, self.migrations, self.pods = Kind(INSTANCES), Kind(MIGRATIONS), Kind(PODS)
        self.limits = limits or Limits(5, 2)
        self.woken: list[str] = []
        self.now = 1_000.0
        for number in range(count):
            status = {"nodeName": f"node-{number % nodes}"}
            self.instances.given(running(f"vm{number}", status=status))
            self.migrations.given(vmim(f"m{number}", phase="Pending", vmi_name=f"vm{number}"))
        self.gate = Gate(
            Migrations(self.migrations.cache),
            self.instances.cache,
            Pods(self.pods.cache),
            lambda: self.limits,
            self.woken.append,
            Clock(wall=lambda: self.now, loop=lambda: self.now),
        )

    def enter(self, number: int, nodes: int = 4) -> str:
        return self.gate.enter(f"{NAMESPACE}/m{number}", f"node-{number % nodes}")


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


def test_what_the_cache_shows_and_what_was_reserved_count_once() -> None:
    setup = Setup(limits=Limits(2, 2))
    setup.enter(1)
    setup.pods.given(launcher("target", job="m1", vmi_name="vm1"))
    assert setup.enter(0) == ""


def test_a_migration_does_not_stand_in_its_own_way() -> None:
    setup = Setup(limits=Limits(1, 1))
    assert setup.enter(0) == ""
    assert setup.enter(0) == ""


def test_a_pod_that_was_just_created_is_awaited_for_a_while() -> None:
    setup = Setup()
    setup.enter(0)
    assert setup.gate.awaits_pod("t1/m0")
    setup.now += 6
    assert not setup.gate.awaits_pod("t1/m0")


def test_other_limits_let_others_in() -> None:
    setup = Setup(limits=Limits(1, 2))
    for number in range(4):
        setup.enter(number)
    setup.limits = Limits(3, 2)
    setup.gate.wake()
    assert setup.woken == ["t1/m1", "t1/m2"]
