"""Admission as an API server runs it before it stores something: policies, then webhooks, then quota."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from kubeloop.api.core import Pod
from kubeloop.api.meta import LabelSelector
from kubeloop.api.quantity import ZERO
from kubeloop.api.registry import (
    MUTATING_WEBHOOK_CONFIGURATIONS,
    NAMESPACES,
    PODS,
    RESOURCE_QUOTAS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from kubeloop.api.resource_list import ResourceList, format_resource_list, parse_resource_list, subtract
from kubeloop.api.selectors import selector
from kubeloop.client.errors import Forbidden, ServerError
from kubeloop.testing.fake.patches import Raw, json_patched
from kubeloop.webhook.admission import (
    REVIEW_SECONDS,
    AdmissionRequest,
    BadReview,
    Decision,
    GroupVersionResource,
    Hook,
    UserInfo,
    deadline,
    deny,
)
from pkg.util.quotacount.usage import pod_usage
from tests.simulation.cluster import StoryCluster
from tests.simulation.process import SimulatedProcess
from tests.simulation.server import ApiWrite

if TYPE_CHECKING:
    from tests.simulation.promises import Promises

KUBEVIRT = "system:serviceaccount:kubevirt:kubevirt-controller"
RANCHER = "system:serviceaccount:cattle-system:cattle"
HEADROOM = "system:serviceaccount:headroom-system:headroom"
ADMIN = "admin"
TENANT = "tenant"

_POLICY = (Path(__file__).parents[2] / "deploy" / "policy.yaml").read_text()
_RESIZES_ARE_COVERED = "pods/resize" in _POLICY


class Admission:
    """Admission of one API server. `replicas` are the processes behind headroom's Service; the promises see what it
    does."""

    def __init__(
        self, cluster: StoryCluster, replicas: Sequence[SimulatedProcess], lag: float, promises: Promises
    ) -> None:
        self._cluster = cluster
        self._replicas = replicas
        self._lag = lag
        self._promises = promises
        self._own: dict[str, Raw] = {}
        # Invariant: quotas as this server wrote them last, which its cache need not show yet.

    async def review(self, write: ApiWrite) -> Raw | None:
        """The object as it is to be stored. Raises Forbidden, ServerError."""
        if self._cluster.traits.policy:
            refuse_by_policy(write)
        new = write.new
        for webhook in self._webhooks(MUTATING_WEBHOOK_CONFIGURATIONS, write):
            decision = await self._call(webhook, write)
            if decision is not None and new is not None and decision.patch:
                new = json_patched(new, list(decision.patch))
        answers = [self._call(webhook, write) for webhook in self._webhooks(VALIDATING_WEBHOOK_CONFIGURATIONS, write)]
        for decision in await asyncio.gather(*answers):
            if decision is not None and not decision.allowed:
                raise Forbidden(f"admission webhook denied the request: {decision.message}", status=403)
        self._promises.admitted(write)
        return new

    def _webhooks(self, kind: Any, write: ApiWrite) -> list[Raw]:
        labels: Mapping[str, str] = {}
        name = write.namespace or (write.name if write.resource is NAMESPACES else "")
        if name and (namespace := self._cluster.was(NAMESPACES, name, self._lag)) is not None:
            labels = {"kubernetes.io/metadata.name": name, **(namespace["metadata"].get("labels") or {})}
        namespace_labels = ((write.new or write.old or {}).get("metadata") or {}).get("labels") or {}
        return [
            webhook
            for configuration in self._cluster.were(kind, self._lag)
            for webhook in configuration.get("webhooks") or ()
            if any(_covers(rule, write) for rule in webhook.get("rules") or ())
            and _selects(webhook.get("namespaceSelector"), labels)
            and _selects(webhook.get("objectSelector"), namespace_labels)
        ]

    async def _call(self, webhook: Raw, write: ApiWrite) -> Decision | None:
        """None: no answer, and the failure policy lets it pass. Raises ServerError where it does not."""
        path = urlsplit(webhook["clientConfig"]["url"]).path
        listening = [process for process in self._replicas if path in process.hooks]
        decision = None
        if listening:
            replica = self._cluster.random.choice(listening)
            answering = replica.spawn(_answer(replica, replica.hooks[path], _request(write)))
            await asyncio.wait([answering], timeout=webhook["timeoutSeconds"])
            if answering.done() and not answering.cancelled() and answering.exception() is None:
                decision = answering.result()
            answering.cancel()
        self._promises.reviewed(write, path, decision)
        if decision is None and webhook["failurePolicy"] == "Fail":
            raise ServerError(f'failed calling webhook "{webhook["name"]}": no answer', status=500)
        return decision

    def charge(self, write: ApiWrite) -> None:
        """Quota, just before it is stored: by the quotas as the cache has them; what fits there is written only
        to quotas that are still the same, so it is decided again from those that are there. Raises Forbidden."""
        if write.resource is not PODS or write.new is None or write.subresource == "binding":
            return
        pod_request = pod_usage(msgspec.convert(write.new, Pod))
        if write.old is not None:
            pod_request = subtract(pod_request, pod_usage(msgspec.convert(write.old, Pod)))
        keys = [key for key in self._cluster.raw(RESOURCE_QUOTAS) if key.startswith(f"{write.namespace}/")]
        for key in keys:
            _refuse_above(pod_request, self._cached(key), write.name)
        current = {key: self._cluster.raw(RESOURCE_QUOTAS)[key] for key in keys}
        for quota in current.values():
            _refuse_above(pod_request, quota, write.name)
        for key, quota in current.items():
            used = parse_resource_list(quota["status"]["used"])
            total = {name: used[name] + pod_request.get(name, ZERO) for name in used}
            status = {**quota["status"], "used": format_resource_list(total)}
            new = {**quota, "metadata": dict(quota["metadata"]), "status": status}
            self._own[key] = self._cluster.store(RESOURCE_QUOTAS, key, quota, new)

    def _cached(self, key: str) -> Raw:
        """The newer of what a watch has brought and of what was written here."""
        versions = [self._cluster.was(RESOURCE_QUOTAS, key, self._lag), self._own.get(key)]
        return max(filter(None, versions), key=lambda raw: int(raw["metadata"]["resourceVersion"]))


def refuse_by_policy(write: ApiWrite) -> None:
    """deploy/policy.yaml in Python. Raises Forbidden."""
    if write.resource is not PODS or write.new is None or write.user in (KUBEVIRT, HEADROOM):
        return
    if write.subresource == "resize":
        refused = _RESIZES_ARE_COVERED and _marks(write.old or {}) != _marks({})
    else:
        refused = not write.subresource and _marks(write.old or {}) != _marks(write.new)
    if refused:
        raise Forbidden("ValidatingAdmissionPolicy denied request: only KubeVirt marks pods", status=403)


def _marks(pod: Raw) -> tuple[object, ...]:
    metadata = pod.get("metadata") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    app = labels.get("kubevirt.io")
    owners = [
        owner["uid"]
        for owner in metadata.get("ownerReferences") or ()
        if owner.get("controller") and owner["kind"] == "VirtualMachineInstance"
    ]
    return (
        app if app in ("virt-launcher", "hotplug-disk") else None,
        labels.get("kubevirt.io/migrationJobUID"),
        annotations.get("kubevirt.io/memory-overhead-bytes"),
        owners,
    )


async def _answer(replica: SimulatedProcess, hook: Hook, request: AdmissionRequest) -> Decision:
    await replica.alive(replica.life())
    with deadline(REVIEW_SECONDS):
        try:
            return await hook(request)
        except BadReview as error:
            return deny(str(error))


def _request(write: ApiWrite) -> AdmissionRequest:
    """The request as the API server sends it."""

    def raw(obj: Raw | None) -> msgspec.Raw:
        marked = obj and {**obj, "apiVersion": write.resource.api_version, "kind": write.resource.kind}
        return msgspec.Raw(msgspec.json.encode(marked))

    resource = GroupVersionResource(write.resource.group, write.resource.version, write.resource.plural)
    return AdmissionRequest(
        uid=f"review-{write.name}",
        resource=resource,
        sub_resource=write.subresource,
        name=write.name,
        namespace=write.namespace,
        operation=write.operation,
        user_info=UserInfo(username=write.user, groups=[]),
        object=raw(write.new),
        old_object=raw(write.old),
    )


def _covers(rule: Mapping[str, Sequence[str]], write: ApiWrite) -> bool:
    scope = {"apiGroups": write.resource.group, "operations": write.operation, "resources": write.plural}
    return all(not {"*", name}.isdisjoint(rule[part]) for part, name in scope.items())


def _selects(label_selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    return selector(msgspec.convert(label_selector or {}, LabelSelector))(labels)


def _refuse_above(request: ResourceList, quota: Raw, name: str) -> None:
    """Raises Forbidden, in the API server's words."""
    hard, used = (parse_resource_list(quota["status"].get(part) or {}) for part in ("hard", "used"))
    charged = {resource: limit for resource, limit in hard.items() if request.get(resource, ZERO) > ZERO}
    if any(used.get(resource, ZERO) + request[resource] > limit for resource, limit in charged.items()):
        message = f'pods "{name}" is forbidden: exceeded quota: {quota["metadata"]["name"]}'
        raise Forbidden(message, status=403, reason="Forbidden")
