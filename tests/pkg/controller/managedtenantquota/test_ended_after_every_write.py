"""The process ends after every single write, and is started again."""

from __future__ import annotations

import asyncio

import pytest

from pkg.util.managedtenantquota.model import WindowPolicy
from tests.decisions import by_value
from tests.pkg.controller.managedtenantquota.server import (
    Process,
    ProcessEnded,
    WindowCluster,
    close_window,
    open_window,
)
from tests.pkg.util.managedtenantquota.objects import ENOUGH, GRANTED, budget, quota

pytestmark = pytest.mark.virtual_time

WRITES = 8
"""Of the whole way with two blocking quotas; `test_the_writes_are_enumerated` counts them."""
PODS = {"pods": "1"}


def full_namespace() -> WindowCluster:
    """Makes a namespace with two quotas that its VM fills."""
    cluster = WindowCluster()
    cluster.quotas.given(quota(PODS, PODS, name="pods"))
    cluster.budgets.given(budget({**ENOUGH, **PODS}))
    cluster.refuse()
    return cluster


async def run(cluster: WindowCluster, process: Process, upto: int | None) -> None:
    """Go the whole way, and end after `upto` writes."""
    cluster.server.left = upto
    await open_window(cluster, process)
    await close_window(cluster, process)


async def test_the_writes_are_enumerated() -> None:
    cluster = full_namespace()
    await run(cluster, Process(cluster), None)
    assert len(cluster.server.made) == WRITES


@pytest.mark.parametrize("number", range(1, WRITES + 1))
@pytest.mark.parametrize("fate", ["the target came", "the migration is gone", "it waits still"])
@pytest.mark.parametrize("downtime", [0.0, 40.0, 500.0])
async def test_ended_after_any_write_and_started_again(number: int, fate: str, downtime: float) -> None:
    cluster = full_namespace()
    with pytest.raises(ProcessEnded):
        await run(cluster, Process(cluster), number)
    cluster.server.left = None
    await asyncio.sleep(downtime)
    cluster.enforce()
    admitted = len(cluster.pods.objects) > 1
    if fate == "the target came" and not admitted:
        cluster.admit()
    if fate == "the migration is gone":
        cluster.migrations.gone("ns1/migration-of-vm1")
    process = Process(cluster)
    await process.rest()
    # Raised for longer than a lock may last, and no target came: then it is left alone for a while.
    rests = number == WRITES // 2 and downtime > WindowPolicy().lock_limit
    if fate == "it waits still" and not admitted and not rests:
        assert by_value(cluster.hard) == by_value(GRANTED)
        cluster.admit()
        await process.rest()
    assert cluster.at_rest
    assert by_value(cluster.quotas.now("ns1/pods").hard) == by_value(PODS)
