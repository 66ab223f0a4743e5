"""On a migration's change its VMI shows where it stands (Harvester vmim_controller.go, the state half)."""

from __future__ import annotations

from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.controller.migration.ui_state import UIStateWriter
from pkg.generic.cache_reader import CacheReader


class VMIMHandler:
    """Handles VirtualMachineInstanceMigrations."""

    def __init__(self, instances: CacheReader[VirtualMachineInstance], states: UIStateWriter) -> None:
        self._instances = instances
        self._states = states

    async def on_vmim_changed(self, _key: str, vmim: VirtualMachineInstanceMigration | None) -> None:
        """A migration that is gone, or whose VMI is, is a leftover: nothing to show."""
        if vmim is None:
            return
        vmi = self._instances.get(namespace=vmim.namespace, name=vmim.spec.vmi_name)
        if vmi is not None:
            await self._states.sync(vmi)
