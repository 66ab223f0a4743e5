"""Removes what runs have made on a cluster: it is all found by label or name, so that a run that was killed is removed
by the next call."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from kubeloop.api import registry
from kubeloop.api.registry import Resource
from kubeloop.client.client import Client
from kubeloop.client.errors import NotFound
from kubeloop.client.resource_reader import list_installed
from kubeloop.testing.cluster.reporting import ClusterError
from lab.kubevirt.options import SCALE_NAMESPACES
from lab.scale.plan import LABEL_RUN
from pkg.api.kubevirt import KUBEVIRTS, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINES
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS
from pkg.selfcheck.api_server import PROBE_CONFIGURATION
from pkg.util import constants
from pkg.util.constants import NAMESPACE_NAME_LABEL

_CONCURRENCY = 32
_POLL = 0.2
_TIMEOUT = 180.0
_STUCK = 60.0
"""Seconds after which objects that no stand-in has ended are ended here."""
_CRDS = registry.CUSTOM_RESOURCE_DEFINITIONS
_NODE_LEASES = "kube-node-lease"
_Resources = tuple[Resource[Any], ...]
_WITH_FINALIZERS: _Resources = (VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINES)
_CUSTOM_KINDS: _Resources = (*_WITH_FINALIZERS, KUBEVIRTS, VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS)
WEBHOOKS: _Resources = (registry.VALIDATING_WEBHOOK_CONFIGURATIONS, registry.MUTATING_WEBHOOK_CONFIGURATIONS)


async def in_parallel(calls: Iterable[Callable[[], Awaitable[Any]]]) -> None:
    """Runs the calls, 32 at once; the first error is raised and ends the others."""
    queue = iter(calls)

    async def work() -> None:
        for call in queue:
            await call()

    async with asyncio.TaskGroup() as group:
        for _ in range(_CONCURRENCY):
            group.create_task(work())


class Removal:
    """The removal of one run whose stand-ins still work, or, `run` being "", of all that were killed."""

    def __init__(self, client: Client, run: str = "") -> None:
        self._client = client
        self._stuck = _STUCK if run else 0.0
        self._prefix = f"{run}-" if run else SCALE_NAMESPACES
        self._selector = f"{LABEL_RUN}={run}" if run else LABEL_RUN

    async def remove(self, report_progress: Callable[[int, int], None]) -> None:
        """Removes everything, webhook configurations first: they may refuse the rest. Raises ClusterError for objects
        that are left after three minutes, ApiError."""
        await self._remove_webhooks()
        await self._remove_namespaces(report_progress)
        await self._remove_nodes()
        await self._remove_definitions()

    async def _remove_webhooks(self) -> None:
        """Deletes the configurations that headroom writes with `--strategy vmmrq`: locks, and its registration, which
        belongs to the owner of the probe. The probe last: it tells."""
        owns_registration = await self._owns_registration()
        for resource in WEBHOOKS:
            for name in [item.name for item in await self._client.resource(resource).list()]:
                is_registration = owns_registration and name == constants.WEBHOOK_CONFIGURATION_NAME
                if is_registration or name.startswith(f"lock.{self._prefix}"):
                    await self._delete(resource, name)
        if owns_registration:
            await self._delete(registry.MUTATING_WEBHOOK_CONFIGURATIONS, PROBE_CONFIGURATION)

    async def _owns_registration(self) -> bool:
        """Reports whether headroom's registration is that of a run: it probes in headroom's own namespace."""
        probes = self._client.resource(registry.MUTATING_WEBHOOK_CONFIGURATIONS)
        with contextlib.suppress(NotFound):
            probe = await probes.get(name=PROBE_CONFIGURATION)
            selectors = [webhook.get("namespaceSelector") or {} for webhook in probe.webhooks or ()]
            names = [(selector.get("matchLabels") or {}).get(NAMESPACE_NAME_LABEL, "") for selector in selectors]
            return bool(names) and all(name.startswith(self._prefix) for name in names)
        return False

    async def _remove_namespaces(self, report_progress: Callable[[int, int], None]) -> None:
        namespaces, most, began = self._client.resource(registry.NAMESPACES), 0, time.monotonic()
        while remnants := await namespaces.list(label_selector=self._selector):
            # In every round: what was being created when the run was cancelled may come now.
            await in_parallel(partial(self._delete, registry.NAMESPACES, n.name) for n in remnants if not n.deleting)
            most = max(most, len(remnants))
            report_progress(most - len(remnants), most)
            wait_seconds = time.monotonic() - began
            if wait_seconds > _TIMEOUT:
                raise ClusterError(f"namespaces are left: kubectl delete namespace -l {self._selector}")
            if wait_seconds > self._stuck:
                await self._end([n.name for n in remnants])
            await asyncio.sleep(1.0)

    async def _remove_nodes(self) -> None:
        began = time.monotonic()
        while nodes := await self._client.resource(registry.NODES).list(label_selector=self._selector):
            for node in nodes:
                if not node.deleting:
                    await self._delete(registry.NODES, node.name)
                    await self._delete(registry.LEASES, node.name, _NODE_LEASES)
            if time.monotonic() - began > _TIMEOUT:
                raise ClusterError(f"nodes are left: kubectl delete node -l {self._selector}")
            await asyncio.sleep(_POLL)

    async def _remove_definitions(self) -> None:
        """Deletes the CRDs that a run has installed and nothing uses: a CRD takes every object of its kind with it."""
        used_kinds = [kind for kind in _CUSTOM_KINDS if await list_installed(self._client.resource(kind))]
        for definition in await self._client.resource(_CRDS).list(label_selector=self._selector):
            if all(definition.name != f"{kind.plural}.{kind.group}" for kind in used_kinds):
                await self._delete(_CRDS, definition.name)

    async def _end(self, namespaces: Iterable[str]) -> None:
        """Removes finalizers and pods as stand-ins would: no controller and no kubelet does it here."""
        patch = {"metadata": {"finalizers": None}}
        for namespace in namespaces:
            pods = self._client.resource(registry.PODS)
            for pod in await pods.list(namespace):
                with contextlib.suppress(NotFound):
                    await pods.delete(name=pod.name, namespace=namespace, grace_period_seconds=0)
            for objects in map(self._client.resource, _WITH_FINALIZERS):
                for obj in await list_installed(objects, namespace):
                    with contextlib.suppress(NotFound):
                        await objects.merge_patch(patch, name=obj.name, namespace=namespace)

    async def _delete(self, resource: Resource[Any], name: str, namespace: str = "") -> None:
        with contextlib.suppress(NotFound):
            await self._client.resource(resource).delete(name=name, namespace=namespace)
