"""What `--mode assist` and `--mode takeover` do alike on a real API server, each under its own key."""

from __future__ import annotations

import asyncio

import pytest

from kubeloop.testing.polling import until
from lab.namespace import becomes, by_value
from tests.e2e.conftest import MakeTenant, StartController
from tests.e2e.tenant import HARD, OWNER, RAISED, SKIP, Tenant
from tests.program import Program

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("alone")]

TEXT = '{"limits.cpu":"2","limits.memory":"4737464313"}'
MARKS = {"assist": {}, "takeover": {SKIP: "true", OWNER: "headroom"}}


@pytest.fixture(scope="module", params=list(MARKS))
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def headroom(shared_controller: StartController, mode: str) -> Program:
    return shared_controller(mode, "--foreign-grace", "1")


@pytest.fixture(scope="module", autouse=True)
def ended(headroom: Program) -> object:
    """One mode at a time."""
    yield
    headroom.stop()


async def key_of(mode: str, namespace: Tenant) -> str:
    name = f"UID-{(await namespace.vmi()).uid}" if mode == "assist" else "-vm1"
    return f"harvesterhci.io/migrating{name}"


async def test_entry_and_marks_from_the_raise_to_the_end(mode: str, headroom: Program, tenant: MakeTenant) -> None:
    """3 CPU / 5000Mi → 5 CPU / 9980344313 → 3 CPU / 5000Mi, whatever others do to spec.hard meanwhile."""
    namespace = await tenant()
    await namespace.vm()
    migration = await namespace.refused()
    await namespace.until_hard(RAISED)
    await becomes(namespace.annotations, {**MARKS[mode], await key_of(mode, namespace): TEXT})
    await namespace.enter(migration, "Running")
    for _ in range(3):
        await namespace.revert()
        await namespace.until_hard(RAISED)
    await namespace.until_shown("Migrating")
    await namespace.enter(migration, "Succeeded")
    await namespace.until_hard(HARD)
    await namespace.until_shown(None)
    await becomes(namespace.annotations, MARKS[mode])


async def test_a_migration_that_is_deleted_while_headroom_is_killed_leaves_no_entry(
    mode: str, headroom: Program, tenant: MakeTenant
) -> None:
    namespace = await tenant()
    await namespace.vm()
    migration = await namespace.moving()
    await namespace.until_hard(RAISED)
    await namespace.until_shown("Migrating")
    headroom.kill()
    await namespace.abort(migration)
    assert await namespace.hard() == by_value(RAISED)
    headroom.start()
    await namespace.until_hard(HARD)
    await namespace.until_shown(None)
    await becomes(namespace.annotations, MARKS[mode])


async def test_a_vmi_that_turns_up_after_its_migration_is_served(
    mode: str, headroom: Program, tenant: MakeTenant
) -> None:
    """Beside two whose quantities are garbage: a CRD without a schema lets everything in."""
    namespace = await tenant()
    for name in ("odd", "odder", "vm1"):
        await namespace.enter(await namespace.migrate(name), "Pending")
    await asyncio.sleep(0.2)
    await namespace.instance("odd", resources={"limits": {"cpu": "two", "memory": "4Gi"}})
    await namespace.instance("odder", resources={"limits": {"cpu": ["2"]}})
    await namespace.vm()
    await namespace.until_hard(RAISED)
    await namespace.until_shown("Pending migration")
    assert list(await namespace.entries()) == [await key_of(mode, namespace)]


async def test_nothing_above_left_a_traceback_a_failed_reconcile_or_an_unhealthy_program(headroom: Program) -> None:
    assert "Traceback" not in headroom.text()
    assert headroom.get("/healthz") == (200, "ok")
    assert headroom.get("/readyz") == (200, "ok")
    assert headroom.metric("controller_runtime_reconcile_errors_total") == 0
    await until(lambda: headroom.metric("workqueue_depth") == 0, "the queue to be empty")
