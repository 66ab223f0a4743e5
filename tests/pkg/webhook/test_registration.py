"""The configurations on an API server: created, kept, shared, taken away."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from pkg.api.registry import MUTATING_WEBHOOK_CONFIGURATIONS, VALIDATING_WEBHOOK_CONFIGURATIONS, Resource
from pkg.client.client import Client
from pkg.client.errors import AlreadyExists, Forbidden
from pkg.webhook.configurations import CONFIGURATION_NAME, Endpoint, mutating, validating
from pkg.webhook.options import FailurePolicy, Options, QuotaGuard
from pkg.webhook.registration import Registrar, unregister
from tests.pkg.controller.fakes import Kind

URL = Endpoint(url="https://127.0.0.1:9443")
OPTIONS = Options()


class Server:
    """The two kinds, as a Client hands them out."""

    def __init__(self) -> None:
        self.validating: Kind[Any] = Configurations(VALIDATING_WEBHOOK_CONFIGURATIONS)
        self.mutating: Kind[Any] = Configurations(MUTATING_WEBHOOK_CONFIGURATIONS)

    def resource(self, resource: Resource[Any]) -> Kind[Any]:
        return self.validating if resource is VALIDATING_WEBHOOK_CONFIGURATIONS else self.mutating

    @property
    def client(self) -> Client:
        return cast("Client", self)

    @property
    def writes(self) -> list[str]:
        calls = [*self.validating.calls, *self.mutating.calls]
        return [verb for verb, _, _ in calls if verb != "get"]

    def webhooks(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.validating.objects[CONFIGURATION_NAME]["webhooks"]
        return found


class Configurations(Kind[Any]):
    async def create(self, body: Mapping[str, Any], namespace: str = "") -> Any:
        if body["metadata"]["name"] in self.objects:
            raise AlreadyExists("it is there", status=409, reason="AlreadyExists")
        return await super().create(body, namespace)


async def test_both_are_created_and_then_left_alone() -> None:
    server = Server()
    registrar = Registrar(server.client, URL, OPTIONS)
    await registrar.ensure(b"ca")
    assert server.writes == ["create", "create"]
    assert server.webhooks() == validating(URL, OPTIONS, b"ca")
    assert server.mutating.objects[CONFIGURATION_NAME]["webhooks"] == mutating(URL, OPTIONS, b"ca")
    await registrar.ensure(b"ca")
    assert server.writes == ["create", "create"]


@pytest.mark.parametrize(
    "changes",
    [
        {"webhooks": []},
        {"webhooks": None},
        {"webhooks": [{"name": "other"}]},
    ],
)
async def test_drift_is_repaired(changes: dict[str, Any]) -> None:
    server = Server()
    registrar = Registrar(server.client, URL, OPTIONS)
    await registrar.ensure(b"ca")
    server.validating.edited(CONFIGURATION_NAME, changes)
    await registrar.ensure(b"ca")
    assert server.webhooks() == validating(URL, OPTIONS, b"ca")


async def test_a_new_bundle_is_told() -> None:
    server = Server()
    registrar = Registrar(server.client, URL, OPTIONS)
    await registrar.ensure(b"old")
    await registrar.ensure(b"new old")
    assert server.webhooks() == validating(URL, OPTIONS, b"new old")


async def test_another_failure_policy_is_told() -> None:
    server = Server()
    await Registrar(server.client, URL, OPTIONS).ensure(b"ca")
    await Registrar(server.client, URL, Options(failure_policy=FailurePolicy.FAIL)).ensure(b"ca")
    assert {webhook["failurePolicy"] for webhook in server.webhooks()} == {"Fail"}


async def test_a_configuration_without_webhooks_goes() -> None:
    server = Server()
    await Registrar(server.client, URL, OPTIONS).ensure(b"ca")
    await Registrar(server.client, URL, Options(quota_guard=QuotaGuard.DENY)).ensure(b"ca")
    assert not server.mutating.objects
    assert server.validating.objects


async def test_what_an_injector_puts_in_stays() -> None:
    server = Server()
    registrar = Registrar(server.client, URL, OPTIONS)
    await registrar.ensure(None)
    injected = [{**w, "clientConfig": {**w["clientConfig"], "caBundle": "aW5q"}} for w in server.webhooks()]
    server.validating.edited(CONFIGURATION_NAME, {"webhooks": injected})
    before = len(server.writes)
    await registrar.ensure(None)
    assert len(server.writes) == before
    assert {webhook["clientConfig"]["caBundle"] for webhook in server.webhooks()} == {"aW5q"}
    # Also when something else has to change.
    await Registrar(server.client, URL, Options(failure_policy=FailurePolicy.FAIL)).ensure(None)
    assert {webhook["clientConfig"]["caBundle"] for webhook in server.webhooks()} == {"aW5q"}


async def test_a_foreign_writer_in_between_is_read_again() -> None:
    server = Server()
    registrar = Registrar(server.client, URL, OPTIONS)
    await registrar.ensure(b"old")
    server.validating.before.append(
        lambda: server.validating.edited(CONFIGURATION_NAME, {"metadata": {"labels": {"a": "b"}}})
    )
    await registrar.ensure(b"new")
    assert server.webhooks() == validating(URL, OPTIONS, b"new")


async def test_replicas_that_start_together_end_with_one_configuration() -> None:
    server = Server()
    await asyncio.gather(*(Registrar(server.client, URL, OPTIONS).ensure(b"ca") for _ in range(5)))
    assert server.webhooks() == validating(URL, OPTIONS, b"ca")


async def test_a_live_replicas_url_is_left_alone_and_a_dead_ones_is_taken_over() -> None:
    async def nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    listener = await asyncio.start_server(nothing, "127.0.0.1", 0)
    theirs = Endpoint(url=f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
    server = Server()
    await Registrar(server.client, theirs, OPTIONS).ensure(b"ca")
    ours = Registrar(server.client, URL, OPTIONS)
    await ours.ensure(b"ca")
    assert server.webhooks() == validating(theirs, OPTIONS, b"ca")
    # What differs otherwise is written all the same.
    await ours.ensure(b"new")
    assert server.webhooks() == validating(URL, OPTIONS, b"new")
    await Registrar(server.client, theirs, OPTIONS).ensure(b"newer")
    listener.close()
    await listener.wait_closed()
    await ours.ensure(b"newer")
    assert server.webhooks() == validating(URL, OPTIONS, b"newer")


async def test_what_is_forbidden_is_passed_on() -> None:
    server = Server()
    server.validating.errors["create"] = [Forbidden("no", status=403)]
    with pytest.raises(Forbidden):
        await Registrar(server.client, URL, OPTIONS).ensure(b"ca")


async def test_unregister_takes_away_what_is_there() -> None:
    server = Server()
    await Registrar(server.client, URL, OPTIONS).ensure(b"ca")
    assert await unregister(server.client) == [
        "ValidatingWebhookConfiguration",
        "MutatingWebhookConfiguration",
    ]
    assert await unregister(server.client) == []
