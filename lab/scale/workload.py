"""Makes the run's objects on a cluster."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from kubeloop.api import registry
from kubeloop.client.client import Client
from kubeloop.client.errors import AlreadyExists
from kubeloop.client.resource_reader import list_installed
from kubeloop.errors import ReportedError
from kubeloop.testing.cluster.readiness import crds_served, load_crds
from kubeloop.testing.cluster.reporting import ClusterError
from lab import bodies
from lab.cluster import CRDS
from lab.namespace import Namespace
from lab.scale.plan import KWOK_MARKS, LABEL_RUN, QUOTA_NAME, SCHEDULABLE, Plan, Strategy, vmmrq
from lab.scale.removal import WEBHOOKS, in_parallel
from pkg.api.kubevirt import KUBEVIRTS, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINES
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS
from pkg.report.installation import lease_state
from pkg.selfcheck.api_server import PROBE_CONFIGURATION
from pkg.util import constants

_POLL = 0.2
_SERVED_TIMEOUT = 60.0
_CRDS = registry.CUSTOM_RESOURCE_DEFINITIONS


class WrongCluster(ReportedError):
    """The cluster has nodes on which VMs run, or headroom is installed on it."""

    exit_code = 2


class Workload:
    """The objects of one plan on one cluster."""

    def __init__(self, client: Client, plan: Plan) -> None:
        self._client = client
        self._plan = plan

    async def refuse_real_nodes(self) -> None:
        """Raises WrongCluster where VMs may run that are not kwok's."""
        nodes = await self._client.resource(registry.NODES).list(label_selector=f"{SCHEDULABLE}=true")
        real = sorted(node.name for node in nodes if not KWOK_MARKS & {*node.labels, *node.annotations})
        if real and not self._plan.settings.allow_real_nodes:
            raise WrongCluster(
                f"the cluster has KubeVirt nodes ({', '.join(real[:3])}{', …' if len(real) > 3 else ''}): "
                "use another cluster, or --allow-real-nodes"
            )

    async def refuse_beside_another(self) -> None:
        """Raises WrongCluster where headroom runs or is registered: two would write the same quotas. ApiError."""
        if self._plan.settings.external:
            return
        installations = [
            f"{resource.kind} {item.name}"
            for resource in WEBHOOKS
            for item in await self._client.resource(resource).list()
            if item.name in (constants.WEBHOOK_CONFIGURATION_NAME, PROBE_CONFIGURATION)
        ]
        leases = await self._client.resource(registry.LEASES).list(field_selector=f"metadata.name={constants.LEASE}")
        now = time.time()
        installations += [f"Lease {item.key}" for item in leases if lease_state(item.spec, now).is_live]
        if installations:
            raise WrongCluster(
                f"headroom is installed on the cluster ({', '.join(installations)}): measure that one with --external"
            )

    async def install(self) -> None:
        """The CRDs that are missing, and the nodes. Raises ApiError, ClusterError."""
        definitions = load_crds(CRDS)
        for definition in definitions:
            labels = {**definition["metadata"].get("labels", {}), LABEL_RUN: self._plan.run}
            metadata = definition["metadata"] | {"labels": labels}
            with contextlib.suppress(AlreadyExists):  # another's
                await self._client.resource(_CRDS).create(definition | {"metadata": metadata})
        deadline = time.monotonic() + _SERVED_TIMEOUT
        while not await crds_served(self._client, definitions):
            if time.monotonic() > deadline:
                raise ClusterError("the CRDs are not served after 60 s: see the API server's log")
            await asyncio.sleep(_POLL)
        nodes = self._client.resource(registry.NODES)
        await in_parallel(partial(nodes.create, self._plan.node(name)) for name in self._plan.nodes)

    async def virt_controller(self) -> str:
        """The user that creates the pods: that of the cluster's KubeVirt, if there is one, whom headroom's policies and
        webhooks know. Raises ApiError."""
        installations = await list_installed(self._client.resource(KUBEVIRTS))
        namespace = installations[0].namespace if installations else self._plan.system_namespace
        return f"system:serviceaccount:{namespace}:kubevirt-controller"

    async def refusal(self) -> str:
        """Returns the last message about a pod that could not be created, or "". Raises ApiError."""
        events = await self._client.resource(registry.EVENTS).list(
            field_selector=f"reason={constants.EVENT_FAILED_CREATE}"
        )
        own_events = [event for event in events if event.namespace in self._plan.namespaces]
        return max(((event.last_timestamp or "", event.message) for event in own_events), default=("", ""))[1]

    async def fill(self, report_progress: Callable[[int], None]) -> None:
        """Creates namespaces and VMs, and reports the number of VMs to `report_progress`. Raises ApiError."""
        names = [self._plan.system_namespace, *self._plan.namespaces]
        namespaces = self._client.resource(registry.NAMESPACES)
        await in_parallel(partial(namespaces.create, self._plan.namespace(name)) for name in names)
        if not await list_installed(self._client.resource(KUBEVIRTS)):
            await self._client.resource(KUBEVIRTS).create(self._plan.kubevirt(), namespace=self._plan.system_namespace)
        vms, numbers = self._client.resource(VIRTUAL_MACHINES), itertools.count(1)

        async def create(body: dict[str, Any]) -> None:
            await vms.create(body)
            report_progress(next(numbers))

        await in_parallel(partial(create, body) for body in self._plan.vms())

    async def tighten(self, hard: Mapping[str, Mapping[str, str]]) -> None:
        """Creates quotas of exactly these limits, by namespace; as many of them again may be added. Raises ApiError."""

        async def tighten(namespace: str) -> None:
            tenant, limits = Namespace(self._client, namespace), hard[namespace]
            if self._plan.settings.strategy is Strategy.VMMRQ:
                await tenant.create(VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS, vmmrq(limits))
            else:
                await tenant.annotate(bodies.granting(limits))
            await tenant.create(registry.RESOURCE_QUOTAS, bodies.default_quota(QUOTA_NAME, limits))

        await in_parallel(partial(tighten, name) for name in hard)

    async def counts(self, namespaces: Collection[str]) -> bool:
        """Reports whether the quotas of these namespaces are in force. Raises ApiError."""
        quotas = await self._client.resource(registry.RESOURCE_QUOTAS).list()
        ready = [q.namespace in namespaces and q.status.hard == q.hard and bool(q.used) for q in quotas]
        return sum(ready) >= len(namespaces)

    async def migrate(self, key: str) -> None:
        """A VMIM of a VM. Raises ApiError."""
        namespace, _, vm = key.partition("/")
        body = bodies.migration(f"evacuate-{vm}", vm)
        await Namespace(self._client, namespace).create(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, body)
