"""Typed clients against a scripted server: the requests they send, the objects and errors they give back."""

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from kubeloop.api import registry
from kubeloop.api.core import LimitRange, ResourceQuota
from kubeloop.api.meta import ObjectMeta
from kubeloop.api.objects import edit
from kubeloop.client import errors
from kubeloop.client.client import Client
from kubeloop.client.decode import WatchEvent
from kubeloop.client.resource_client import ResourceClient
from kubeloop.testing.scripted_server import (
    DELETE,
    GET,
    LIST,
    PATCH,
    POST,
    WATCH,
    Reply,
    ScriptedServer,
    body,
    listing,
    refuse,
    resources,
    status,
    watch,
)
from kubeloop.testing.scripted_steps import obj
from tests.kubeloop.client.rig import ONE, QUOTA, Quotas

ALL = registry.RESOURCE_QUOTAS.path()
IN_NS = registry.RESOURCE_QUOTAS.path("ns")


MISSHAPEN: dict[str, tuple[Any, str]] = {
    "an empty object": ({}, "ResourceQuota q: it has no name"),
    "a Status of success": (
        {"kind": "Status", "status": "Success", "metadata": {}},
        "a ResourceQuota: Expected `object`",
    ),
    "a list": (
        {"kind": "ResourceQuotaList", "metadata": {"resourceVersion": "5"}, "items": []},
        "ResourceQuota q: it has no name",
    ),
    "an object without a name": ({"metadata": {"namespace": "ns"}, "spec": {}}, "ResourceQuota q: it has no name"),
    "another object": (obj("other", "5", "ns"), "ResourceQuota q: it names 'other'"),
}


@pytest.mark.parametrize(("answer", "problem"), MISSHAPEN.values(), ids=MISSHAPEN)
async def test_an_answer_that_is_not_the_object_is_an_error(
    answer: Any, problem: str, server: ScriptedServer, quotas: Quotas
) -> None:
    server.always(GET, ONE, body(answer))
    server.always(PATCH, ONE, body(answer))
    for call in (
        quotas.get(name="q", namespace="ns"),
        quotas.merge_patch({}, name="q", namespace="ns"),
        quotas.json_patch([], name="q", namespace="ns"),
    ):
        with pytest.raises(errors.ServerError, match=f"the answer is not {problem}"):
            await call


async def test_a_namespaced_object_needs_its_namespace(server: ScriptedServer, quotas: Quotas) -> None:
    unnamed: dict[str, Any] = {"metadata": {"name": "q"}}
    for call in (
        quotas.get(name="q"),
        quotas.delete(name="q"),
        quotas.merge_patch({}, name="q"),
        quotas.create(unnamed),
        quotas.create({}),
        quotas.create_or_update(unnamed, lambda old: old),
        quotas.apply(unnamed, field_manager="x"),
    ):
        with pytest.raises(errors.BadRequest, match="has a namespace, and none is given"):
            await call
    assert server.requests == []


async def test_list_walks_every_page(server: ScriptedServer, quotas: Quotas) -> None:
    server.script(
        LIST,
        IN_NS,
        listing([obj("a"), obj("b")], "9", continue_="c1"),
        listing([], "9", continue_="c2"),
        listing([obj("c")], "9"),
    )
    items = await quotas.list("ns", label_selector="k=v", field_selector="metadata.name!=z")
    assert [item.name for item in items] == ["a", "b", "c"]
    assert items.resource_version == "9"
    assert [r.query.get("continue") for r in server.requests] == [None, "c1", "c2"]
    for request in server.requests:
        assert request.query["limit"] == "500"
        assert request.query["labelSelector"] == "k=v"
        assert request.query["fieldSelector"] == "metadata.name!=z"


async def test_a_transformed_clients_list_is_transformed_by_page(server: ScriptedServer, quotas: Quotas) -> None:
    small = quotas.transformed(lambda quota: edit(quota, metadata={"uid": "seen"}))
    pages = [listing([obj("a")], "9", continue_="t"), listing([obj("b")], "9")]
    server.script(LIST, ALL, *pages, *pages)
    for client in (small, small.dry_run()):
        assert [(quota.name, quota.uid) for quota in await client.list()] == [("a", "seen"), ("b", "seen")]
    assert [request.query["limit"] for request in server.requests] == ["100"] * 4


async def test_a_page_is_asked_for_as_told(server: ScriptedServer, quotas: Quotas) -> None:
    server.script(LIST, ALL, listing([QUOTA, {"spec": 5}], "9", continue_="more"))
    page = await quotas.list_page(limit=50)
    assert server.requests[0].query == {"limit": "50"}
    assert ([item.key for item in page.items], len(page.undecodable)) == (["ns/q"], 1)
    assert page.metadata.continue_ == "more"


async def collect(quotas: Quotas, got: list[WatchEvent[ResourceQuota]], **options: Any) -> None:
    async with quotas.watch(**options) as events:
        async for event in events:
            got.append(event)  # noqa: PERF401 what came before an error counts


async def test_watch_asks_for_bookmarks_and_a_time_limit(server: ScriptedServer, quotas: Quotas) -> None:
    server.script(WATCH, IN_NS, watch())
    await collect(quotas, [], namespace="ns", resource_version="4", timeout_seconds=301.7, label_selector="a=b")
    assert server.requests[0].query == {
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "4",
        "timeoutSeconds": "301",
        "labelSelector": "a=b",
    }


async def test_create_sends_the_body_and_gives_the_object(server: ScriptedServer, quotas: Quotas) -> None:
    server.script(POST, IN_NS, body(QUOTA, 201))
    sent = {"metadata": {"generateName": "default-"}, "spec": {"hard": {"limits.cpu": "3"}}}
    created = await quotas.create(sent, namespace="ns")
    assert created.key == "ns/q"
    assert server.requests[0].json == {"apiVersion": "v1", "kind": "ResourceQuota", **sent}
    assert server.requests[0].headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("metadata", [{"name": "q", "namespace": "ns"}, ObjectMeta(name="q", namespace="ns")])
async def test_create_reads_the_namespace_from_the_body(server: ScriptedServer, quotas: Quotas, metadata: Any) -> None:
    server.script(POST, IN_NS, body(QUOTA, 201))
    assert (await quotas.create({"metadata": metadata})).key == "ns/q"
    server.script(GET, ONE, status(404, "NotFound"))
    server.script(POST, IN_NS, body(QUOTA, 201))
    server.script(PATCH, ONE, body(QUOTA))
    if isinstance(metadata, dict):
        assert (await quotas.create_or_update({"metadata": metadata}, lambda old: old)).key == "ns/q"
        assert (await quotas.apply({"metadata": metadata}, field_manager="m")).key == "ns/q"


Write = Callable[[Quotas], Awaitable[object]]
Q = {"name": "q", "namespace": "ns"}
VERSIONED = {"metadata": {"resourceVersion": "4"}}
WRITES: dict[str, tuple[str, Write, bool]] = {
    "a delete of whatever has that name": (DELETE, lambda q: q.delete(name="q", namespace="ns"), False),
    "a delete of one uid": (DELETE, lambda q: q.delete(name="q", namespace="ns", uid="u"), True),
    "a merge patch of whatever is there": (PATCH, lambda q: q.merge_patch({"metadata": {"labels": {}}}, **Q), False),
    "a merge patch without metadata": (PATCH, lambda q: q.merge_patch({"metadata": None, "spec": {}}, **Q), False),
    "a merge patch of one version": (PATCH, lambda q: q.merge_patch(VERSIONED, **Q), True),
    "a JSON patch of whatever is there": (PATCH, lambda q: q.json_patch([{"op": "add", "path": "/x"}], **Q), False),
    "a JSON patch of one version": (
        PATCH,
        lambda q: q.json_patch([{"op": "test", "path": "/metadata/resourceVersion", "value": "4"}], **Q),
        True,
    ),
}


@pytest.mark.parametrize(("verb", "write", "again"), WRITES.values(), ids=WRITES)
async def test_only_a_write_with_a_precondition_is_sent_again(
    server: ScriptedServer, quotas: Quotas, verb: str, write: Write, again: bool
) -> None:
    server.script(verb, ONE, refuse(), body(QUOTA))
    with contextlib.nullcontext() if again else pytest.raises(errors.Unreachable):
        await write(quotas)
    assert len(server.requests) == 1 + again


async def test_delete_says_what_to_delete_and_how(server: ScriptedServer, quotas: Quotas) -> None:
    server.always(DELETE, ONE, body({"kind": "Status", "status": "Success"}))
    await quotas.delete(name="q", namespace="ns")
    await quotas.delete(name="q", namespace="ns", grace_period_seconds=0, propagation_policy="Background", uid="u-1")
    options = {"apiVersion": "v1", "kind": "DeleteOptions"}
    assert server.requests[0].json == options
    assert server.requests[1].json == options | {
        "gracePeriodSeconds": 0,
        "propagationPolicy": "Background",
        "preconditions": {"uid": "u-1"},
    }


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../../secrets/s", "a%2fb"])
async def test_a_name_that_no_object_can_have_is_never_sent(server: ScriptedServer, quotas: Quotas, name: str) -> None:
    for call in (
        quotas.get(name=name, namespace="ns"),
        quotas.delete(name=name, namespace="ns"),
        quotas.merge_patch({}, name=name, namespace="ns"),
        quotas.json_patch([], name=name, namespace="ns"),
        quotas.apply({"metadata": {"name": name} if name else {}}, namespace="ns", field_manager="x"),
        quotas.create_or_update({"metadata": {"name": name}} if name else {}, lambda old: old, namespace="ns"),
    ):
        with pytest.raises(errors.BadRequest, match="is not a name of an object"):
            await call
    if name:
        with pytest.raises(errors.BadRequest):
            await quotas.create({}, namespace=name)
    assert server.requests == []


async def test_an_odd_name_stays_one_part_of_the_path(server: ScriptedServer, quotas: Quotas) -> None:
    with pytest.raises(errors.NotFound):
        await quotas.get(name="a?watch=true#x y", namespace="ns")
    assert server.requests[0].path == f"{IN_NS}/a?watch=true#x y"
    assert server.requests[0].query == {}


# -- writes made of two versions of an object, and writes of status

OLD = ResourceQuota(metadata=ObjectMeta(name="q", namespace="ns", uid="u", resource_version="4"))


async def test_update_status_sends_status_alone(server: ScriptedServer, quotas: Quotas) -> None:
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
        with pytest.raises(errors.BadRequest, match=r"status of .* is written"):
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
async def test_discovery_says_whether_a_kind_has_a_status(case: str, server: ScriptedServer, client: Client) -> None:
    """A None, where discovery cannot tell, leaves the decision to the server."""
    reply, has = DISCOVERY[case]
    server.always(GET, VERSION, reply)
    server.always(PATCH, ONE, body(QUOTA))
    server.always(PATCH, f"{ONE}/status", body(QUOTA))
    unsaid = ResourceClient(client.transport, replace(registry.RESOURCE_QUOTAS, status_subresource=None))
    plain, through = edit(OLD, spec={"hard": {"pods": "1"}}), edit(OLD, status={"used": {"pods": "0"}})
    await unsaid.update(OLD, plain)
    assert len(server.seen(GET, VERSION)) == 0, "a write without status needs no answer"
    for write, right in ((unsaid.update, has is not True), (unsaid.update_status, has is not False)):
        with contextlib.nullcontext() if right else pytest.raises(errors.BadRequest, match="status of ResourceQuota"):
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
