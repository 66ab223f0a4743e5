"""The main job with everything at work: KubeVirt's and Rancher's stand-ins, kwok's pods, real quota admission."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from kubeloop.testing.polling import eventually
from tests.e2e.conftest import StartController
from tests.e2e.headroom.amounts import ONE, TWO, hards, plus
from tests.e2e.headroom.environment import Environment
from tests.e2e.headroom.namespace import QuotaNamespace
from tests.e2e.tenant import HARD, OWNER, RAISED, by_value
from tests.program import Program

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cleared")]

CHOICES = {
    "takeover with Harvester's numbers": ["takeover"],
    "beside Harvester": ["assist", "--foreign-grace", "8"],
}


@pytest.fixture
def namespace(on: Environment) -> QuotaNamespace:
    """The seed's namespace, its quota rendered by Rancher, its VM running."""
    made = on.namespace(limits=HARD).start_vm()
    eventually(lambda: made.used() == by_value(ONE))
    return made


@pytest.fixture(params=list(CHOICES))
def headroom(request: pytest.FixtureRequest, controller: StartController) -> Iterator[Program]:
    program = controller(*CHOICES[request.param])
    yield program
    program.stop()


def test_the_seeds_scenario(namespace: QuotaNamespace, headroom: Program) -> None:
    """Raised, run through, and back, and never anything else in between."""
    with namespace.watch() as versions:
        migration = namespace.migrate(linger=1.5, phase_seconds="0.2")
        assert namespace.wait_phase(migration, "Running", "Succeeded") == "Running"
        assert namespace.hard() == by_value(RAISED)
        eventually(lambda: namespace.used() == by_value(TWO))
        namespace.succeed(migration)
        namespace.settle(HARD)
        eventually(lambda: namespace.used() == by_value(ONE))
        namespace.wait_shown(None)
        time.sleep(0.5)
        # While the source pod still counts: room for exactly that pod.
        held = [plus(by_value(HARD), by_value(ONE))] if OWNER in namespace.annotations() else []
        assert hards(versions) == [by_value(HARD), by_value(RAISED), *held, by_value(HARD)]


def test_an_aborted_migration_gives_its_room_back(namespace: QuotaNamespace, headroom: Program) -> None:
    migration = namespace.migrate(phase_seconds="Running=20")
    namespace.wait_phase(migration, "Running")
    namespace.delete_migration(migration)
    namespace.settle(HARD)
    eventually(lambda: namespace.used() == by_value(ONE))
    namespace.wait_shown(None)


def test_a_failed_migration_gives_its_room_back_and_the_next_one_works(
    namespace: QuotaNamespace, headroom: Program
) -> None:
    migration = namespace.migrate(fail_at_phase="TargetReady")
    namespace.wait_phase(migration, "Failed")
    namespace.settle(HARD)
    namespace.succeed(namespace.migrate(linger=0.5))
    namespace.settle(HARD)
