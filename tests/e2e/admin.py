"""The cluster's administrator, who makes namespaces, and requests under other names."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import Any

import pytest

from kubeloop.api import registry
from kubeloop.api.registry import Resource
from kubeloop.api.resource_list import format_resource_list, parse_resource_list, total
from kubeloop.client.client import Client
from kubeloop.client.config import ClientConfig
from kubeloop.client.errors import AlreadyExists, Forbidden, NotFound
from kubeloop.client.loading import load_config
from kubeloop.testing.cluster.cluster import Cluster
from lab import bodies
from lab.cluster import RancherAgent
from lab.namespace import NAMESPACES, PODS, QUOTAS, VMIMS, VMIS, VMS, Namespace
from lab.rancher import releases
from lab.rancher.project import ANNOTATION_PROJECT, CLUSTER, PROJECTS
from pkg.api.mtq import VIRTUAL_MACHINE_MIGRATION_RESOURCE_QUOTAS as BUDGETS
from pkg.util import constants
from pkg.webhook.configurations import NAMESPACE_CONTROLLER

LIMITS = {"limitsCpu": "3000m", "limitsMemory": "5000Mi"}
HARD = {"limits.cpu": "3", "limits.memory": "5000Mi"}
"""The seed's numbers, as Rancher has them and as a quota has them."""
RANCHER = "system:serviceaccount:cattle-system:cattle"
_FIRST: tuple[Resource[Any], ...] = (VMIMS, VMS, VMIS, QUOTAS)
_OTHERS: tuple[Resource[Any], ...] = (QUOTAS, BUDGETS, PODS, registry.PERSISTENT_VOLUME_CLAIMS, registry.LIMIT_RANGES)


class Admin:
    """The cluster as its administrator sees it, and as others do (`by`)."""

    def __init__(self, config: ClientConfig, client: Client) -> None:
        self._config = config
        self.client = client
        self._clients: dict[str, Client] = {}
        self._namespaces: list[Namespace] = []

    def by(self, user: str, *groups: str) -> Client:
        """The same API server for another user; every user here may do everything that admission lets pass."""
        if user not in self._clients:
            self._clients[user] = Client(self._config.impersonate(user, ("e2e:everything", *groups)))
        return self._clients[user]

    async def close(self, *, clear: bool) -> None:
        if clear:
            await self.clear()
        for client in self._clients.values():
            await client.close()

    async def clear(self) -> None:
        """Removes what was made: a migration under way would keep a place from the next test's (five in a cluster)."""
        await asyncio.gather(*map(self._empty, self._namespaces))
        self._namespaces.clear()

    async def _empty(self, namespace: Namespace) -> None:
        """Empties a namespace, which requests nothing of Rancher then: to delete one costs the API server ten times as
        much as to make one. VMs and migrations go first: no stand-in shall take them up."""
        emptied = namespace.by(self.by(NAMESPACE_CONTROLLER))
        marks = dict.fromkeys((constants.ANNOTATION_RANCHER_RESOURCE_QUOTA, ANNOTATION_PROJECT))
        for resource in _FIRST:
            await emptied.client.transport.request("DELETE", resource.path(namespace.name))
        with contextlib.suppress(NotFound):
            await emptied.mark(annotations=marks)
        for resource in _OTHERS:
            await emptied.client.transport.request("DELETE", resource.path(namespace.name))

    async def namespace(
        self, limits: Mapping[str, Any] | None = None, annotations: Mapping[str, str] | None = None
    ) -> Namespace:
        """A new one. `limits` (by ResourceQuota names) is what Rancher grants; its stand-in makes the default quota."""
        namespace = Namespace(self.client, bodies.new_name())
        project_quota = {constants.ANNOTATION_RANCHER_RESOURCE_QUOTA: bodies.granting(limits)} if limits else {}
        body = {"metadata": {"name": namespace.name, "annotations": {**project_quota, **(annotations or {})}}}
        await self.client.resource(NAMESPACES).create(body)
        self._namespaces.append(namespace)
        if limits:
            await namespace.until_counted()
        return namespace

    async def home(self, limits: Mapping[str, Any], rancher: RancherAgent) -> Namespace:
        """A new namespace that is granted these limits. A Rancher that lets nobody else write its quotas writes them
        where there is a project: this one has room for ten of it."""
        if rancher.release == releases.DEFAULT:
            return await self.namespace(limits)
        tenfold = format_resource_list(total([parse_resource_list(limits)] * 10))
        return await (await self.project(tenfold, limits)).namespace(limits)

    async def project(self, limits: Mapping[str, Any], default: Mapping[str, Any]) -> "RancherProject":
        """A new project of Rancher's with a quota; limits by ResourceQuota names."""
        name = bodies.new_name("p")
        with contextlib.suppress(AlreadyExists):
            await self.client.resource(NAMESPACES).create({"metadata": {"name": CLUSTER}})
        await self.client.resource(PROJECTS).create(bodies.project(name, limits, default), namespace=CLUSTER)
        return RancherProject(self, name)


class RancherProject:
    """A project, and the namespaces that are made in it."""

    def __init__(self, admin: Admin, name: str) -> None:
        self._admin = admin
        self.name = name

    async def namespace(self, limits: Mapping[str, Any]) -> Namespace:
        """A new namespace that requests these limits."""
        return await self._admin.namespace(limits, {ANNOTATION_PROJECT: f"{CLUSTER}:{self.name}"})

    async def limit(self, limits: Mapping[str, Any]) -> None:
        """Gives the project another quota."""
        patch = {"spec": {"resourceQuota": {"limit": bodies.limit(limits)}}}
        await self._admin.client.resource(PROJECTS).merge_patch(patch, name=self.name, namespace=CLUSTER)


@contextlib.asynccontextmanager
async def admin_of(cluster: Cluster, *, clear: bool = True) -> AsyncIterator[Admin]:
    """All users in group `e2e:everything` may do everything; admission sees each by name, and none as an admin.
    `clear` False: what was made goes with the cluster."""
    config = load_config(str(cluster.kubeconfig))
    async with Client(config) as client:
        body = {
            "metadata": {"name": "e2e-everything"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "e2e:everything"}],
        }
        path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
        with contextlib.suppress(Exception):
            await client.transport.request("POST", path, body=json.dumps(body).encode())
        admin_client = Admin(config, client)
        try:
            yield admin_client
        finally:
            await admin_client.close(clear=clear)


async def refused(attempt: Awaitable[object]) -> str:
    """The message of a refusal by a webhook."""
    with pytest.raises(Forbidden) as caught:
        await attempt
    assert "admission webhook" in caught.value.message, caught.value.message
    return caught.value.message.partition("denied the request: ")[2]
