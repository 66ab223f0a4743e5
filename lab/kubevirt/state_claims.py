"""The claims of VMs' persistent state, as KubeVirt makes them: one a VM, and one for each migration's target.

They are found by KubeVirt's labels, on the API server itself: few VMs have any. Instead of a provisioner the stand-in
binds them. Source: KubeVirt pkg/storage/backend-storage.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from kubeloop.api.core import PersistentVolumeClaim
from kubeloop.api.objects import owner_reference
from kubeloop.api.workloads import StorageClass
from kubeloop.client.errors import AlreadyExists
from kubeloop.client.resource_client import ResourceClient
from lab.kubevirt.objects import Patch, VirtualMachineInstance, VirtualMachineInstanceMigration, delete
from lab.kubevirt.pod import generated_names
from pkg.util.kubevirt.claims import state_size
from pkg.util.kubevirt.rendering import Rendering

LABEL_MIGRATION_NAME: Final = "kubevirt.io/migrationName"
"""On the claim of a target's state."""
LABEL_OF_VM: Final = "persistent-state-for"
_DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
_SHARED, _SINGLE = "ReadWriteMany", "ReadWriteOnce"


@dataclass(frozen=True, slots=True)
class ClaimPair:
    """A migration's claims by name; the target's is "" while there is none, and the source's where it is shared."""

    source: str
    target: str = ""

    def state(self) -> Patch:
        """Returns the names for a migration's state."""
        names = {"sourcePersistentStatePVCName": self.source, "targetPersistentStatePVCName": self.target}
        return {name: claim for name, claim in names.items() if claim}


@dataclass(eq=False)
class StateClaims:
    """Creates, binds, relabels and deletes them. Everything raises ApiError."""

    claims: ResourceClient[PersistentVolumeClaim]
    classes: ResourceClient[StorageClass]
    rendering: Callable[[str], Rendering]

    async def of(self, vmi: VirtualMachineInstance, migration: VirtualMachineInstanceMigration | None) -> str:
        """The name of the VM's claim, or of its migration's target's, which is made if there is none: for a target only
        where the source's cannot be shared."""
        if migration is None:
            claim = await self._current(vmi)
            return claim.name if claim else await self._create(vmi, {LABEL_OF_VM: vmi.name}, vmi.uid)
        target = (await self.pair(vmi, migration)).target
        return target or await self._create(vmi, {LABEL_MIGRATION_NAME: migration.name}, migration.uid)

    async def pair(self, vmi: VirtualMachineInstance, migration: VirtualMachineInstanceMigration) -> ClaimPair:
        source, target = await self._current(vmi), await self._target(migration)
        is_shared = source is not None and (source.status.access_modes or [""])[0] == _SHARED
        name = source.name if source else ""
        return ClaimPair(name, name if is_shared else target.name if target else "")

    async def hand_over(self, vmi: VirtualMachineInstance, migration: VirtualMachineInstanceMigration) -> None:
        """The target's is the VM's now, the source's goes."""
        target = await self._target(migration)
        if target is None:
            return
        source = await self._current(vmi)
        await self.claims.patch(target, {"metadata": {"labels": {LABEL_OF_VM: vmi.name, LABEL_MIGRATION_NAME: None}}})
        if source is not None:
            await delete(self.claims, source)

    async def drop(self, migration: VirtualMachineInstanceMigration) -> None:
        """The migration has failed: the target's goes."""
        if target := await self._target(migration):
            await delete(self.claims, target)

    async def _current(self, vmi: VirtualMachineInstance) -> PersistentVolumeClaim | None:
        return await self._claim_with_label(vmi.namespace, LABEL_OF_VM, vmi.name)

    async def _target(self, migration: VirtualMachineInstanceMigration) -> PersistentVolumeClaim | None:
        return await self._claim_with_label(migration.namespace, LABEL_MIGRATION_NAME, migration.name)

    async def _claim_with_label(self, namespace: str, label: str, value: str) -> PersistentVolumeClaim | None:
        claims = await self.claims.list(namespace, label_selector=f"{label}={value}")
        return next((claim for claim in claims if not claim.deleting), None)

    async def _create(self, vmi: VirtualMachineInstance, labels: Mapping[str, str], uid: str) -> str:
        """Creates a claim and returns its name. Where the configuration chooses a class, source and target share one
        claim."""
        rendering = self.rendering(vmi.namespace)
        configured_class = rendering.kubevirt.vm_state_storage_class
        modes = [_SHARED if configured_class else _SINGLE]
        metadata = generated_names(f"persistent-state-for-{vmi.name}-", uid)
        owners = vmi.metadata.owner_references or [owner_reference(vmi, controller=True)]
        body = {
            "metadata": {
                **metadata,
                "labels": {**labels, "cdi.kubevirt.io/applyStorageProfile": "true"},
                "ownerReferences": msgspec.to_builtins(owners),
            },
            "spec": {
                "accessModes": modes,
                "resources": {"requests": {"storage": state_size(vmi, rendering.profile)}},
                "storageClassName": configured_class or await self._default_class(),
                "volumeMode": "Filesystem",
            },
        }
        name, namespace = metadata["name"], vmi.namespace
        with contextlib.suppress(AlreadyExists):  # an earlier answer was lost
            await self.claims.create(body, namespace=namespace)
        status = {"status": {"phase": "Bound", "accessModes": modes}}
        await self.claims.merge_patch(status, name=name, namespace=namespace, subresource="status")
        return name

    async def _default_class(self) -> str | None:
        names = [c.name for c in await self.classes.list() if c.annotations.get(_DEFAULT_CLASS) == "true"]
        return min(names, default=None)
