"""The main job with everything at work: KubeVirt's and Rancher's stand-ins, kwok's pods, real quota admission."""

import asyncio
from collections.abc import Iterator

import pytest
import pytest_asyncio

from lab.namespace import LASTING, Namespace, by_value
from tests.e2e.conftest import ONE_LOOP, StartController
from tests.e2e.headroom.amounts import ONE, TWO, plus, watched
from tests.e2e.headroom.environment import Environment
from tests.e2e.headroom.shapes import SEED
from tests.e2e.tenant import HARD, OWNER, RAISED, SKIP
from tests.program import Program

pytestmark = [pytest.mark.cluster, ONE_LOOP, pytest.mark.usefixtures("cleared")]

CHOICES = {"takeover with Harvester's numbers": ["takeover"], "beside Harvester": ["assist", "--foreign-grace", "8"]}
ADDED = {"limits.cpu": "2", "limits.memory": "4737464313"}


@pytest_asyncio.fixture(loop_scope="module")
async def namespace(on: Environment) -> Namespace:
    """The seed's namespace, its quota rendered by Rancher, its VM running."""
    managed = await on.admin.namespace(HARD)
    await managed.machine(spec=SEED, strategy="Always")
    await managed.until_used(ONE)
    return managed


@pytest.fixture(params=list(CHOICES))
def headroom(request: pytest.FixtureRequest, controller: StartController) -> Iterator[Program]:
    program = controller(*CHOICES[request.param])
    yield program
    assert program.get("/healthz") == program.get("/readyz") == (200, "ok")
    assert program.metric("controller_runtime_reconcile_errors_total") == 0
    program.stop()
    assert "Traceback" not in program.text()


async def test_the_seeds_scenario(namespace: Namespace, headroom: Program) -> None:
    """Raised, run through, and back, and never anything else in between."""
    async with watched(namespace) as (versions,):
        (source,) = await namespace.launchers(counting=True)
        migration = await namespace.migrate(linger=LASTING, running=LASTING)
        await namespace.until_phase(migration, "Running")
        assert await namespace.hard() == by_value(RAISED)
        await namespace.until_used(TWO)
        await namespace.hurry(migration)
        await namespace.succeed(migration)
        # While the source pod still counts: room for exactly that pod.
        base = by_value(HARD)
        raised = [plus(base, by_value(ONE))] if OWNER in await namespace.annotations() else []
        await namespace.until_hard((raised or [base])[0])
        await namespace.end(source.name)
        await namespace.settle(HARD)
        await namespace.until_used(ONE)
        await namespace.until_shown(None)
        await asyncio.sleep(0.5)
        assert await versions.hards() == [base, by_value(RAISED), *raised, base]


async def test_after_a_failed_migration_the_next_one_works(namespace: Namespace, headroom: Program) -> None:
    migration = await namespace.migrate(fail_at_phase="TargetReady")
    await namespace.until_phase(migration, "Failed")
    await namespace.settle(HARD)
    again = await namespace.migrate(linger=0.5, running=LASTING)
    await namespace.until_phase(again, "Running")
    takes_over = OWNER in await namespace.annotations()
    assert takes_over is (SKIP in await namespace.annotations())
    key = "-vm1" if takes_over else f"UID-{(await namespace.vmi()).uid}"
    assert await namespace.entries() == {f"harvesterhci.io/migrating{key}": by_value(ADDED)}
    for _ in range(3):
        await namespace.set_hard(HARD)  # as Rancher's agent does when it restarts
        await namespace.until_hard(RAISED)
    await namespace.until_shown("Migrating")
    await namespace.hurry(again)
    await namespace.succeed(again)
    await namespace.settle(HARD)
