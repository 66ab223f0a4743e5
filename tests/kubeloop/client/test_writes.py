"""Writes made of two versions of an object, and writes of status."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pytest

from kubeloop.api import registry
from kubeloop.api.core import LimitRange, ResourceQuota
from kubeloop.api.meta import ObjectMeta
from kubeloop.api.objects import edit
from kubeloop.client.client import Client
from kubeloop.client.errors import BadRequest
from kubeloop.client.resource_client import ResourceClient
from kubeloop.testing.scripted_server import GET, PATCH, Reply, ScriptedServer, body, resources, status
from tests.kubeloop.client.rig import ONE, QUOTA, Quotas

OLD = ResourceQuota(metadata=ObjectMeta(name="q", namespace="ns", uid="u", resource_version="4"))


async def test_update_status_sends_status_alone_through_the_subresource(server: ScriptedServer, quotas: Quotas) -> None:
    server.script(PATCH, f"{ONE}/status", body(QUOTA))
    new = edit(OLD, spec={"hard": {"pods": "1"}}, status={"used": {"pods": "0"}})
    await quotas.update_status(OLD, new)
    assert server.requests[0].json == {"status": {"used": {"pods": "0"}}, "metadata": {"resourceVersion": "4"}}


async def test_equal_objects_cost_no_request(server: ScriptedServer, quotas: Quotas) -> None:
    assert await quotas.update(OLD, edit(OLD, metadata={"resource_version": "9"})) is OLD
    assert await quotas.update_status(OLD, OLD) is OLD
    assert server.requests == []


async def test_a_status_written_the_wrong_way_is_refused_at_once(server: ScriptedServer, quotas: Quotas) -> None:
    limits = ResourceClient[LimitRange](quotas.transport, registry.LIMIT_RANGES)
    used: Any = {"status": {"used": {}}}
    wrong = [
        quotas.merge_patch(used, name="q", namespace="ns"),
        quotas.patch(OLD, used),
        quotas.update(OLD, edit(OLD, status={"used": {"pods": "0"}})),
        quotas.json_patch([{"op": "remove", "path": "/status/used"}], name="q", namespace="ns"),
        limits.merge_patch({"spec": {}}, name="l", namespace="ns", subresource="status"),
    ]
    for write in wrong:
        with pytest.raises(BadRequest, match=r"status of .* is written"):
            await write
    assert server.requests == []


VERSION = "/api/v1"
DISCOVERY: dict[str, tuple[Reply, bool | None]] = {
    "with the subresource": (resources("v1", "resourcequotas", "resourcequotas/status"), True),
    "without the subresource": (resources("v1", "resourcequotas", "pods/status"), False),
    "without the kind": (resources("v1", "pods"), None),
    "that may not be read": (status(403, "Forbidden"), None),
}


@pytest.mark.parametrize("case", DISCOVERY)
async def test_a_definition_that_does_not_say_it_is_asked_for_in_the_discovery(
    case: str, server: ScriptedServer, client: Client
) -> None:
    """None: what cannot be told is left to the server."""
    reply, has = DISCOVERY[case]
    server.always(GET, VERSION, reply)
    server.always(PATCH, ONE, body(QUOTA))
    server.always(PATCH, f"{ONE}/status", body(QUOTA))
    unsaid = ResourceClient(client.transport, replace(registry.RESOURCE_QUOTAS, status_subresource=None))
    plain, through = edit(OLD, spec={"hard": {"pods": "1"}}), edit(OLD, status={"used": {"pods": "0"}})
    await unsaid.update(OLD, plain)
    assert len(server.seen(GET, VERSION)) == 0, "a write without status needs no answer"
    for write, right in ((unsaid.update, has is not True), (unsaid.update_status, has is not False)):
        with contextlib.nullcontext() if right else pytest.raises(BadRequest, match="status of ResourceQuota"):
            await write(OLD, through)
    assert len(server.seen(GET, VERSION)) == (2 if has is None else 1)


async def test_a_json_patch_may_test_the_status(server: ScriptedServer, quotas: Quotas) -> None:
    server.script(PATCH, ONE, body(QUOTA))
    ops: list[dict[str, Any]] = [
        {"op": "test", "path": "/status/used", "value": {}},
        {"op": "remove", "path": "/spec/hard/pods"},
    ]
    await quotas.json_patch(ops, name="q", namespace="ns")
    assert server.requests[0].json == ops
