"""A window that commit 8ac1f0b left open, after each of its writes: it kept the originals on the lock, too.

windows_of_8ac1f0b.json holds the objects as that code wrote them on the fake API server; the last three are the same
with something removed by hand.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.decisions import by_value, sentences
from tests.pkg.controller.managedtenantquota.server import Process, WindowCluster
from tests.pkg.util.managedtenantquota.objects import FULL

pytestmark = pytest.mark.virtual_time

WINDOWS = json.loads((Path(__file__).parent / "windows_of_8ac1f0b.json").read_text("utf-8"))


def left_by(window: dict[str, Any]) -> WindowCluster:
    cluster = WindowCluster()
    cluster.refuse()
    cluster.budgets.gone("ns1/budget")
    cluster.quotas.gone("ns1/quota")
    for kind, name in ((cluster.locks, "lock"), (cluster.budgets, "budget"), (cluster.quotas, "quota")):
        if window[name] is not None:
            kind.given(window[name])
    cluster.enforce()
    return cluster


@sentences(WINDOWS)
@pytest.mark.parametrize("fate", ["the target came", "the migration is gone"])
@pytest.mark.parametrize("seconds", [1.0, 60.0, 500.0])
async def test_it_is_closed(case: dict[str, Any], fate: str, seconds: float) -> None:
    cluster = left_by(case)
    await asyncio.sleep(seconds)
    if fate == "the target came":
        cluster.admit()
    else:
        cluster.migrations.gone("ns1/migration-of-vm1")
    process = Process(cluster)
    await process.rest()
    assert not cluster.locked
    assert by_value(cluster.hard) == by_value(FULL)
    assert "headroom.harvesterhci.io/originals" not in cluster.quotas.now("ns1/quota").annotations
    if case["budget"]:
        assert cluster.at_rest
    assert not {"InvalidMigrationResourceQuota", "ResourceQuotaNotRestored"} & set(process.events.reasons)


WAITING = [name for name in WINDOWS if "restored" not in name and "deleted" not in name]
"""In the others the target came, or nothing may be added any more."""


@sentences({name: WINDOWS[name] for name in WAITING})
@pytest.mark.parametrize("seconds", [1.0, 60.0])
async def test_a_migration_that_still_waits_is_released(case: dict[str, Any], seconds: float) -> None:
    cluster = left_by(case)
    await asyncio.sleep(seconds)
    process = Process(cluster)
    await process.rest()
    assert cluster.hard["limits.cpu"] in {"4030m", "5015m"}
    cluster.admit()
    await process.rest()
    assert cluster.at_rest
