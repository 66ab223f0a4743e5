"""One look for all who ask while another one is under way."""

from __future__ import annotations

import asyncio

import pytest

from pkg.webhook.deadline import deadline, in_time
from pkg.webhook.resources.pod.looks import SharedLooks


class Looker:
    """Counts; each look waits until it is let go."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.gates: list[asyncio.Event] = []
        self.failing = False

    async def look(self, namespace: str) -> int:
        number = len(self.begun)
        self.begun.append(namespace)
        self.gates.append(asyncio.Event())
        await self.gates[number].wait()
        if self.failing:
            raise OSError("gone")
        return number


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_asks_during_a_look_gets_the_next_one() -> None:
    looker = Looker()
    looks = SharedLooks(looker.look)
    first = asyncio.create_task(looks.fresh("ns1"))
    await settle()
    late = [asyncio.create_task(looks.fresh("ns1")) for _ in range(50)]
    await settle()
    assert looker.begun == ["ns1"]
    looker.gates[0].set()
    assert await first == 0
    await settle()
    looker.gates[1].set()
    assert set(await asyncio.gather(*late)) == {1}
    assert looker.begun == ["ns1", "ns1"]


async def test_namespaces_do_not_wait_for_each_other() -> None:
    looker = Looker()
    looks = SharedLooks(looker.look)
    tasks = [asyncio.create_task(looks.fresh(name)) for name in ("ns1", "ns2")]
    await settle()
    assert looker.begun == ["ns1", "ns2"]
    for gate in looker.gates:
        gate.set()
    assert await asyncio.gather(*tasks) == [0, 1]


async def test_a_look_that_fails_fails_for_those_who_wait_and_the_next_one_is_taken() -> None:
    looker = Looker()
    looker.failing = True
    looks = SharedLooks(looker.look)
    task = asyncio.create_task(looks.fresh("ns1"))
    await settle()
    looker.gates[0].set()
    with pytest.raises(OSError, match="gone"):
        await task
    looker.failing = False
    again = asyncio.create_task(looks.fresh("ns1"))
    await settle()
    looker.gates[1].set()
    assert await again == 1


async def test_a_look_has_a_time_of_its_own_whoever_asks_first() -> None:
    async def look(_: str) -> bool:
        async def answer() -> bool:
            return True

        return await in_time(answer()) is True

    looks = SharedLooks(look)
    with deadline(0.0):
        assert await looks.fresh("ns1")


async def test_a_caller_that_goes_away_does_not_end_the_look() -> None:
    looker = Looker()
    looks = SharedLooks(looker.look)
    gone, stays = (asyncio.create_task(looks.fresh("ns1")) for _ in range(2))
    await settle()
    gone.cancel()
    await settle()
    looker.gates[0].set()
    assert await stays == 0
