"""No migration waits for quota: headroom's controllers and KubeVirt's stand-in on one API server in process, in virtual
time, so that no figure depends on how busy the machine is."""

from __future__ import annotations

import asyncio
import time

from kubeloop.api import registry
from kubeloop.testing.virtual_time import now, run
from lab.kubevirt import options as stand_in
from lab.kubevirt.register import register
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS
from pkg.config.management import Management
from pkg.controller.options import Options
from pkg.controller.registry import register_all
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from tests.pkg.controller.sightings import report
from tests.pkg.controller.simulated_cluster import SimulatedCluster

TAKEOVER = Policy(Mode.TAKEOVER, EstimateKind.EXACT)


async def simulate(seed: int, goal: int) -> SimulatedCluster:
    """Everything together, until so many migrations are done."""
    began = time.time()
    cluster = SimulatedCluster(seed)
    cluster.build()
    headroom = Management(cluster.server.client(), clock=lambda: began + now())
    kubevirt = Management(cluster.server.client(), whole_pods=True)
    register_all(headroom, headroom.recorder("headroom"), Options(TAKEOVER))
    teeth = stand_in.Options(
        source_linger=0.3,
        phase_delay=0.05,
        parallel_migrations=100,
        parallel_outbound=100,
        finished_linger=5.0,
        drained_bucket=True,
    )
    register(kubevirt, teeth)
    players = [
        cluster.quota_controller(),
        cluster.follow(registry.PODS, cluster.see_pod),
        cluster.rancher(),
        cluster.follow(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, cluster.see_migration),
        cluster.follow(registry.RESOURCE_QUOTAS, cluster.see_quota),
    ]
    tasks = [asyncio.create_task(player) for player in players]
    await headroom.start()
    await kubevirt.start()
    for machine in cluster.machines:
        await cluster.machine(*machine)
    await asyncio.gather(*(cluster.migrate(*machine, goal) for machine in cluster.machines))
    await asyncio.gather(headroom.stop(1.0), kubevirt.stop(1.0))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    return cluster


def test_none_is_refused_after_its_room_was_made_and_none_waits_half_a_second() -> None:
    found = report(list(run(simulate(0, 40)).seen.values()))
    assert found["reverts"] >= 3, found
    assert found["refused"] > 0, "admission never lagged"
    assert found["refused_after_room"] == 0, found
    assert found["waited_over_half_a_second"] == 0, found
    assert found["seconds_to_the_raise"]["max"] < 0.1, found
