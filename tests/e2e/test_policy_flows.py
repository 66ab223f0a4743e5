"""Under deploy/policy.yaml all that KubeVirt and headroom do passes: the stand-in comes under KubeVirt's account."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import until
from lab.namespace import PODS, VMIS
from tests.e2e.api import Api
from tests.e2e.conftest import ONE_LOOP, StartController
from tests.e2e.headroom.environment import Environment, environment, grant_what_is_used, meter
from tests.e2e.headroom.shapes import LIMITS, SHAPES, start
from tests.e2e.hostile_tenant import applied_policy

pytestmark = [pytest.mark.cluster, ONE_LOOP]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def on(cluster: Cluster, api: Api, shared_controller: StartController) -> AsyncIterator[Environment]:
    async with environment(cluster, shared_controller) as made:
        with applied_policy(api):
            yield made


@pytest.mark.parametrize("shape", ["the seed's VM", "a hotplugged volume", "sidecars under a LimitRange"])
async def test_start_migration_hotplug_and_deletion_pass(on: Environment, shape: str) -> None:
    on.run()
    namespace = await on.admin.namespace()
    await meter(namespace, *LIMITS)
    await start(namespace, "vm1", shape=SHAPES[shape])
    base = await grant_what_is_used(namespace, *LIMITS)
    for _ in range(2):
        await namespace.succeed(await namespace.migrate(linger=0.5))
        await namespace.settle(base)
    await namespace.delete(VMIS, "vm1")

    async def no_pods() -> bool:
        return not await namespace.items(PODS)

    await until(no_pods, "the pods to go", seconds=30)
