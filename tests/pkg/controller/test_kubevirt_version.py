"""What is said of a KubeVirt that is newer than all that headroom knows."""

from __future__ import annotations

import pytest

from pkg.api.kubevirt import KUBEVIRTS
from pkg.controller.kubevirt_version import register
from pkg.controller.options import Options
from tests.kinds import Events, Server
from tests.pkg.controller.wired import Wired


async def test_each_unknown_version_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    management = Wired(server)
    register(management, Events().recorder, Options())
    await management.handle(KUBEVIRTS, "kubevirt")
    for version, phase in (
        ("v1.9.4", "Deployed"),
        ("v1.11.0", "Deploying"),
        ("v1.11.0", "Deployed"),
        ("v1.11.0", "Deployed"),
        ("v1.12.1", "Deployed"),
        ("v1.11.0", "Deployed"),
    ):
        server.kind(KUBEVIRTS).put("kubevirt", status={"phase": phase, "observedKubeVirtVersion": version})
        await management.handle(KUBEVIRTS, "kubevirt")
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        f"KubeVirt {version} is newer than the releases that headroom knows" for version in ("v1.11.0", "v1.12.1")
    ]
