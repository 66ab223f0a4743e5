"""The agent is restarted by a signal to a real process; what it wrote is read from a log in the stand-in's words."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from kubeloop.api.registry import RESOURCE_QUOTAS
from kubeloop.testing.cluster import processes
from kubeloop.testing.fake.server import FakeCluster
from kubeloop.testing.polling import until
from lab.demo import driver as drivers
from lab.demo import seed
from lab.rancher.agent import Agent
from tests.lab.builder import RecordBuilder, driver_of

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


async def restarted(directory: Path, *, answers: int, times: int) -> tuple[int, RecordBuilder]:
    """How often the program wrote when it was restarted so often."""
    argv = [sys.executable, "-c", PROGRAM, WROTE, str(answers)]
    process = processes.spawn("rancher", argv, directory)
    try:
        await until(lambda: process.log.exists() and "blocked" in process.log.read_text("utf-8"))
        builder = RecordBuilder()
        cluster = type("Cluster", (), {"directory": directory})
        return await driver_of(builder, cluster=cluster).restart_agent(times), builder
    finally:
        processes.stop(directory)


def test_its_writes_into_the_namespace_are_counted_and_no_others(tmp_path: Path) -> None:
    log = processes.log_path(tmp_path, "rancher")
    log.parent.mkdir()
    log.write_text(LOG, "utf-8")
    agent = Agent(tmp_path)
    assert (agent.writes(seed.NAMESPACE), agent.restarts()) == (2, 1)


def test_without_a_log_it_has_written_nothing(tmp_path: Path) -> None:
    assert Agent(tmp_path).writes(seed.NAMESPACE) == 0


async def test_every_restart_is_waited_for_and_counted(tmp_path: Path) -> None:
    written, builder = await restarted(tmp_path, answers=5, times=5)
    assert written == 5
    assert [(mark.kind, mark.text) for mark in builder.record.marks] == [("rancher", "agent restarts ×5")]


async def test_an_agent_that_writes_nothing_any_more_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = 0.0

    def clock() -> float:
        """Runs ahead once the last answer is there."""
        nonlocal ahead
        ahead += drivers.PATIENCE / 2 if Agent(tmp_path).writes(seed.NAMESPACE) == 2 else 0.0
        return time.monotonic() + ahead

    monkeypatch.setattr(drivers, "time", SimpleNamespace(monotonic=clock))
    written, _ = await restarted(tmp_path, answers=2, times=5)
    assert written == 2


@pytest.mark.parametrize("seen", [True, False], ids=["the newest version was seen", "there is one more"])
async def test_whether_all_versions_were_seen(seen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "PATIENCE", 0.05)
    builder, server = RecordBuilder(), FakeCluster()
    quota = {"metadata": {"name": "default-abc", "namespace": seed.NAMESPACE}, "spec": {"hard": {}}}
    builder.record.see_quota(server.put(RESOURCE_QUOTAS, quota))
    if not seen:
        server.put(RESOURCE_QUOTAS, quota)
    assert await driver_of(builder, client=server.client()).catch_up() is seen
