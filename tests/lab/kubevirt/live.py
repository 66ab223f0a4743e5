"""A namespace of a running cluster, asked and told in plain JSON by the client that shares no code with the product."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from kubeloop.api import registry
from kubeloop.api.registry import Resource
from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import PATIENCE, eventually
from lab import bodies
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES, VIRTUAL_MACHINES
from tests.e2e.api import CORE, Api
from tests.objects import SEED_DOMAIN

Body = dict[str, Any]
VMS, VMIS = VIRTUAL_MACHINES, VIRTUAL_MACHINE_INSTANCES
VMIMS, PODS, QUOTAS = VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, registry.PODS, registry.RESOURCE_QUOTAS
SEED = '{"limit":{"limitsCpu":"3000m","limitsMemory":"5000Mi"}}'
ROOMY = {"limits.cpu": "1k", "limits.memory": "10Ti"}
LASTING = 600.0
"""Seconds of a phase that a migration stays in until it is told to hurry."""


class Live:
    """Makes the namespace, with Rancher's annotation where there is one."""

    def __init__(self, cluster: Cluster, annotation: str | None = None) -> None:
        self.api = Api(cluster.kubeconfig)
        self.namespace = bodies.new_name()
        annotations = {"field.cattle.io/resourceQuota": annotation} if annotation else {}
        self.api.create(
            f"{CORE}/namespaces", {"metadata": {"name": self.namespace, "annotations": annotations}}
        )

    def create(self, resource: Resource[Any], body: Body) -> Body:
        kind = {"apiVersion": resource.api_version, "kind": resource.kind}
        return self.api.create(resource.path(self.namespace), {**kind, **body})

    def get(self, resource: Resource[Any], name: str) -> Body:
        """{} when it is not there."""
        return self.api.find(resource.path(self.namespace, name)) or {}

    def items(self, resource: Resource[Any]) -> list[Body]:
        return self.api.items(resource.path(self.namespace))

    def delete(self, resource: Resource[Any], name: str) -> None:
        self.api.delete(resource.path(self.namespace, name))

    def wait(
        self, resource: Resource[Any], name: str, check: Callable[[Body], object], timeout: float = PATIENCE
    ) -> Body:
        """The object as soon as `check` holds; an object that is not there is {}."""
        found: list[Body] = [{}]

        def holds() -> object:
            found[0] = self.get(resource, name)
            return check(found[0])

        eventually(holds, timeout, lambda: f"{resource.kind} {name}: {json.dumps(found[0], indent=1)}")
        return found[0]

    def start(self, name: str = "vm1", **annotations: str) -> None:
        """A VM of the seed."""
        marks = bodies.stand_in(**annotations)
        self.create(VMS, bodies.machine(name, {"domain": SEED_DOMAIN}, strategy="Always", annotations=marks))

    def runs(self, *names: str, timeout: float = PATIENCE) -> None:
        """Until these VMs run."""
        for name in names:
            self.wait(VMS, name, status("printableStatus", "Running"), timeout)

    def started(self, name: str = "vm1", **annotations: str) -> None:
        """A VM of the seed that runs."""
        self.start(name, **annotations)
        self.runs(name)

    def migrate(self, name: str = "m1", vmi: str = "vm1", **annotations: str) -> None:
        self.create(VMIMS, bodies.migration(name, vmi, **annotations))

    def hurry(self, *names: str) -> None:
        """What was to last ends now."""
        for name in names:
            marks = {"metadata": {"annotations": bodies.stand_in(phase_seconds="0.05")}}
            self.api.patch(VMIMS.path(self.namespace, name), marks)

    def phase(self, name: str, phase: str) -> Body:
        """The migration as soon as it is in the phase."""
        return self.wait(VMIMS, name, status("phase", phase))

    def quota(self, check: Callable[[Body], object] = bool) -> Body:
        """The namespace's only quota as soon as `check` holds."""

        def found() -> list[Body]:
            return [quota for quota in self.items(QUOTAS)[:1] if check(quota)]

        quotas: list[Body] = eventually(found, why=lambda: json.dumps(self.items(QUOTAS), indent=1))
        return quotas[0]

    def patch_quota(self, patch: Body) -> None:
        self.api.patch(QUOTAS.path(self.namespace, self.quota()["metadata"]["name"]), patch)

    def set_hard(self, hard: dict[str, str]) -> None:
        self.patch_quota({"spec": {"hard": hard}})

    def launchers(self) -> list[Body]:
        pods = self.items(PODS)
        return [pod for pod in pods if pod["metadata"]["labels"].get("kubevirt.io") == "virt-launcher"]


def status(field: str, value: str) -> Callable[[Body], bool]:
    """Whether a field of the status has the value."""
    return lambda body: body.get("status", {}).get(field) == value


def used(**amounts: str) -> Callable[[Body], bool]:
    """Whether a quota counts these limits: cpu, memory."""
    wanted = {f"limits.{name}": amount for name, amount in amounts.items()}
    return lambda quota: wanted.items() <= quota.get("status", {}).get("used", {}).items()


def conditions(body: Body) -> dict[str, str]:
    return {c["type"]: c["status"] for c in body.get("status", {}).get("conditions") or []}


def phases(body: Body) -> list[str]:
    return [stamp["phase"] for stamp in body["status"]["phaseTransitionTimestamps"]]
