"""A tenant with `edit` of one namespace gains nothing, with deploy/policy.yaml and without it.

The namespace has a quota of Rancher's, KubeVirt is played by the stand-in, and headroom runs with its defaults.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from kubeloop.api.quantity import Quantity
from lab.bodies import migration
from lab.namespace import LASTING, PODS, VMIMS, VMIS, Namespace
from tests.e2e.admin import HARD
from tests.e2e.api import CORE, Api, ApiFailure, Raw
from tests.e2e.conftest import ONE_LOOP
from tests.e2e.headroom.amounts import plus, watched
from tests.e2e.headroom.environment import METER, Environment, grant_what_is_used, meter
from tests.e2e.headroom.shapes import LIMITS, SHAPES, Shape, start
from tests.e2e.hostile_tenant import applied_policy, controller_reference, pod, small_claim, tenant_of
from tests.program import run

pytestmark = [pytest.mark.cluster, ONE_LOOP]

OVERHEAD = "kubevirt.io/memory-overhead-bytes"
JOB = "kubevirt.io/migrationJobUID"
OVERHEADS = [str(10**15), "1", "-1000000000000000", "9" * 5000]
"""A petabyte, a byte, less than nothing, and a number that is too long to be read."""
WATCHED = 3.0
"""Seconds during which the quota is looked at; headroom answers within a few hundredths."""


@pytest.fixture(scope="module", params=[False, True], ids=["policy absent", "policy present"])
def policy(request: pytest.FixtureRequest, api: Api) -> Iterator[bool]:
    with applied_policy(api) if request.param else contextlib.nullcontext():
        yield request.param


@pytest_asyncio.fixture(loop_scope="module")
async def namespace(on: Environment, policy: bool) -> AsyncIterator[Namespace]:
    """A base of 3 CPU and 5,000 MiB, as in the seeds, and a ratio of 1.5."""
    on.run()
    yield await on.admin.namespace(HARD)
    await on.admin.clear()
    await on.ratio("1.5")


def allowed(policy: bool, act: Callable[[str, Raw], Raw], path: str, body: Raw) -> bool:
    """Reports whether the attack got past the API server; with the policy it must not."""
    refused = ""
    try:
        act(path, body)
    except ApiFailure as failure:
        refused = failure.message
    if policy:
        assert "only KubeVirt" in refused, (body["metadata"], refused)
    return not refused


async def highest(namespace: Namespace, name: str = "limits.cpu") -> Quantity:
    """The most that spec.hard says of a resource in a while."""
    async with watched(namespace) as (versions,):
        await asyncio.sleep(WATCHED)
        return max(hard[name] for hard in await versions.hards())


async def test_twelve_forged_pods_of_a_cpu_are_three(policy: bool, api: Api, namespace: Namespace) -> None:
    """Two labels that every tenant can write; no VM, no migration."""
    mallory = tenant_of(api, namespace.name)
    writes = 0
    for number in range(12):
        labels = {"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": "ghost", JOB: "none"}
        writes += allowed(policy, mallory.create, PODS.path(namespace.name), pod(f"forged-{number}", labels=labels))
        await asyncio.sleep(0.1)
    assert writes <= 3
    assert await highest(namespace) == Quantity.parse("3")


async def test_forged_pods_of_a_vm_get_no_more_than_its_migration(policy: bool, api: Api, namespace: Namespace) -> None:
    """They name the VM, its VMI as controller and its migration."""
    await start(namespace, "vm1")
    mallory = tenant_of(api, namespace.name)
    vmim = await namespace.migrate(running=LASTING)
    await namespace.until_phase(vmim, "Running")
    fair = await namespace.hard()
    owner = controller_reference("vm1", (await namespace.vmi()).uid)
    uid = (await namespace.migration(vmim)).uid
    labels = {"kubevirt.io": "virt-launcher", "vm.kubevirt.io/name": "vm1", JOB: uid}
    for number in range(6):
        body = pod(f"forged-{number}", cpu="500m", labels=labels, ownerReferences=[owner])
        allowed(policy, mallory.create, PODS.path(namespace.name), body)
        await asyncio.sleep(0.1)
    assert await highest(namespace) <= fair["limits.cpu"]


async def test_a_vm_that_never_ran_raises_nothing(policy: bool, api: Api, namespace: Namespace) -> None:
    """500 CPU, and a migration of it; a status that the tenant writes along."""
    mallory = tenant_of(api, namespace.name)
    huge: Raw = Shape(
        {"cpu": {"cores": 500}, "resources": {"limits": {"cpu": "500", "memory": "1Ti"}, "requests": {"memory": "1Gi"}}}
    ).body("huge")
    status = {"phase": "Running", "nodeName": "node-0", "migrationState": {"sourcePod": "virt-launcher-huge"}}
    mallory.create(VMIS.path(namespace.name), {**huge, "status": status})
    mallory.create(VMIMS.path(namespace.name), migration("move-huge", "huge"))
    assert await highest(namespace) == Quantity.parse("3")
    assert (await namespace.hard())["limits.memory"] == Quantity.parse("5000Mi")


async def test_an_annotation_adds_no_more_than_kubevirt_renders(
    policy: bool, on: Environment, api: Api, namespace: Namespace, kubeconfig: Path
) -> None:
    """The ratio changed since, so the annotation counts. It is the trouble of that VM alone: another one's migration is
    served, `status` answers."""
    namespaces = [namespace, *[await on.admin.namespace(HARD) for _ in OVERHEADS[1:]]]
    await asyncio.gather(*(start(attacked, "vm1") for attacked in namespaces))
    used = (await namespace.used())["limits.memory"]
    await on.ratio("4.5")
    for attacked, value in zip(namespaces, OVERHEADS, strict=True):
        mallory = tenant_of(api, attacked.name)
        path = PODS.path(attacked.name, (await attacked.launchers())[0].name)
        allowed(policy, mallory.patch, path, {"metadata": {"annotations": {OVERHEAD: value}}})
        await attacked.migrate(running=LASTING)
    most = await asyncio.gather(*(highest(attacked, "limits.memory") for attacked in namespaces))
    assert max(most) <= Quantity.parse("5000Mi") + used + used, most
    stranger = await on.admin.namespace()
    await meter(stranger, *LIMITS)
    await start(stranger, "vm2")
    granted = await grant_what_is_used(stranger, *LIMITS)
    await stranger.succeed(await stranger.migrate("vm2"))
    await stranger.settle(granted)
    process = run("status", "-o", "json", "--kubeconfig", str(kubeconfig))
    assert process.returncode == 0, process.stderr
    assert {quota["namespace"] for quota in json.loads(process.stdout)["quotas"]} >= {namespace.name, stranger.name}


async def test_claims_of_a_tenant_take_what_is_added_for_targets_once(on: Environment, api: Api) -> None:
    """Nothing reserves it (docs/security.md): one claim for each VM that migrates, and no more for later migrations."""
    on.run()
    names = ("persistentvolumeclaims", "requests.storage")
    space = await on.admin.namespace()
    await meter(space, *names)
    await start(space, "vm1", "vm2", shape=SHAPES["a persistent TPM"])
    base = await grant_what_is_used(space, *names)
    mallory = tenant_of(api, space.name)
    writes = 0
    for _round in range(3):
        moves = [await space.migrate(vm, running=LASTING) for vm in ("vm1", "vm2")]
        deadline = time.monotonic() + WATCHED
        while time.monotonic() < deadline:
            with contextlib.suppress(ApiFailure):
                mallory.create(f"{CORE}/namespaces/{space.name}/persistentvolumeclaims", small_claim(f"taken-{writes}"))
                writes += 1
            await asyncio.sleep(0.02)
        for move in moves:
            await space.abort(move)
        await space.settle(base)
    used = await space.used(METER)
    assert used == {"pods": used["pods"], **plus(base, base)}, writes
