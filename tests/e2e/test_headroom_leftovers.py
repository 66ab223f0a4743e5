"""Nothing is left behind, and nothing is lost: whatever went away, whenever."""

import asyncio

import pytest

from lab.namespace import LASTING, QUOTAS, VMS, Namespace, becomes, by_value
from tests.e2e.conftest import ONE_LOOP
from tests.e2e.headroom.amounts import ONE, TWO
from tests.e2e.headroom.environment import Environment
from tests.e2e.headroom.shapes import SEED
from tests.e2e.tenant import DEFAULT

pytestmark = [pytest.mark.cluster, ONE_LOOP, pytest.mark.usefixtures("cleared")]

ENTRY = "harvesterhci.io/migrating-vm1"


async def migrating(on: Environment) -> tuple[Namespace, str]:
    """A namespace with a VM in the middle of its migration."""
    namespace = await on.admin.namespace(ONE)
    await namespace.machine(spec=SEED, strategy="Always")
    migration = await namespace.migrate(running=LASTING)
    await namespace.until_phase(migration, "Running")
    await namespace.until_hard(TWO)
    return namespace, migration


async def is_back(namespace: Namespace) -> None:
    await namespace.until_hard(ONE)
    await becomes(namespace.entries, {})


class TestWhatWentAway:
    async def test_while_headroom_was_down(self, on: Environment) -> None:
        """Until it is back no other pod takes the room away: that is what its start is for."""
        on.run()
        vmims = await asyncio.gather(*(migrating(on) for _ in range(5)))
        (aborted, m1), (vm_gone, m2), (vmi_gone, m3), (still, m4), (finished, m5) = vmims
        on.kill()
        await aborted.abort(m1)
        await vm_gone.delete(VMS, "vm1")
        await vmi_gone.patch(VMS, "vm1", {"spec": {"runStrategy": "Halted"}})
        for namespace, migration in ((vm_gone, m2), (vmi_gone, m3)):
            await namespace.until_launchers(0)
            await namespace.abort(migration)
        await finished.hurry(m5)
        await finished.succeed(m5)
        await finished.until_launchers(1)
        gone = [aborted, vm_gone, vmi_gone, finished]
        for namespace in gone:
            assert await namespace.hard() == by_value(TWO)
            assert ENTRY in await namespace.entries()
        on.run()
        for namespace in gone:
            await is_back(namespace)
        assert await still.hard() == by_value(TWO)
        assert await still.entries() == {ENTRY: by_value(ONE)}
        assert await still.phase(m4) == "Running"

    async def test_while_it_looks(self, on: Environment) -> None:
        on.run()

        async def vm_is_deleted() -> None:
            namespace, _ = await migrating(on)
            await namespace.delete(VMS, "vm1")
            await namespace.until_launchers(0)
            await is_back(namespace)

        async def quota_is_made_anew() -> None:
            """Under another name and without a mark, as Rancher makes it."""
            namespace, migration = await migrating(on)
            await namespace.delete(QUOTAS, (await namespace.quota()).name)
            await namespace.make_quota("default-again", ONE, labels={DEFAULT: "true"})
            await namespace.until_hard(TWO)
            assert await namespace.phase(migration) == "Running"
            await namespace.hurry(migration)
            await namespace.succeed(migration)
            await namespace.settle(ONE)

        async def annotation_is_taken_away() -> None:
            namespace, migration = await migrating(on)
            await namespace.annotate(None)
            await is_back(namespace)
            await namespace.grant(TWO)
            await namespace.until_hard({"limits.cpu": "6045m", "limits.memory": "14392392939"})
            assert await namespace.phase(migration) == "Running"

        await asyncio.gather(vm_is_deleted(), quota_is_made_anew(), annotation_is_taken_away())


async def test_the_next_migration_is_admitted_while_a_source_lingers(on: Environment) -> None:
    on.run("--no-compensate")  # it is the hold, and nothing else, that makes room
    namespace = await on.running("vm1", "vm2", limits=TWO)
    first_vmim = await namespace.migrate("vm1", linger=LASTING)
    await namespace.succeed(first_vmim)
    state = (await namespace.migration(first_vmim)).status.migration_state
    source = state.source_pod or "" if state else ""
    await namespace.succeed(await namespace.migrate("vm2"))
    await becomes(namespace.entries, {ENTRY: by_value(ONE)})
    assert await namespace.pod_runs(source), "the second one had to wait until it was gone"
    await namespace.end(source)
    await namespace.settle(TWO)
