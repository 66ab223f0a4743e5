"""What a migration's change leads to: its VMI and its namespace's quotas are enqueued, as far as they read of it."""

from __future__ import annotations

from typing import Any

import pytest

from kubeloop.api import registry
from kubeloop.testing.virtual_time import settle, virtual_time
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS
from pkg.config.management import Management
from pkg.controller.migration.vmi_controller import VMIHandler
from pkg.controller.options import Options
from pkg.controller.registry import register_all
from pkg.controller.resourcequota.resourcequota_controller import Handler
from tests.decisions import sentences
from tests.kinds import Server

FIRST = {"spec": {"vmiName": "vm1"}, "status": {"phase": "Pending"}}
QUOTA, VMI = "ns1/q", "ns1/vm1"


def with_condition(kind: str) -> dict[str, Any]:
    return {**FIRST, "status": {"phase": "Pending", "conditions": [{"type": kind, "status": "True"}]}}


CHANGES: dict[str, tuple[dict[str, Any] | None, list[str]]] = {
    "its resourceVersion alone": (FIRST, []),
    "a condition that nothing reads": (with_condition("Ready"), []),
    "its phase": ({**FIRST, "status": {"phase": "Scheduled"}}, [QUOTA, VMI]),
    "a refusal by quota": (with_condition("migrationRejectedByResourceQuota"), [QUOTA]),
    "an abort that is asked for": (with_condition("migrationAbortRequested"), [QUOTA, VMI]),
    "its deletion, asked for": (
        {**FIRST, "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
        [QUOTA],
    ),
    "its end": ({**FIRST, "status": {"phase": "Succeeded"}}, [QUOTA, VMI]),
    "it is gone": (None, [QUOTA, VMI]),
}


@pytest.mark.parametrize("dry_run", [False, True])
@sentences(CHANGES)
def test_what_a_change_enqueues(
    case: tuple[dict[str, Any] | None, list[str]], dry_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    after, expected = case
    shown = [key for key in expected if not dry_run or key != VMI]
    enqueued: list[str] = []

    async def remember(_: object, key: str, __: object) -> None:
        enqueued.append(key)

    monkeypatch.setattr(Handler, "on_resource_quota_changed", remember)
    monkeypatch.setattr(VMIHandler, "on_vmi_changed", remember)

    @virtual_time
    async def scenario() -> None:
        server = Server()
        management = Management(server.client(), workers=1)
        register_all(management, management.recorder("headroom"), Options(dry_run=dry_run))
        server.kind(registry.RESOURCE_QUOTAS).put("q", "ns1")
        server.kind(registry.RESOURCE_QUOTAS).put("q", "ns2")
        migrations = server.kind(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS)
        migrations.put("m1", "ns1", **FIRST)
        await management.start()
        await settle(100)
        assert {*enqueued} == {QUOTA, "ns2/q"} | (set() if dry_run else {VMI})
        enqueued.clear()
        if after is None:
            server.remove(VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, "ns1/m1")
        else:
            migrations.put("m1", "ns1", **after)
        await settle(100)
        assert sorted(enqueued) == shown
        await management.stop(timeout=1.0)

    scenario()
