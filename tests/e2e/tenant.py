"""A namespace under quota, its VMs and their migrations, driven by hand: who plays KubeVirt is the test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kubeloop.testing.polling import PATIENCE, eventually, polls
from lab import bodies
from lab.namespace import by_value
from pkg.util.quantity import Quantity
from tests.e2e.api import CORE, KUBEVIRT, Api, Raw

ANNOTATION = "field.cattle.io/resourceQuota"
DEFAULT = "resourcequota.management.cattle.io/default-resource-quota"
SKIP = "harvesterhci.io/skipResourceQuotaAutoScaling"
OWNER = "headroom.harvesterhci.io/owner"
RESYNC = "harvesterhci.io/migratingScalingResyncNeeded"
COMPENSATION = "harvesterhci.io/migratingCompensation"
STATE = "harvesterhci.io/migrationState"
TIMESTAMP = "harvesterhci.io/timestamp"
REJECTED = "migrationRejectedByResourceQuota"

BASE = {"limitsCpu": "3000m", "limitsMemory": "5000Mi"}
HARD = {"limits.cpu": "3", "limits.memory": "5000Mi"}
ENTRY = {"limits.cpu": "2", "limits.memory": "4737464313"}
RAISED = {"limits.cpu": "5", "limits.memory": "9980344313"}
"""The seed's numbers."""


def entry_keys(annotations: Mapping[str, str]) -> list[str]:
    """The migrating entries' keys, in order."""
    return sorted(
        key
        for key in annotations
        if key.startswith(("harvesterhci.io/migrating-", "harvesterhci.io/migratingUID-"))
    )


class NamespaceRequests:
    """A namespace's paths, and what is read of its quotas, migrations and events."""

    patience = PATIENCE
    """Seconds that spec.hard is waited for."""

    def __init__(self, api: Api, name: str) -> None:
        self.api = api
        self.name = name
        self.path = f"{CORE}/namespaces/{name}"
        self.quotas = f"{self.path}/resourcequotas"
        self.kubevirt = f"{KUBEVIRT}/namespaces/{name}"
        self.instances = f"{self.kubevirt}/virtualmachineinstances"
        self.migrations = f"{self.kubevirt}/virtualmachineinstancemigrations"

    def quota(self, name: str = "") -> Raw:
        """A quota by name; without one, the default quota."""
        raise NotImplementedError

    def hard(self, name: str = "") -> dict[str, Quantity]:
        return by_value(self.quota(name)["spec"]["hard"])

    def used(self, name: str = "") -> dict[str, Quantity]:
        return by_value(self.quota(name)["status"]["used"])

    def annotations(self, name: str = "") -> dict[str, str]:
        return self.quota(name)["metadata"].get("annotations") or {}

    def entries(self, name: str = "") -> dict[str, dict[str, Quantity]]:
        """Key to value of every migrating entry."""
        annotations = self.annotations(name)
        return {key: by_value(json.loads(annotations[key])) for key in entry_keys(annotations)}

    def events(self, reason: str) -> list[Raw]:
        """Events of a reason in the namespace."""
        return self.api.items(f"{self.path}/events", fieldSelector=f"reason={reason}")

    def wait_hard(self, hard: Mapping[str, Any], name: str = "", timeout: float = 0.0) -> float:
        """Until spec.hard says that, by value; the seconds that it took."""
        wanted, found = by_value(hard), {}
        for passed in polls(timeout or self.patience):
            found = self.hard(name)
            if found == wanted:
                return passed
        raise AssertionError(f"{self.name}: spec.hard is {found}, not {wanted}")

    def migration(self, name: str) -> Raw:
        """Empty when there is none."""
        return self.api.find(f"{self.migrations}/{name}") or {}

    def phase_of(self, name: str) -> str:
        return str(self.migration(name).get("status", {}).get("phase") or "")

    def is_refused(self, name: str) -> bool:
        """Pending, and quota said no."""
        conditions = self.migration(name).get("status", {}).get("conditions") or ()
        refusals = [c for c in conditions if c["type"] == REJECTED and c["status"] == "True"]
        return self.phase_of(name) == "Pending" and bool(refusals)

    def wait_phase(self, name: str, *phases: str, timeout: float = PATIENCE) -> str:
        """Until the migration is in one of the phases; which."""

        def why() -> str:
            quotas = [
                (q["metadata"]["name"], q["spec"], q.get("status")) for q in self.api.items(self.quotas)
            ]
            return f"{name} is not {phases}: {self.migration(name)}; {quotas}"

        eventually(lambda: self.phase_of(name) in phases, timeout, why)
        return self.phase_of(name)

    def get_vmi(self, name: str = "vm1") -> Raw:
        return self.api.get(f"{self.instances}/{name}")

    def shown(self, name: str = "vm1") -> str | None:
        """The migration state that the VMI shows."""
        state: str | None = (self.get_vmi(name)["metadata"].get("annotations") or {}).get(STATE)
        return state

    def wait_shown(self, state: str | None, name: str = "vm1", timeout: float = PATIENCE) -> None:
        eventually(lambda: self.shown(name) == state, timeout)

    def leave(self) -> None:
        """Take the namespace away, its VMs and migrations first: no stand-in shall take them up."""
        for plural in ("virtualmachineinstancemigrations", "virtualmachines", "virtualmachineinstances"):
            self.api.delete(f"{self.kubevirt}/{plural}")
        self.api.delete(self.path)


class Tenant(NamespaceRequests):
    """A namespace with the seed's limits: annotation 3000m / 5000Mi and the default quota that Rancher rendered."""

    def __init__(
        self,
        api: Api,
        name: str = "",
        *,
        limits: Mapping[str, str] | str | None = None,
        hard: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        quota: bool = True,
    ) -> None:
        """`limits` is the namespace annotation's limit, or its whole text; `annotations` are the quota's."""
        super().__init__(api, name or bodies.new_name())
        text = limits if isinstance(limits, str) else bodies.quota_text(BASE if limits is None else limits)
        api.create(f"{CORE}/namespaces", {"metadata": {"name": self.name, "annotations": {ANNOTATION: text}}})
        self.quota_name = "default-abc"
        if quota:
            self.make_quota(HARD if hard is None else hard, annotations)

    # The quota.

    def make_quota(
        self,
        hard: Mapping[str, str],
        annotations: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Raw:
        """The default quota, unless `labels` say otherwise."""
        metadata = {
            "name": self.quota_name,
            "labels": {DEFAULT: "true"} if labels is None else dict(labels),
            "annotations": dict(annotations or {}),
        }
        body = {"metadata": metadata, "spec": {"hard": dict(hard)}}
        return self.api.create(self.quotas, body)

    def wait_ranchers_quota(self) -> None:
        """Until Rancher has rendered the default quota; from then on it is this tenant's."""
        labelled = f"{DEFAULT}=true"

        def rendered() -> list[Raw]:
            quotas = self.api.items(self.quotas, labelSelector=labelled)
            return [quota for quota in quotas if quota.get("status", {}).get("hard")]

        self.quota_name = eventually(rendered)[0]["metadata"]["name"]

    def quota(self, name: str = "") -> Raw:
        return self.api.get(f"{self.quotas}/{name or self.quota_name}")

    def patch_quota(self, patch: Mapping[str, Any]) -> Raw:
        return self.api.patch(f"{self.quotas}/{self.quota_name}", patch)

    def revert(self) -> None:
        """What Rancher's agent does when it restarts: spec.hard goes back to the base, whatever scaled it."""
        self.patch_quota({"spec": {"hard": HARD}})

    def limit(self, limits: Mapping[str, str] | str | None) -> None:
        """An administrator changes the namespace's annotation."""
        text = limits if isinstance(limits, str) or limits is None else bodies.quota_text(limits)
        self.api.patch(self.path, {"metadata": {"annotations": {ANNOTATION: text}}})

    # VMs and migrations, played by the test.

    def vm(self, name: str = "vm1") -> Raw:
        """A VM object and its VMI with the seed's values."""
        self.api.create(f"{self.kubevirt}/virtualmachines", bodies.machine(name, {}, strategy="Halted"))
        return self.vmi(name)

    def vmi(self, name: str = "vm1", **domain: Any) -> Raw:
        """A VMI with limits 2 / 4Gi and requests 2730Mi, unless `domain` says otherwise."""
        seed = {
            "cpu": {"cores": 2, "sockets": 1, "threads": 1},
            "resources": {"limits": {"cpu": "2", "memory": "4Gi"}, "requests": {"memory": "2730Mi"}},
        }
        body = bodies.kubevirt("VirtualMachineInstance", name, {"domain": seed | domain})
        return self.api.create(self.instances, body | {"status": {"phase": "Running"}})

    def migrate(self, vm: str = "vm1", name: str = "", phase: str = "", **conditions: bool) -> str:
        """A migration of the VM; its name."""
        name = name or f"migration-of-{vm}"
        self.api.create(self.migrations, bodies.migration(name, vm))
        if phase:
            self.phase(name, phase, **conditions)
        return name

    def phase(self, migration: str, phase: str, *, refused: bool = False, abort: bool = False) -> None:
        """KubeVirt moves the migration on."""
        wanted = ((REJECTED, refused), ("migrationAbortRequested", abort))
        conditions = [{"type": kind, "status": "True"} for kind, there in wanted if there]
        path = f"{self.migrations}/{migration}/status"
        self.api.patch(path, {"status": {"phase": phase, "conditions": conditions}})

    def delete_migration(self, migration: str) -> None:
        self.api.delete(f"{self.migrations}/{migration}")

    def timestamp(self, name: str = "vm1") -> str:
        """The VM's timestamp, "" when it was never bumped."""
        vm = self.api.get(f"{self.kubevirt}/virtualmachines/{name}")
        return str((vm["metadata"].get("annotations") or {}).get(TIMESTAMP, ""))

    def uid(self, name: str = "vm1") -> str:
        """The VMI's uid."""
        return str(self.get_vmi(name)["metadata"]["uid"])
