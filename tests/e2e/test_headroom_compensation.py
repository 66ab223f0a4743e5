"""A migration that is refused although its room is there gets exactly what is missing, and gives it back."""

from __future__ import annotations

import asyncio
from itertools import groupby

import pytest

from kubeloop.api.quantity import Quantity
from kubeloop.testing.polling import until
from lab.namespace import LASTING, Namespace, by_value
from tests.e2e.conftest import ONE_LOOP
from tests.e2e.headroom.amounts import Versions, watched
from tests.e2e.headroom.environment import Environment
from tests.e2e.tenant import COMPENSATION

pytestmark = [pytest.mark.cluster, ONE_LOOP]

SMALL = {"limits.cpu": "3", "limits.memory": "5000Mi"}
FOUR = {"limits.cpu": "12", "limits.memory": "20000Mi"}
AMPLE = {"limits.cpu": "12", "limits.memory": "30000Mi"}
FOR_THREE = {"limits.cpu": "12", "limits.memory": "21860Mi"}
"""Three targets fit beside the four sources with their three entries, the fourth does not with its own."""
VMS = ["vm1", "vm2", "vm3", "vm4"]
GROWN = {"limits.cpu": "2015m", "limits.memory": "5682461313"}
"""The seed's VM with ratio 4.5: 105.8 % of its quota."""
FOUR_GROWN = {"limits.cpu": "8060m", "limits.memory": "22729845252"}
SEED_SMALL = {"limits.cpu": "5", "limits.memory": "10865341313"}
HARVESTER = ("--estimate", "harvester")


async def moved(namespace: Namespace, *vms: str) -> None:
    """Each of them, once."""
    await namespace.succeed(*await asyncio.gather(*map(namespace.migrate, vms)))


async def compensations(versions: Versions) -> list[str | None]:
    """What stood as compensation, in order, without repetitions."""
    return [text for text, _ in groupby(quota.annotations.get(COMPENSATION) for quota in await versions.of())]


async def test_the_second_one_is_refused_for_good_without_compensation_and_goes_through_with_it(
    on: Environment,
) -> None:
    """The VMs were started with ratio 1.5 and have moved once since it is 4.5."""
    on.run(*HARVESTER, "--no-compensate")
    small, four = await asyncio.gather(on.running("vm1", limits=SMALL), on.running(*VMS, limits=FOUR))
    await on.ratio("4.5")
    await asyncio.gather(moved(small, "vm1"), moved(four, *VMS))
    await small.settle(SMALL)
    await four.settle(FOUR)
    assert (await small.used(), await four.used()) == (by_value(GROWN), by_value(FOUR_GROWN))
    pending = await small.migrate(running=LASTING)
    await four.grant(AMPLE)
    moves = [await four.migrate(vm, running=LASTING) for vm in VMS[:3]]
    for move in moves:
        await four.until_phase(move, "Running")
    # Targets that come while Kubernetes counts anew after a raise may be left out of status.used: here it counts again.
    await four.grant(FOR_THREE)
    await small.stays_refused(pending)
    assert await small.hard() == by_value(SEED_SMALL)
    stuck = await four.migrate(VMS[3], running=LASTING)
    await four.stays_refused(stuck)
    for namespace in (small, four):
        assert COMPENSATION not in await namespace.annotations()

    async with watched(small) as (versions,):
        on.run(*HARVESTER)
        await small.until_phase(pending, "Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running")

        async def given_back() -> bool:
            found = await compensations(versions)
            return len(found) > 1 and found[-1] is None

        await until(given_back, "the compensation to be given back")
        phase = await small.phase(pending)
        assert phase not in ("Pending", "Succeeded"), "given back as soon as the target is there"
        compensated = await versions.hards()
        await small.hurry(pending)
        await small.succeed(pending)
        await four.until_phase(stuck, "Running")  # beside the three others
        await four.hurry(*moves, stuck)
        await four.succeed(*moves, stuck)
        await four.settle(FOR_THREE)
        await four.grant(FOUR)
        await small.settle(SMALL)
        await four.settle(FOUR)
        # used 5682461313 + needed 5682461313 - hard 10865341313
        assert await compensations(versions) == [None, '{"limits.memory":"499581313"}', None]
        raised = by_value(SEED_SMALL)
        more = raised | {"limits.memory": raised["limits.memory"] + Quantity.parse("499581313")}
        assert compensated == [raised, more, raised]
