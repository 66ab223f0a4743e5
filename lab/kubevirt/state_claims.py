"""The claims of VMs' persistent state, as KubeVirt makes them: one a VM, and one for each migration's target.

They are found by KubeVirt's labels, on the API server itself: few VMs have any. Instead of a provisioner the stand-in
binds them. Source: KubeVirt pkg/storage/backend-storage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from kubeloop.api.core import PersistentVolumeClaim
from kubeloop.api.objects import guarded, owner_reference
from kubeloop.api.workloads import StorageClass
from kubeloop.client.errors import AlreadyExists, NotFound
from kubeloop.client.resource_client import ResourceClient
from lab.kubevirt import names
from lab.kubevirt.objects import VirtualMachineInstance, VirtualMachineInstanceMigration
from lab.kubevirt.patches import Patch
from lab.kubevirt.rendering import Rendering
from pkg.util.constants import LABEL_MIGRATION_NAME
from pkg.util.kubevirt.claims import state_size

LABEL_OF_VM: Final = "persistent-state-for"
VOLUME: Final = "persistent-state-for-this-vm"
_DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
_SHARED, _SINGLE = "ReadWriteMany", "ReadWriteOnce"


@dataclass(frozen=True, slots=True)
class Pair:
    """A migration's claims by name; the target's is "" while there is none, and the source's where it is shared."""

    source: str
    target: str = ""

    def state(self) -> Patch:
        """For a migration's state."""
        names = {"sourcePersistentStatePVCName": self.source, "targetPersistentStatePVCName": self.target}
        return {name: claim for name, claim in names.items() if claim}


@dataclass(eq=False)
class StateClaims:
    """Creates, binds, relabels and deletes them. Everything raises ApiError."""

    claims: ResourceClient[PersistentVolumeClaim]
    classes: ResourceClient[StorageClass]
    rendering: Callable[[str], Rendering]

    async def of_instance(self, vmi: VirtualMachineInstance) -> str:
        """The name of the VM's claim, which is made if there is none."""
        found = await self._current(vmi)
        if found is None:
            found = await self._create(vmi, {LABEL_OF_VM: vmi.name}, vmi.uid)
        return found.name

    async def pair(self, vmi: VirtualMachineInstance, migration: VirtualMachineInstanceMigration) -> Pair:
        source, target = await self._current(vmi), await self._target(migration)
        shared = source is not None and _is_shared(source)
        name = source.name if source else ""
        return Pair(name, name if shared else target.name if target else "")

    async def of_target(self, vmi: VirtualMachineInstance, migration: VirtualMachineInstanceMigration) -> str:
        """The name of the target's claim, which is made if there is none and the source's cannot be shared."""
        found = await self.pair(vmi, migration)
        if found.target:
            return found.target
        return (await self._create(vmi, {LABEL_MIGRATION_NAME: migration.name}, migration.uid)).name

    async def hand_over(self, vmi: VirtualMachineInstance, migration: VirtualMachineInstanceMigration) -> None:
        """The target's is the VM's now, the source's goes."""
        target = await self._target(migration)
        if target is None:
            return
        source = await self._current(vmi)
        labels = {LABEL_OF_VM: vmi.name, LABEL_MIGRATION_NAME: None}
        patch = guarded(target, {"metadata": {"labels": labels}})
        await self.claims.merge_patch(patch, name=target.name, namespace=target.namespace)
        if source is not None:
            await self._delete(source)

    async def drop(self, migration: VirtualMachineInstanceMigration) -> None:
        """The migration has failed: the target's goes."""
        target = await self._target(migration)
        if target is not None:
            await self._delete(target)

    async def _current(self, vmi: VirtualMachineInstance) -> PersistentVolumeClaim | None:
        return await self._labelled(vmi.namespace, LABEL_OF_VM, vmi.name)

    async def _target(self, migration: VirtualMachineInstanceMigration) -> PersistentVolumeClaim | None:
        return await self._labelled(migration.namespace, LABEL_MIGRATION_NAME, migration.name)

    async def _labelled(self, namespace: str, label: str, value: str) -> PersistentVolumeClaim | None:
        found = await self.claims.list(namespace, label_selector=f"{label}={value}")
        return next((claim for claim in found if not claim.deleting), None)

    async def _create(self, vmi: VirtualMachineInstance, labels: dict[str, str], uid: str) -> PersistentVolumeClaim:
        rendering = self.rendering(vmi.namespace)
        chosen = rendering.kubevirt.vm_state_storage_class
        body = _body(vmi, labels, uid, state_size(vmi, rendering.profile), chosen or await self._default_class())
        body["spec"]["accessModes"] = [_SHARED if chosen else _SINGLE]
        name = body["metadata"]["name"]
        try:
            await self.claims.create(body, namespace=vmi.namespace)
        except AlreadyExists:  # an earlier answer was lost
            pass
        claim = await self.claims.get(name=name, namespace=vmi.namespace)
        bound = {"phase": "Bound", "accessModes": body["spec"]["accessModes"]}
        await self.claims.merge_patch({"status": bound}, name=name, namespace=vmi.namespace, subresource="status")
        return claim

    async def _default_class(self) -> str | None:
        found = [each.name for each in await self.classes.list() if each.annotations.get(_DEFAULT_CLASS) == "true"]
        return min(found, default=None)

    async def _delete(self, claim: PersistentVolumeClaim) -> None:
        try:
            await self.claims.delete(name=claim.name, namespace=claim.namespace, uid=claim.uid)
        except NotFound:
            return


def volume_status(vmi: VirtualMachineInstance, claim: str) -> Patch | None:
    """The merge patch of the VMI's volumeStatus that names its claim, None when it does."""
    before = vmi.status.volume_status or []
    named = [each.persistent_volume_claim_info for each in before if each.name == VOLUME]
    if any(info is not None and info.claim_name == claim for info in named):
        return None
    rest = [msgspec.to_builtins(each) for each in before if each.name != VOLUME]
    own = {"name": VOLUME, "persistentVolumeClaimInfo": {"claimName": claim}}
    return {"status": {"volumeStatus": [own, *rest]}}


def _is_shared(claim: PersistentVolumeClaim) -> bool:
    return (claim.status.access_modes or [""])[0] == _SHARED


def _body(
    vmi: VirtualMachineInstance, labels: dict[str, str], uid: str, size: str, storage_class: str | None
) -> dict[str, Any]:
    base = f"persistent-state-for-{vmi.name}-"
    owners = vmi.metadata.owner_references or [owner_reference(vmi, controller=True)]
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": names.generated_name(base, uid),
            "generateName": names.generate_name(base),
            "namespace": vmi.namespace,
            "labels": {**labels, "cdi.kubevirt.io/applyStorageProfile": "true"},
            "ownerReferences": msgspec.to_builtins(owners),
        },
        "spec": {
            "resources": {"requests": {"storage": size}},
            "storageClassName": storage_class,
            "volumeMode": "Filesystem",
        },
    }
