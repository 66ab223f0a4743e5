"""Actions that can happen in a story: one function each, its first line is how the story tells it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kubeloop.api.quantity import Quantity
from kubeloop.api.registry import LIMIT_RANGES, NAMESPACES, PODS
from kubeloop.client.errors import AlreadyExists, ApiError
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINES
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS
from pkg.util.constants import (
    ANNOTATION_MIGRATING_NAME_PREFIX,
    ANNOTATION_RANCHER_RESOURCE_QUOTA,
    ANNOTATION_SKIP_AUTO_SCALING,
    CONDITION_CPU_CHANGE,
    LABEL_CREATED_BY,
    LABEL_MANAGED,
    LABEL_MIGRATION_JOB_UID,
)
from tests.simulation.cluster import RECOVERY

if TYPE_CHECKING:
    from tests.simulation.world import World


DEVICE = "example.com/device"
"""Which a second quota of each namespace allows none of."""
OTHERS = {"limits.memory": "20Gi", "limits.ephemeral-storage": "10Gi"}
"""What a base has beside limits.cpu."""


def limits(cpu: str) -> str:
    """Rancher's annotation of such a base."""
    extended = {"limits.ephemeral-storage": OTHERS["limits.ephemeral-storage"]}
    limit = {"limitsCpu": cpu, "limitsMemory": OTHERS["limits.memory"], "extended": extended}
    return json.dumps({"limit": limit})


@dataclass(frozen=True)
class Action:
    """At a time of the story, in seconds, or right after the next write of a kind: what goes wrong only between two
    writes would be rare otherwise."""

    at: float
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    after: str = ""

    def __str__(self) -> str:
        text = (ACTIONS[self.name].__doc__ or "").format(**self.arguments)
        prefix = f"after the next write of {self.after}, " if self.after else ""
        return f"{self.at:8.2f} s  {prefix}{text}"

    async def happen(self, world: World) -> None:
        """Does the action; what is refused has happened all the same."""
        if self.after:
            await world.next_write(self.after)
        with suppress(ApiError):
            await ACTIONS[self.name](world, **self.arguments)


# A tenant, with all verbs of `edit` and the right to migrate.


async def migrate(world: World, vm: str) -> None:
    """the tenant migrates {vm}"""
    namespace, _, name = vm.partition("/")
    body = {"metadata": {"generateName": f"{name}-"}, "spec": {"vmiName": name}}
    await world.tenant.resource(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS).create(body, namespace=namespace)


async def abort(world: World, vm: str) -> None:
    """the tenant aborts the migrations of {vm}"""
    await world.abort(vm)


async def pods(world: World, namespace: str, cpu: str, number: int) -> None:
    """the tenant wants {number} pods of {cpu} in {namespace}"""
    for _ in range(number):
        world.want_pod(namespace, cpu)


async def retry(world: World, namespace: str) -> None:
    """fourteen clients of the tenant's try for 10 s to create pods in {namespace} that another quota refuses"""
    world.retry(namespace, clients=14, seconds=10.0)


async def free(world: World, namespace: str) -> None:
    """the tenant deletes its pods in {namespace}"""
    pods = await world.tenant.resource(PODS).list(namespace, label_selector="app=tenant")
    for pod in pods:
        await world.tenant.resource(PODS).delete(name=pod.name, namespace=namespace)


async def forge(world: World, vm: str, cpu: str) -> None:
    """the tenant creates a pod of {cpu} that looks like a migration target of {vm}"""
    namespace, _, name = vm.partition("/")
    job = next((migration["metadata"]["uid"] for migration in world.migrations(vm)), "none")
    for launcher in world.launchers(vm)[:1]:
        metadata = {key: launcher["metadata"].get(key) or {} for key in ("labels", "annotations", "ownerReferences")}
        metadata["labels"] = {**metadata["labels"], LABEL_MIGRATION_JOB_UID: job}
        await world.create_pod(namespace, cpu, {**metadata, "generateName": f"virt-launcher-{name}-"})


async def relabel(world: World, vm: str) -> None:
    """the tenant takes the labels off the launchers of {vm}"""
    for raw in world.launchers(vm):
        labels = {LABEL_CREATED_BY: "nobody", LABEL_MIGRATION_JOB_UID: None}
        await world.tenant.resource(PODS).merge_patch(
            {"metadata": {"labels": labels}}, name=raw["metadata"]["name"], namespace=vm.partition("/")[0]
        )


async def shrink(world: World, vm: str, cpu: str) -> None:
    """the tenant resizes the launcher of {vm} in place to {cpu}"""
    for launcher in world.launchers(vm)[:1]:
        await world.resize(launcher, cpu)


async def grow(world: World, namespace: str, cpu: str) -> None:
    """the tenant resizes a pod of its own in {namespace} to {cpu}"""
    for pod in world.own_pods(namespace)[:1]:
        await world.resize(pod, cpu)


async def enlarge(world: World, vm: str, cpu: str) -> None:
    """the tenant gives {vm} {cpu}, live"""
    namespace, _, name = vm.partition("/")
    limits = {"domain": {"resources": {"limits": {"cpu": cpu}}}}
    template = {"spec": {"template": {"spec": limits}}}
    await world.tenant.resource(VIRTUAL_MACHINES).merge_patch(template, name=name, namespace=namespace)
    waiting = {"conditions": [{"type": CONDITION_CPU_CHANGE, "status": "True"}]}
    await world.virt_api.resource(VIRTUAL_MACHINE_INSTANCES).merge_patch(
        {"spec": limits, "status": waiting}, name=name, namespace=namespace
    )
    await migrate(world, vm)


async def limit_range(world: World, namespace: str, storage: str) -> None:
    """the tenant gives containers in {namespace} that say nothing {storage} of ephemeral storage"""
    item = {"type": "Container", "default": {"ephemeral-storage": storage}}
    body = {"metadata": {"name": "defaults"}, "spec": {"limits": [item]}}
    ranges = world.tenant.resource(LIMIT_RANGES)
    try:
        await ranges.create(body, namespace=namespace)
    except AlreadyExists:
        await ranges.merge_patch(body, name="defaults", namespace=namespace)


async def recreate(world: World, vm: str) -> None:
    """the tenant deletes {vm} and creates it again at once"""
    namespace, _, name = vm.partition("/")
    await world.tenant.resource(VIRTUAL_MACHINES).delete(name=name, namespace=namespace)
    await world.create_machine(vm)


# People who administer, and Rancher.


async def base(world: World, namespace: str, cpu: str) -> None:
    """an administrator makes the base of {namespace} {cpu}"""
    metadata = {"annotations": {ANNOTATION_RANCHER_RESOURCE_QUOTA: limits(cpu)}}
    await world.admin.resource(NAMESPACES).merge_patch({"metadata": metadata}, name=namespace)


async def edit(world: World, namespace: str, cpu: str) -> None:
    """an administrator sets limits.cpu of the quota in {namespace} to {cpu}"""
    await world.patch_quota(namespace, {"spec": {"hard": {"limits.cpu": cpu}}})


async def skip(world: World, namespace: str, on: bool) -> None:
    """an administrator sets skipResourceQuotaAutoScaling on the quota in {namespace}: {on}"""
    value = "true" if on else None
    await world.patch_quota(namespace, {"metadata": {"annotations": {ANNOTATION_SKIP_AUTO_SCALING: value}}})


async def switch(world: World, namespace: str, on: bool) -> None:
    """an administrator sets the label managed of the quota in {namespace} back ({on}) or to false"""
    value = None if on else "false"
    await world.patch_quota(namespace, {"metadata": {"labels": {LABEL_MANAGED: value}}})


async def budget(world: World, namespace: str, cpu: str) -> None:
    """an administrator gives {namespace} a migration budget of {cpu}"""
    amounts = {"limits.cpu": cpu, "limits.memory": "4Gi"}
    body = {"metadata": {"name": "budget"}, "spec": {"additionalMigrationResources": amounts}}
    await world.admin.resource(VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS).create(body, namespace=namespace)


async def leave_entry(world: World, namespace: str) -> None:
    """an administrator's tool leaves an entry of 700m for a VM that is gone on the quota in {namespace}"""
    annotations = {f"{ANNOTATION_MIGRATING_NAME_PREFIX}gone": '{"limits.cpu":"700m"}'}
    raised = world.promises.base(namespace)["limits.cpu"] + Quantity.parse("700m")
    patch = {"metadata": {"annotations": annotations}, "spec": {"hard": {"limits.cpu": str(raised)}}}
    await world.patch_quota(namespace, patch)


async def restart_agent(world: World) -> None:
    """Rancher's agent restarts"""
    if world.programs.agent is not None:
        world.programs.agent.restart()


async def revert(world: World, namespace: str) -> None:
    """Rancher writes the base over the quota in {namespace}"""
    await world.revert(namespace)


# What breaks.


async def kill(world: World, process: str, down: float) -> None:
    """{process} is killed, and starts again after {down:.1f} s"""
    world.cluster.trouble(down + RECOVERY)
    world.processes[process].kill(down)


async def freeze(world: World, process: str, seconds: float) -> None:
    """{process} is stopped for {seconds:.1f} s"""
    world.cluster.trouble(seconds + RECOVERY)
    world.processes[process].freeze(seconds)


async def set_clock(world: World, process: str, skew: float) -> None:
    """the clock of {process} is {skew:+.0f} s off"""
    world.processes[process].skew = skew


async def count_nothing(world: World, seconds: float) -> None:
    """the quota controller is away for {seconds:.1f} s"""
    world.cluster.trouble(seconds)
    world.quota_controller.away(seconds)


async def silence(world: World, seconds: float) -> None:
    """etcd is silent for {seconds:.1f} s"""
    world.cluster.silence(seconds)


async def fail(world: World, share: float, seconds: float) -> None:
    """{share:.0%} of all requests get 429 or 503 for {seconds:.1f} s"""
    world.cluster.fail(share, seconds)


async def stall(world: World, plural: str, seconds: float) -> None:
    """watches of {plural} bring nothing for {seconds:.1f} s"""
    world.cluster.stall(plural, seconds)


async def compact(world: World) -> None:
    """etcd is compacted"""
    world.cluster.compact()


ACTIONS: dict[str, Callable[..., Awaitable[None]]] = {
    each.__name__: each
    for each in (
        *(migrate, abort, pods, retry, free, forge, relabel, shrink, grow, enlarge, limit_range, recreate),
        *(base, edit, skip, switch, budget, leave_entry, restart_agent, revert),
        *(kill, freeze, set_clock, count_nothing, silence, fail, stall, compact),
    )
}
