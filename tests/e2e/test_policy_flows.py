"""Under deploy/policy.yaml all that KubeVirt and headroom do passes: the stand-in comes under KubeVirt's account."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pkg.testcluster.cluster import Cluster
from tests.e2e.api import Api, eventually
from tests.e2e.conftest import StartController
from tests.e2e.headroom.shapes import LIMITS, SHAPES
from tests.e2e.headroom.stage import Stage, stage
from tests.e2e.strangers import applied_policy

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def on(cluster: Cluster, api: Api, shared_controller: StartController) -> Iterator[Stage]:
    with stage(cluster, api, shared_controller) as made, applied_policy(api):
        yield made


@pytest.mark.parametrize("shape", ["the seed's VM", "a hotplugged volume", "sidecars under a LimitRange"])
def test_start_migration_hotplug_and_deletion_pass(on: Stage, shape: str) -> None:
    on.run()
    scene = on.scene()
    scene.meter(*LIMITS)
    scene.start("vm1", shape=SHAPES[shape])
    base = scene.grant_what_is_used(*LIMITS)
    for _ in range(2):
        scene.succeed(scene.migrate("vm1", linger=0.5))
        scene.settle(base)
    on.api.delete(f"{scene.instances}/vm1")
    eventually(lambda: not on.api.items(f"{scene.path}/pods"), 30)
