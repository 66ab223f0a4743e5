"""Makes the run's objects on a cluster, and removes every one of them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from kubeloop.api import registry
from kubeloop.api.registry import Resource
from kubeloop.client.client import Client
from kubeloop.client.errors import AlreadyExists, NotFound
from kubeloop.client.resource_reader import list_installed
from kubeloop.errors import ReportedError
from kubeloop.testing.cluster.errors import ClusterError
from kubeloop.testing.cluster.readiness import crds_served, load_crds
from lab.cluster import CRDS
from lab.scale import plan as objects
from lab.scale.plan import KWOK_MARKS, LABEL_RUN, SCHEDULABLE, Plan, Strategy
from pkg.api.kubevirt import (
    KUBEVIRTS,
    VIRTUAL_MACHINE_INSTANCE_MIGRATIONS,
    VIRTUAL_MACHINE_INSTANCES,
    VIRTUAL_MACHINES,
)
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS
from pkg.config.probe import PROBE_CONFIGURATION
from pkg.util import constants

_CONCURRENCY = 32
_POLL = 0.2
_SERVED_TIMEOUT = 60.0
_REMOVAL_TIMEOUT = 180.0
_STUCK = 60.0
"""Seconds after which finalizers that no controller has taken off are taken off here."""
_CRDS = registry.CUSTOM_RESOURCE_DEFINITIONS
_NODE_LEASES = "kube-node-lease"
_WITH_FINALIZERS: tuple[Resource[Any], ...] = (
    VIRTUAL_MACHINE_INSTANCE_MIGRATIONS,
    VIRTUAL_MACHINE_INSTANCES,
    VIRTUAL_MACHINES,
)


class RealNodes(ReportedError):
    """The cluster has nodes on which VMs run."""

    exit_code = 2


async def in_parallel(calls: Iterable[Callable[[], Awaitable[Any]]]) -> None:
    """Run the calls, 32 at once; the first error is raised and ends the others."""
    waiting = iter(calls)

    async def work() -> None:
        for call in waiting:
            await call()

    async with asyncio.TaskGroup() as group:
        for _ in range(_CONCURRENCY):
            group.create_task(work())


class Workload:
    """The objects of one plan on one cluster."""

    def __init__(self, client: Client, plan: Plan) -> None:
        self._client = client
        self._plan = plan
        self._definitions: list[str] = []
        self._webhooks_before: frozenset[tuple[str, str]] = frozenset()

    async def refuse_real_nodes(self) -> None:
        """Raises RealNodes where VMs may run that are not kwok's."""
        nodes = await self._client.resource(registry.NODES).list(label_selector=f"{SCHEDULABLE}=true")
        real = sorted(node.name for node in nodes if not KWOK_MARKS & {*node.labels, *node.annotations})
        if real and not self._plan.settings.allow_real_nodes:
            raise RealNodes(
                f"the cluster has KubeVirt nodes ({', '.join(real[:3])}{', …' if len(real) > 3 else ''}): "
                "use another cluster, or --allow-real-nodes"
            )

    async def install(self) -> None:
        """The CRDs that are missing, and the nodes. Raises ApiError, ClusterError."""
        self._webhooks_before = frozenset(await self._webhooks())
        installed = {each.name for each in await self._client.resource(_CRDS).list()}
        wanted = load_crds(CRDS)
        missing = {name: each for each in wanted if (name := each["metadata"]["name"]) not in installed}
        for name, definition in missing.items():
            # Noted before it is made: a request that is cancelled has its effect all the same.
            self._definitions.append(name)
            try:
                await self._client.resource(_CRDS).create(definition)
            except AlreadyExists:  # another's, made meanwhile
                self._definitions.remove(name)
        deadline = time.monotonic() + _SERVED_TIMEOUT
        while not await crds_served(self._client, wanted):
            if time.monotonic() > deadline:
                raise ClusterError("the CRDs are not served after 60 s: see the API server's log")
            await asyncio.sleep(_POLL)
        nodes = self._client.resource(registry.NODES)
        await in_parallel(partial(nodes.create, self._plan.node(name)) for name in self._plan.nodes)

    async def fill(self, told: Callable[[int], None]) -> None:
        """Namespaces and VMs; `told` how many VMs there are. Raises ApiError."""
        names = [self._plan.system_namespace, *self._plan.namespaces]
        namespaces = self._client.resource(registry.NAMESPACES)
        await in_parallel(partial(namespaces.create, self._plan.namespace(name)) for name in names)
        if not await list_installed(self._client.resource(KUBEVIRTS)):
            body = self._plan.kubevirt(self._plan.settings.vms)
            await self._client.resource(KUBEVIRTS).create(body, namespace=self._plan.system_namespace)
        machines = self._client.resource(VIRTUAL_MACHINES)
        created = 0

        async def create(body: dict[str, Any]) -> None:
            nonlocal created
            await machines.create(body, namespace=body["metadata"]["namespace"])
            created += 1
            told(created)

        await in_parallel(partial(create, body) for body in self._plan.machines())

    async def tighten(self, hard: dict[str, dict[str, str]]) -> None:
        """Quotas of exactly these limits, by namespace. Raises ApiError."""
        await in_parallel(partial(self._tighten, name, limits) for name, limits in hard.items())

    async def _tighten(self, namespace: str, hard: dict[str, str]) -> None:
        if self._plan.settings.strategy is Strategy.VMMRQ:
            await self._client.resource(VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS).create(
                objects.budget(hard), namespace=namespace
            )
        else:
            annotations = {"metadata": {"annotations": objects.rancher_annotation(hard)}}
            await self._client.resource(registry.NAMESPACES).merge_patch(annotations, name=namespace)
        await self._client.resource(registry.RESOURCE_QUOTAS).create(objects.quota(hard), namespace=namespace)

    async def cordon(self, nodes: Iterable[str]) -> None:
        """No pod is placed on these nodes any more. Raises ApiError."""
        for name in nodes:
            await self._client.resource(registry.NODES).merge_patch(
                {"spec": {"unschedulable": True}}, name=name
            )

    async def migrate(self, key: str) -> None:
        """A VMIM of a VM. Raises ApiError."""
        namespace, _, vm = key.partition("/")
        await self._client.resource(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS).create(
            objects.migration(vm), namespace=namespace
        )

    async def remove(self, told: Callable[[int, int], None]) -> None:
        """Everything: webhook configurations first, they may refuse what follows. kwok and the stand-in must run still.

        Raises ClusterError for what is left after three minutes.
        """
        for kind, name in sorted(await self._webhooks() - self._webhooks_before):
            await self._delete(_WEBHOOKS[kind], name)
        selector = f"{LABEL_RUN}={self._plan.run}"
        namespaces = self._client.resource(registry.NAMESPACES)
        most, began = 0, time.monotonic()
        while left := await namespaces.list(label_selector=selector):
            # In every round: what was being created when the run was cancelled may come now.
            await in_parallel(
                partial(self._delete, registry.NAMESPACES, each.name) for each in left if not each.deleting
            )
            most = max(most, len(left))
            told(most - len(left), most)
            waited = time.monotonic() - began
            if waited > _REMOVAL_TIMEOUT:
                raise ClusterError(f"namespaces are left: kubectl delete namespace -l {selector}")
            if waited > _STUCK:
                await self._take_finalizers_off([each.name for each in left])
            await asyncio.sleep(1.0)
        began = time.monotonic()
        while nodes := await self._client.resource(registry.NODES).list(label_selector=selector):
            for node in nodes:
                if not node.deleting:
                    await self._delete(registry.NODES, node.name)
                    await self._delete(registry.LEASES, node.name, _NODE_LEASES)
            if time.monotonic() - began > _REMOVAL_TIMEOUT:
                raise ClusterError(f"nodes are left: kubectl delete node -l {selector}")
            await asyncio.sleep(_POLL)
        for name in self._definitions:
            await self._delete(_CRDS, name)

    async def _take_finalizers_off(self, namespaces: Iterable[str]) -> None:
        for namespace in namespaces:
            for resource in _WITH_FINALIZERS:
                for obj in await list_installed(self._client.resource(resource), namespace):
                    with contextlib.suppress(NotFound):
                        await self._client.resource(resource).merge_patch(
                            {"metadata": {"finalizers": None}}, name=obj.name, namespace=namespace
                        )

    async def _delete(self, resource: Resource[Any], name: str, namespace: str = "") -> None:
        with contextlib.suppress(NotFound):
            await self._client.resource(resource).delete(name=name, namespace=namespace)

    async def _webhooks(self) -> set[tuple[str, str]]:
        """Every webhook configuration, by kind and name: with `--strategy vmmrq` headroom writes some."""
        return {
            (kind, each.name)
            for kind, resource in _WEBHOOKS.items()
            for each in await self._client.resource(resource).list()
            if self._is_ours(each.name)
        }

    def _is_ours(self, name: str) -> bool:
        """The lock of one of the run's namespaces; a registration of headroom, unless it is another's."""
        registered = name in (constants.WEBHOOK_CONFIGURATION_NAME, PROBE_CONFIGURATION)
        return name.startswith(f"lock.{self._plan.run}-") or (registered and not self._plan.settings.external)


_WEBHOOKS: dict[str, Resource[Any]] = {
    "mutating": registry.MUTATING_WEBHOOK_CONFIGURATIONS,
    "validating": registry.VALIDATING_WEBHOOK_CONFIGURATIONS,
}
