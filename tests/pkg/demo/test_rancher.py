"""The agent is restarted by a signal to a real process; what it wrote is read from a log in the stand-in's words."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from pkg.client.decode import ObjectList
from pkg.demo import driver as drivers
from pkg.demo import seed
from pkg.demo.checks import Report
from pkg.demo.driver import Agent, Driver
from pkg.testcluster import processes
from pkg.testcluster.cluster import Cluster
from tests.polling import until

from .builder import BASE, ONE, HistoryBuilder

WROTE = (
    f"namespace {seed.NAMESPACE}: quota default-abc set to {{'limits.cpu': '3'}} (was {{'limits.cpu': '5'}})"
)
LOG = f"""\
12:00:00 I rancher: namespace {seed.NAMESPACE}: created quota default-abc with {{'limits.cpu': '3'}}
12:00:01 I rancher: agent restarted: 5 namespaces
12:00:01 I rancher: {WROTE}
12:00:02 I rancher: namespace other: quota default-abc set to {{'limits.cpu': '3'}} (was {{'limits.cpu': '5'}})
12:00:02 I rancher: namespace {seed.NAMESPACE}-2: quota default-abc set to {{}} (was {{}})
12:00:03 I rancher: {WROTE}
"""
PROGRAM = """\
import signal, sys
wrote, most = sys.argv[1], int(sys.argv[2])
signals = {signal.SIGHUP}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
print("blocked", flush=True)
for number in range(most):
    signal.sigwait(signals)
    print(wrote, flush=True)
signal.sigwait(signals | {signal.SIGTERM})
signal.sigwait({signal.SIGTERM})
"""
"""Answers a number of SIGHUPs with a write each."""


class Watching:
    """Time goes by without anything to see."""

    async def changed(self, timeout: float) -> None:
        await asyncio.sleep(timeout / 10)


async def restarted(directory: Path, *, answers: int, times: int) -> tuple[int, HistoryBuilder]:
    """How often the program wrote when it was restarted so often."""
    argv = [sys.executable, "-c", PROGRAM, WROTE, str(answers)]
    process = processes.spawn("rancher", argv, directory)
    try:
        await until(lambda: process.log.exists() and "blocked" in process.log.read_text("utf-8"))
        builder = HistoryBuilder()
        cluster = cast("Cluster", type("Cluster", (), {"directory": directory}))
        nothing: Any = None
        watching: Any = Watching()
        driver = Driver(cluster, nothing, builder.history, watching, Report(), speed=1.0)
        return await driver.restart_agent(times), builder
    finally:
        processes.stop(directory)


def test_its_writes_into_the_namespace_are_counted_and_no_others(tmp_path: Path) -> None:
    log = processes.log_path(tmp_path, "rancher")
    log.parent.mkdir()
    log.write_text(LOG, "utf-8")
    agent = Agent(tmp_path, seed.NAMESPACE)
    assert agent.writes() == 2
    assert agent.has_written(2)
    assert not agent.has_written(3)


def test_without_a_log_it_has_written_nothing(tmp_path: Path) -> None:
    assert Agent(tmp_path, seed.NAMESPACE).writes() == 0


async def test_every_restart_is_waited_for_and_counted(tmp_path: Path) -> None:
    written, builder = await restarted(tmp_path, answers=5, times=5)
    assert written == 5
    assert [(mark.kind, mark.text) for mark in builder.history.marks] == [("rancher", "agent restarts ×5")]


async def test_an_agent_that_writes_nothing_any_more_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivers, "PATIENCE", 2.0)
    written, _ = await restarted(tmp_path, answers=2, times=5)
    assert written == 2


class Quotas:
    """An API server on which the quota has a version."""

    def __init__(self, builder: HistoryBuilder, ahead: int) -> None:
        self._story = builder
        self._ahead = ahead

    def resource(self, _: object) -> Quotas:
        return self

    async def list(self, namespace: str) -> ObjectList[Any]:
        version = str(self._story.history.quota_seen + self._ahead)
        metadata = type("Meta", (), {"resource_version": version})
        return ObjectList([type("Quota", (), {"metadata": metadata})], version)


@pytest.mark.parametrize(
    ("ahead", "caught_up"),
    [
        pytest.param(0, True, id="the newest version was seen"),
        pytest.param(1, False, id="there is one more"),
    ],
)
async def test_whether_all_versions_were_seen(
    ahead: int, caught_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivers, "PATIENCE", 0.05)
    builder = HistoryBuilder()
    builder.quota(1, BASE, ONE)
    client: Any = Quotas(builder, ahead)
    nothing: Any = None
    watching: Any = Watching()
    driver = Driver(nothing, client, builder.history, watching, Report(), speed=1.0)
    assert await driver.catch_up() is caught_up
