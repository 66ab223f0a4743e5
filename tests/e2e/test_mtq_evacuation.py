"""Twenty VMs of one namespace leave their nodes at once: they share locks instead of queueing for one each."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.e2e.admin import Admin
from tests.e2e.mtq_namespace import made, watched

pytestmark = pytest.mark.cluster

COUNT = 20


async def test_twenty_vms_evacuated_at_once_share_locks_that_end_as_soon_as_their_targets_are_there(
    admin: Admin,
) -> None:
    namespace = await made(admin)
    await namespace.make_quota("quota", {"limits.cpu": "50", "limits.memory": "50Gi", "pods": "50"})
    names = [f"vm{number:02}" for number in range(COUNT)]
    await asyncio.gather(*(namespace.machine(name) for name in names))

    async def evacuated() -> float:
        """Seconds; a busy machine takes longer for both."""
        begun = time.monotonic()
        migrations = await asyncio.gather(*(namespace.migrate(name, phase=0.05) for name in names))
        await namespace.succeed(*migrations, seconds=180)
        return time.monotonic() - begun

    free = await evacuated()
    hard = await namespace.fill()
    await namespace.budget({"limits.cpu": "10", "limits.memory": "10Gi", "pods": "10"})
    async with watched(namespace) as seen:
        took = await evacuated()
        await namespace.at_rest(hard)
    assert seen.since is None
    print(f"{len(seen.locked)} locks for {seen.seconds:.1f} s, {took:.1f} s in all, {free:.1f} s without a lock")
    assert seen.seconds <= max(3 * free, COUNT * 0.25)
    assert len(seen.locked) < COUNT, "a lock each: nothing was shared"
