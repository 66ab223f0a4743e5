"""A migration that is refused although its room is there gets exactly what is missing, and gives it back."""

from __future__ import annotations

import pytest

from kubeloop.testing.polling import eventually
from pkg.util.quantity import Quantity
from tests.e2e.api import Watch
from tests.e2e.headroom.amounts import hards
from tests.e2e.headroom.environment import Environment
from tests.e2e.headroom.namespace import LASTING, QuotaNamespace
from tests.e2e.tenant import COMPENSATION, by_value

pytestmark = pytest.mark.cluster

SMALL = {"limits.cpu": "3", "limits.memory": "5000Mi"}
LARGER = {"limits.cpu": "3", "limits.memory": "6000Mi"}
FOUR = {"limits.cpu": "12", "limits.memory": "20000Mi"}
AMPLE = {"limits.cpu": "12", "limits.memory": "30000Mi"}
FOR_THREE = {"limits.cpu": "12", "limits.memory": "21860Mi"}
"""Three targets fit beside the four sources with their three entries, the fourth does not with its own."""
VMS = ["vm1", "vm2", "vm3", "vm4"]
GROWN = {"limits.cpu": "2015m", "limits.memory": "5682461313"}
"""The seed's VM with ratio 4.5: 105.8 % of its quota."""
FOUR_GROWN = {"limits.cpu": "8060m", "limits.memory": "22729845252"}
SEED_SMALL = {"limits.cpu": "5", "limits.memory": "10865341313"}
SEED_LARGER = {"limits.cpu": "5", "limits.memory": "11913917313"}
LOWERED = {
    "limits.cpu": "4",
    "limits.memory": "9500M",
    "requests.cpu": "250m",
    "requests.memory": "6600M",
    "pods": "1",
}
HARVESTER = ("--estimate", "harvester")


class Grown:
    """Three namespaces whose VMs were started with ratio 1.5 and have moved once since it is 4.5."""

    def __init__(self, on: Environment) -> None:
        on.run(*HARVESTER, "--no-compensate")
        self.small, self.four = on.namespace(limits=SMALL), on.namespace(limits=FOUR)
        on.together(
            lambda namespace: namespace.start(*(VMS if namespace is self.four else VMS[:1])),
            [self.small, self.four],
        )
        on.ratio("4.5")
        self.larger = on.namespace(limits=LARGER).start("vm1")
        with self.small.watch() as small, self.larger.watch() as larger:
            everything = [(self.small, "vm1"), (self.larger, "vm1"), *((self.four, vm) for vm in VMS)]
            on.together(lambda it: it[0].succeed(it[0].migrate(it[1])), everything)
            self.settle()
            self.first = (hards(small), hards(larger))

    def settle(self) -> None:
        self.small.settle(SMALL)
        self.larger.settle(LARGER)
        self.four.settle(FOUR)


@pytest.fixture(scope="module")
def grown(on: Environment) -> Grown:
    return Grown(on)


def compensations(versions: Watch) -> list[str | None]:
    """What stood as compensation, in order, without repetitions."""
    found: list[str | None] = []
    for event in versions.caught_up():
        text = (event.object["metadata"].get("annotations") or {}).get(COMPENSATION)
        if not found or found[-1] != text:
            found.append(text)
    return found


def test_the_first_migration_with_the_new_ratio_has_the_seeds_numbers(grown: Grown) -> None:
    for found, base, raised in zip(grown.first, (SMALL, LARGER), (SEED_SMALL, SEED_LARGER), strict=True):
        assert (found[0], found[1], found[-1]) == (by_value(base), by_value(raised), by_value(base))
    assert grown.small.used() == by_value(GROWN)
    assert grown.larger.used() == by_value(GROWN)
    assert grown.four.used() == by_value(FOUR_GROWN)


def test_the_second_one_is_refused_for_good_without_compensation_and_goes_through_with_it(
    on: Environment, grown: Grown
) -> None:
    on.run(*HARVESTER, "--no-compensate")
    small, four = grown.small, grown.four
    pending = small.migrate("vm1", phase_seconds=LASTING)
    four.grant(AMPLE)
    moves = [four.migrate(vm, phase_seconds=LASTING) for vm in VMS[:3]]
    for move in moves:
        four.wait_phase(move, "Running")
    # Targets that come while Kubernetes counts anew after a raise may be left out of status.used: here it counts again.
    four.grant(FOR_THREE)
    small.stays_refused(pending)
    assert small.hard() == by_value(SEED_SMALL)
    stuck = four.migrate(VMS[3], phase_seconds=LASTING)
    four.stays_refused(stuck)
    assert COMPENSATION not in small.annotations() | four.annotations()

    with small.watch() as versions:
        on.run(*HARVESTER)
        small.wait_phase(pending, "Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running")
        eventually(lambda: len(compensations(versions)) > 1 and compensations(versions)[-1] is None)
        assert small.phase_of(pending) not in ("Pending", "Succeeded"), (
            "given back as soon as the target is there"
        )
        compensated = hards(versions)
        small.hurry(pending)
        small.succeed(pending)
        four.wait_phase(stuck, "Running")  # beside the three others
        four.hurry(*moves, stuck)
        four.succeed(*moves, stuck)
        four.settle(FOR_THREE)
        four.grant(FOUR)
        grown.settle()
        # used 5682461313 + needed 5682461313 - hard 10865341313
        assert compensations(versions) == [None, '{"limits.memory":"499581313"}', None]
        raised = by_value(SEED_SMALL)
        more = raised | {"limits.memory": raised["limits.memory"] + Quantity.parse("499581313")}
        assert compensated == [raised, more, raised]


def test_the_exact_estimate_compensates_as_well_and_several_vms_at_once(
    on: Environment, grown: Grown
) -> None:
    on.run()

    def move(what: tuple[QuotaNamespace, str]) -> None:
        namespace, vm = what
        namespace.succeed(namespace.migrate(vm, linger=1.0))

    with grown.four.watch() as four, grown.small.watch() as small:
        on.together(move, [(grown.small, "vm1"), (grown.larger, "vm1"), *((grown.four, vm) for vm in VMS)])
        grown.settle()
        # used 5682461313 beyond the base of 5242880000
        assert compensations(small) == [None, '{"limits.memory":"439581313"}', None]
        assert compensations(four)[-1] is None
        most = max(hard["limits.memory"] for hard in hards(four))
        # All four targets beside all four sources, and not a byte more.
        assert most <= by_value({"all": "45459690504"})["all"]
