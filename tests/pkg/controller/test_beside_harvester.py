"""Headroom and Harvester's own vmim, VMI and VM controllers: what both write to VMIs and VMs is written once, by
one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from kubeloop.api.quantity import Quantity
from kubeloop.api.resource_list import total
from pkg.api.kubevirt import VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.kubevirt.migration import abort_requested, annotations_for
from pkg.util.resourcequota.base import parse_base
from pkg.util.resourcequota.entries import read
from pkg.util.resourcequota.room import shortage_of
from tests.decisions import observed
from tests.kinds import edited
from tests.objects import POD_ENTRY, by_name, limits_text, quota, vm, vmi, vmim

UID, STATE = constants.ANNOTATION_MIGRATION_UID, constants.ANNOTATION_MIGRATION_STATE
REASON = constants.ANNOTATION_INSUFFICIENT_RESOURCE_QUOTA

Changes = Mapping[str, str | None]
Writer = Callable[[VirtualMachineInstance, VirtualMachineInstanceMigration], Changes]


# ---- the state that a VMI shows ------------------------------------------------------------------------------


def harvester(vmi: VirtualMachineInstance, migration: VirtualMachineInstanceMigration) -> Changes:
    """Its vmim and VMI controllers at a migration's event."""
    reported = vmi.status.migration_state
    shown_uid = vmi.annotations.get(UID)
    completed = bool(reported and reported.completed and reported.migration_uid == shown_uid)
    if completed or migration.phase in constants.FINAL_PHASES:
        return {key: None for key in constants.VMI_STATE_ANNOTATIONS if key in vmi.annotations}
    pending = migration.phase in ("", constants.PHASE_PENDING)
    state = "Pending migration" if pending else "Migrating"
    if abort_requested(migration):
        state = "Aborting migration"
    if vmi.annotations.get(STATE) == state:
        return {}
    return {UID: migration.uid, STATE: state}


def headroom(vmi: VirtualMachineInstance, migration: VirtualMachineInstanceMigration) -> Changes:
    return annotations_for(vmi, [migration])


LIVES: Mapping[str, Sequence[tuple[str | None, bool]]] = {
    "it succeeds": [(None, False), ("Pending", False), ("Scheduling", False), ("Running", False), ("Succeeded", False)],
    "it fails": [("Pending", False), ("Scheduled", False), ("Failed", False)],
    "it is aborted": [("Pending", False), ("Running", False), ("Running", True), ("Failed", True)],
    "it is aborted while it waits": [("Pending", False), ("Pending", True), ("Failed", True)],
}


@pytest.mark.parametrize("life", LIVES.values(), ids=LIVES)
@pytest.mark.parametrize("order", [(harvester, headroom), (headroom, harvester)], ids=["it first", "we first"])
def test_a_state_is_written_by_the_first_controller_only(
    life: Sequence[tuple[str | None, bool]], order: Sequence[Writer]
) -> None:
    written_vmi = vmi()
    for phase, abort in life:
        migration = vmim(phase, abort=abort)
        written_vmi = edited(written_vmi, metadata={"annotations": order[0](written_vmi, migration)})
        assert order[1](written_vmi, migration) == {}
        assert order[0](written_vmi, migration) == {}
    assert not {UID, STATE} & written_vmi.annotations.keys()


# ---- a VM that cannot start ----------------------------------------------------------------------------------


def harvester_lacks(machine: VirtualMachine, base: str, rq: Any, need: Mapping[str, Quantity]) -> bool:
    """Its check: base − (status.used − the migrating entries), limits alone."""
    granted, headroom = parse_base(base), total(read(rq.annotations).by_key.values())
    zero = Quantity.of(0)
    return any(
        amount > granted[name] - (Quantity.parse(rq.used.get(name, "0")) - headroom.get(name, zero))
        for name, amount in need.items()
        if name in granted
    )


NEED = {"limits.cpu": Quantity.parse("2015m"), "limits.memory": Quantity.parse("4797464313")}


@pytest.mark.parametrize(("cpu", "fits"), [("4030m", True), ("4029m", False), ("10", True), ("3", False)])
def test_headroom_for_a_migration_halts_no_vm_in_either_check(cpu: str, fits: bool) -> None:
    base = limits_text(cpu, "20Gi")
    used = {"limits.cpu": "4030m", "limits.memory": "9594928626"}
    rq = quota({"limits.cpu": cpu, "limits.memory": "20Gi"}, {by_name("vm2"): POD_ENTRY}, used=used)
    other_vmim = vmim("Running", vm="vm2")
    facts = observed(rq, limits=base, migrations=[other_vmim], instances=[vmi("vm2")])
    assert (shortage_of(vm(), facts) is None) is fits
    assert harvester_lacks(vm(), base, rq, NEED) is not fits
