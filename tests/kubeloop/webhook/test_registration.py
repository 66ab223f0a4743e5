"""Configurations on an API server: created, kept, shared, taken away."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from kubeloop.api.registry import JOBS, MUTATING_WEBHOOK_CONFIGURATIONS, NODES, VALIDATING_WEBHOOK_CONFIGURATIONS
from kubeloop.webhook.registration import Endpoint, Registration, Webhook, key_of, registered, rule, webhook
from tests import kinds
from tests.kubeloop.webhook.listening import KEY

pytestmark = pytest.mark.virtual_time

NAME = "example.org"
URL = Endpoint(url="https://127.0.0.1:9443")
LABELS = {"app.kubernetes.io/managed-by": "example"}


class ConfigurationServer(kinds.Server):
    def __init__(self) -> None:
        super().__init__()
        self.validating = self.kind(VALIDATING_WEBHOOK_CONFIGURATIONS)
        self.mutating = self.kind(MUTATING_WEBHOOK_CONFIGURATIONS)

    @property
    def writes(self) -> list[str]:
        calls = [*self.validating.calls, *self.mutating.calls]
        return [verb for verb, _, _ in calls if verb != "get"]

    def registered_webhooks(self) -> list[Webhook]:
        webhooks: list[Webhook] = self.validating.objects[NAME]["webhooks"]
        return webhooks

    def registration(self, *names: str, **annotations: str) -> Registration:
        def make(endpoint: Endpoint, bundle: bytes | None) -> list[Webhook]:
            return [webhook_of(name, endpoint, bundle) for name in names or ("pods", "nodes")]

        return Registration(
            self.client(),
            URL,
            NAME,
            [(VALIDATING_WEBHOOK_CONFIGURATIONS, make), (MUTATING_WEBHOOK_CONFIGURATIONS, make)],
            labels=LABELS,
            annotations=annotations,
        )


def webhook_of(name: str, endpoint: Endpoint, bundle: bytes | None) -> Webhook:
    rules = [rule([name], ["CREATE"])]
    policy = "Fail" if name == "pods" else "Ignore"
    return webhook(f"{name}.{NAME}", endpoint.client_config(f"/{name}", bundle), rules, failurePolicy=policy)


@pytest.fixture
def server() -> ConfigurationServer:
    return ConfigurationServer()


def test_a_rule_of_a_kind_has_its_group_and_scope() -> None:
    assert rule(NODES, ["DELETE"]) == rule(["nodes"], ["DELETE"], scope="Cluster")
    assert rule(JOBS, ["CREATE"]) == rule(["jobs"], ["CREATE"], group="batch")


def test_a_field_that_no_webhook_has_is_refused() -> None:
    assert webhook("a", {}, [], reinvocationPolicy="Never", matchConditions=[])["reinvocationPolicy"] == "Never"
    with pytest.raises(TypeError, match="failurepolicy: a webhook has no such field"):
        webhook("a", {}, [], failurepolicy="Ignore")


async def test_both_are_created_and_then_left_alone(server: ConfigurationServer) -> None:
    registration = server.registration()
    for _ in range(2):
        await registration.ensure(b"ca")
        assert server.writes == ["create"] * 2
    assert [len(kind.calls) for kind in (server.validating, server.mutating)] == [3 + 1, 2 + 1]
    assert server.registered_webhooks() == [
        webhook_of(name, registration.endpoint, b"ca") for name in ("pods", "nodes")
    ]
    assert server.mutating.objects[NAME]["webhooks"] == server.registered_webhooks()
    url = f"{URL.url}/pods/{registration.endpoint.key}"
    assert server.registered_webhooks()[0]["clientConfig"] == {"caBundle": "Y2E=", "url": url}


@pytest.mark.parametrize(
    "changes",
    [
        {"webhooks": []},
        {"webhooks": None},
        {"webhooks": [{"name": "other"}]},
        {"metadata": {"labels": None}},
        {"metadata": {"annotations": {"a": "c"}}},
    ],
    ids=["empty", "none", "another", "the label by which all is taken out in an emergency", "an annotation"],
)
async def test_drift_is_repaired(changes: dict[str, Any], server: ConfigurationServer) -> None:
    registration = server.registration(a="b")
    await registration.ensure(b"ca")
    registered_before = server.registered_webhooks()
    server.validating.edited(NAME, changes)
    await registration.ensure(b"ca")
    assert server.registered_webhooks() == registered_before
    metadata = server.validating.objects[NAME]["metadata"]
    assert (metadata["labels"], metadata["annotations"]) == (LABELS, {"a": "b"})


async def test_what_an_injector_puts_in_stays(server: ConfigurationServer) -> None:
    registration = server.registration("pods")
    await registration.ensure(None)
    injected = [
        {**entry, "clientConfig": {**entry["clientConfig"], "caBundle": "aW5q"}}
        for entry in server.registered_webhooks()
    ]
    server.validating.edited(NAME, {"webhooks": injected})
    writes_before = len(server.writes)
    await registration.ensure(None)
    assert len(server.writes) == writes_before
    # Also when something else has to change.
    await server.registration().ensure(None)
    assert [entry["clientConfig"].get("caBundle") for entry in server.registered_webhooks()] == ["aW5q", None]


async def test_a_foreign_writer_in_between_is_read_again(server: ConfigurationServer) -> None:
    registration = server.registration()
    await registration.ensure(b"old")
    server.validating.before.append(lambda: server.validating.edited(NAME, {"metadata": {"labels": {"a": "b"}}}))
    await registration.ensure(b"new")
    assert {entry["clientConfig"]["caBundle"] for entry in server.registered_webhooks()} == {"bmV3"}


async def test_replicas_that_start_together_share_one_key(server: ConfigurationServer) -> None:
    replicas = [server.registration() for _ in range(5)]
    await asyncio.gather(*(replica.ensure(b"ca") for replica in replicas))
    (key,) = {replica.endpoint.key for replica in replicas}
    assert all(entry["clientConfig"]["url"].endswith(key) for entry in server.registered_webhooks())
    restarted = server.registration()
    await restarted.adopt()
    assert restarted.endpoint.key == key


async def test_the_registration_is_read_before_a_key_is_refused(server: ConfigurationServer) -> None:
    first_registration, second_registration = server.registration(), server.registration()
    await first_registration.ensure(b"ca")
    reads = len(server.validating.calls)
    assert await asyncio.gather(
        *(second_registration.knows(key) for key in (first_registration.endpoint.key, "", KEY))
    ) == [True, False, False]
    assert len(server.validating.calls) == reads + 1
    for _ in range(40):
        await asyncio.sleep(0.25)
        assert not await second_registration.knows(KEY)
    assert len(server.validating.calls) == reads + 1 + 10
    # Who goes away ends the read for nobody.
    third = server.registration()
    gone = asyncio.create_task(third.knows(first_registration.endpoint.key))
    await asyncio.sleep(0)
    gone.cancel()
    assert await third.knows(first_registration.endpoint.key)


@pytest.mark.parametrize(
    "endpoint", [replace(URL, key=KEY), Endpoint("", "ns", "webhook", key=KEY)], ids=["by URL", "by Service"]
)
def test_the_key_is_at_the_end_of_the_path(endpoint: Endpoint) -> None:
    config = endpoint.client_config("/pods")
    assert (config.get("url") or config["service"]["path"]).endswith(f"/pods/{KEY}")
    without = webhook("a", {"service": {"path": "/pods"}}, [])
    assert key_of([without, webhook("b", config, [])]) == KEY
    assert key_of([without]) == ""


async def test_a_write_says_whether_there_was_anything_to_write(server: ConfigurationServer) -> None:
    registration, webhooks_to_write = server.registration(), [webhook_of("pods", URL, b"ca")]
    steps: list[tuple[list[Webhook], bool]] = [
        ([], False),
        (webhooks_to_write, True),
        (webhooks_to_write, False),
        ([], True),
    ]
    for webhooks, writes in steps:
        configuration = await registered(registration.client, VALIDATING_WEBHOOK_CONFIGURATIONS, NAME)
        was_written = await registration.put(VALIDATING_WEBHOOK_CONFIGURATIONS, NAME, configuration, webhooks, {})
        assert was_written is writes


async def test_of_those_that_stand_some_are_kept(server: ConfigurationServer) -> None:
    registration = server.registration()

    async def keep(policy: str) -> bool:
        return await registration.write(b"ca", only=lambda entry: entry["failurePolicy"] == policy)

    assert not await keep("Fail")
    assert server.writes == []
    await registration.ensure(b"ca")
    assert await keep("Fail")
    assert [entry["name"] for entry in server.registered_webhooks()] == [f"pods.{NAME}"]
    assert await keep("None")
    assert (server.validating.objects, server.mutating.objects) == ({}, {})
