"""The emergency page of docs/emergency.md: its commands as they are written there, after headroom was killed."""

import asyncio
import contextlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kubeloop.api import registry
from kubeloop.api.meta import Object
from kubeloop.api.registry import Resource
from kubeloop.client.errors import ApiError
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import eventually, until
from lab import bodies
from lab.namespace import LASTING, PODS, Namespace, becomes, by_value
from pkg.api.kubevirt import KUBEVIRTS, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.kubevirt.migration import is_finished
from pkg.webhook.configurations import QUOTA_CONTROLLERS
from tests.e2e.admin import HARD, Admin, admin_of
from tests.e2e.api import CORE, Api, ApiFailure
from tests.e2e.conftest import StartController, frozen
from tests.e2e.hostile_tenant import LAUNCHER, VIRT_CONTROLLER, applied_policy, pod
from tests.e2e.mtq_namespace import Budgeted, make_budgeted
from tests.program import ROOT, program
from tests.program import run as run_headroom

pytestmark = pytest.mark.cluster

PAGE = (ROOT / "docs" / "emergency.md").read_text("utf-8").partition("\n## ")[0]
ROWS = {
    re.split(r",| \(", cells[1].strip())[0]: re.findall(r"`([^`]+)`", "|".join(cells[2:]))
    for cells in (line.split("|") for line in PAGE.splitlines() if line.startswith("| "))
}
WEBHOOKS, LOCKS, QUOTAS = "take the webhooks out", "end every lock", "give every quota back"
SCALE = re.findall(r"^kubectl .* scale .*$", PAGE, re.MULTILINE)
CONFIGURATIONS: tuple[Resource[Any], ...] = (
    registry.VALIDATING_WEBHOOK_CONFIGURATIONS,
    registry.MUTATING_WEBHOOK_CONFIGURATIONS,
)
WITH_KUBECTL = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", Object)


@dataclass
class Emergency:
    """The state that a headroom that was killed leaves: a migration under way in `managed`, a window open in
    `windowed`."""

    admin: Admin
    cluster: Cluster
    managed: Namespace
    windowed: Budgeted
    hard: dict[str, str]

    async def tenant_is_refused(self, namespace: Namespace) -> bool:
        try:
            await namespace.by(self.admin.by("tenant")).create(PODS, bodies.pod(cpu="1m", memory="1Mi"))
        except ApiError as error:
            return "failed calling webhook" in error.message
        return False

    async def limits_quota(self, user: str, cpu: str) -> str:
        """The error of a write of the limits in the managed quota's status; "" without one."""
        name, status = (await self.managed.quota()).name, {"status": {"hard": {"limits.cpu": cpu}}}
        try:
            await self.managed.by(self.admin.by(user)).patch(registry.RESOURCE_QUOTAS, name, status, "status")
        except ApiError as error:
            return error.message
        return ""

    async def configurations(self) -> set[str]:
        registrations = [await self.admin.client.resource(resource).list() for resource in CONFIGURATIONS]
        return {registration.name for some in registrations for registration in some}

    async def is_restored(self) -> bool:
        return await self.windowed.hard("quota") == by_value(self.hard)


async def run(cluster: Cluster, command: str) -> str:
    """Runs with a cluster administrator's kubeconfig."""
    program, *words = shlex.split(command)
    environ = {"KUBECONFIG": str(cluster.kubeconfig)}
    if program == "headroom":
        process = await asyncio.to_thread(run_headroom, *words, timeout=60, **environ)
    else:
        call = partial(subprocess.run, cwd=ROOT, env=os.environ | environ, capture_output=True, text=True, timeout=60)
        process = await asyncio.to_thread(call, [program, *words])
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture
async def emergency(cluster: Cluster, own_kubeconfig: Path) -> AsyncIterator[Emergency]:
    async with admin_of(cluster) as admin, contextlib.AsyncExitStack() as stack:
        unfinished: list[VirtualMachineInstanceMigration] = []

        async def none_runs() -> bool:
            vmims = await admin.client.resource(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS).list()
            unfinished[:] = [vmim for vmim in vmims if not is_finished(vmim)]
            return not unfinished

        # KubeVirt lets two leave a node: with those of an earlier test no window is opened.
        await until(none_runs, lambda: f"earlier migrations to end: {unfinished}")
        managed, windowed = await admin.namespace(HARD), await make_budgeted(admin)
        await managed.machine()
        await windowed.make_quota("quota", {"limits.cpu": "8", "pods": "20"})
        await windowed.machine()
        hard = await windowed.fill(pods="1", limits_cpu="10m")
        await windowed.until_refused(await windowed.migrate())
        migration = await managed.migrate(running=LASTING)
        flags = ("--kubeconfig", str(own_kubeconfig), "--failure-policy", "Fail")
        process = program(cluster, "controller", "--webhook", *flags)
        process.start()
        stack.callback(process.kill)  # also where something is not reached
        await managed.until_phase(migration, "Running")
        remains = Emergency(admin, cluster, managed, windowed, hard)
        with frozen(cluster, "kubevirt"):
            await windowed.budget()
            await becomes(remains.is_restored, False)
            process.kill()
            yield remains
            for resource in CONFIGURATIONS:
                for registration in await admin.client.resource(resource).list():
                    await admin.client.resource(resource).delete(name=registration.name)


@pytest.mark.parametrize("tool", [0, pytest.param(1, marks=WITH_KUBECTL)], ids=["headroom", "kubectl"])
async def test_webhooks_and_locks_go_by_one_command_each(emergency: Emergency, tool: int) -> None:
    assert await emergency.tenant_is_refused(emergency.managed)
    assert await emergency.tenant_is_refused(emergency.windowed)
    for _ in range(2):
        await run(emergency.cluster, ROWS[WEBHOOKS][tool])
    assert not await emergency.tenant_is_refused(emergency.managed)
    assert await emergency.tenant_is_refused(emergency.windowed)
    for _ in range(2):
        await run(emergency.cluster, ROWS[LOCKS][tool])
    assert not await emergency.tenant_is_refused(emergency.windowed)
    assert await emergency.configurations() == set()
    assert await emergency.is_restored() is (tool == 0)


async def test_quotas_are_given_back_by_one_command(emergency: Emergency) -> None:
    # Without an answer of the webhook the quota controller goes on.
    assert "failed calling webhook" in await emergency.limits_quota("alice", "1")
    assert [
        await emergency.limits_quota(plural, cpu) for plural, cpu in zip(QUOTA_CONTROLLERS, "123", strict=True)
    ] == [""] * 3
    output = await run(emergency.cluster, ROWS[QUOTAS][0])
    quota = await emergency.managed.quota()
    assert f"released {quota.key}" in output
    annotations = set(quota.annotations)
    assert constants.ANNOTATION_SKIP_AUTO_SCALING not in annotations
    assert constants.ANNOTATION_OWNER not in annotations
    assert await emergency.is_restored()
    await run(emergency.cluster, ROWS[QUOTAS][0])
    await run(emergency.cluster, ROWS["all of it"][0])
    assert await emergency.configurations() == set()
    assert await emergency.is_restored()


@WITH_KUBECTL
async def test_the_deployments_are_stopped_by_one_command(cluster: Cluster, admin: Admin) -> None:
    namespace, client = "headroom-system", admin.client
    if not [
        namespace_object
        for namespace_object in await client.resource(registry.NAMESPACES).list()
        if namespace_object.name == namespace
    ]:
        await client.resource(registry.NAMESPACES).create({"metadata": {"name": namespace}})
    labels = {"app": "stopped"}
    container = {"name": "main", "image": "none"}
    spec = {
        "replicas": 2,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
    }
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "stopped"}, "spec": spec}
    await client.resource(DEPLOYMENTS).create(body, namespace=namespace)
    (command,) = SCALE
    assert "stopped scaled" in await run(cluster, command)
    await client.resource(DEPLOYMENTS).delete(name="stopped", namespace=namespace)


@WITH_KUBECTL
async def test_policies_that_refuse_kubevirt_itself_are_named_and_go_by_one_command(
    cluster: Cluster, api: Api, controller: StartController
) -> None:
    """As the chart installs them without a value: policies and --kubevirt-user name the usual account."""
    kubevirt = api.as_user("system:serviceaccount:virt:kubevirt-controller", "system:masters")

    def creates() -> bool:
        with contextlib.suppress(ApiFailure):
            return bool(kubevirt.create(f"{CORE}/namespaces/default/pods?dryRun=All", pod("vm", labels=LAUNCHER)))
        return False

    def first_line() -> str:
        return run_headroom("status", KUBECONFIG=str(cluster.kubeconfig)).stdout

    kubevirts = KUBEVIRTS.path("default")
    api.create(kubevirts, {"apiVersion": KUBEVIRTS.api_version, "kind": "KubeVirt", "metadata": {"name": "kubevirt"}})
    with applied_policy(api), contextlib.ExitStack() as stack:
        stack.callback(api.delete, f"{kubevirts}/kubevirt")
        assert not creates()
        controller("takeover", "--kubevirt-user", VIRT_CONTROLLER)
        await until(lambda: "refuses KubeVirt's own pods" in first_line(), first_line, pause=1)
        await run(cluster, ROWS["switch the pod policies off"][0])
        eventually(creates, 20)
