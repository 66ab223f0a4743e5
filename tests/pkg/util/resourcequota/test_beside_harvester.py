"""Takeover while Harvester's own controllers still run (its pkg/controller/master/migration and resourcequota): nothing
is done to the quota twice or against each other, and both come to rest."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from kubeloop.api.core import Pod, ResourceQuota
from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.names import migrating_uid_key
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from pkg.util.resourcequota.timers import Timers
from tests.decisions import applied, by_value, charged, namespace
from tests.objects import (
    AT_4_5,
    COMPENSATION,
    HARD,
    RESYNC,
    SKIP,
    by_name,
    launcher,
    quota,
    uid_of,
    vmi,
    vmim,
)

TAKEOVER = Policy(Mode.TAKEOVER, EstimateKind.EXACT)
ARRIVED = vmi(nodeName="node-2", phase="Running")
HERE = vmi(nodeName="node-1", phase="Running")
SOURCE = launcher(node="node-1")


def harvester(rq: ResourceQuota, migration: VirtualMachineInstanceMigration) -> ResourceQuota:
    """One round of its vmim and rq controllers: a quota with the skip is neither scaled nor compensated nor computed,
    but the entry of a migration that is over goes, under both of its keys, with the compensation."""
    assert rq.annotations.get(SKIP) == "true"
    if migration.phase not in constants.FINAL_PHASES:
        return rq
    name = migration.spec.vmi_name
    gone = {by_name(name), migrating_uid_key(uid_of(name))}
    kept = {key: text for key, text in rq.annotations.items() if key not in gone}
    if len(kept) == len(rq.annotations):
        return rq
    kept = {key: text for key, text in kept.items() if key != COMPENSATION} | {RESYNC: "true"}
    return msgspec.structs.replace(rq, metadata=msgspec.structs.replace(rq.metadata, annotations=kept))


def together(
    rq: ResourceQuota,
    migration: VirtualMachineInstanceMigration,
    pods: Sequence[Pod],
    *,
    arrived: bool = False,
) -> tuple[ResourceQuota, int]:
    """Both in turn, Harvester once for each event of its migration, then headroom until it rests; headroom's writes."""
    memory, writes = Timers(), 0
    instances = [ARRIVED if arrived else HERE]
    rq = harvester(rq, migration)
    for _ in range(10):
        made = plan(namespace(charged(rq, pods), [migration], pods, instances, timers=memory), TAKEOVER)
        memory = made.timers
        if not made:
            return rq, writes
        rq, writes = applied(rq, made), writes + 1
    raise AssertionError("headroom does not come to rest")


def taken() -> ResourceQuota:
    made = plan(namespace(quota(dict(HARD)), [], [SOURCE], [HERE]), TAKEOVER)
    return applied(quota(dict(HARD)), made)


def test_a_migration_costs_one_raise_and_one_restore_and_harvester_scales_nothing() -> None:
    raised, writes = together(taken(), vmim("Pending"), [SOURCE])
    assert writes == 1
    assert by_value(raised.hard)["limits.cpu"] > by_value(HARD)["limits.cpu"]
    again, writes = together(raised, vmim("Running"), [SOURCE])
    assert (again, writes) == (raised, 0)
    over, writes = together(raised, vmim("Succeeded"), [], arrived=True)
    assert writes == 1
    assert by_value(over.hard) == by_value(HARD)
    assert not [key for key in over.annotations if "migrating-" in key or "migratingUID" in key]
    assert over.annotations.get(RESYNC) != "true"


@pytest.mark.parametrize("rounds", [1, 5])
def test_what_is_held_beyond_the_migration_is_kept_whatever_harvester_removes(rounds: int) -> None:
    """The limit never falls: Harvester removes the entry alone, headroom writes it again and clears the order."""
    target = launcher(node="node-2", migration=vmim("Succeeded"))
    raised, _ = together(taken(), vmim("Pending"), [SOURCE])
    limit = by_value(raised.hard)["limits.cpu"]
    rq = raised
    for _ in range(rounds):
        rq, writes = together(rq, vmim("Succeeded"), [SOURCE, target], arrived=True)
        assert writes <= 1
        assert by_value(rq.hard)["limits.cpu"] == limit
        assert rq.annotations.get(RESYNC) != "true"


def test_a_compensation_that_harvester_removes_with_anothers_entry_is_written_again_and_the_limit_stays() -> (
    None
):
    """The overhead ratio was raised: vm1 is refused for want of what vm2 has grown by. Then vm2's next migration
    ends, and Harvester removes its entry and the compensation together."""
    tight = '{"limit":{"limitsCpu":"100","limitsMemory":"10000Mi"}}'
    hard = {"limits.cpu": "100", "limits.memory": "10000Mi"}
    instances = [vmi(name, nodeName="node-1", phase="Running") for name in ("vm1", "vm2")]
    pods = [launcher(instance, node="node-1", rendering=AT_4_5) for instance in instances]

    def rests(rq: ResourceQuota, other: str) -> tuple[ResourceQuota, int]:
        """headroom until it rests, and its writes."""
        memory, writes = Timers(), 0
        migrations = [vmim(vm="vm1", refused=True), vmim(other, vm="vm2")]
        for _ in range(10):
            seen = namespace(
                charged(rq, pods), migrations, pods, instances, timers=memory, rendering=AT_4_5, limits=tight
            )
            made = plan(seen, TAKEOVER)
            memory = made.timers
            if not made:
                return rq, writes
            rq, writes = applied(rq, made), writes + 1
        raise AssertionError("headroom does not come to rest")

    before, _ = rests(quota(hard), "Failed")
    assert COMPENSATION in before.annotations
    entry = {by_name("vm2"): '{"limits.memory":"1"}'}
    left = msgspec.structs.replace(
        before, metadata=msgspec.structs.replace(before.metadata, annotations={**before.annotations, **entry})
    )
    removed = harvester(left, vmim("Failed", vm="vm2"))
    assert COMPENSATION not in removed.annotations
    again, writes = rests(removed, "Failed")
    assert writes == 1
    assert by_value(again.hard) == by_value(before.hard)
    assert again.annotations[COMPENSATION] == before.annotations[COMPENSATION]
    assert again.annotations.get(RESYNC) != "true"
