"""Rancher on a cluster in process: its controllers run, and nothing else does unless a test says so.

For tests of headroom as well: `RancherInProcess(cluster)` on the FakeCluster that the controllers under test use.
"""

import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from kubeloop.api.core import ResourceQuota
from kubeloop.api.registry import NAMESPACES, RESOURCE_QUOTAS
from kubeloop.client.errors import BadRequest
from kubeloop.testing.fake.objects import Request
from kubeloop.testing.fake.server import FakeCluster
from lab.rancher import condition, lock
from lab.rancher.agent import Agent, register
from lab.rancher.project import ANNOTATION_PROJECT, CLUSTER, PROJECTS, Project
from lab.rancher.releases import NEWEST, RELEASES
from pkg.config.management import Management
from pkg.util.constants import ANNOTATION_RANCHER_RESOURCE_QUOTA, LABEL_DEFAULT_RESOURCE_QUOTA, TRUE

PROJECT = f"{CLUSTER}:p-1"


class RancherInProcess:
    """Runs Rancher's controllers inside `async with`."""

    agent: Agent

    def __init__(self, cluster: FakeCluster, release: str = NEWEST) -> None:
        self.cluster = cluster
        self._release = RELEASES[release]
        client = cluster.client()
        client.transport.server_clock = cluster.clock  # type: ignore[assignment]
        self._management = Management(client, workers=1)

    async def __aenter__(self) -> Self:
        self.agent = register(self._management, release=self._release)
        await self._management.start()
        assert await self._management.wait_for_sync(10.0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._management.stop(1.0)

    # ---- what people write -----------------------------------------------------------------------------------

    def project(self, limit: Mapping[str, Any] | None, default: Mapping[str, Any] | None, name: str = "p-1") -> None:
        """A project with these limits, or with none."""
        spec: dict[str, Any] = {"clusterName": CLUSTER}
        spec |= {} if limit is None else {"resourceQuota": {"limit": dict(limit)}}
        spec |= {} if default is None else {"namespaceDefaultResourceQuota": {"limit": dict(default)}}
        self.cluster.put(PROJECTS, {"metadata": {"name": name, "namespace": CLUSTER}, "spec": spec})

    def namespace(self, name: str = "ns1", project: str = PROJECT, **limit: Any) -> None:
        """A namespace of a project ("": of none) that requests these limits, by Rancher's names."""
        annotations = {ANNOTATION_PROJECT: project} if project else {}
        annotations |= {ANNOTATION_RANCHER_RESOURCE_QUOTA: json.dumps({"limit": limit})} if limit else {}
        self.cluster.put(NAMESPACES, {"metadata": {"name": name, "annotations": annotations}})

    async def request(self, namespace: str = "ns1", **limit: Any) -> None:
        """Somebody edits the namespace's request."""
        await self.annotate(namespace, {ANNOTATION_RANCHER_RESOURCE_QUOTA: json.dumps({"limit": limit})})

    async def annotate(self, namespace: str, annotations: Mapping[str, str | None]) -> None:
        patch = {"metadata": {"annotations": dict(annotations)}}
        await self.cluster.client().resource(NAMESPACES).merge_patch(patch, name=namespace)

    async def set_hard(self, namespace: str = "ns1", **hard: str) -> None:
        """Somebody else writes the default quota; `limits_cpu` is limits.cpu."""
        name = self.quotas(namespace)[0].name
        spec = {"hard": {key.replace("_", "."): amount for key, amount in hard.items()}}
        quotas = self.cluster.client().resource(RESOURCE_QUOTAS)
        await quotas.merge_patch({"spec": spec}, name=name, namespace=namespace)

    # ---- what there is ---------------------------------------------------------------------------------------

    def quotas(self, namespace: str = "ns1") -> list[ResourceQuota]:
        return [
            quota
            for quota in self.cluster.all(RESOURCE_QUOTAS)
            if quota.namespace == namespace and quota.labels.get(LABEL_DEFAULT_RESOURCE_QUOTA) == TRUE
        ]

    def hard(self, namespace: str = "ns1") -> dict[str, Any] | None:
        """spec.hard of the default quota; None: there is none."""
        quotas = self.quotas(namespace)
        return dict(quotas[0].hard) if quotas else None

    def annotations(self, namespace: str = "ns1") -> Mapping[str, str]:
        return next(item.annotations for item in self.cluster.all(NAMESPACES) if item.name == namespace)

    def requested(self, namespace: str = "ns1") -> dict[str, Any] | None:
        text = self.annotations(namespace).get(ANNOTATION_RANCHER_RESOURCE_QUOTA)
        return None if text is None else json.loads(text)["limit"]

    def validated(self) -> str | None:
        """Returns "fits", the condition's message, or None without a condition."""
        text = self.annotations().get(condition.ANNOTATION, "{}")
        conditions = [c for c in json.loads(text).get("Conditions", ()) if c["Type"] == condition.VALIDATED]
        return (conditions[0]["Message"] or "fits") if conditions else None

    def used_limit(self, name: str = "p-1") -> dict[str, Any]:
        project: Project = next(item for item in self.cluster.all(PROJECTS) if item.name == name)
        return (project.spec.resource_quota and project.spec.resource_quota.used_limit) or {}


def locked(cluster: FakeCluster) -> None:
    """Lets nobody write the default quotas of a cluster from now on: there, nobody is Rancher."""

    def deny(request: Request) -> None:
        if request.plural == RESOURCE_QUOTAS.plural and request.verb in ("create", "update", "patch", "delete"):
            name = f"{lock.CONFIGURATION}.{RESOURCE_QUOTAS.plural}"
            raise BadRequest(f'admission webhook "{name}" denied the request: {lock.CHANGE}')

    cluster.reactors.append(deny)
