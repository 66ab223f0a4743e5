"""A namespace under quota, its VMs and their migrations, driven by hand: who plays KubeVirt is the test."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lab import bodies
from lab.namespace import QUOTAS, VMIS, VMS, Namespace
from pkg.util.constants import ANNOTATION_RANCHER_RESOURCE_QUOTA
from tests.e2e.admin import HARD, LIMITS, Admin

DEFAULT = "resourcequota.management.cattle.io/default-resource-quota"
SKIP = "harvesterhci.io/skipResourceQuotaAutoScaling"
OWNER = "headroom.harvesterhci.io/owner"
COMPENSATION = "harvesterhci.io/migratingCompensation"

RAISED = {"limits.cpu": "5", "limits.memory": "9980344313"}
"""The seed's numbers: HARD and Harvester's estimate."""


class Tenant(Namespace):
    """A namespace with the seed's limits: annotation 3000m / 5000Mi and the default quota that Rancher rendered."""

    @classmethod
    async def made(
        cls,
        admin: Admin,
        *,
        limits: Mapping[str, str] = LIMITS,
        annotations: Mapping[str, str] | None = None,
        quota: bool = True,
    ) -> Tenant:
        """`limits` is the namespace annotation's limit; `annotations` are the quota's."""
        granted = {ANNOTATION_RANCHER_RESOURCE_QUOTA: bodies.quota_text(limits)}
        namespace = cls(admin.client, (await admin.namespace(annotations=granted)).name)
        if quota:
            body = bodies.default_quota("default-abc", HARD)
            body["metadata"]["annotations"] = dict(annotations or {})
            await namespace.create(QUOTAS, body)
        return namespace

    async def revert(self) -> None:
        """What Rancher's agent does when it restarts: spec.hard goes back to the base, whatever scaled it."""
        await self.set_hard(HARD)

    async def limit(self, limits: Mapping[str, str]) -> None:
        """An administrator changes the namespace's annotation."""
        await self.annotate(bodies.quota_text(limits))

    async def vm(self, name: str = "vm1") -> None:
        """A VM object and its VMI with the seed's values."""
        await self.create(VMS, bodies.machine(name, {}, strategy="Halted"))
        await self.instance(name)

    async def instance(self, name: str, **domain: Any) -> None:
        """A VMI with limits 2 / 4Gi and requests 2730Mi, unless `domain` says otherwise."""
        seed = {
            "cpu": {"cores": 2, "sockets": 1, "threads": 1},
            "resources": {"limits": {"cpu": "2", "memory": "4Gi"}, "requests": {"memory": "2730Mi"}},
        }
        body = bodies.kubevirt("VirtualMachineInstance", name, {"domain": seed | domain})
        # Of the answer the metadata alone: a `domain` may be garbage.
        await self.create(VMIS.metadata(), body | {"status": {"phase": "Running"}})

    async def refused(self, vm: str = "vm1", name: str = "") -> str:
        """A migration that quota has refused; its name."""
        migration = await self.migrate(vm, name)
        await self.enter(migration, "Pending", refused=True)
        return migration

    async def moving(self, vm: str = "vm1") -> str:
        """A migration in phase Running; its name."""
        migration = await self.migrate(vm)
        await self.enter(migration, "Running")
        return migration
