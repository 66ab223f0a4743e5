"""Shared reads: all callers that ask while a read is under way share the next one."""

import asyncio

import pytest

from kubeloop.client.shared_reads import SharedReads
from kubeloop.testing.virtual_time import now
from kubeloop.webhook.admission import deadline, time_left

pytestmark = pytest.mark.virtual_time


class Reads(SharedReads[int]):
    """Each takes a second, and gives its number."""

    def __init__(self) -> None:
        super().__init__(self._read_one)
        self.namespaces_read: list[str] = []
        self.failing = False

    async def _read_one(self, namespace: str) -> int:
        self.namespaces_read.append(namespace)
        number = len(self.namespaces_read)
        await asyncio.sleep(1.0)
        if self.failing:
            raise OSError("gone")
        return number


async def test_who_asks_during_a_read_gets_the_next_one() -> None:
    reads = Reads()
    first_task = asyncio.create_task(reads.fresh("ns1"))
    await asyncio.sleep(0.5)
    late_tasks = [asyncio.create_task(reads.fresh("ns1")) for _ in range(50)]
    assert (await first_task, now()) == (1, 1.0)
    assert (set(await asyncio.gather(*late_tasks)), now()) == ({2}, 2.0)
    assert reads.namespaces_read == ["ns1", "ns1"]


async def test_namespaces_do_not_wait_for_each_other() -> None:
    reads = Reads()
    assert await asyncio.gather(*(reads.fresh(name) for name in ("ns1", "ns2"))) == [1, 2]
    assert now() == 1.0


async def test_a_failed_read_fails_for_its_waiters_alone() -> None:
    reads = Reads()
    reads.failing = True
    with pytest.raises(OSError, match="gone"):
        await reads.fresh("ns1")
    reads.failing = False
    assert await reads.fresh("ns1") == 2


async def test_a_read_has_a_time_limit_of_its_own() -> None:
    async def read(_: str) -> bool:
        return time_left() > 0

    shared_reads = SharedReads(read)
    with deadline(0.0):
        assert await shared_reads.fresh("ns1")


async def test_a_caller_that_goes_away_does_not_end_the_read() -> None:
    reads = Reads()
    gone, stays = (asyncio.create_task(reads.fresh("ns1")) for _ in range(2))
    await asyncio.sleep(0.5)
    gone.cancel()
    assert await stays == 1
