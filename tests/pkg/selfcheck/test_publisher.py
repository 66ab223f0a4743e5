"""The ConfigMap `headroom`: how the controller runs, and what keeps it from its work."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from kubeloop.api.meta import from_rfc3339
from kubeloop.api.registry import CONFIG_MAPS
from kubeloop.client.connections import ServerClock
from kubeloop.client.errors import Forbidden, NotFound
from kubeloop.testing.virtual_time import virtual_time
from kubeloop.workqueue.queue import loop_time
from pkg.config.causes import Cause, decode_causes
from pkg.config.management import Management
from pkg.selfcheck.installation import REFRESH, Installation, read
from pkg.selfcheck.troubles import FAULT_AFTER, LAST_WRITE, PUBLISH_PERIOD, Troubles
from pkg.util.resourcequota.policy import EstimateKind, Mode
from tests.kinds import Kind, Server

RUNS = Installation(Mode.ASSIST, EstimateKind.HARVESTER, "1.2.3")


class ServiceCluster(Server):
    def __init__(self) -> None:
        super().__init__()
        self.config_maps: Kind[Any] = self.kind(CONFIG_MAPS)
        self.faults: list[str] = []
        self.management = Management(self.client())
        self.management.clock = ServerClock(monotonic=loop_time)
        self.troubles = Troubles(self.management, "own", [], lambda: RUNS, lambda: self.faults)

    @property
    def written(self) -> Installation:
        installation = read(self.config_maps.now("own/headroom").data)
        assert installation is not None
        return installation

    @property
    def published(self) -> Installation:
        """Without the time."""
        return replace(self.written, seen="")


@virtual_time
async def test_mode_estimate_and_version_are_published_and_kept() -> None:
    cluster = ServiceCluster()
    running = asyncio.create_task(cluster.troubles.run())
    await asyncio.sleep(REFRESH - PUBLISH_PERIOD)
    assert cluster.published == RUNS
    assert len(cluster.config_maps.calls) == 2, "at rest nothing is asked"
    cluster.config_maps.edited("own/headroom", {"data": {"mode": "takeover"}})
    await asyncio.sleep(2 * REFRESH)
    assert cluster.published == RUNS
    running.cancel()


@virtual_time
async def test_the_time_is_written_while_it_runs_and_its_end() -> None:
    cluster = ServiceCluster()
    running = asyncio.create_task(cluster.troubles.run())
    await asyncio.sleep(10 * REFRESH + 1)
    assert 9 <= len(cluster.config_maps.asked("patch")) <= 11
    running.cancel()
    await asyncio.wait([running])
    assert (cluster.written.ended, cluster.written.mode) == ("true", RUNS.mode)


@virtual_time
async def test_an_end_is_written_after_something_else_if_at_all() -> None:
    cluster = ServiceCluster()
    await cluster.troubles.end()
    assert not cluster.config_maps.calls
    await cluster.troubles.publish()
    cluster.config_maps.errors["patch"] = [Forbidden("no")]
    await cluster.troubles.end()
    cluster.config_maps.answering.clear()
    began = loop_time()
    await cluster.troubles.end()
    assert loop_time() - began == LAST_WRITE


@virtual_time
async def test_the_time_is_the_api_servers() -> None:
    cluster = ServiceCluster()
    cluster.management.clock = ServerClock(wall=lambda: from_rfc3339("2026-01-01T00:00:00Z"))
    await cluster.troubles.publish()
    assert cluster.written.seen == "2026-01-01T00:00:00Z"


@virtual_time
async def test_a_cache_that_is_behind_is_published_while_it_lasts() -> None:
    cluster = ServiceCluster()
    for seconds, faults, problem in (
        (0.0, ["a moment"], ""),
        (FAULT_AFTER / 2, [], ""),
        (FAULT_AFTER / 2, ["pods: silent for 30 s"], ""),
        (FAULT_AFTER, ["pods: silent for 40 s", "more"], "pods: silent for 40 s; and 1 more, see /readyz"),
        (FAULT_AFTER, ["pods: silent for 50 s"], "pods: silent for 40 s; and 1 more, see /readyz"),
        (REFRESH, ["pods: silent for 60 s"], "pods: silent for 60 s"),
        (FAULT_AFTER, [], ""),
    ):
        await asyncio.sleep(seconds)
        cluster.faults = faults
        await cluster.troubles.publish()
        assert cluster.published == replace(RUNS, problem=problem)


@virtual_time
async def test_who_refuses_is_published_at_once_and_before_all_else() -> None:
    cluster = ServiceCluster()
    webhook = Cause("webhook q.example.org", 400, "not by you", ["ResourceQuota a/q", "ResourceQuota b/q"], 2)
    cluster.troubles.causes = [webhook, Cause("RBAC", 403, "may not", ["Namespace a"], 1)]
    cluster.faults = ["pods: silent"]
    await cluster.troubles.publish()
    published = cluster.published
    assert published.problem == (
        "webhook q.example.org refuses headroom's requests (400): not by you: ResourceQuota a/q and 1 more"
        "; and 1 more, see /readyz"
    )
    assert decode_causes(published.refused) == cluster.troubles.causes
    cluster.troubles.causes, cluster.faults = [], []
    await cluster.troubles.publish()
    assert cluster.published == RUNS


async def test_not_where_the_namespace_is_missing() -> None:
    cluster = ServiceCluster()
    cluster.config_maps.errors["create"] = [NotFound("namespaces own not found", status=404)]
    with pytest.raises(NotFound):
        await cluster.troubles.publish()
    assert not cluster.config_maps.objects


def test_what_another_program_wrote_is_not_read() -> None:
    assert list(map(read, ({}, {"mode": "both", "estimate": "exact"}, {"mode": "assist"}))) == [None] * 3
