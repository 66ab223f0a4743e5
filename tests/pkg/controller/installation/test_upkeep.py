"""The ConfigMap `headroom`, and what is said of the policy: once until it changes."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import REGISTRY

from kubeloop.api.registry import (
    CONFIG_MAPS,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    Resource,
)
from kubeloop.client.errors import NotFound
from pkg.controller.installation.upkeep import EVENT, Upkeep
from pkg.util.installation import Installation, read
from pkg.util.kubevirt.accounts import virt_controllers
from pkg.util.resourcequota.policy import EstimateKind, Mode
from tests.kinds import Events, Kind, Server
from tests.pkg.controller.installation.shipped import SHIPPED

POLICIES: tuple[Resource[Any], ...] = (VALIDATING_ADMISSION_POLICIES, VALIDATING_ADMISSION_POLICY_BINDINGS)
RUNS = Installation(Mode.ASSIST, EstimateKind.HARVESTER, "1.2.3")


class Cluster(Server):
    def __init__(self) -> None:
        super().__init__()
        self.config_maps: Kind[Any] = self.kind(CONFIG_MAPS)
        self.events = Events()

    def upkeep(self, **more: Any) -> Upkeep:
        recorder = self.events.recorder
        return Upkeep(self.client(), recorder, "own", lambda: RUNS, lambda: virt_controllers([]), **more)

    def apply(self) -> None:
        for document in SHIPPED:
            binding = document["kind"].endswith("Binding")
            self.put(POLICIES[binding], document)


async def test_mode_estimate_and_version_are_published_and_kept() -> None:
    cluster = Cluster()
    upkeep = cluster.upkeep()
    await upkeep.check()
    assert cluster.config_maps.now("own/headroom").data == RUNS.data()
    cluster.config_maps.edited("own/headroom", {"data": {"mode": "takeover"}})
    await upkeep.check()
    assert read(cluster.config_maps.now("own/headroom").data) == RUNS
    writes = len(cluster.config_maps.asked("patch"))
    await upkeep.check()
    assert len(cluster.config_maps.asked("patch")) == writes


async def test_not_where_the_namespace_is_missing_and_not_in_a_dry_run() -> None:
    cluster = Cluster()
    await cluster.upkeep(dry_run=True).check()
    assert not cluster.config_maps.calls
    cluster.config_maps.errors["create"] = [NotFound("namespaces own not found", status=404)]
    await cluster.upkeep().check()
    assert not cluster.config_maps.objects
    assert not cluster.events.recorded


async def test_a_missing_policy_is_said_once_and_its_return_too(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    upkeep = cluster.upkeep()
    caplog.set_level("INFO")
    for _ in range(3):
        await upkeep.check()
    assert REGISTRY.get_sample_value("headroom_pod_policy_in_force") == 0
    ((_, kind, reason, message),) = cluster.events.recorded
    assert (kind, reason) == ("Warning", EVENT)
    assert "there is no ValidatingAdmissionPolicy headroom-vm-pods-created" in message
    cluster.apply()
    for _ in range(2):
        await upkeep.check()
    assert REGISTRY.get_sample_value("headroom_pod_policy_in_force") == 1
    assert caplog.text.count("in force") == 1
    assert len(cluster.events.recorded) == 1


async def test_an_api_server_that_is_too_old_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    for kind in POLICIES:
        cluster.install(kind, installed=False)
    upkeep = cluster.upkeep()
    for _ in range(2):
        await upkeep.check()
    assert caplog.text.count("older than Kubernetes 1.30") == 1
    assert "tenants can create pods" in caplog.text


@pytest.mark.parametrize("data", [{}, {"mode": "both", "estimate": "exact"}, {"mode": "assist"}])
def test_what_another_program_wrote_is_not_read(data: dict[str, str]) -> None:
    assert read(data) is None
