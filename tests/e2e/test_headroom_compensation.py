"""A migration that is refused although its room is there gets exactly what is missing, and gives it back."""

from itertools import groupby

import pytest

from kubeloop.api.quantity import Quantity
from kubeloop.testing.polling import until
from lab.namespace import LASTING, by_value
from tests.e2e.admin import HARD
from tests.e2e.conftest import ONE_LOOP
from tests.e2e.headroom.amounts import AT_4_5, Versions, watched
from tests.e2e.headroom.environment import Environment
from tests.e2e.tenant import COMPENSATION

pytestmark = [pytest.mark.cluster, ONE_LOOP]

RAISED = {"limits.cpu": "5", "limits.memory": "10865341313"}
HARVESTER = ("--estimate", "harvester")


async def compensations(versions: Versions) -> list[str | None]:
    """Returns what stood as compensation, in order, without repetitions."""
    return [text for text, _ in groupby(quota.annotations.get(COMPENSATION) for quota in await versions.quotas())]


async def test_the_second_migration_needs_the_compensation(on: Environment) -> None:
    """The VM was started with ratio 1.5 and has moved once since it is 4.5."""
    on.run(*HARVESTER, "--no-compensate")
    small = await on.running("vm1", limits=HARD)
    await on.ratio("4.5")
    await small.succeed(await small.migrate())
    await small.settle(HARD)
    assert await small.used() == by_value(AT_4_5)
    pending = await small.migrate(running=LASTING)
    await small.stays_refused(pending)
    assert await small.hard() == by_value(RAISED)
    assert COMPENSATION not in await small.annotations()

    async with watched(small) as (versions,):
        on.run(*HARVESTER)
        await small.until_phase(pending, "Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running")

        async def given_back() -> bool:
            amounts = await compensations(versions)
            return len(amounts) > 1 and amounts[-1] is None

        await until(given_back, "the compensation to be given back")
        phase = await small.phase(pending)
        assert phase not in ("Pending", "Succeeded"), "given back as soon as the target is there"
        compensated = await versions.hards()
        await small.hurry(pending)
        await small.succeed(pending)
        await small.settle(HARD)
        # used 5682461313 + needed 5682461313 - hard 10865341313
        assert await compensations(versions) == [None, '{"limits.memory":"499581313"}', None]
        raised = by_value(RAISED)
        larger = raised | {"limits.memory": raised["limits.memory"] + Quantity.parse("499581313")}
        assert compensated == [raised, larger, raised]
