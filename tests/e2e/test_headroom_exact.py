"""The room is exactly what quota counts of the target pod: no byte more, none less."""

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest
import pytest_asyncio

from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.registry import LIMIT_RANGES
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import until
from lab.namespace import LASTING, PODS, VMIS, Namespace, becomes, by_value
from tests.e2e.api import Api
from tests.e2e.conftest import ONE_LOOP, StartController
from tests.e2e.headroom.amounts import Amounts, Versions, minus, plus, watched
from tests.e2e.headroom.environment import METER, Environment, environment, grant_what_is_used, meter
from tests.e2e.headroom.shapes import COUNTED, LIMITS, SHAPES, SIDECARS, SMALL_CONTAINERS, Shape, limit_range, start
from tests.e2e.hostile_tenant import applied_policy

pytestmark = [pytest.mark.cluster, ONE_LOOP]

MARGIN = Quantity.parse("128Mi")
ALONE = "--no-compensate"
"""So that it is the estimate, and nothing else, that makes room."""
ROOMY = {"limits.cpu": "20", "limits.memory": "40Gi", "requests.cpu": "20", "requests.memory": "40Gi"}
OF_SMALL = {"limits.cpu": "50m", "limits.memory": "32Mi", "requests.cpu": "7m", "requests.memory": "17Mi"}
"""What a hook sidecar counts under SMALL_CONTAINERS."""
OF_CONSOLE = {"limits.cpu": "15m", "limits.memory": "60M"}
"""The limits of the console's container: KubeVirt sets them without a quota too."""
CONSOLE = {
    "type": "guest-console-log",
    "resources": {"limits": {"cpu": "30m", "memory": "90M"}, "requests": {"cpu": "9m", "memory": "45M"}},
}
"""A KubeVirt CR's supportContainerResources."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on(cluster: Cluster, api: Api, shared_controller: StartController) -> AsyncIterator[Environment]:
    """Under deploy/policy.yaml, which lets pass all that KubeVirt and headroom do."""
    async with environment(cluster, shared_controller) as env:
        with applied_policy(api):
            yield env


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def clear(on: Environment) -> AsyncIterator[None]:
    yield
    await on.admin.clear()
    await on.ratio("1.5")


def counted(name: str) -> tuple[str, ...]:
    return (*COUNTED, *SHAPES[name].names)


async def running(on: Environment, names: Iterable[str] = SHAPES) -> dict[str, Namespace]:
    """Namespaces with one VM of each shape, whose meter counts all there is to count."""

    async def make_namespace(name: str) -> Namespace:
        namespace = await on.admin.namespace()
        await meter(namespace, *counted(name))
        await start(namespace, "vm1", shape=SHAPES[name])
        return namespace

    return dict(zip(names, await asyncio.gather(*(make_namespace(name) for name in names)), strict=True))


async def full(namespaces: dict[str, Namespace]) -> dict[str, Amounts]:
    """The base of each, which is what its VM uses."""
    bases = (grant_what_is_used(namespace, *counted(name)) for name, namespace in namespaces.items())
    return dict(zip(namespaces, await asyncio.gather(*bases), strict=True))


Moved = tuple[list[Amounts], Amounts]


async def move(namespaces: dict[str, Namespace], bases: dict[str, Amounts]) -> dict[str, Moved]:
    """Migrate each vm1 and wait until its source is gone: each spec.hard on the way, and what the target counts."""
    async with watched(*namespaces.values()) as watches:
        moves = (_move(versions, bases[name]) for name, versions in zip(namespaces, watches, strict=True))
        return dict(zip(namespaces, await asyncio.gather(*moves), strict=True))


async def _move(versions: Versions, base: Amounts) -> Moved:
    """It runs until the raise is seen: under a quota with room, a shorter migration could end before it. What the
    target counts is asked when it is the only pod: while quota refuses a pod, another quota of the namespace may count
    it for a moment, for the API server updates them one after another."""
    namespace = versions.namespace
    pods = (await namespace.used(METER))["pods"]
    migration = await namespace.migrate(linger=0.3, running=LASTING)

    async def is_alone() -> bool:
        return (await namespace.used(METER))["pods"] == pods

    await until(versions.is_changed, f"{namespace} to be raised")
    await namespace.hurry(migration)
    await namespace.succeed(migration)
    await namespace.settle(base)
    await until(is_alone, f"{namespace} to have one pod a VM")
    target = await namespace.used(METER)
    target["count/pods"] = target["pods"]  # the source that is over is still an object
    return await versions.hards(), {name: target[name] for name in base}


async def test_vms_of_every_shape_get_what_their_targets_count(on: Environment) -> None:
    """Harvester's numbers leave out what runs beside the guest: under a quota that is full they are refused. When the
    ratio is raised from 1.5 to 4.5, and lowered to 1.0, the source pod has the overhead of another day: an addition is
    never below and hardly above."""
    on.run("--estimate", "harvester", ALONE)
    namespaces = await running(on)
    vm_namespaces = [vm_namespace for name, vm_namespace in namespaces.items() if name != "no screen and no console"]
    await asyncio.gather(*(grant_what_is_used(vm_namespace, *LIMITS) for vm_namespace in vm_namespaces))

    async def is_refused(namespace: Namespace) -> None:
        migration = await namespace.migrate()
        await namespace.stays_refused(migration)
        await namespace.abort(migration)

    await asyncio.gather(*(is_refused(vm_namespace) for vm_namespace in vm_namespaces))
    on.run(ALONE)
    bases = await full(namespaces)
    for name, (amounts, target) in (await move(namespaces, bases)).items():
        base, raised = bases[name], plus(bases[name], target)
        assert all(amount > ZERO for amount in target.values()), (name, target)
        assert (amounts[0], amounts[1], amounts[-1]) == (base, raised, base), (name, amounts)
        if not SHAPES[name].steps:
            assert len(amounts) == 3, (name, amounts)
        for hard in amounts:
            assert all(hard[resource] <= raised[resource] for resource in raised), (name, hard)
    for ratio in ("4.5", "1.0"):
        bases = await full(namespaces)
        await on.ratio(ratio)
        within(bases, await move(namespaces, bases), ratio)
    launchers = [(await namespace.launchers(counting=True))[0] for namespace in namespaces.values()]
    overheads = {pod.annotations["kubevirt.io/memory-overhead-bytes"] for pod in launchers}
    assert len(overheads) > 5, "shapes differ in their overhead"
    plugged = namespaces["a hotplugged volume"]
    await plugged.delete(VMIS, "vm1")
    await becomes(lambda: plugged.items(PODS), [], seconds=30)


def within(bases: dict[str, Amounts], moves: dict[str, Moved], message: str) -> None:
    """Never below; above by the margin at most, and that only in memory."""
    for name, (amounts, target) in moves.items():
        addition = minus(amounts[1], bases[name])
        for resource, amount in target.items():
            margin = MARGIN if "memory" in resource else ZERO
            assert amount <= addition[resource] <= amount + margin, (message, name, resource, addition, target)


@pytest.mark.parametrize(
    ("profile", "version"),
    [("0.54", "v0.54.0"), ("main", "v1.8.3")],
    ids=["KubeVirt 0.54 knows no ratio", "a KubeVirt that says it is another"],
)
async def test_other_releases_of_kubevirt(on: Environment, profile: str, version: str) -> None:
    on.run(ALONE)
    async with on.release(profile, version):
        namespaces = await running(on, ["the seed's VM", "a GPU and a host device", "exec probes and a TPM"])
        bases = await full(namespaces)
        await on.ratio("4.5")
        within(bases, await move(namespaces, bases), version)
        await on.admin.clear()


async def test_what_came_after_the_source_pod_counts_for_the_target(on: Environment) -> None:
    """The KubeVirt CR says how large support containers are. A quota on limits makes KubeVirt limit a VM that has none,
    and a LimitRange, which a tenant can write, completes what a container lacks: the base pays for these."""
    on.run(ALONE)
    shapes = {
        "a quota on limits": SHAPES["no limits under a quota on limits"],
        "a LimitRange": Shape(annotations={SIDECARS: '[{"image":"one"}]'}),
        "the size of the console's container": SHAPES["container disks and a file system"],
    }
    try:
        for name, shape in shapes.items():
            namespace = await on.running("vm1", shape=shape)
            if name == "a LimitRange":
                await namespace.create(LIMIT_RANGES, limit_range(SMALL_CONTAINERS))
            await meter(namespace, *ROOMY)
            await namespace.grant(ROOMY)
            if name == "the size of the console's container":
                await on.configure(supportContainerResources=[CONSOLE])
            base = by_value(ROOMY)
            amounts, target = (await move({name: namespace}, {name: base}))[name]
            addition = minus(target, by_value(OF_SMALL)) if name == "a LimitRange" else target
            if name == "a quota on limits":
                addition = target | by_value(OF_CONSOLE)
            assert (amounts[0], amounts[1]) == (base, plus(base, addition)), name
    finally:
        await on.configure(supportContainerResources=None)
