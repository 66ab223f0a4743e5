"""What a migration's change leads to: its VMI and its namespace's quotas are enqueued, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from kubeloop.api import registry
from kubeloop.testing.virtual_time import settle, virtual_time
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS
from pkg.config.management import Management
from pkg.controller.migration.vmim_controller import VMIMHandler
from tests.decisions import sentences
from tests.kinds import Server

FIRST = {"spec": {"vmiName": "vm1"}, "status": {"phase": "Pending"}}
BOTH = ["ns1/q", "ns1/vm1"]

CHANGES: dict[str, tuple[dict[str, Any] | None, list[str]]] = {
    "its resourceVersion alone": (FIRST, []),
    "a condition that nothing reads": (
        {**FIRST, "status": {"phase": "Pending", "conditions": [{"type": "Ready", "status": "True"}]}},
        [],
    ),
    "its phase": ({**FIRST, "status": {"phase": "Scheduled"}}, BOTH),
    "a refusal by quota": (
        {
            **FIRST,
            "status": {
                "phase": "Pending",
                "conditions": [{"type": "migrationRejectedByResourceQuota", "status": "True"}],
            },
        },
        BOTH,
    ),
    "an abort that is asked for": (
        {
            **FIRST,
            "status": {"phase": "Pending", "conditions": [{"type": "migrationAbortRequested", "status": "True"}]},
        },
        BOTH,
    ),
    "its deletion, asked for": ({**FIRST, "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, BOTH),
    "its end": ({**FIRST, "status": {"phase": "Succeeded"}}, BOTH),
    "it is gone": (None, BOTH),
}


@pytest.mark.parametrize("shows_states", [True, False])
@sentences(CHANGES)
def test_what_a_change_enqueues(case: tuple[dict[str, Any] | None, list[str]], shows_states: bool) -> None:
    after, expected = case

    @virtual_time
    async def scenario() -> None:
        server = Server()
        management = Management(server.client(), workers=1)
        enqueued: list[str] = []

        async def remember(key: str, _: object) -> None:
            enqueued.append(key)

        quotas, instances = management.resource_quotas, management.virtual_machine_instances
        migrations = management.virtual_machine_instance_migrations
        handler = VMIMHandler(quotas, instances if shows_states else None)
        migrations.on_change("migrations", handler.on_migration_changed)
        quotas.on_change("quotas", remember)
        instances.on_change("instances", remember)
        server.kind(registry.RESOURCE_QUOTAS).put("q", "ns1")
        server.kind(registry.RESOURCE_QUOTAS).put("q", "ns2")
        server.kind(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS).put("m1", "ns1", **FIRST)
        await management.start()
        await settle(100)
        assert sorted({*enqueued} - {"ns2/q"}) == (BOTH if shows_states else ["ns1/q"])
        enqueued.clear()
        if after is None:
            server.remove(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, "ns1/m1")
        else:
            server.kind(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS).put("m1", "ns1", **after)
        await settle(100)
        assert sorted(enqueued) == [key for key in expected if shows_states or key != "ns1/vm1"]
        await management.stop(timeout=1.0)

    scenario()


@virtual_time
async def test_one_that_is_gone_is_forgotten() -> None:
    server = Server()
    management = Management(server.client(), workers=1)
    handler = VMIMHandler(management.resource_quotas, None)
    await handler.on_migration_changed(
        "ns1/m1", server.kind(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS).put("m1", "ns1", **FIRST)
    )
    assert list(handler._seen) == ["ns1/m1"]
    await handler.on_migration_changed("ns1/m1", None)
    assert not handler._seen
