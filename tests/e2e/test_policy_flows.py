"""Under deploy/policy.yaml all that KubeVirt and headroom do passes: the stand-in comes under KubeVirt's account."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import eventually
from tests.e2e.api import Api
from tests.e2e.conftest import StartController
from tests.e2e.headroom.environment import Environment, environment
from tests.e2e.headroom.shapes import LIMITS, SHAPES
from tests.e2e.hostile_tenant import applied_policy

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def on(cluster: Cluster, api: Api, shared_controller: StartController) -> Iterator[Environment]:
    with environment(cluster, api, shared_controller) as made, applied_policy(api):
        yield made


@pytest.mark.parametrize("shape", ["the seed's VM", "a hotplugged volume", "sidecars under a LimitRange"])
def test_start_migration_hotplug_and_deletion_pass(on: Environment, shape: str) -> None:
    on.run()
    namespace = on.namespace()
    namespace.meter(*LIMITS)
    namespace.start("vm1", shape=SHAPES[shape])
    base = namespace.grant_what_is_used(*LIMITS)
    for _ in range(2):
        namespace.succeed(namespace.migrate("vm1", linger=0.5))
        namespace.settle(base)
    on.api.delete(f"{namespace.instances}/vm1")
    eventually(lambda: not on.api.items(f"{namespace.path}/pods"), 30)
