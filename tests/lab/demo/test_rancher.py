"""What Rancher's agent wrote, read from a log in its words; whether the demo has seen all that followed from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubeloop.api.registry import RESOURCE_QUOTAS
from kubeloop.testing.cluster import processes
from kubeloop.testing.fake.server import FakeCluster
from lab.cluster import RancherAgent
from lab.demo import driver as drivers
from lab.demo import seed
from tests.lab.builder import RecordBuilder, driver_of

WROTE = f"namespace {seed.NAMESPACE}: quota default-abc set to {{'limits.cpu': '3'}} (was {{'limits.cpu': '5'}})"
LOG = f"""\
12:00:00 I rancher: namespace {seed.NAMESPACE}: created quota default-abc with {{'limits.cpu': '3'}}
12:00:01 I rancher: agent restarted: 5 namespaces
12:00:01 I rancher: {WROTE}
12:00:02 I rancher: namespace other: quota default-abc set to {{'limits.cpu': '3'}} (was {{'limits.cpu': '5'}})
12:00:02 I rancher: namespace {seed.NAMESPACE}-2: quota default-abc set to {{}} (was {{}})
12:00:03 I rancher: {WROTE}
"""


def test_its_writes_into_the_namespace_are_counted_and_no_others(tmp_path: Path) -> None:
    log = processes.log_path(tmp_path, "rancher")
    log.parent.mkdir()
    log.write_text(LOG, "utf-8")
    agent = RancherAgent(tmp_path)
    assert (agent.writes(seed.NAMESPACE), agent.restarts()) == (2, 1)


def test_without_a_log_it_has_written_nothing(tmp_path: Path) -> None:
    assert RancherAgent(tmp_path).writes(seed.NAMESPACE) == 0


@pytest.mark.parametrize("seen", [True, False], ids=["the newest version was seen", "there is one more"])
async def test_whether_all_versions_were_seen(seen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "PATIENCE", 0.05)
    builder, server = RecordBuilder(), FakeCluster()
    quota = {"metadata": {"name": "default-abc", "namespace": seed.NAMESPACE}, "spec": {"hard": {}}}
    builder.record.see_quota(server.put(RESOURCE_QUOTAS, quota))
    if not seen:
        server.put(RESOURCE_QUOTAS, quota)
    assert await driver_of(builder, client=server.client()).catch_up() is seen
