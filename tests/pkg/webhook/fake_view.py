"""Requests and a View in memory: what the caches hold and what the API server would say, told apart."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from kubeloop.api.core import Namespace, Pod, ResourceQuota
from kubeloop.api.meta import Object
from kubeloop.webhook.admission import AdmissionRequest
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util.quotacount.releases import NEWEST, Releases
from pkg.util.resourcequota.entries import names_by_key
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.observe import Source
from pkg.util.resourcequota.room import Pods
from pkg.webhook.view import NoAnswer, View
from tests.decisions import observed
from tests.objects import BASE, annotated_namespace

ALICE = "alice"
RANCHER = "system:serviceaccount:cattle-system:rancher"
KUBEVIRT = "system:serviceaccount:kubevirt:kubevirt-controller"


def request(
    new: Object | dict[str, Any] | None = None,
    old: Object | dict[str, Any] | None = None,
    *,
    user: str = ALICE,
    groups: Sequence[str] = (),
    operation: str = "",
    resource: str = "",
    sub_resource: str = "",
    namespace: str = "ns1",
    dry_run: bool = False,
) -> AdmissionRequest:
    """A request as the API server puts it; the operation follows from which objects there are."""
    content = {
        "uid": "request-1",
        "namespace": namespace,
        "resource": {"resource": resource},
        "subResource": sub_resource,
        "operation": operation or ("DELETE" if new is None else "CREATE" if old is None else "UPDATE"),
        "userInfo": {"username": user, "groups": list(groups)},
        "object": new,
        "oldObject": old,
        "dryRun": dry_run,
    }
    return msgspec.json.decode(msgspec.json.encode(content), type=AdmissionRequest)


class State:
    """A namespace `ns1` at one moment."""

    def __init__(
        self,
        *quotas: ResourceQuota,
        migrations: Sequence[VirtualMachineInstanceMigration] = (),
        instances: Sequence[VirtualMachineInstance] | None = None,
        pods: Sequence[Pod] = (),
        limits: str = BASE,
        deleting: bool = False,
    ) -> None:
        self.quotas = list(quotas)
        self.migrations = list(migrations)
        self.instances = instances
        self.pods = list(pods)
        self.namespace = annotated_namespace(limits, deleting=deleting)
        self.limits = limits
        self.now = 0.0
        self.off = False

    def observe(self, quota: ResourceQuota) -> Facts:
        result = observed(quota, self.migrations, self.instances, limits=self.limits, now=self.now)
        return replace(result, pods=self.pods, namespace_off=self.off)


class FakeView(View):
    """`cached` is what the caches show; `live` what the API server says, None when it does not answer. `looked` are
    the live looks that were taken."""

    def __init__(self, cached: State, live: State | None) -> None:
        self.cached = cached
        self.live = live
        self.looked: list[str] = []
        self.watched = True
        self.asked_of: set[str] = set()
        """The namespaces whose pods are watched."""
        self.ended: dict[str, Pod] = {}
        """The pods that the watch saw end a moment ago."""
        self.runs = NEWEST

    def observe(self, quota: ResourceQuota, source: Source | None = None) -> Facts:
        result = self.cached if source is None else self.live
        assert result is not None
        return result.observe(quota)

    def namespace(self, name: str) -> Namespace | None:
        return self.cached.namespace

    def migrating(self, quota: ResourceQuota) -> tuple[str, ...]:
        instances = self.cached.observe(quota).instances.values()
        return tuple(sorted(names_by_key(quota.annotations, self.cached.migrations, instances).values()))

    def quotas(self, namespace: str = "") -> list[ResourceQuota]:
        return self.cached.quotas

    def pods(self, namespace: str, *, begin: bool = True) -> Pods | None:
        if begin:
            self.asked_of.add(namespace)
        watched = self.watched and namespace in self.asked_of
        return Pods(list(self.cached.pods), self.ended) if watched else None

    def releases(self) -> Releases:
        return self.runs

    async def pods_live(self, namespace: str) -> Pods:
        self.asked_of.add(namespace)
        return Pods(list(self._answer("pods").pods), self.ended)

    def _answer(self, look: str) -> State:
        self.looked.append(look)
        if self.live is None:
            raise NoAnswer("the API server does not answer: timed out")
        return self.live

    async def source_live(self, namespace: str) -> Source | None:
        self._answer("observe")
        return Source()

    async def observe_live(self, quota: ResourceQuota) -> Facts | None:
        return self._answer("observe").observe(quota)

    async def quota_live(self, quota: ResourceQuota) -> ResourceQuota:
        result = [q for q in self._answer("quota").quotas if q.name == quota.name]
        return result[0] if result else quota

    async def quotas_live(self, namespace: str) -> list[ResourceQuota]:
        return self._answer("quotas").quotas

    async def namespace_live(self, name: str) -> Namespace | None:
        return self._answer("namespace").namespace
