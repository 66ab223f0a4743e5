"""Every controller is registered, each on its own kind; which objects they do anything about."""

from __future__ import annotations

from typing import Any

import pytest

from kubeloop.controllers.controller import Controller
from pkg.api.kubevirt import KUBEVIRTS
from pkg.config.management import Management
from pkg.config.settings import Settings
from pkg.controller.kubevirt_version import register
from pkg.controller.registry import register_all
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from tests.decisions import sentences
from tests.kinds import Events, Server
from tests.pkg.controller.wired import Wired

QUOTAS = {("kubevirts", "kubevirtVersionController"), ("resourcequotas", "resourceQuotaController")}
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

    def on_change(self: Controller[Any], name: str, _: object, **_reads: object) -> None:
        registered.add((self.name, name))

    monkeypatch.setattr(Controller, "on_change", on_change)
    management = Management(Server().client())
    options = Settings(Policy(Mode.TAKEOVER, EstimateKind.EXACT, render=True), dry_run=dry_run)
    register_all(management, management.recorder("headroom"), options)
    assert registered == expected


SELECTED = {
    "all of them, unless some are chosen": ([], "any/quota", True),
    "an object of a chosen namespace": (["mine", "test-*"], "test-1/quota", True),
    "an object of another namespace": (["mine", "test-*"], "tenant/quota", False),
    "a chosen namespace itself": (["test-*"], "test-1", True),
    "another namespace itself": (["test-*"], "tenant", False),
    "the lock of a chosen namespace": (["test-*"], "lock.test-1.com", True),
    "the lock of another namespace": (["test-*"], "lock.tenant.com", False),
}


@sentences(SELECTED)
def test_what_is_selected(case: tuple[list[str], str, bool]) -> None:
    only, key, selected = case
    assert Settings(only_namespaces=only).selects(key) is selected


async def test_each_unknown_version_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    management = Wired(server)
    register(management, Events().recorder, Settings())
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


def test_the_limits_are_those_that_the_documentation_names() -> None:
    """docs/reference.md and docs/managed-tenant-quota.md, in seconds."""
    assert (Settings().policy.hold_limit, Settings().lock_limit) == (600.0, 120.0)
