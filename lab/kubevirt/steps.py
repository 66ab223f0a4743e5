"""What can be done for a migration in one go, and what is known when that is decided."""

from __future__ import annotations

from dataclasses import dataclass

from kubeloop.api.core import Pod
from lab.kubevirt.instance import is_running
from lab.kubevirt.objects import MigrationState, VirtualMachineInstance, VirtualMachineInstanceMigration
from lab.kubevirt.options import MigrationOptions
from lab.kubevirt.patches import Patch
from lab.kubevirt.pod import hotplugged
from lab.kubevirt.state_claims import Pair
from pkg.util import constants


@dataclass(frozen=True, slots=True)
class Write:
    """A merge patch of the VMIM, of its VMI (what virt-controller hands over and virt-handler reports) or of the target
    pod; of its status when `subresource` is "status"."""

    obj: VirtualMachineInstanceMigration | VirtualMachineInstance | Pod
    patch: Patch
    subresource: str = ""
    event: tuple[str, str, str] | None = None
    """Type, reason and message of an Event for the migration."""

    @property
    def phase(self) -> str:
        """Of the migration, that is entered with it."""
        entered: str = self.patch.get("status", {}).get("phase", "")
        return entered


@dataclass(frozen=True, slots=True)
class CreateTarget:
    """Have the target pod created as soon as the limits and quota let it."""


@dataclass(frozen=True, slots=True)
class CreateAttachment:
    """Have the target's attachment pod created."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Re-check in `seconds`; None: when something changes."""

    seconds: float | None = None


Step = Write | CreateTarget | CreateAttachment | Wait


@dataclass(frozen=True, slots=True)
class View:
    """Everything that decides a migration's next step.

    `age`: seconds since the VMIM was first seen in its phase. `rival`: another migration of the VMI is under way.
    `source`: the pod that the guest runs in. `now`: the time as written into objects.
    """

    migration: VirtualMachineInstanceMigration
    vmi: VirtualMachineInstance | None
    source: Pod | None
    target: Pod | None
    attachment: Pod | None
    options: MigrationOptions
    now: str
    age: float = 0.0
    rival: bool = False
    report_overhead: bool = False
    claims: Pair | None = None
    """Of the VM's persistent state, if it has any."""

    @property
    def state(self) -> MigrationState:
        """The VMI's migration state if it is this migration's, else an empty one."""
        state = self.vmi.status.migration_state if self.vmi else None
        return state if state and state.migration_uid == self.migration.uid else MigrationState()

    @property
    def handed_over(self) -> bool:
        """Whether virt-handler knows of the migration: it stands in the VMI's status."""
        return self.state.migration_uid is not None

    @property
    def vmi_runs(self) -> bool:
        return self.vmi is not None and self.vmi.phase == constants.PHASE_RUNNING and not self.vmi.deleting

    @property
    def hotplug(self) -> bool:
        return self.vmi is not None and bool(hotplugged(self.vmi))

    @property
    def target_runs(self) -> bool:
        return is_running(self.target)

    def remaining(self, phase: str) -> float:
        """Seconds that the phase still has to last, to the microsecond: what is less is the clock's own error."""
        return round(self.options.hold(phase) - self.age, 6)
