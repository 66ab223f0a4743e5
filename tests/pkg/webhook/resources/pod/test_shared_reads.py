"""One read for all callers that ask while another one is under way."""

from __future__ import annotations

import asyncio

import pytest

from pkg.webhook.deadline import deadline, in_time
from pkg.webhook.resources.pod.shared_reads import SharedReads

pytestmark = pytest.mark.virtual_time


class Reader:
    """Counts; each read waits until it is let go."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.gates: list[asyncio.Event] = []
        self.failing = False

    async def read(self, namespace: str) -> int:
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


async def test_who_asks_during_a_read_gets_the_next_one() -> None:
    reader = Reader()
    shared_reads = SharedReads(reader.read)
    first = asyncio.create_task(shared_reads.fresh("ns1"))
    await settle()
    late = [asyncio.create_task(shared_reads.fresh("ns1")) for _ in range(50)]
    await settle()
    assert reader.begun == ["ns1"]
    reader.gates[0].set()
    assert await first == 0
    await settle()
    reader.gates[1].set()
    assert set(await asyncio.gather(*late)) == {1}
    assert reader.begun == ["ns1", "ns1"]


async def test_namespaces_do_not_wait_for_each_other() -> None:
    reader = Reader()
    shared_reads = SharedReads(reader.read)
    tasks = [asyncio.create_task(shared_reads.fresh(name)) for name in ("ns1", "ns2")]
    await settle()
    assert reader.begun == ["ns1", "ns2"]
    for gate in reader.gates:
        gate.set()
    assert await asyncio.gather(*tasks) == [0, 1]


async def test_a_read_that_fails_fails_for_those_who_wait_and_the_next_one_is_taken() -> None:
    reader = Reader()
    reader.failing = True
    shared_reads = SharedReads(reader.read)
    task = asyncio.create_task(shared_reads.fresh("ns1"))
    await settle()
    reader.gates[0].set()
    with pytest.raises(OSError, match="gone"):
        await task
    reader.failing = False
    again = asyncio.create_task(shared_reads.fresh("ns1"))
    await settle()
    reader.gates[1].set()
    assert await again == 1


async def test_a_read_has_a_time_limit_of_its_own() -> None:
    async def read(_: str) -> bool:
        async def answer() -> bool:
            return True

        return await in_time(answer()) is True

    shared_reads = SharedReads(read)
    with deadline(0.0):
        assert await shared_reads.fresh("ns1")


async def test_a_caller_that_goes_away_does_not_end_the_read() -> None:
    reader = Reader()
    shared_reads = SharedReads(reader.read)
    gone, stays = (asyncio.create_task(shared_reads.fresh("ns1")) for _ in range(2))
    await settle()
    gone.cancel()
    await settle()
    reader.gates[0].set()
    assert await stays == 0
