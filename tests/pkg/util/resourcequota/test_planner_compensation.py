"""Compensation: room for a target pod that quota refused although its entry is applied; beside Harvester see also the
recorded scenarios (test_scenarios)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kubeloop.api.core import ResourceQuota
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.util.quantity import Quantity
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import Mode, Policy
from tests.decisions import applied, by_value, observed, settled
from tests.objects import (
    AT_4_5,
    COMPENSATION,
    ENTRY,
    HARD,
    RAISED,
    by_name,
    by_uid,
    launcher,
    quota,
    vmi,
    vmim,
)

MEMORY = "limits.memory"
HARD_MEMORY = 9980344313
NEED_AT_1_5 = 4737464313
NEED_AT_4_5 = 5622461313


def memory_of(quota: ResourceQuota) -> int:
    return Quantity.parse(quota.hard[MEMORY]).value()


def raised_to_4_5(before: ResourceQuota, migrations: Sequence[VirtualMachineInstanceMigration]) -> Facts:
    """The seed's VM lives at ratio 4.5, where its base was made for 1.5."""
    here = vmi(nodeName="node-1")
    seen = observed(before, migrations, [here], ratio="4.5")
    return replace(seen, pods=[launcher(here, rendering=AT_4_5)], rendering=AT_4_5)


def refused_at(used: int) -> ResourceQuota:
    return quota(RAISED, {by_uid(): ENTRY}, used={MEMORY: used})


@pytest.mark.parametrize("mode", Mode)
def test_entry_and_compensation_come_in_one_patch_when_the_namespace_is_over_its_base_already(
    mode: Mode,
) -> None:
    """Upstream takes three writes and a second of waiting for it."""
    before = quota(used={MEMORY: 5900 * 10**6})
    made = plan(raised_to_4_5(before, [vmim(refused=True)]), Policy(mode))
    after = applied(before, made)
    assert {by_uid(), by_name()} & set(after.annotations)
    assert memory_of(after) >= 5900 * 10**6 + NEED_AT_4_5


def test_the_ratio_raised_under_way_several_vms_are_refused_and_all_fit_in_the_end() -> None:
    """The seed: VMs started at ratio 1.5 and migrated at 4.5."""
    names = ["vm1", "vm2", "vm3"]
    limits = '{"limit":{"limitsCpu":"6","limitsMemory":"14212392939"}}'
    hard = {"limits.cpu": "6", "limits.memory": str(3 * NEED_AT_1_5)}
    entries = {by_uid(name): ENTRY for name in names}
    before = quota(hard, entries, used={MEMORY: 3 * NEED_AT_1_5})
    refused = [vmim(vm=name, refused=True) for name in names]
    for mode in (Mode.ASSIST, Mode.TAKEOVER):
        after = settled(before, refused, mode=mode, limits=limits, ratio="4.5")
        assert memory_of(after) >= 3 * NEED_AT_1_5 + NEED_AT_4_5
    assert memory_of(after) >= 3 * NEED_AT_1_5 + 3 * NEED_AT_4_5  # takeover: for all of them at once


def test_spec_hard_falls_later_and_the_compensation_is_looked_at_again() -> None:
    """Upstream computes it only on a VMIM's event; here a lowered base is enough."""
    before = settled(refused_at(HARD_MEMORY), [vmim(refused=True)], mode=Mode.ASSIST)
    lowered = '{"limit":{"limitsCpu":"3","limitsMemory":"4000Mi"}}'
    after = settled(before, [vmim(refused=True)], mode=Mode.ASSIST, limits=lowered)
    assert memory_of(after) >= HARD_MEMORY + NEED_AT_1_5


def test_with_the_last_entry_goes_the_compensation_and_the_namespace_is_back_at_its_base() -> None:
    for mode in Mode:
        before = quota(used={MEMORY: 6 * 2**30})
        during = applied(before, plan(raised_to_4_5(before, [vmim(refused=True)]), Policy(mode)))
        assert COMPENSATION in during.annotations
        after = settled(during, [vmim("Succeeded")], mode=mode)
        assert COMPENSATION not in after.annotations
        assert by_value(after.hard) == by_value(HARD)
