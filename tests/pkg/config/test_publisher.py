"""The ConfigMap `headroom`: how the controller runs, and what keeps it from its work."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from kubeloop.api.meta import rfc3339
from kubeloop.api.registry import CONFIG_MAPS
from kubeloop.client.errors import NotFound
from kubeloop.testing.virtual_time import virtual_time
from kubeloop.workqueue.queue import loop_time
from pkg.config.cause import Cause, decoded
from pkg.config.installation import FRESH, LASTS, LOOK, PERIOD, REFRESH, Installation, Publisher, is_fresh, read
from pkg.util.resourcequota.policy import EstimateKind, Mode
from tests.kinds import Kind, Server

RUNS = Installation(Mode.ASSIST, EstimateKind.HARVESTER, "1.2.3")


class Cluster(Server):
    def __init__(self) -> None:
        super().__init__()
        self.config_maps: Kind[Any] = self.kind(CONFIG_MAPS)
        self.faults: list[str] = []
        self.causes: list[Cause] = []
        self.publisher = Publisher(self.client(), "own", lambda: RUNS, lambda: self.faults, causes=lambda: self.causes)

    @property
    def published(self) -> Installation | None:
        return read(self.config_maps.now("own/headroom").data)


@virtual_time
async def test_mode_estimate_and_version_are_published_and_kept() -> None:
    cluster = Cluster()
    running = asyncio.create_task(cluster.publisher.run())
    await asyncio.sleep(10 * LOOK)
    assert cluster.published == RUNS
    assert len(cluster.config_maps.calls) == 2, "at rest nothing is asked"
    cluster.config_maps.edited("own/headroom", {"data": {"mode": "takeover"}})
    await asyncio.sleep(PERIOD)
    assert cluster.published == RUNS
    running.cancel()


@virtual_time
async def test_a_cache_that_is_behind_is_published_once_it_lasts_and_as_long() -> None:
    cluster = Cluster()
    for seconds, faults, problem in (
        (0.0, ["a moment"], ""),
        (LASTS / 2, [], ""),
        (LASTS / 2, ["pods: silent for 30 s"], ""),
        (LASTS, ["pods: silent for 40 s", "more"], "pods: silent for 40 s; and 1 more, see /readyz"),
        (LASTS, ["pods: silent for 50 s"], "pods: silent for 40 s"),
        (LASTS, [], ""),
    ):
        await asyncio.sleep(seconds)
        cluster.faults = faults
        await cluster.publisher.look()
        published = cluster.published
        assert published is not None
        assert (replace(published, seen=""), bool(published.seen)) == (replace(RUNS, problem=problem), bool(problem))


@virtual_time
async def test_who_refuses_requests_is_published_at_once_before_all_else_for_people_and_for_programs() -> None:
    cluster = Cluster()
    webhook = Cause("webhook q.example.org", 400, "not by you", ["ResourceQuota a/q", "ResourceQuota b/q"], 2)
    cluster.causes = [webhook, Cause("RBAC", 403, "may not", ["Namespace a"], 1)]
    cluster.faults = ["pods: silent"]
    await cluster.publisher.look()
    published = cluster.published
    assert published is not None
    assert published.problem == (
        "webhook q.example.org refuses headroom's requests (400): not by you: ResourceQuota a/q and 1 more"
        "; and 1 more, see /readyz"
    )
    assert decoded(published.refused) == cluster.causes
    cluster.causes, cluster.faults = [], []
    await cluster.publisher.look()
    assert cluster.published == RUNS


@virtual_time
async def test_a_problem_that_lasts_is_written_again_and_is_fresh_for_a_reader_without_a_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, began = Cluster(), time.time()
    monkeypatch.setattr("pkg.config.installation.now_rfc3339", lambda: rfc3339(began + loop_time()))
    cluster.causes = [Cause("RBAC", 403, "may not", ["Namespace a"], 1)]
    running = asyncio.create_task(cluster.publisher.run())
    await asyncio.sleep(10 * REFRESH + 1)
    assert 10 <= len(cluster.config_maps.asked("patch")) <= 11
    running.cancel()
    published, now = cluster.published, began + loop_time()
    assert published is not None
    for later, fresh in ((0.0, True), (FRESH - REFRESH - 5, True), (-FRESH + REFRESH + 5, True), (FRESH + 5, False)):
        assert is_fresh(published, now + later) is fresh
    assert not is_fresh(RUNS, now)


async def test_not_where_the_namespace_is_missing() -> None:
    cluster = Cluster()
    cluster.config_maps.errors["create"] = [NotFound("namespaces own not found", status=404)]
    with pytest.raises(NotFound):
        await cluster.publisher.look()
    assert not cluster.config_maps.objects


@pytest.mark.parametrize("data", [{}, {"mode": "both", "estimate": "exact"}, {"mode": "assist"}])
def test_what_another_program_wrote_is_not_read(data: dict[str, str]) -> None:
    assert read(data) is None
