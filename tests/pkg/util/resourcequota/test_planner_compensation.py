"""Compensation: room for a target pod that quota refused although its entry is applied."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from kubeloop.api.core import ResourceQuota
from kubeloop.api.meta import RawResourceList
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util.quantity import Quantity
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import Mode, Policy
from tests.decisions import applied, by_value, observed, sentences, settled
from tests.objects import (
    AT_4_5,
    BASE,
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
MARGIN = 128 * 2**20
HARD_MEMORY = 9980344313
NEED_AT_1_5 = 4737464313
NEED_AT_4_5 = 5622461313


def compensation_of(quota: ResourceQuota) -> int:
    text = quota.annotations.get(COMPENSATION, "{}")
    return Quantity.parse(json.loads(text).get(MEMORY, 0)).value()


def memory_of(quota: ResourceQuota) -> int:
    return Quantity.parse(quota.hard[MEMORY]).value()


def raised_to_4_5(before: ResourceQuota, migrations: Sequence[VirtualMachineInstanceMigration]) -> Facts:
    """The seed's VM lives at ratio 4.5, where its base was made for 1.5."""
    here = vmi(nodeName="node-1")
    seen = observed(before, migrations, [here], ratio="4.5")
    return replace(seen, pods=[launcher(here, rendering=AT_4_5)], rendering=AT_4_5)


def refused_at(used: int | str, **annotations: str) -> ResourceQuota:
    return quota(RAISED, {by_uid(): ENTRY, **annotations}, used={MEMORY: used})


@dataclass(frozen=True)
class Short:
    """A refused migration beside Harvester: what quota has in use, and the compensation that follows."""

    used: int | str
    compensation: int
    ratio: str = "1.5"
    migrations: Sequence[VirtualMachineInstanceMigration] = (vmim(refused=True),)
    instances: Sequence[VirtualMachineInstance] | None = None
    limits: str = BASE
    before: ResourceQuota | None = None
    hard: RawResourceList = field(default_factory=lambda: {"limits.cpu": "5"})


SHORT = {
    "what fits is not compensated": Short(HARD_MEMORY - NEED_AT_1_5, 0),
    "one byte too little brings the byte and 128Mi": Short(HARD_MEMORY - NEED_AT_1_5 + 1, MARGIN + 1),
    "the ratio raised from 1.5 to 4.5 brings the difference and 128Mi": Short(
        HARD_MEMORY - NEED_AT_1_5, NEED_AT_4_5 - NEED_AT_1_5 + MARGIN, ratio="4.5"
    ),
    "a quota used up beyond its limit brings all that is missing": Short(
        HARD_MEMORY + 5, NEED_AT_1_5 + 5 + MARGIN
    ),
    "a migration that is not refused is not compensated": Short(HARD_MEMORY, 0, migrations=[vmim()]),
    "a refused migration that is being aborted is not compensated": Short(
        HARD_MEMORY, 0, migrations=[vmim(refused=True, abort=True)]
    ),
    "a refusal that Scheduling has overtaken is not compensated": Short(
        HARD_MEMORY, 0, migrations=[vmim("Scheduling", refused=True)]
    ),
    "a VMI without memory limit is not compensated": Short(
        HARD_MEMORY, 0, instances=[vmi(limits={"cpu": "2"})]
    ),
    "a base without memory limit is not compensated": Short(
        HARD_MEMORY, 0, limits='{"limit":{"limitsCpu":"3"}}'
    ),
}


@sentences(SHORT)
def test_beside_harvester(case: Short) -> None:
    before = case.before or refused_at(case.used)
    after = settled(
        before, case.migrations, case.instances, mode=Mode.ASSIST, ratio=case.ratio, limits=case.limits
    )
    assert compensation_of(after) == case.compensation
    assert memory_of(after) == HARD_MEMORY + case.compensation


def test_a_quota_without_memory_limit_is_not_compensated() -> None:
    before = quota(
        {"limits.cpu": "5"}, {by_uid(): '{"limits.cpu":"2"}'}, used={MEMORY: HARD_MEMORY, "limits.cpu": "5"}
    )
    after = settled(before, [vmim(refused=True)], mode=Mode.ASSIST, limits='{"limit":{"limitsCpu":"3"}}')
    assert COMPENSATION not in after.annotations


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


def test_a_compensation_that_is_enough_stays_as_it_is() -> None:
    stands = {COMPENSATION: f'{{"limits.memory":"{MARGIN + 1}"}}'}
    before = quota(
        {"limits.cpu": "5", MEMORY: str(HARD_MEMORY + MARGIN + 1)},
        {by_uid(): ENTRY, **stands},
        used={MEMORY: HARD_MEMORY - NEED_AT_1_5 + 1},
    )
    assert not plan(observed(before, [vmim(refused=True)]), Policy(Mode.ASSIST))


def test_a_standing_compensation_that_is_too_small_grows_instead_of_swinging() -> None:
    """Upstream replaces it by what is missing on top of it, and swings between two values for ever."""
    stands = 4 * 2**30
    used = HARD_MEMORY + stands - NEED_AT_1_5 + 1
    before = quota(
        {"limits.cpu": "5", MEMORY: str(HARD_MEMORY + stands)},
        {by_uid(): ENTRY, COMPENSATION: f'{{"limits.memory":"{stands}"}}'},
        used={MEMORY: used},
    )
    after = settled(before, [vmim(refused=True)], mode=Mode.ASSIST)
    assert memory_of(after) >= used + NEED_AT_1_5
    assert compensation_of(after) == stands + 1 + MARGIN


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
