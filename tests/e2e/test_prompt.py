"""A migration whose first tries all met an API server that did not know of its room yet."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from kubeloop.testing.cluster.cluster import Cluster
from kubeloop.testing.polling import eventually
from pkg.util.constants import ANNOTATION_TOUCHED
from tests.e2e.api import Watch
from tests.e2e.conftest import MakeTenant, StartController, started_with
from tests.e2e.tenant import HARD, Tenant
from tests.program import Program

pytestmark = pytest.mark.cluster

LAG = 0.6
"""Seconds that quota admission lags: longer than the events of a raise keep coming."""
TOUCHES = "headroom_resourcequota_touches_total"


@pytest.fixture(scope="module")
def slow_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """Quota admission lags, and KubeVirt tries again at a quota's events alone."""
    with started_with(cluster, "kubevirt", "--quota-lag", str(LAG), "--drained-bucket"):
        yield cluster


@pytest.fixture
def namespace(slow_cluster: Cluster, tenant: MakeTenant) -> Tenant:
    made = tenant(quota=False)
    made.wait_ranchers_quota()
    time.sleep(LAG)
    made.run_vm()
    return made


@pytest.fixture
def headroom(slow_cluster: Cluster, controller: StartController) -> Iterator[Program]:
    program = controller("takeover")
    yield program
    program.stop()


def moments(versions: Watch) -> tuple[float, list[float]]:
    """When the quota was raised, and when each touch of it was seen (monotonic seconds)."""
    raised, touches, last = 0.0, [], ""
    for event in versions.caught_up():
        if not raised and event.object["spec"]["hard"]["limits.cpu"] != HARD["limits.cpu"]:
            raised = event.at
        text = (event.object["metadata"].get("annotations") or {}).get(ANNOTATION_TOUCHED, "")
        if text and text != last:
            assert json.loads(text).keys() == {"at", "next"}
            touches.append(event.at)
        last = text
    return raised, touches


def touches_logged(headroom: Program, namespace: Tenant) -> int:
    """How often it says that it touched a quota of this namespace; other tests' migrations may wait beside it."""
    lines = headroom.text().splitlines()
    return sum(f" {namespace.name}/" in line and "touched" in line for line in lines)


def test_every_event_after_the_raise_is_missed_and_the_quota_is_touched(
    namespace: Tenant, headroom: Program
) -> None:
    with namespace.watch_quota() as versions:
        migration = namespace.start_migration(source_linger_seconds="0.5", phase_seconds="0.1")
        assert namespace.wait_phase(migration, "Running", "Succeeded", timeout=10)
        namespace.wait_phase(migration, "Succeeded")
        namespace.wait_hard(HARD)
        raised, touches = moments(versions)
    assert touches, "the stand-in never missed an event"
    assert touches[0] - raised < 2.0
    assert touches_logged(headroom, namespace) == len(touches)
    assert headroom.metric(TOUCHES) >= len(touches)
    assert eventually(lambda: namespace.entries() == {})
    assert ANNOTATION_TOUCHED not in namespace.annotations()


def test_nothing_is_touched_while_a_migration_runs_nor_at_rest(namespace: Tenant, headroom: Program) -> None:
    migration = namespace.start_migration(source_linger_seconds="0.5", phase_seconds="Running=3")
    namespace.wait_phase(migration, "Running")
    before = touches_logged(headroom, namespace)
    with namespace.watch_quota() as versions:
        namespace.wait_phase(migration, "Succeeded")
        namespace.wait_hard(HARD)
        time.sleep(1.5)
        quiet = len(versions.seen)
        time.sleep(1.5)
        assert len(versions.seen) == quiet
    assert touches_logged(headroom, namespace) == before
