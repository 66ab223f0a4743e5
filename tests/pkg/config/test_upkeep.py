"""What is said of the policy: once until it changes."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import REGISTRY

from kubeloop.api.registry import VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS, Resource
from pkg.config.upkeep import EVENT, Upkeep
from pkg.util.kubevirt.rendering import virt_controllers
from tests.kinds import Events, Server
from tests.pkg.config.shipped import SHIPPED

POLICIES: tuple[Resource[Any], ...] = (VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS)


class Cluster(Server):
    def __init__(self) -> None:
        super().__init__()
        self.told = Events()

    def upkeep(self, *, dry_run: bool = False) -> Upkeep:
        recorder = self.told.recorder
        return Upkeep(self.client(), recorder, "own", lambda: virt_controllers([]), dry_run=dry_run)

    def apply(self) -> None:
        for document in SHIPPED:
            binding = document["kind"].endswith("Binding")
            self.put(POLICIES[binding], document)


async def test_a_missing_policy_is_said_once_and_its_return_too(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    upkeep = cluster.upkeep()
    caplog.set_level("INFO")
    await cluster.upkeep(dry_run=True).check()
    for _ in range(3):
        await upkeep.check()
    assert REGISTRY.get_sample_value("headroom_pod_policy_in_force") == 0
    ((_, kind, reason, message),) = cluster.told.recorded
    assert (kind, reason) == ("Warning", EVENT)
    assert "there is no ValidatingAdmissionPolicy headroom-vm-pods-created" in message
    cluster.apply()
    for _ in range(2):
        await upkeep.check()
    assert REGISTRY.get_sample_value("headroom_pod_policy_in_force") == 1
    assert caplog.text.count("in force") == 1
    assert len(cluster.told.recorded) == 1


async def test_an_api_server_that_is_too_old_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    for kind in POLICIES:
        cluster.install(kind, installed=False)
    upkeep = cluster.upkeep()
    for _ in range(2):
        await upkeep.check()
    assert caplog.text.count("older than Kubernetes 1.30") == 1
    assert "tenants can create pods" in caplog.text
