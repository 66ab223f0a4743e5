"""The room of a migration is held until its source pod is gone, and no longer than that."""

from __future__ import annotations

import json

import pytest

from lab.namespace import Namespace, becomes, by_value
from tests.e2e.conftest import ONE_LOOP
from tests.e2e.headroom.amounts import ONE, TWO, Versions, watched
from tests.e2e.headroom.environment import Environment
from tests.e2e.tenant import RESYNC

pytestmark = [pytest.mark.cluster, ONE_LOOP, pytest.mark.usefixtures("cleared")]

RAISED = TWO
"""ONE, with one VM's target beside it."""
ENTRY = "harvesterhci.io/migrating-vm1"
HELD = {ENTRY: by_value(ONE)}
FOR_EVER = 600.0
ALONE = "--no-compensate"
"""So that it is the hold, and nothing else, that makes room."""


async def move(namespace: Namespace, vm: str) -> str:
    """The VM has moved and its source pod lingers until the test ends it; the name of that pod."""
    migration = await namespace.migrate(vm, linger=FOR_EVER)
    await namespace.succeed(migration)
    state = (await namespace.migration(migration)).status.migration_state
    assert state is not None
    source = state.source_pod or ""
    assert await namespace.pod_runs(source)
    return source


async def held(versions: Versions, pod: str) -> None:
    """spec.hard went up, and came down after the pod had ceased to count; nothing in between."""
    found = await versions.changes()
    assert [hard for _, hard in found] == [by_value(ONE), by_value(RAISED), by_value(ONE)]
    assert found[-1][0] > await versions.ended(pod)


class TestHeld:
    """Whatever happens meanwhile, the source's room stays as long as the source counts."""

    async def test_the_next_migration_is_not_refused_while_the_old_source_lingers(self, on: Environment) -> None:
        on.run(ALONE)
        namespace = await on.running("vm1", "vm2", limits=TWO)
        source = await move(namespace, "vm1")
        await namespace.succeed(await namespace.migrate("vm2"))
        assert await namespace.pod_runs(source), "it had to wait until the first one's source was gone"
        await becomes(namespace.entries, HELD)
        assert await namespace.pod_runs(source)
        await namespace.end(source)
        await namespace.settle(TWO)

    async def test_a_held_entry_that_harvester_removes_comes_back_and_the_quota_never_falls(
        self, on: Environment
    ) -> None:
        """Its restore takes both key forms away, on quotas too that it otherwise leaves alone."""
        on.run(ALONE)
        namespace = await on.running("vm1", limits=ONE)
        uid_key = f"harvesterhci.io/migratingUID-{(await namespace.vmi()).uid}"
        text = json.dumps(ONE, separators=(",", ":"))
        restored = {ENTRY: None, uid_key: None, RESYNC: "true"}
        async with watched(namespace) as (versions,):
            source = await move(namespace, "vm1")
            for form in (uid_key, ENTRY, uid_key):
                await namespace.patch_quota({"metadata": {"annotations": {form: text}}})
                await namespace.patch_quota({"metadata": {"annotations": restored}})
                await becomes(namespace.entries, HELD)
                assert await namespace.pod_runs(source)
            await namespace.end(source)
            await namespace.settle(ONE)
            await held(versions, source)
        assert uid_key not in await namespace.annotations()

    async def test_the_target_of_a_failed_migration_is_held_as_well(self, on: Environment) -> None:
        on.run(ALONE)
        namespace = await on.running("vm1", limits=ONE)
        async with watched(namespace) as (versions,):
            failing = await namespace.migrate(fail_at_phase="TargetReady", target_linger_seconds=FOR_EVER)
            await namespace.until_phase(failing, "Failed")
            launchers = await namespace.launchers()
            (target,) = [pod.name for pod in launchers if "kubevirt.io/migrationJobUID" in pod.labels]
            assert await namespace.pod_runs(target)
            await namespace.end(target, "Failed")
            await namespace.settle(ONE)
            await held(versions, target)
