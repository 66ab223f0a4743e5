"""The room of a migration is held until its source pod is gone, and no longer than that."""

from __future__ import annotations

import json
import time

import pytest

from kubeloop.testing.polling import eventually
from tests.e2e.api import Watch
from tests.e2e.headroom.amounts import ONE, TWO, ended_in, versioned_hards
from tests.e2e.headroom.environment import Environment
from tests.e2e.headroom.namespace import QuotaNamespace
from tests.e2e.tenant import RESYNC, by_value

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cleared")]

RAISED = TWO
"""ONE, with one VM's target beside it."""
ENTRY = "harvesterhci.io/migrating-vm1"
FOR_EVER = 600.0
ALONE = "--no-compensate"
"""So that it is the hold, and nothing else, that makes room."""


def move(namespace: QuotaNamespace, vm: str) -> str:
    """The VM has moved and its source pod lingers until the test ends it; the name of that pod."""
    migration = namespace.migrate(vm, linger=FOR_EVER)
    namespace.succeed(migration)
    source = str(namespace.migration(migration)["status"]["migrationState"]["sourcePod"])
    assert namespace.pod_runs(source)
    return source


def held(versions: Watch, pods: Watch, pod: str) -> None:
    """spec.hard went up, and came down after the pod had ceased to count; nothing in between."""
    found = versioned_hards(versions)
    assert [hard for _, hard in found] == [by_value(ONE), by_value(RAISED), by_value(ONE)]
    assert found[-1][0] > ended_in(pods, pod)


class TestHeld:
    """Whatever happens meanwhile, the source's room stays as long as the source counts."""

    def test_the_next_migration_is_not_refused_while_the_old_source_lingers(self, on: Environment) -> None:
        on.run(ALONE)
        namespace = on.namespace(limits=TWO).start("vm1", "vm2")
        source = move(namespace, "vm1")
        namespace.succeed(namespace.migrate("vm2"))
        assert namespace.pod_runs(source), "it had to wait until the first one's source was gone"
        eventually(lambda: namespace.entries() == {ENTRY: by_value(ONE)})
        assert namespace.pod_runs(source)
        namespace.end(source)
        namespace.settle(TWO)

    def test_a_held_entry_that_harvester_removes_comes_back_and_the_quota_never_falls(
        self, on: Environment
    ) -> None:
        """Its restore takes both key forms away, on quotas too that it otherwise leaves alone."""
        on.run(ALONE)
        namespace = on.namespace(limits=ONE).start("vm1")
        uid_key = f"harvesterhci.io/migratingUID-{namespace.vmi('vm1')['metadata']['uid']}"
        text = json.dumps(ONE, separators=(",", ":"))
        with namespace.watch() as versions, namespace.watch_pods() as pods:
            source = move(namespace, "vm1")
            for form in (uid_key, ENTRY, uid_key):
                namespace.patch_quota({"metadata": {"annotations": {form: text}}})
                namespace.patch_quota(
                    {"metadata": {"annotations": {ENTRY: None, uid_key: None, RESYNC: "true"}}}
                )
                eventually(lambda: namespace.entries() == {ENTRY: by_value(ONE)})
                assert namespace.pod_runs(source)
            namespace.end(source)
            namespace.settle(ONE)
            held(versions, pods, source)
        assert uid_key not in namespace.annotations()

    def test_the_target_of_a_failed_migration_is_held_as_well(self, on: Environment) -> None:
        on.run(ALONE)
        namespace = on.namespace(limits=ONE).start("vm1")
        with namespace.watch() as versions, namespace.watch_pods() as pods:
            migration = namespace.migrate("vm1", fail_at_phase="TargetReady", target_linger_seconds=FOR_EVER)
            namespace.wait_phase(migration, "Failed")
            (target,) = [
                p["metadata"]["name"]
                for p in namespace.pods()
                if "kubevirt.io/migrationJobUID" in p["metadata"]["labels"]
            ]
            assert namespace.pod_runs(target)
            namespace.end(target, "Failed")
            namespace.settle(ONE)
            held(versions, pods, target)

    def test_a_controller_that_crashes_goes_on_holding(self, on: Environment) -> None:
        on.run(ALONE)
        namespace = on.namespace(limits=ONE).start("vm1")
        with namespace.watch() as versions, namespace.watch_pods() as pods:
            source = move(namespace, "vm1")
            on.kill()
            on.run(ALONE)
            time.sleep(0.5)
            assert namespace.pod_runs(source)
            namespace.end(source)
            namespace.settle(ONE)
            held(versions, pods, source)
