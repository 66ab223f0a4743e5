"""A namespace under quota, its VMs and their migrations, driven by hand: who plays KubeVirt is the test."""

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
    async def made(cls, admin: Admin) -> "Tenant":
        granted = {ANNOTATION_RANCHER_RESOURCE_QUOTA: bodies.quota_text(LIMITS)}
        namespace = cls(admin.client, (await admin.namespace(annotations=granted)).name)
        await namespace.create(QUOTAS, bodies.default_quota("default-abc", HARD))
        return namespace

    async def vm(self) -> None:
        """A VM object and its VMI, with limits 2 / 4Gi and requests 2730Mi."""
        seed = {
            "cpu": {"cores": 2, "sockets": 1, "threads": 1},
            "resources": {"limits": {"cpu": "2", "memory": "4Gi"}, "requests": {"memory": "2730Mi"}},
        }
        await self.create(VMS, bodies.machine("vm1", {}, strategy="Halted"))
        body = bodies.kubevirt("VirtualMachineInstance", "vm1", {"domain": seed})
        await self.create(VMIS, body | {"status": {"phase": "Running"}})

    async def refused(self, vm: str = "vm1", name: str = "") -> str:
        """A migration that quota has refused; its name."""
        migration = await self.migrate(vm, name)
        await self.enter(migration, "Pending", refused=True)
        return migration
