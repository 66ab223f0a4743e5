"""The stand-in on a real control plane: real quota admission says who gets a pod."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from kubeloop.api.registry import PERSISTENT_VOLUME_CLAIMS as CLAIMS
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import PATIENCE
from lab.demo.seed import overhead_setting
from lab.kubevirt.objects import MIGRATIONS, VMIS, VirtualMachineInstance
from lab.namespace import LASTING, PODS, VMIMS, Namespace, becomes
from pkg.api.harvesterhci import SETTINGS
from pkg.api.kubevirt import KUBEVIRTS
from tests.e2e.admin import HARD, Admin, admin_of
from tests.e2e.headroom.amounts import ONE
from tests.e2e.tenant import RAISED
from tests.objects import SEED_DOMAIN

pytestmark = pytest.mark.cluster

WAY = ["Pending", "Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running", "Succeeded"]
ROOMY = {"limits.cpu": "1k", "limits.memory": "10Ti"}
SEED = {"domain": SEED_DOMAIN}


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncIterator[Admin]:
    async with admin_of(cluster) as administrator:
        settings = administrator.client.resource(SETTINGS)
        setting = await settings.create(overhead_setting())
        yield administrator
        await settings.delete(name=setting.name)


@pytest.fixture
async def unlimited(admin: Admin) -> Namespace:
    """A namespace without a quota."""
    return await admin.namespace()


async def instance(namespace: Namespace) -> VirtualMachineInstance:
    return await namespace.get(VMIS, "vm1")


async def phases(namespace: Namespace, migration: str) -> list[str | None]:
    stamps = (await namespace.get(MIGRATIONS, migration)).status.phase_transition_timestamps or []
    return [stamp.phase for stamp in stamps]


async def test_what_a_migration_leaves_behind(admin: Admin) -> None:
    """Its refusal, its phases and what quota counts are checked by the demo."""
    seed = await admin.namespace(HARD)
    await seed.machine(spec=SEED)
    migration = await seed.migrate(linger=0.5)
    await seed.until_refused(migration)
    assert (await seed.migration(migration)).metadata.finalizers == ["kubevirt.io/migrationJobFinalize"]
    await seed.set_hard(RAISED)
    await seed.succeed(migration)
    status, vmi = (await seed.get(MIGRATIONS, migration)).status, await instance(seed)
    state = vmi.status.migration_state
    assert state is not None
    assert (status.conditions, status.migration_state, state.completed) == (None, state, True)
    assert vmi.status.node_name == state.target_node != state.source_node
    await seed.until_launchers(1)
    source, target = [await seed.get(PODS, name or "") for name in (state.source_pod, state.target_pod)]
    assert (source.status.phase, target.status.phase) == ("Succeeded", "Running")
    assert "kubevirt.io/migration-target-ready-timestamp" in target.annotations


async def test_deleting_a_running_migration_aborts_it(unlimited: Namespace) -> None:
    migration = await unlimited.migrating(spec=SEED)
    uid = (await unlimited.migration(migration)).uid
    await unlimited.abort(migration)
    vmi = await instance(unlimited)
    state = vmi.status.migration_state
    assert state is not None
    assert (state.abort_status, state.failed) == ("Succeeded", True)
    assert (vmi.status.node_name, state.migration_uid) == (state.source_node, uid)

    await unlimited.until_is(PODS, state.target_pod or "", lambda pod: pod.status.phase, "Failed")
    await unlimited.succeed(await unlimited.migrate())


async def test_a_failed_migration_deletes_its_state_claim(unlimited: Namespace) -> None:
    domain = {**SEED_DOMAIN, "devices": {"tpm": {"persistent": True}}}
    await unlimited.instances({"metadata": {"name": "vm1"}, "spec": {"domain": domain}})

    async def claims() -> list[str]:
        return [claim.name for claim in await unlimited.items(CLAIMS)]

    names = await claims()
    migration = await unlimited.migrate(fail_at_phase="Scheduled")
    await unlimited.until_phase(migration, "Failed")
    state = (await unlimited.get(MIGRATIONS, migration)).status.migration_state
    assert state is not None
    assert [state.source_persistent_state_claim] == names != [state.target_persistent_state_claim]
    await becomes(claims, names)


async def test_no_more_migrations_run_than_the_configuration_allows(unlimited: Namespace) -> None:
    limits = {"migrations": {"parallelMigrationsPerCluster": 3, "parallelOutboundMigrationsPerNode": 2}}
    await unlimited.create(KUBEVIRTS, {"metadata": {"name": "kubevirt"}, "spec": {"configuration": limits}})

    await unlimited.until_is(KUBEVIRTS, "kubevirt", lambda kubevirt: kubevirt.status.phase, "Deployed")
    names = [f"vm{number}" for number in range(8)]
    await asyncio.gather(*(unlimited.machine(name, spec=SEED) for name in names))
    migrations = [await unlimited.migrate(name, running=LASTING) for name in names]

    async def count(*counted_phases: str) -> int:
        phases = [migration.phase for migration in await unlimited.items(VMIMS)]
        assert "Failed" not in phases
        assert sum(phase not in ("", "Pending", "Succeeded") for phase in phases) <= 3
        return sum(phase in counted_phases for phase in phases)

    await becomes(lambda: count("Running"), 3)
    await unlimited.hurry(*migrations)
    await becomes(lambda: count("Succeeded"), len(names))
    await unlimited.delete(KUBEVIRTS, "kubevirt")


async def test_killed_and_started_again_it_goes_on(cluster: Cluster, admin: Admin) -> None:
    """One kill hits a migration in each of these phases."""
    moments = ("Pending", "Scheduling", "PreparingTarget", "Running")
    namespaces = [await admin.namespace(HARD) for _ in moments]
    await asyncio.gather(*(namespace.machine(spec=SEED) for namespace in namespaces))
    migrations = []
    for namespace, moment in zip(namespaces, moments, strict=True):
        migrations.append(await namespace.migrate(linger=1.0, phase_seconds=f"{moment}={LASTING}"))
        if moment != "Pending":
            await namespace.set_hard(ROOMY)
        await namespace.until_phase(migrations[-1], moment)
    cluster.restart("kubevirt")
    # All of them: a node lets two go at a time.
    for namespace, migration in zip(namespaces, migrations, strict=True):
        await namespace.hurry(migration)
        await namespace.set_hard(ROOMY)
    for namespace, migration in zip(namespaces, migrations, strict=True):
        await namespace.succeed(migration)
        assert await phases(namespace, migration) == WAY
        # Never two targets, and quota was charged for nothing that does not exist.
        assert len(await namespace.launchers()) == 2
        await namespace.until_used(ONE)


def test_sigterm_ends_it(cluster: Cluster) -> None:
    argv = [sys.executable, "-m", "lab.kubevirt", "--kubeconfig", str(cluster.kubeconfig)]
    process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "caches synced" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0


def test_a_kubeconfig_that_is_not_there_is_one_line_and_2() -> None:
    argv = [sys.executable, "-m", "lab.kubevirt", "--kubeconfig", "/no/such/file"]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1
