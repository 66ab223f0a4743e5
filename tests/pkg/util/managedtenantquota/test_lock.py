"""The lock: what it asks about, whose it is, which namespace it locks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kubeloop.api.admissionregistration import ValidatingWebhookConfiguration
from pkg.util.managedtenantquota.lock import client_config, fits, lock_body, lock_name, lock_webhook, recognise
from tests.pkg.util.managedtenantquota.objects import HOOK, NOW, WHERE, lock

LONG = "n" * 63
UPSTREAM: dict[str, Any] = {
    "metadata": {
        "name": "lock.ns1.com",
        "uid": "u",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"mtq-lock-server": "mtq-lock-server"},
    },
    "webhooks": [
        {
            "name": "lock.ns1.com",
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ns1"}},
            "clientConfig": {"service": {"name": "mtq-lock", "namespace": "mtq", "path": "/validate-pods"}},
            "failurePolicy": "Fail",
            "rules": [],
        }
    ],
}
"""As KubeVirt's controller makes it."""


def configuration(body: dict[str, Any]) -> ValidatingWebhookConfiguration:
    return msgspec.convert(body, ValidatingWebhookConfiguration)


def of(namespace: str) -> ValidatingWebhookConfiguration:
    hook = lock_webhook(namespace, WHERE, holders=["me"], virt_controllers=["virt"])
    return configuration(lock_body(namespace, hook, now=NOW, holder="me", reason="vm1", longest=130.0))


@pytest.mark.parametrize("namespace", ["a", "ns1", LONG])
def test_a_lock_is_recognised_whatever_the_length_of_its_name(namespace: str) -> None:
    found = recognise(of(namespace))
    assert found is not None
    assert (found.namespace, found.name) == (namespace, f"lock.{namespace}.com")
    assert (found.since, found.lasts) == (NOW, 130.0)
    assert all(len(part) <= 63 for part in lock_name(namespace).split("."))
    assert len(lock_name(namespace)) <= 253


def test_another_installations_lock_is_recognised_by_label_and_selector() -> None:
    found = recognise(configuration(UPSTREAM))
    assert found is not None
    assert (found.namespace, found.holder, found.since, found.lasts) == ("ns1", "", 1767225600.0, 0.0)
    assert not fits(found, HOOK)


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"name": "lock.ns1.com"}},
        {"metadata": {"name": "lock.ns1.com", "labels": {"mtq-lock-server": "other"}}},
        {"metadata": {"name": "ns1", "labels": {"mtq-lock-server": "mtq-lock-server"}}},
    ],
    ids=["no label", "another value", "another name"],
)
def test_what_is_no_lock(change: dict[str, Any]) -> None:
    assert recognise(configuration({**UPSTREAM, **change})) is None


@pytest.mark.parametrize(
    "edit",
    [
        {"labels": {}},
        {"webhooks": []},
        {"webhooks": [{"name": "lock.ns1.com", "namespaceSelector": {}}]},
        {"webhooks": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": n}}} for n in "ab"]},
    ],
    ids=["no label", "no webhook", "every namespace", "two namespaces"],
)
def test_a_lock_of_ours_that_was_edited_is_one(edit: dict[str, Any]) -> None:
    hook = lock_webhook("ns1", WHERE, holders=["me"], virt_controllers=["virt"])
    body = lock_body("ns1", hook, now=NOW, holder="me", reason="vm1")
    body["metadata"] |= {"labels": edit.get("labels", body["metadata"]["labels"])}
    found = recognise(configuration(body | {"webhooks": edit.get("webhooks", body["webhooks"])}))
    assert found is not None
    assert (found.namespace, found.since) == ("ns1", NOW)


@pytest.mark.parametrize(
    ("created", "since"),
    [
        ("2027-01-15T08:00:00Z", NOW),
        ("2027-01-15T09:00:00+01:00", NOW),
        ("2027-01-15T08:00:05Z", NOW + 5),
        ("2027-01-15T07:59:00Z", NOW - 59),
    ],
    ids=["that second", "in another zone", "later", "earlier"],
)
def test_the_api_servers_second_counts_and_our_clock_within_it(created: str, since: float) -> None:
    made = of("ns1")
    metadata = msgspec.structs.replace(made.metadata, creation_timestamp=created)
    found = recognise(msgspec.structs.replace(made, metadata=metadata))
    assert found is not None
    assert found.since == since


def test_everything_that_could_use_the_room_is_asked_about() -> None:
    asked = {
        (resource, operation)
        for rule in HOOK["rules"]
        for resource in rule["resources"]
        for operation in rule["operations"]
    }
    assert asked == {
        ("resourcequotas", "UPDATE"),
        ("resourcequotas", "DELETE"),
        ("virtualmachinemigrationresourcequotas", "CREATE"),
        ("virtualmachinemigrationresourcequotas", "UPDATE"),
        ("virtualmachinemigrationresourcequotas", "DELETE"),
        ("virtualmachinemigrationresourcequotas/status", "CREATE"),
        ("virtualmachinemigrationresourcequotas/status", "UPDATE"),
        ("virtualmachinemigrationresourcequotas/status", "DELETE"),
        ("pods", "CREATE"),
        ("pods/resize", "UPDATE"),
    }
    assert HOOK["failurePolicy"] == "Fail"
    assert HOOK["namespaceSelector"] == {"matchLabels": {"kubernetes.io/metadata.name": "ns1"}}


def test_user_names_cannot_break_out_of_an_expression() -> None:
    hook = lock_webhook("ns1", WHERE, holders=['a" || true || "', "patterns*"], virt_controllers=["v"])
    holder = next(c["expression"] for c in hook["matchConditions"] if c["name"] == "not-the-holder")
    assert r'["a\" || true || \""]' in holder
    assert "patterns" not in holder


WITHOUT = {key: value for key, value in HOOK.items() if key != "matchConditions"}


@pytest.mark.parametrize(
    ("stands", "as_wanted"),
    [
        (HOOK, True),
        ({**HOOK, "clientConfig": {**WHERE, "caBundle": "T0xE"}}, False),
        (lock_webhook("ns1", WHERE, holders=["a-holder"], virt_controllers=["virt"]), False),
        (WITHOUT, True),
    ],
    ids=["as wanted", "another CA", "other accounts", "an old server keeps no conditions: no patch for ever"],
)
def test_fits(stands: dict[str, Any], as_wanted: bool) -> None:
    assert fits(lock(hook=stands), HOOK) is as_wanted


def at(where: Any, bundle: str = "QQ==") -> list[dict[str, Any]]:
    """A configuration's only webhook, by URL or service."""
    config = {"url": where} if isinstance(where, str) else {"service": where}
    return [{"clientConfig": config | ({"caBundle": bundle} if bundle else {})}]


SERVICE = {"name": "s", "namespace": "n", "port": 443}


@pytest.mark.parametrize(
    ("proven", "registered", "expected"),
    [
        (
            at("https://10.0.0.1:9443/probe"),
            at("https://10.0.0.1:9443/validate-namespace"),
            {"url": "https://10.0.0.1:9443/lock", "caBundle": "QQ=="},
        ),
        (
            at({**SERVICE, "path": "/probe"}),
            at({**SERVICE, "path": "/validate-namespace"}),
            {"service": {**SERVICE, "path": "/lock"}, "caBundle": "QQ=="},
        ),
        (
            [*at("https://h:9443/probe"), *at("https://other/x")],
            [*at("https://h:9443/validate-pod/0123"), *at("https://h:9443/validate-vm/4567")],
            {"url": "https://h:9443/lock/0123", "caBundle": "QQ=="},
        ),
        (
            at({**SERVICE, "path": "/probe"}),
            at({**SERVICE, "path": "/validate-pod/0123"}),
            {"service": {**SERVICE, "path": "/lock/0123"}, "caBundle": "QQ=="},
        ),
        (
            at("https://h:9443/probe"),
            at("https://elsewhere/x", "Qg=="),
            {"url": "https://h:9443/lock", "caBundle": "QQ=="},
        ),
        (at("https://h/probe", ""), at("https://h/x"), None),
        ([{"clientConfig": {}}], at("https://h/x"), None),
        ([], at("https://h/x"), None),
        (None, at("https://h/x"), None),
        (at("https://h/probe"), None, None),
    ],
    ids=[
        "by URL",
        "by service",
        "of several the first, with the key by which the API server is known",
        "by service, with the key",
        "a broken registration is not copied",
        "an empty caBundle is no use",
        "nowhere",
        "no webhooks",
        "no probe",
        "nothing registered",
    ],
)
def test_the_lock_is_served_where_the_probe_is(proven: Any, registered: Any, expected: Any) -> None:
    assert client_config(proven, registered) == expected
