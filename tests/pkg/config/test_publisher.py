"""The ConfigMap `headroom`: how the controller runs, and what keeps it from its work."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from kubeloop.api.registry import CONFIG_MAPS
from kubeloop.client.errors import NotFound
from kubeloop.testing.virtual_time import virtual_time
from pkg.config.installation import LOOK, PERIOD, Installation, Publisher, read
from pkg.util.resourcequota.policy import EstimateKind, Mode
from tests.kinds import Kind, Server

RUNS = Installation(Mode.ASSIST, EstimateKind.HARVESTER, "1.2.3")


class Cluster(Server):
    def __init__(self) -> None:
        super().__init__()
        self.config_maps: Kind[Any] = self.kind(CONFIG_MAPS)
        self.faults: list[str] = []
        self.publisher = Publisher(self.client(), "own", lambda: RUNS, lambda: self.faults)

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


async def test_what_keeps_it_from_its_work_is_published_once_it_lasts_and_as_long() -> None:
    cluster = Cluster()
    for faults, problem in (
        (["a conflict"], ""),
        ([], ""),
        (["pods: silent for 30 s"], ""),
        (["pods: silent for 40 s", "more"], "pods: silent for 40 s; and 1 more, see /readyz"),
        (["pods: silent for 50 s"], "pods: silent for 40 s; and 1 more, see /readyz"),
        ([], ""),
    ):
        cluster.faults = faults
        await cluster.publisher.look()
        assert cluster.published == replace(RUNS, problem=problem)
    assert len(cluster.config_maps.asked("patch")) == 2


async def test_not_where_the_namespace_is_missing() -> None:
    cluster = Cluster()
    cluster.config_maps.errors["create"] = [NotFound("namespaces own not found", status=404)]
    with pytest.raises(NotFound):
        await cluster.publisher.look()
    assert not cluster.config_maps.objects


@pytest.mark.parametrize("data", [{}, {"mode": "both", "estimate": "exact"}, {"mode": "assist"}])
def test_what_another_program_wrote_is_not_read(data: dict[str, str]) -> None:
    assert read(data) is None
