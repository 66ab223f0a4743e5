"""Beside a Rancher that validates against projects and lets nobody else write its quotas (release 2.15.2), by a request
and under Rancher's own name: quotas are raised and come back, and nothing is granted that Rancher did not grant."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeloop.api.registry import NAMESPACES
from kubeloop.client.errors import BadRequest
from kubeloop.testing.cluster.cluster import Cluster
from lab import bodies
from lab.cluster import RancherAgent
from lab.namespace import LASTING, Namespace, becomes, by_value
from lab.rancher import lock
from lab.rancher.releases import DEFAULT, NEWEST
from pkg.selfcheck.troubles import PUBLISH_PERIOD
from pkg.util import constants
from tests.e2e.accounts import NAMESPACE, apply, documents, remove
from tests.e2e.admin import HARD, Admin, RancherProject
from tests.e2e.api import CORE, Api
from tests.e2e.headroom.amounts import plus, watched
from tests.e2e.headroom.shapes import SEED
from tests.program import ROOT, Program, program, run

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.parametrize("rancher", [NEWEST], indirect=True),
    pytest.mark.usefixtures("headroom"),
]

ONE = {"limits.cpu": "2015m", "limits.memory": "4649965313"}
"""What quota counts of one of the seed's launchers, without a setting of Harvester's for the overhead."""
RAISED = {name: str(amount) for name, amount in plus(by_value(HARD), by_value(ONE)).items()}
"""HARD and one more of them."""
ROOM = {"limits.cpu": "20", "limits.memory": "40Gi"}
REQUEST = constants.ANNOTATION_RANCHER_RESOURCE_QUOTA
RIGHTS = ROOT / "deploy" / "rancher-impersonation.yaml"
BY_REQUEST = pytest.mark.parametrize("way", ["annotation"], indirect=True)
MOMENTS = ("Scheduling", "Running", "Succeeded", "Pending")


@pytest.fixture(scope="module", params=["annotation", "impersonate"])
def way(api: Api, own_kubeconfig: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Gives headroom's account the right to impersonate, or not: no flag names the way."""
    if request.param == "annotation":
        yield "annotation"
        return
    if api.find(f"{CORE}/namespaces/cattle-system") is None:
        api.create(f"{CORE}/namespaces", {"metadata": {"name": "cattle-system"}})
    apply(api, documents(RIGHTS))
    yield "impersonate"
    remove(api, documents(RIGHTS))


@pytest.fixture(scope="module")
def headroom(cluster: Cluster, rancher: RancherAgent, way: str, own_kubeconfig: Path) -> Iterator[Program]:
    """The controller with its webhooks, with its own rights alone."""
    flags = ("--webhook", "--kubeconfig", str(own_kubeconfig), "--namespace", NAMESPACE)
    controller = program(cluster, "controller", *flags).start()
    yield controller
    assert "Traceback" not in controller.text()
    controller.stop()


async def running(project: RancherProject) -> Namespace:
    """A namespace of the project whose VM runs."""
    namespace = await project.namespace(HARD)
    await namespace.machine(spec=SEED, strategy="Always")
    await namespace.until_used(ONE)
    return namespace


async def running_alone(admin: Admin) -> Namespace:
    """A namespace whose VM runs, in a project of its own that has room for migrations."""
    return await running(await admin.project(ROOM, default=HARD))


async def marks_of(namespace: Namespace) -> dict[str, str]:
    return dict((await namespace.client.resource(NAMESPACES).get(name=namespace.name)).annotations)


async def requested(namespace: Namespace) -> str:
    return (await marks_of(namespace))[REQUEST]


async def at_rest(namespace: Namespace, text: str, hard: dict[str, str] | None = None) -> None:
    """Until the annotation says again what it said, nothing is recorded, and the quota is at its base."""
    await namespace.until_hard(hard or HARD)

    async def state() -> tuple[str, bool]:
        marks = await marks_of(namespace)
        return marks[REQUEST], constants.ANNOTATION_REQUEST in marks

    await becomes(state, (text, False))
    assert await namespace.entries() == {}


async def test_a_migration_is_raised_and_everything_comes_back(cluster: Cluster, admin: Admin, way: str) -> None:
    namespace = await running_alone(admin)
    request = await requested(namespace)
    async with watched(namespace) as (versions,):
        await namespace.succeed(await namespace.migrate(linger=1.0))
        await at_rest(namespace, request)
        assert await versions.hards() == [by_value(HARD), by_value(RAISED), by_value(HARD)]
    assert await namespace.verdict() == ""
    status = await asyncio.to_thread(run, "status", "--kubeconfig", str(cluster.kubeconfig))
    assert f"quotas of Rancher are raised by {way}" in status.stdout


async def test_an_agent_that_restarts_again_and_again_reverts_nothing(admin: Admin, rancher: RancherAgent) -> None:
    namespace = await running_alone(admin)
    request = await requested(namespace)
    async with watched(namespace) as (versions,):
        migration = await namespace.migrate(running=LASTING, linger=1.0)
        await namespace.until_phase(migration, "Running")
        for _ in range(5):
            rancher.restart()
            await asyncio.sleep(0.2)
        await namespace.hurry(migration)
        await namespace.succeed(migration)
        await at_rest(namespace, request)
        assert await versions.hards() == [by_value(HARD), by_value(RAISED), by_value(HARD)]


@BY_REQUEST
async def test_a_project_without_room_changes_nothing_until_it_has(cluster: Cluster, admin: Admin) -> None:
    project = await admin.project(HARD, default=HARD)
    namespace = await running(project)
    request = await requested(namespace)
    migration = await namespace.migrate(linger=1.0)
    await namespace.until_refused(migration)
    event = await namespace.told("ProjectQuotaExceeded")
    assert project.name in event.message
    assert event.message.endswith("; left 0 of limits.cpu, 0 of limits.memory"), event.message
    await at_rest(namespace, request)
    await asyncio.sleep(PUBLISH_PERIOD)  # by then the way is published
    process = await asyncio.to_thread(run, "explain", f"{namespace.name}/vm1", "--kubeconfig", str(cluster.kubeconfig))
    assert f"Rancher's project local:{project.name} has no room for" in process.stdout
    assert await namespace.phase(migration) == "Pending"
    await project.limit(ROOM)
    await namespace.succeed(migration)
    await at_rest(namespace, request)


async def test_what_rancher_has_not_granted_is_no_base(admin: Admin) -> None:
    project = await admin.project({"limits.cpu": "9", "limits.memory": "20Gi"}, default=HARD)
    namespace = await running(project)
    greedy = bodies.granting({"limits.cpu": "60", "limits.memory": "5000Mi"})
    await namespace.annotate(greedy)
    async with watched(namespace) as (versions,):
        await becomes(namespace.verdict, "Oversubscribed resource quota [limits.cpu=60]")
        await namespace.succeed(await namespace.migrate(linger=1.0))
        await at_rest(namespace, greedy)
        most = max(hard["limits.cpu"] for hard in await versions.hards())
        assert most <= by_value(RAISED)["limits.cpu"], most


@BY_REQUEST
async def test_a_namespace_created_beyond_its_project_stays_at_zero(admin: Admin) -> None:
    project = await admin.project({"limits.cpu": "2", "limits.memory": "20Gi"}, default=HARD)
    namespace = await project.namespace(HARD)
    zero = {"limits.cpu": "0", "limits.memory": "5000Mi"}
    await namespace.until_hard(zero)
    await asyncio.sleep(3.0)
    assert await namespace.hard() == by_value(zero)


@BY_REQUEST
async def test_a_person_who_edits_meanwhile_has_changed_the_base(admin: Admin) -> None:
    namespace = await running_alone(admin)
    migration = await namespace.migrate(running=LASTING, linger=1.0)
    await namespace.until_phase(migration, "Running")
    limit = json.loads(await requested(namespace))["limit"]
    # A form that saves the raised memory unchanged, and another number of CPUs.
    await namespace.annotate(json.dumps({"limit": {**limit, "limitsCpu": "4"}}))
    await namespace.until_hard({"limits.cpu": "6015m", "limits.memory": RAISED["limits.memory"]})
    await namespace.hurry(migration)
    await namespace.succeed(migration)
    await at_rest(
        namespace,
        bodies.quota_text({"limitsCpu": "4", "limitsMemory": "5000Mi"}),
        {"limits.cpu": "4", "limits.memory": "5000Mi"},
    )


async def test_a_kill_at_any_moment_is_repaired(admin: Admin, headroom: Program) -> None:
    """One kill hits a migration at each of MOMENTS, the last of them as soon as it is seen."""
    namespaces = await asyncio.gather(*(running_alone(admin) for _ in MOMENTS))
    requests = [await requested(namespace) for namespace in namespaces]
    migrations = []
    for namespace, moment in zip(namespaces, MOMENTS, strict=True):
        migrations.append(await namespace.migrate(linger=2.0, phase_seconds=f"{moment}={LASTING}"))
        await namespace.until_phase(migrations[-1], moment)
    headroom.kill()
    await headroom.started()
    for namespace, migration, request in zip(namespaces, migrations, requests, strict=True):
        await namespace.hurry(migration)
        await namespace.succeed(migration)
        await at_rest(namespace, request)


@pytest.mark.parametrize("way", ["impersonate"], indirect=True)
async def test_a_project_without_room_is_not_asked(admin: Admin) -> None:
    namespace = await running(await admin.project(HARD, default=HARD))
    request = await requested(namespace)
    await namespace.succeed(await namespace.migrate(linger=1.0))
    await at_rest(namespace, request)


@BY_REQUEST
@pytest.mark.parametrize("flag", ["annotation", "auto"])
async def test_a_release_ends_the_request_of_a_migration_under_way(
    cluster: Cluster, admin: Admin, headroom: Program, flag: str
) -> None:
    namespace = await running_alone(admin)
    request = await requested(namespace)
    migration = await namespace.migrate(running=LASTING, linger=1.0)
    await namespace.until_phase(migration, "Running")
    headroom.kill()
    flags = ("--force", "--rancher-quotas", flag, "--namespace", NAMESPACE, "--kubeconfig", str(cluster.kubeconfig))
    process = await asyncio.to_thread(run, "release", *flags)
    assert (process.returncode, f"released {namespace.name}/" in process.stdout) == (0, True), (
        process.stdout + process.stderr
    )
    await at_rest(namespace, request)
    await headroom.started()
    await namespace.hurry(migration)
    await namespace.succeed(migration)
    await at_rest(namespace, request)


@BY_REQUEST
async def test_a_namespace_without_a_project_is_raised_too(admin: Admin) -> None:
    namespace = await admin.namespace(HARD)
    await namespace.machine(spec=SEED, strategy="Always")
    request = await requested(namespace)
    await namespace.succeed(await namespace.migrate(linger=1.0))
    await at_rest(namespace, request)


async def test_rancher_upgraded_in_the_middle_of_a_migration(admin: Admin, rancher: RancherAgent, way: str) -> None:
    rancher.install(DEFAULT)
    try:
        namespace = await running_alone(admin)
        request = await requested(namespace)
        await until_open(namespace)
        migration = await namespace.migrate(running=LASTING, linger=1.0)
        await namespace.until_phase(migration, "Running")
    finally:
        rancher.install(NEWEST)
    await namespace.until_hard(RAISED)
    await namespace.hurry(migration)
    await namespace.succeed(migration)
    sudo = namespace.by(admin.by(lock.SUDO_USER, lock.SUDO_GROUP))
    for key in await namespace.entries() if way == "annotation" else ():  # as `status` tells an administrator
        await sudo.patch_quota({"metadata": {"annotations": {key: None}}})
    await at_rest(namespace, request)


async def until_open(namespace: Namespace) -> None:
    """Until anybody may write the quota."""

    async def is_open() -> bool:
        try:
            await namespace.patch_quota({"metadata": {"annotations": {"touched": "by a test"}}})
        except BadRequest:
            return False
        return True

    await becomes(is_open, True)
