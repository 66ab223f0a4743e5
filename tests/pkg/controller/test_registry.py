"""Every controller is registered, each on its own kind."""

from __future__ import annotations

from typing import Any

import pytest

from kubeloop.controllers.controller import Controller
from pkg.config.management import Management
from pkg.controller.options import Options
from pkg.controller.registry import register_all
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from tests.kinds import Server

QUOTAS = {
    ("kubevirts", "kubevirtVersionController"),
    ("resourcequotas", "resourceQuotaController"),
    ("virtualmachineinstancemigrations", "virtualMachineInstanceMigrationController"),
}
OTHERS = {
    ("namespaces", "holdingController"),
    ("namespaces", "managedTenantQuotaController"),
    ("namespaces", "namespaceController"),
    ("virtualmachineinstances", "virtualMachineInstanceController"),
    ("validatingwebhookconfigurations.admissionregistration.k8s.io/v1", "managedTenantQuotaController"),
    ("virtualmachines", "virtualMachineController"),
}


@pytest.mark.parametrize(("dry_run", "expected"), [(False, QUOTAS | OTHERS), (True, QUOTAS)])
def test_every_controller_is_registered(
    dry_run: bool, expected: set[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: set[tuple[str, str]] = set()

    def on_change(self: Controller[Any], name: str, _: object) -> None:
        registered.add((self.name, name))

    monkeypatch.setattr(Controller, "on_change", on_change)
    management = Management(Server().client())
    options = Options(Policy(Mode.TAKEOVER, EstimateKind.EXACT, render=True), dry_run=dry_run)
    register_all(management, management.recorder("headroom"), options)
    assert registered == expected
