"""What is said of a KubeVirt that is newer than all that headroom knows."""

from __future__ import annotations

import msgspec
import pytest

from pkg.api.kubevirt import KubeVirt
from pkg.controller.installation.version import VersionNotice


def kubevirt(version: str, phase: str = "Deployed") -> KubeVirt:
    body = {"metadata": {"name": "kubevirt"}, "status": {"phase": phase, "observedKubeVirtVersion": version}}
    return msgspec.convert(body, KubeVirt)


async def test_each_unknown_version_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    notice = VersionNotice()
    seen = [
        None,
        kubevirt("v1.9.4"),
        kubevirt("v1.11.0", phase="Deploying"),
        kubevirt("v1.11.0"),
        kubevirt("v1.11.0"),
        kubevirt("v1.12.1"),
        kubevirt("v1.11.0"),
    ]
    for changed in seen:
        await notice.on_kubevirt_changed("kubevirt", changed)
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "KubeVirt v1.11.0 is newer than the releases that headroom knows",
        "KubeVirt v1.12.1 is newer than the releases that headroom knows",
    ]
