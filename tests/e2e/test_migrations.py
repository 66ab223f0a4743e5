"""The main job with everything at work: KubeVirt's and Rancher's stand-ins, kwok's pods, real quota admission."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from kubeloop.testing.polling import eventually
from tests.e2e.api import Api, Watch
from tests.e2e.conftest import MakeTenant, StartController
from tests.e2e.tenant import HARD, OWNER, RAISED, Tenant, by_value
from tests.program import Program

pytestmark = pytest.mark.cluster

POD = by_value({"limits.cpu": "2015m", "limits.memory": "4797464313"})
"""What quota counts of the seed's launcher pod: the VM, its overhead and the guest-console-log container."""


@pytest.fixture(scope="module", autouse=True)
def installation(api: Api) -> Iterator[None]:
    """KubeVirt as Harvester configures it: overhead ratio 1.5, in the setting and in the CR."""
    settings, kubevirts = (
        "/apis/harvesterhci.io/v1beta1/settings",
        "/apis/kubevirt.io/v1/namespaces/default/kubevirts",
    )
    name = "additional-guest-memory-overhead-ratio"
    body = {"apiVersion": "harvesterhci.io/v1beta1", "kind": "Setting", "metadata": {"name": name}}
    api.create(settings, body | {"value": "1.5", "default": "1.5"})
    body = {"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt"}}
    api.create(kubevirts, body | {"spec": {"configuration": {"additionalGuestMemoryOverheadRatio": "1.5"}}})
    eventually(lambda: api.get(f"{kubevirts}/kubevirt").get("status", {}).get("phase") == "Deployed")
    yield
    api.delete(f"{kubevirts}/kubevirt")
    api.delete(f"{settings}/{name}")


@pytest.fixture
def namespace(tenant: MakeTenant) -> Tenant:
    """The seed's namespace, its quota rendered by Rancher, its VM running."""
    made = tenant(quota=False)
    made.wait_ranchers_quota()
    made.run_vm()
    eventually(lambda: made.used() == POD)
    return made


CHOICES = {
    "takeover with Harvester's numbers": ["takeover"],
    "beside Harvester": ["assist", "--foreign-grace", "8"],
}


@pytest.fixture(params=list(CHOICES))
def headroom(request: pytest.FixtureRequest, controller: StartController) -> Iterator[Program]:
    program = controller(*CHOICES[request.param])
    yield program
    program.stop()


def hards(versions: Watch) -> list[tuple[int, int]]:
    """spec.hard through time, without repeats: milli-CPU and bytes."""
    seen: list[tuple[int, int]] = []
    for event in versions.caught_up():
        hard = by_value(event.object["spec"]["hard"])
        now = (hard["limits.cpu"].milli_value(), hard["limits.memory"].value())
        if not seen or seen[-1] != now:
            seen.append(now)
    return seen


BASE_NOW, RAISED_NOW = (3000, 5242880000), (5000, 9980344313)
HELD_NOW = (3000 + 2015, 5242880000 + 4797464313)
"""While the source pod still counts: room for exactly that pod."""


def test_the_seeds_scenario(namespace: Tenant, headroom: Program) -> None:
    """Raised, run through, and back, and never anything else in between."""
    with namespace.watch_quota() as versions:
        migration = namespace.start_migration(source_linger_seconds="1.5", phase_seconds="0.2")
        assert namespace.wait_phase(migration, "Running", "Succeeded") == "Running"
        assert by_value(namespace.quota()["spec"]["hard"]) == by_value(RAISED)
        eventually(lambda: namespace.used()["limits.memory"].value() == 2 * 4797464313)
        namespace.wait_phase(migration, "Succeeded")
        namespace.wait_hard(HARD)
        eventually(lambda: namespace.used() == POD)
        namespace.wait_shown(None)
        time.sleep(0.5)
        held = [HELD_NOW] if OWNER in namespace.annotations() else []
        assert hards(versions) == [BASE_NOW, RAISED_NOW, *held, BASE_NOW]
    assert namespace.entries() == {}


def test_an_aborted_migration_gives_its_room_back(namespace: Tenant, headroom: Program) -> None:
    migration = namespace.start_migration(phase_seconds="Running=20")
    namespace.wait_phase(migration, "Running")
    namespace.delete_migration(migration)
    namespace.wait_hard(HARD, timeout=20)
    eventually(lambda: namespace.used() == POD)
    namespace.wait_shown(None)


def test_a_failed_migration_gives_its_room_back_and_the_next_one_works(
    namespace: Tenant, headroom: Program
) -> None:
    migration = namespace.start_migration(fail_at_phase="TargetReady")
    namespace.wait_phase(migration, "Failed")
    namespace.wait_hard(HARD)
    second = namespace.start_migration(name="second", source_linger_seconds="0.5")
    namespace.wait_phase(second, "Succeeded")
    namespace.wait_hard(HARD)
