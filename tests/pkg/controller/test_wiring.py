"""The wiring: every controller is registered on its own kind; what may change a decision about a quota, or the state
that a VMI shows, has that one handled, in its own namespace and nowhere else, soon, and none is lost."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kubeloop.api import registry
from kubeloop.controllers.controller import Controller
from kubeloop.controllers.errors import RetryAfter
from kubeloop.testing.virtual_time import now, run, settle, virtual_time
from pkg.api.harvesterhci import SETTINGS
from pkg.api.kubevirt import KUBEVIRTS, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINES
from pkg.config.management import Management
from pkg.config.settings import Settings
from pkg.controller.registry import register_all, warn_of_unknown_versions
from pkg.controller.resourcequota.resourcequota_controller import ResourceQuotaHandler
from pkg.util import constants
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from pkg.util.resourcequota.timing import LONGEST, SHORTEST
from tests.decisions import sentences
from tests.kinds import Server
from tests.objects import ENTRY, by_name
from tests.pkg.controller.wired import Wired

CLAIMS = registry.PERSISTENT_VOLUME_CLAIMS
RATIO = "additional-guest-memory-overhead-ratio"
HANDLED = ("resourcequotas", "virtualmachineinstances")


class WiredCluster:
    """Two namespaces with a quota each; in the first a VM migrates. `handled` are the quotas and VMIs whose handlers
    were called; no handler does anything."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, options: Settings) -> None:
        self.server = Server()
        self.handled: set[str] = set()
        on_change = Controller.on_change

        async def handle(key: str, _: object) -> None:
            self.handled.add(key)

        async def ignore(_key: str, _: object) -> None: ...

        def add(controller: Controller[Any], name: str, _: Any, **reads: Any) -> None:
            on_change(controller, name, handle if controller.name in HANDLED else ignore, **reads)

        monkeypatch.setattr(Controller, "on_change", add)
        self.management = Management(self.server.client(), workers=1)
        register_all(self.management, self.management.recorder("headroom"), options)
        for name in ("ns1", "ns2"):
            self.put(registry.RESOURCE_QUOTAS, "q", name, spec={"hard": {"requests.storage": "1Gi"}})
        self.put(registry.NAMESPACES, "ns1", metadata={"annotations": {constants.ANNOTATION_STORAGE_MIGRATION: "true"}})
        self.put(registry.NAMESPACES, "ns2")
        self.put_vm1()
        self.put(VIRTUAL_MACHINE_INSTANCES, "still", "ns2")
        self.put_migration()
        self.put_pod(phase="Pending")

    def put_migration(self, phase: str = "Pending", condition: str = "", *, deleted_at: str = "") -> None:
        """Creates the migration of vm1."""
        conditions = [{"type": condition, "status": "True"}] if condition else []
        self.put(
            VIRTUAL_MACHINE_INSTANCE_MIGRATIONS,
            "m1",
            "ns1",
            metadata={"deletionTimestamp": deleted_at} if deleted_at else {},
            spec={"vmiName": "vm1"},
            status={"phase": phase, "conditions": conditions},
        )

    def put_vm1(self, **fields: Any) -> None:
        self.put(VIRTUAL_MACHINE_INSTANCES, "vm1", "ns1", **fields)

    def put_pod(self, name: str = "x", labels: dict[str, str] | None = None, **status: Any) -> None:
        """A launcher pod; x is there."""
        labels = {"kubevirt.io": "virt-launcher", **(labels or {})}
        self.put(registry.PODS, name, "ns2", metadata={"labels": labels}, status=status)

    def put(self, resource: Any, name: str, namespace: str = "", **fields: Any) -> None:
        self.server.kind(resource).put(name, namespace, **fields)

    def remove(self, resource: Any, key: str) -> None:
        self.server.remove(resource, key)


@asynccontextmanager
async def cluster(monkeypatch: pytest.MonkeyPatch, *, dry_run: bool = False) -> AsyncIterator[WiredCluster]:
    rig = WiredCluster(monkeypatch, Settings(dry_run=dry_run))
    await rig.management.start()
    await asyncio.sleep(LONGEST)
    await settle(100)
    assert rig.handled == {"ns1/q", "ns2/q"} | (set() if dry_run else {"ns1/vm1", "ns2/still"})
    rig.handled.clear()
    yield rig
    await rig.management.stop(timeout=1.0)


Happens = Callable[[WiredCluster], None]
BOTH = ["ns1/q", "ns1/vm1"]

CHANGES: dict[str, tuple[Happens, list[str]]] = {
    "the quota itself changes": (lambda c: c.put(registry.RESOURCE_QUOTAS, "q", "ns2"), ["ns2/q"]),
    "a quota comes": (lambda c: c.put(registry.RESOURCE_QUOTAS, "new", "ns2"), ["ns2/new"]),
    "a quota goes": (lambda c: c.remove(registry.RESOURCE_QUOTAS, "ns2/q"), ["ns2/q"]),
    "the namespace's annotation changes": (lambda c: c.put(registry.NAMESPACES, "ns2"), ["ns2/q"]),
    "another namespace changes": (lambda c: c.put(registry.NAMESPACES, "ns3"), []),
    "a migration comes": (
        lambda c: c.put(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, "m2", "ns2", spec={"vmiName": "still"}),
        ["ns2/q", "ns2/still"],
    ),
    "a migration moves on": (lambda c: c.put_migration("Scheduled"), BOTH),
    "a migration is over": (lambda c: c.put_migration("Succeeded"), BOTH),
    "a migration's abort is asked for": (lambda c: c.put_migration("Pending", "migrationAbortRequested"), BOTH),
    "a migration is refused": (lambda c: c.put_migration("Pending", "migrationRejectedByResourceQuota"), ["ns1/q"]),
    "a migration is to be deleted": (lambda c: c.put_migration(deleted_at="2026-01-01T00:00:00Z"), ["ns1/q"]),
    "a migration gets a condition that is not read": (lambda c: c.put_migration("Pending", "Ready"), []),
    "nothing but a migration's resourceVersion changes": (lambda c: c.put_migration(), []),
    "a migration goes": (lambda c: c.remove(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, "ns1/m1"), BOTH),
    "a VMI that migrates changes": (lambda c: c.put_vm1(status={"nodeName": "node-2"}), ["ns1/q"]),
    "a VMI has migrated": (lambda c: c.put_vm1(status={"migrationState": {"completed": True}}), BOTH),
    "a VMI is to be deleted": (lambda c: c.put_vm1(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}), BOTH),
    "a VMI is made anew": (lambda c: c.put_vm1(metadata={"uid": "uid-of-the-next"}), BOTH),
    "a VMI shows the state of its migration": (
        lambda c: c.put_vm1(metadata={"annotations": {"harvesterhci.io/migrationState": "Migrating"}}),
        ["ns1/vm1"],
    ),
    "a VMI that migrates gets a condition that is not read": (
        lambda c: c.put_vm1(status={"conditions": [{"type": "LiveMigratable", "status": "True"}]}),
        [],
    ),
    "a VMI that stays where it is changes": (
        lambda c: c.put(VIRTUAL_MACHINE_INSTANCES, "still", "ns2", status={"nodeName": "node-2"}),
        [],
    ),
    "a VMI comes that does not migrate": (lambda c: c.put(VIRTUAL_MACHINE_INSTANCES, "new", "ns2"), ["ns2/new"]),
    "the overhead ratio changes": (lambda c: c.put(SETTINGS, RATIO, value="4.5"), ["ns1/q"]),
    "another setting changes": (lambda c: c.put(SETTINGS, "overcommit-config", value="x"), []),
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
    "a claim of a VM's state changes": (lambda c: c.put(CLAIMS, "persistent-state-for-vm", "ns2"), ["ns2/q"]),
    "another claim changes": (lambda c: c.put(CLAIMS, "data", "ns2"), []),
    "another claim changes, where volumes may move": (lambda c: c.put(CLAIMS, "data", "ns1"), ["ns1/q"]),
    "a VM changes": (lambda c: c.put(VIRTUAL_MACHINES, "still", "ns2"), []),
    "a VM changes, where volumes may move": (lambda c: c.put(VIRTUAL_MACHINES, "vm1", "ns1"), ["ns1/q"]),
    "a VMI that stays where it is changes, where volumes may move": (
        lambda c: c.put(VIRTUAL_MACHINE_INSTANCES, "other", "ns1"),
        ["ns1/other", "ns1/q"],
    ),
    "a LimitRange changes": (lambda c: c.put(registry.LIMIT_RANGES, "lr", "ns2"), ["ns2/q"]),
}


@sentences(CHANGES, "happens, expected")
def test_what_a_change_has_handled(happens: Happens, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:

    @virtual_time
    async def scenario() -> None:
        async with cluster(monkeypatch) as rig:
            happens(rig)
            await asyncio.sleep(LONGEST)
            await settle(100)
            assert sorted(rig.handled) == expected

    scenario()


@virtual_time
async def test_in_a_dry_run_nothing_shows_the_state_of_migrations(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster(monkeypatch, dry_run=True) as rig:
        rig.put_migration("Scheduled")
        await asyncio.sleep(LONGEST)
        assert rig.handled == {"ns1/q"}
        assert not len(rig.management.virtual_machine_instances.queue), "nothing would take it"


# ---- every controller is registered, each on its own kind ----------------------------------------------------

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


@sentences(SELECTED, "only, key, selected")
def test_what_is_selected(only: list[str], key: str, selected: bool) -> None:
    assert Settings(only_namespaces=only).selects(key) is selected


async def test_each_unknown_version_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    management = Wired(server)
    warn_of_unknown_versions(management)
    await management.handle(KUBEVIRTS, "kubevirt/kubevirt")
    for version, phase in (
        ("v1.9.4", "Deployed"),
        ("v1.11.0", "Deploying"),
        ("v1.11.0", "Deployed"),
        ("v1.11.0", "Deployed"),
        ("v1.12.1", "Deployed"),
        ("v1.11.0", "Deployed"),
    ):
        server.kind(KUBEVIRTS).put("kubevirt", "kubevirt", status={"phase": phase, "observedKubeVirtVersion": version})
        await management.handle(KUBEVIRTS, "kubevirt/kubevirt")
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        f"KubeVirt {version} is newer than the releases that headroom knows" for version in ("v1.11.0", "v1.12.1")
    ]


def test_the_limits_are_those_that_the_documentation_names() -> None:
    """docs/reference.md and docs/managed-tenant-quota.md, in seconds."""
    assert (Settings().policy.hold_limit, Settings().lock_limit) == (600.0, 120.0)


# ---- the pace: an event is decided about soon, and none is lost ----------------------------------------------

BASE, RAISED = {"limits.cpu": "1"}, {"limits.cpu": "2"}


class PacedNamespace:
    """A quota, and in its namespace the VM vm1, which migrates. `decided` has when the quota's handler was called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = Server()
        self.decided: list[float] = []
        self.again: Callable[[], float] = lambda: 0.0
        self.puts = 0

        async def decide(_handler: ResourceQuotaHandler, _key: str, _quota: object) -> None:
            self.decided.append(now())
            if again := self.again():
                raise RetryAfter(again)

        monkeypatch.setattr(ResourceQuotaHandler, "on_resource_quota_changed", decide)
        self.management = Management(self.server.client(), workers=1)
        register_all(self.management, self.management.recorder("headroom"), Settings())
        self.put(registry.NAMESPACES, "ns1", namespace="")
        self.quota()
        self.instance()
        self.migration("Running")

    def put(self, resource: Any, name: str, *, namespace: str = "ns1", **fields: Any) -> None:
        self.server.kind(resource).put(name, namespace, **fields)

    def quota(self, used: str = "1", hard: dict[str, str] = BASE, entries: int = 1) -> None:
        annotations = {by_name(f"vm{number}"): ENTRY for number in range(1, entries + 1)}
        status = {"hard": BASE, "used": {"limits.cpu": used}}
        self.put(
            registry.RESOURCE_QUOTAS, "q", metadata={"annotations": annotations}, spec={"hard": hard}, status=status
        )

    def migration(self, phase: str, name: str = "m1", vm: str = "vm1", *, refused: bool = False) -> None:
        conditions = [{"type": "migrationRejectedByResourceQuota", "status": "True"}] if refused else []
        status = {"phase": phase, "conditions": conditions}
        self.put(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, name, spec={"vmiName": vm}, status=status)

    def instance(self) -> None:
        """It is on another node each time."""
        self.puts += 1
        self.put(VIRTUAL_MACHINE_INSTANCES, "vm1", status={"phase": "Running", "nodeName": f"node-{self.puts}"})

    def pod(self) -> None:
        """A new one each time."""
        self.puts += 1
        self.put(registry.PODS, f"pod-{self.puts}", metadata={"labels": {"kubevirt.io": "virt-launcher"}})


@asynccontextmanager
async def running(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[PacedNamespace]:
    rig = PacedNamespace(monkeypatch)
    await rig.management.start()
    await asyncio.sleep(10.0)
    rig.decided.clear()
    yield rig
    await rig.management.stop(timeout=1.0)


Step = Callable[[PacedNamespace], object]
WHEN: dict[str, tuple[list[Step], list[float]]] = {
    "a pod comes": ([PacedNamespace.pod], [SHORTEST]),
    "a VMI moves on": ([PacedNamespace.instance], [SHORTEST]),
    "the quota counts": ([lambda rig: rig.quota(used="2")], [SHORTEST]),
    "a migration moves on": ([lambda rig: rig.migration("Succeeded")], [SHORTEST]),
    "what belongs together comes together": (
        [PacedNamespace.instance, PacedNamespace.pod, lambda rig: rig.migration("Succeeded")],
        [SHORTEST],
    ),
    "a migration comes": ([lambda rig: rig.migration("", "m2")], [0.0]),
    "a migration is Pending, and its VM has an entry": ([lambda rig: rig.migration("Pending")], [SHORTEST]),
    "a migration is Pending, and its VM has none": ([lambda rig: rig.migration("Pending", vm="vm2")], [0.0]),
    "a migration is refused": ([lambda rig: rig.migration("Pending", refused=True)], [0.0]),
    "a migration is refused just after something that can wait": (
        [PacedNamespace.pod, lambda rig: rig.migration("Pending", refused=True)],
        [0.0],
    ),
    "another client changes a limit": ([lambda rig: rig.quota(hard=RAISED)], [0.0]),
    "another client takes an entry away, just after a pod came": (
        [PacedNamespace.pod, lambda rig: rig.quota(entries=0)],
        [0.0],
    ),
    "the namespace changes": (
        [lambda rig: rig.put(registry.NAMESPACES, "ns1", namespace="", metadata={"labels": {"a": "b"}})],
        [0.0],
    ),
}


@sentences(WHEN, "happen, expected")
def test_when_the_quota_is_decided_about(
    happen: list[Step], expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:

    async def scenario() -> None:
        async with running(monkeypatch) as rig:
            began = now()
            for happens in happen:
                happens(rig)
            await asyncio.sleep(5.0)
            assert [at - began for at in rig.decided] == pytest.approx(expected)

    run(scenario())


def test_the_own_patch_is_decided_about_with_the_next_event(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(ResourceQuotaHandler, "is_as_written", lambda *_: True)
        async with running(monkeypatch) as rig:
            began = now()
            rig.quota(hard=RAISED)
            await asyncio.sleep(SHORTEST / 2)
            rig.quota(hard=RAISED, used="2")
            await asyncio.sleep(5.0)
            assert [at - began for at in rig.decided] == pytest.approx([SHORTEST])

    run(scenario())


@pytest.mark.parametrize("seed", range(10))
def test_after_every_event_comes_a_decision(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever timers run, whatever else the handler waits for, and however events fall among them."""
    drawn = random.Random(seed)

    async def scenario() -> None:
        async with running(monkeypatch) as rig:
            rig.again = lambda: drawn.choice([0.0, 0.01, 0.05, 0.3, 600.0])
            phases = itertools.cycle(["", "Pending", "Scheduling", "Running", "Succeeded"])
            events: list[Step] = [
                PacedNamespace.pod,
                PacedNamespace.instance,
                lambda rig: rig.migration(next(phases), refused=drawn.random() < 0.5),
                lambda rig: rig.quota(used=str(drawn.random()), entries=drawn.randrange(4)),
            ]
            happened: list[float] = []
            for _ in range(300):
                await asyncio.sleep(drawn.choice([0.0, 0.001, 0.02, SHORTEST, 0.1, LONGEST, 1.0]))
                happened.append(now())
                drawn.choice(events)(rig)
            await asyncio.sleep(2 * LONGEST)
            for at in happened:
                assert any(at <= decided <= at + LONGEST + 0.001 for decided in rig.decided), (at, rig.decided)

    run(scenario())
