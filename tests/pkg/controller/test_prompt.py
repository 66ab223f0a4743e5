"""No migration waits for quota: headroom's controllers and KubeVirt's stand-in on one API server in process, in virtual
time, so that no figure depends on how busy the machine is."""

from __future__ import annotations

import asyncio

from kubeloop.testing.virtual_time import run
from lab.kubevirt import options as stand_in
from lab.questions import first_version, has_entry, needed, reverts, rooms
from lab.record import Amounts, Record, Track
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS
from pkg.config.settings import Settings
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from tests.pkg.controller.simulated_cluster import LAG, SimulatedCluster

TAKEOVER = Policy(Mode.TAKEOVER, EstimateKind.EXACT)
SEEN_LATE = 0.1
"""Seconds from a refusal to its condition in the watch, at most."""


async def simulate(seed: int, goal: int) -> SimulatedCluster:
    """Everything together, until so many migrations are done."""
    cluster = SimulatedCluster(seed)
    cluster.build()
    teeth = stand_in.StandInOptions(
        source_linger=0.3,
        phase_delay=0.05,
        parallel_migrations=100,
        parallel_outbound=100,
        finished_linger=5.0,
        drained_bucket=True,
    )
    watch = cluster.follow(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, cluster.see_migration)
    async with cluster.running(cluster.server.client(), Settings(TAKEOVER), teeth, cluster.rancher(), watch):
        await asyncio.gather(*(cluster.migrate(*machine, goal) for machine in cluster.machines))
    return cluster


def got_on(track: Track) -> float | None:
    """Returns the time at which the migration had its target."""
    return next((each.at for each in track.phases if each.phase not in ("", "Pending")), None)


def to_the_raise(record: Record, track: Track, base: Amounts) -> float:
    """Seconds until the migration's room was first seen in spec.hard."""
    raised = first_version(
        record, track.began.at, lambda each: has_entry(record, each, track) and each.hard.covers(needed(each, base))
    )
    return raised.at - track.began.at if raised else 0.0


def test_none_is_refused_once_raised_or_waits_half_a_second() -> None:
    cluster = run(simulate(0, 40))
    base = Amounts.within(cluster.base)
    assert sum(len(reverts(record, base)) for record in cluster.seen.values()) >= 3
    moved = [
        (record, track) for record in cluster.seen.values() for track in record.migrations.values() if got_on(track)
    ]
    refused = [(record, track, track.refused) for record, track in moved if track.refused is not None]
    assert refused, "admission never lagged"
    for record, track, instant in refused:
        known_since = rooms(record, base, instant).get(track.vm, instant)
        assert instant - known_since <= LAG + SEEN_LATE, (track, "was refused although its room was known")
        assert (got_on(track) or 0.0) - instant <= 0.5, (track, "waits for quota")
    assert 0 < max(to_the_raise(record, track, base) for record, track in moved) < 0.1
