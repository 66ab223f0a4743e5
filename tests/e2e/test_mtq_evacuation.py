"""Twenty VMs of one namespace leave their nodes at once: they share locks instead of queueing for one each."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.admin import Admin
from tests.e2e.mtq_namespace import made, watched

pytestmark = pytest.mark.cluster

COUNT = 20
LOCKED_SECONDS = 1.0
"""Per migration, on average."""


async def test_twenty_vms_evacuated_at_once_lock_a_second_each_at_most(admin: Admin) -> None:
    namespace = await made(admin)
    await namespace.quota({"limits.cpu": "50", "limits.memory": "50Gi", "pods": "50"})
    names = [f"vm{number:02}" for number in range(COUNT)]
    await asyncio.gather(*(namespace.machine(name) for name in names))
    hard = await namespace.fill()
    await namespace.budget({"limits.cpu": "10", "limits.memory": "10Gi", "pods": "10"})
    async with watched(namespace) as seen:
        migrations = await asyncio.gather(*(namespace.migrate(name, phase=0.05) for name in names))
        await namespace.succeeded(*migrations, seconds=180)
        await namespace.at_rest({"quota": hard})
    assert seen.since is None
    longest = max(end - begin for begin, end in seen.locked)
    print(f"{len(seen.locked)} locks, {seen.seconds / COUNT:.3f} s a migration, longest {longest:.2f} s")
    assert seen.seconds / COUNT <= LOCKED_SECONDS
    assert len(seen.locked) < COUNT, "a lock each: nothing was shared"
