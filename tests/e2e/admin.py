"""What the tests do on the cluster, as people and programs do it: through the API server, each under a name of its own.

Names are the seed's: a namespace of 3000m / 5000Mi, a VM of 2 CPU / 4Gi.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from kubeloop.api import registry
from kubeloop.api.core import Pod, ResourceQuota
from kubeloop.client.client import Client
from kubeloop.client.config import ClientConfig
from kubeloop.client.errors import NotFound
from kubeloop.client.loading import load_config
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import until
from lab import bodies
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINES
from pkg.util import constants
from pkg.util.quantity import Quantity
from tests.e2e.tenant import BASE as LIMITS
from tests.e2e.tenant import by_value

RANCHER = "system:serviceaccount:cattle-system:cattle"


class Admin:
    """The cluster as its administrator sees it, and as others do (`by`)."""

    def __init__(self, config: ClientConfig, client: Client) -> None:
        self._config = config
        self.client = client
        self._others: dict[str, Client] = {}
        self._namespaces: list[str] = []

    def by(self, user: str) -> Client:
        """The same API server for another user; every user here may do everything that admission lets pass."""
        if user not in self._others:
            self._others[user] = Client(self._config.impersonate(user, ("e2e:everything",)))
        return self._others[user]

    async def close(self) -> None:
        """What was made goes: a migration under way would keep a place from the next test's (five in a cluster)."""
        for namespace in self._namespaces:
            with contextlib.suppress(NotFound):
                await self.client.resource(registry.NAMESPACES).delete(name=namespace)
        for client in self._others.values():
            await client.close()

    # Namespaces

    async def namespace(self, limits: Mapping[str, str] | None = None, *, annotated: bool = True) -> str:
        """A new one, with its default quota by the Rancher stand-in."""
        name = bodies.new_name()
        annotations = {constants.ANNOTATION_RANCHER_RESOURCE_QUOTA: bodies.quota_text(limits or LIMITS)}
        body = {"metadata": {"name": name, "annotations": annotations if annotated else {}}}
        await self.client.resource(registry.NAMESPACES).create(body)
        self._namespaces.append(name)
        if annotated:
            await until(lambda: self._has_quota(name), f"the default quota of {name}")
        return name

    async def annotate(self, namespace: str, text: str, client: Client | None = None) -> None:
        patch = {"metadata": {"annotations": {constants.ANNOTATION_RANCHER_RESOURCE_QUOTA: text}}}
        await (client or self.client).resource(registry.NAMESPACES).merge_patch(patch, name=namespace)

    async def is_labelled(self, namespace: str) -> bool:
        found = await self.client.resource(registry.NAMESPACES).get(name=namespace)
        return found.labels.get(constants.LABEL_HOLDING) == "true"

    # Quotas

    async def quota(self, namespace: str) -> ResourceQuota:
        """The default quota."""
        quotas = await self.client.resource(registry.RESOURCE_QUOTAS).list(
            namespace, label_selector=f"{constants.LABEL_DEFAULT_RESOURCE_QUOTA}=true"
        )
        assert len(quotas) == 1, quotas
        return quotas[0]

    async def set_hard(
        self, namespace: str, hard: Mapping[str, str], client: Client | None = None, **metadata: Any
    ) -> ResourceQuota:
        quota = await self.quota(namespace)
        patch = {"spec": {"hard": dict(hard)}, "metadata": metadata}
        quotas = (client or self.client).resource(registry.RESOURCE_QUOTAS)
        return await quotas.merge_patch(patch, name=quota.name, namespace=namespace)

    async def hard(self, namespace: str) -> dict[str, Quantity]:
        return by_value((await self.quota(namespace)).hard)

    async def _has_quota(self, namespace: str) -> bool:
        quotas = await self.client.resource(registry.RESOURCE_QUOTAS).list(namespace)
        return bool(quotas) and bool(quotas[0].status.used)

    # VMs

    async def machine(
        self, namespace: str, name: str = "vm1", *, cpu: str = "2", memory: str = "4Gi", **more: Any
    ) -> None:
        """A VM that runs."""
        await self.create_machine(namespace, name, cpu=cpu, memory=memory, **more)

        async def runs() -> bool:
            machine = await self.client.resource(VIRTUAL_MACHINES).get(name=name, namespace=namespace)
            return machine.status.printable_status == "Running"

        await until(runs, f"{namespace}/{name} to run")

    async def create_machine(
        self,
        namespace: str,
        name: str = "vm1",
        *,
        cpu: str = "2",
        memory: str = "4Gi",
        annotations: Mapping[str, str] | None = None,
        client: Client | None = None,
        strategy: str = "RerunOnFailure",
    ) -> None:
        resources = {"limits": {"cpu": cpu, "memory": memory}, "requests": {"cpu": "125m", "memory": memory}}
        domain = {"cpu": {"cores": 1}, "resources": resources, "devices": {}}
        body = bodies.machine(name, {"domain": domain}, strategy=strategy, annotations=annotations)
        await (client or self.client).resource(VIRTUAL_MACHINES).create(body, namespace=namespace)

    async def migrate(
        self,
        namespace: str,
        vm: str = "vm1",
        *,
        running: float = 60.0,
        linger: float = 0.5,
        phase: float = 0.1,
    ) -> str:
        """A migration's name. `running`: seconds in phase Running; `phase`: in the ones before."""
        body = bodies.migration(
            bodies.new_name(vm), vm, phase_seconds=bodies.pace(phase, running), source_linger_seconds=linger
        )
        migrations = self.client.resource(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS)
        created = await migrations.create(body, namespace=namespace)
        return created.name

    async def phase(self, namespace: str, migration: str) -> str:
        migrations = self.client.resource(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS)
        return (await migrations.get(name=migration, namespace=namespace)).phase

    async def until_phase(self, namespace: str, migration: str, *phases: str, seconds: float = 20.0) -> None:
        async def reached() -> bool:
            return await self.phase(namespace, migration) in phases

        await until(reached, f"{namespace}/{migration} to be {' or '.join(phases)}", seconds=seconds)

    async def abort(self, namespace: str, migration: str) -> None:
        """Deleting a migration under way aborts it."""
        with contextlib.suppress(NotFound):
            await self.client.resource(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS).delete(
                name=migration, namespace=namespace
            )

    async def migrating(self, namespace: str, **more: Any) -> str:
        """A namespace's VM in the middle of its migration, with the room for it there."""
        await self.machine(namespace)
        migration = await self.migrate(namespace, **more)
        await self.until_phase(namespace, migration, "Running")
        return migration

    # Pods

    async def pod(
        self,
        namespace: str,
        client: Client,
        *,
        cpu: str = "100m",
        memory: str = "10Mi",
        text: str = "",
        **metadata: Any,
    ) -> Pod:
        resources = {"limits": {"cpu": cpu, "memory": memory}}
        container = {"name": "main", "image": "none", "resources": resources, "args": [text]}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"generateName": "tenant-", "labels": {"app": "tenant"}, **metadata},
            "spec": {"containers": [container]},
        }
        return await client.resource(registry.PODS).create(body, namespace=namespace)


@contextlib.asynccontextmanager
async def admin_of(cluster: Cluster) -> AsyncIterator[Admin]:
    """All users in group `e2e:everything` may do everything; admission sees each by name, and none as an admin."""
    config = load_config(str(cluster.kubeconfig))
    async with Client(config) as client:
        body = {
            "metadata": {"name": "e2e-everything"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "cluster-admin",
            },
            "subjects": [
                {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "e2e:everything"}
            ],
        }
        path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
        with contextlib.suppress(Exception):
            await client.transport.request("POST", path, body=json.dumps(body).encode())
        made = Admin(config, client)
        try:
            yield made
        finally:
            await made.close()
