"""The wiring: whatever may change a decision about a quota has it looked at, in its own namespace and nowhere else."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from kubeloop.api import registry
from kubeloop.testing.virtual_time import settle, virtual_time
from pkg.api.harvesterhci import SETTINGS
from pkg.api.kubevirt import KUBEVIRTS, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from pkg.config.management import KUBEVIRT_PODS, Management
from pkg.controller.indexes import index
from pkg.controller.migration import register as migration
from pkg.controller.options import Options
from pkg.util import constants
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from tests.decisions import sentences
from tests.kinds import Server

wiring = importlib.import_module("pkg.controller.resourcequota.register")
# The package exports the function of that name.

RATIO = "additional-guest-memory-overhead-ratio"


class Cluster:
    """Two namespaces with a quota each; in the first a VM migrates. `looked` are the quotas that were looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, options: Options) -> None:
        self.server = Server()
        self.reconciled: list[str] = []
        reconciled = self.reconciled

        class Recorder:
            def __init__(self, *_: object, **__: object) -> None: ...

            async def on_resource_quota_changed(self, key: str, _quota: object) -> None:
                reconciled.append(key)

        monkeypatch.setattr(wiring, "Handler", Recorder)
        self.management = Management(self.server.client(), workers=1)
        index(self.management.virtual_machine_instance_migrations.cache(), self.management.pods.cache())
        events = self.management.recorder("headroom")
        migration.register(self.management, events, replace(options, dry_run=True))
        wiring.register(self.management, events, options)
        for name in ("ns1", "ns2"):
            self.put(registry.NAMESPACES, name)
            self.put(registry.RESOURCE_QUOTAS, "q", name)
        self.put(VIRTUAL_MACHINE_INSTANCES, "vm1", "ns1")
        self.put(VIRTUAL_MACHINE_INSTANCES, "still", "ns2")
        self.put_migration()
        self.put_pod(phase="Pending")

    def put_migration(self, phase: str = "Pending", *, deleted_at: str = "", refused: bool = False) -> None:
        """That of vm1."""
        conditions = [{"type": "migrationRejectedByResourceQuota", "status": "True"}] if refused else []
        self.put(
            VIRTUAL_MACHINE_INSTANCE_MIGRATIONS,
            "m1",
            "ns1",
            metadata={"deletionTimestamp": deleted_at} if deleted_at else {},
            spec={"vmiName": "vm1"},
            status={"phase": phase, "conditions": conditions},
        )

    def put_pod(self, name: str = "x", labels: dict[str, str] | None = None, **status: Any) -> None:
        """A launcher pod; x is there."""
        labels = {KUBEVIRT_PODS: "virt-launcher", **(labels or {})}
        self.put(registry.PODS, name, "ns2", metadata={"labels": labels}, status=status)

    def put(self, resource: Any, name: str, namespace: str = "", **fields: Any) -> None:
        self.server.kind(resource).put(name, namespace, **fields)

    def remove(self, resource: Any, key: str) -> None:
        self.server.remove(resource, key)


@asynccontextmanager
async def cluster(monkeypatch: pytest.MonkeyPatch, options: Options) -> AsyncIterator[Cluster]:
    there = Cluster(monkeypatch, options)
    await there.management.start()
    await settle(100)
    assert sorted(set(there.reconciled)) == ["ns1/q", "ns2/q"]
    there.reconciled.clear()
    yield there
    await there.management.stop(timeout=1.0)


Happens = Callable[[Cluster], None]

RECONCILED: dict[str, tuple[Happens, list[str]]] = {
    "the quota itself changes": (lambda c: c.put(registry.RESOURCE_QUOTAS, "q", "ns2"), ["ns2/q"]),
    "a quota comes": (lambda c: c.put(registry.RESOURCE_QUOTAS, "new", "ns2"), ["ns2/new"]),
    "a quota goes": (lambda c: c.remove(registry.RESOURCE_QUOTAS, "ns2/q"), ["ns2/q"]),
    "the namespace's annotation changes": (lambda c: c.put(registry.NAMESPACES, "ns2"), ["ns2/q"]),
    "another namespace changes": (lambda c: c.put(registry.NAMESPACES, "ns3"), []),
    "a migration comes": (
        lambda c: c.put(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, "m2", "ns2", spec={"vmiName": "x"}),
        ["ns2/q"],
    ),
    "a migration moves on": (lambda c: c.put_migration("Running"), ["ns1/q"]),
    "a migration is refused": (lambda c: c.put_migration(refused=True), ["ns1/q"]),
    "a migration is to be deleted": (lambda c: c.put_migration(deleted_at="2026-01-01T00:00:00Z"), ["ns1/q"]),
    "nothing but a migration's resourceVersion changes": (lambda c: c.put_migration(), []),
    "a migration goes": (lambda c: c.remove(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, "ns1/m1"), ["ns1/q"]),
    "a VMI that migrates changes": (
        lambda c: c.put(VIRTUAL_MACHINE_INSTANCES, "vm1", "ns1", status={"nodeName": "node-2"}),
        ["ns1/q"],
    ),
    "a VMI shows the state of its migration": (
        lambda c: c.put(
            VIRTUAL_MACHINE_INSTANCES,
            "vm1",
            "ns1",
            metadata={"annotations": {"harvesterhci.io/migrationState": "Migrating"}},
        ),
        [],
    ),
    "a VMI that migrates gets a condition that is not read": (
        lambda c: c.put(
            VIRTUAL_MACHINE_INSTANCES,
            "vm1",
            "ns1",
            status={"conditions": [{"type": "LiveMigratable", "status": "True"}]},
        ),
        [],
    ),
    "a VMI that stays where it is changes": (lambda c: c.put(VIRTUAL_MACHINE_INSTANCES, "still", "ns2"), []),
    "the overhead ratio changes": (lambda c: c.put(SETTINGS, RATIO, value="4.5"), ["ns1/q"]),
    "another setting changes": (lambda c: c.put(SETTINGS, "overcommit-config", value="x"), []),
}

EXACT_TOO: dict[str, tuple[Happens, list[str]]] = {
    "KubeVirt is configured anew": (lambda c: c.put(KUBEVIRTS, "kubevirt", "harvester-system"), ["ns1/q"]),
    "a pod comes": (lambda c: c.put_pod("y"), ["ns2/q"]),
    "a pod runs": (lambda c: c.put_pod(phase="Running"), []),
    "a pod's containers run": (lambda c: c.put_pod(containerStatuses=[{"name": "compute"}]), []),
    "a pod's containers run with other resources": (
        lambda c: c.put_pod(containerStatuses=[{"name": "compute", "resources": {"limits": {"cpu": "1"}}}]),
        ["ns2/q"],
    ),
    "a pod's node is put among its labels": (lambda c: c.put_pod(labels={"kubevirt.io/nodeName": "n"}), []),
    "a pod is marked as a target": (lambda c: c.put_pod(labels={constants.LABEL_MIGRATION_JOB_UID: "uid"}), ["ns2/q"]),
    "a pod is over": (lambda c: c.put_pod(phase="Succeeded"), ["ns2/q"]),
    "a LimitRange changes": (lambda c: c.put(registry.LIMIT_RANGES, "lr", "ns2"), ["ns2/q"]),
}

ASSIST = Options(Policy(Mode.ASSIST))
TAKEOVER = Options(Policy(Mode.TAKEOVER, EstimateKind.EXACT))


@sentences(RECONCILED)
def test_beside_harvester(case: tuple[Happens, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    _check(case, monkeypatch, ASSIST)


@sentences(RECONCILED | EXACT_TOO)
def test_instead_of_harvester(case: tuple[Happens, list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    _check(case, monkeypatch, TAKEOVER)


def _check(case: tuple[Happens, list[str]], monkeypatch: pytest.MonkeyPatch, options: Options) -> None:
    happens, reconciled = case

    @virtual_time
    async def scenario() -> None:
        async with cluster(monkeypatch, options) as there:
            happens(there)
            await settle(100)
            assert sorted(set(there.reconciled)) == reconciled

    scenario()
