"""The lock: what it asks about, whose it is, which namespace it locks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kubeloop.api.admissionregistration import ValidatingWebhookConfiguration
from pkg.util.managedtenantquota.lock import (
    Lock,
    admitted_by,
    client_config,
    is_current,
    lock_body,
    lock_name,
    lock_webhook,
    recognise,
)
from tests.decisions import sentences
from tests.pkg.util.managedtenantquota.objects import FOR_VM1, HOOK, HOOKS, NOW, WHERE, lock

ON_THE_WIRE = json.loads((Path(__file__).parent / "lock.json").read_text("utf-8"))
OURS = lock_body("ns1", FOR_VM1, now=NOW, owner="me", reason="vm1", longest=130.0)
METADATA = OURS["metadata"]
UPSTREAM = {"name": "lock.ns1.com", "creationTimestamp": "2026-01-01T00:00:00Z", "labels": METADATA["labels"]}
"""As KubeVirt's controller makes it."""


def recognised(**changes: Any) -> Lock | None:
    return recognise(msgspec.convert({**OURS, **changes}, ValidatingWebhookConfiguration))


def test_what_is_created() -> None:
    assert ON_THE_WIRE == OURS


@pytest.mark.parametrize("namespace", ["a", "ns1", "n" * 63])
def test_a_lock_is_recognised_whatever_the_length_of_its_name(namespace: str) -> None:
    result = recognised(metadata={**METADATA, "name": lock_name(namespace), "uid": "u", "resourceVersion": "7"})
    assert result is not None
    assert (result.namespace, result.configuration.name) == (namespace, f"lock.{namespace}.com")
    assert (result.since, result.lasts, result.owner, result.reason, result.is_own) == (NOW, 130.0, "me", "vm1", True)
    assert all(len(part) <= 63 for part in result.configuration.name.split("."))
    assert len(result.configuration.name) <= 253


def test_another_installations_lock_is_recognised_by_its_label() -> None:
    result = recognised(metadata=UPSTREAM)
    assert result is not None
    assert (result.namespace, result.owner, result.since, result.lasts) == ("ns1", "", 1767225600.0, 0.0)
    assert not result.is_own


@sentences(
    {
        "no label": {**UPSTREAM, "labels": {}},
        "another value": {**UPSTREAM, "labels": {"mtq-lock-server": "other"}},
        "another name": {**METADATA, "name": "ns1"},
        "an unfinished name": {**METADATA, "name": "lock.ns1"},
    }
)
def test_what_is_no_lock(case: dict[str, Any]) -> None:
    assert recognised(metadata=case) is None


@sentences(
    {
        "no label": {"metadata": {**METADATA, "labels": {}}},
        "no webhook": {"webhooks": []},
        "every namespace": {"webhooks": [{"name": "lock.ns1.com", "namespaceSelector": {}}]},
    }
)
def test_a_lock_of_ours_that_was_edited_is_one(case: dict[str, Any]) -> None:
    result = recognised(**case)
    assert result is not None
    assert (result.namespace, result.since) == ("ns1", NOW)


@sentences(
    {
        "that second": ("2027-01-15T08:00:00Z", NOW),
        "in another zone": ("2027-01-15T09:00:00+01:00", NOW),
        "later": ("2027-01-15T08:00:05Z", NOW + 5),
        "earlier": ("2027-01-15T07:59:00Z", NOW - 59),
        "no time": ("yesterday", NOW),
    }
)
def test_the_api_servers_second_counts_and_our_clock_within_it(case: tuple[str, float]) -> None:
    result = recognised(metadata={**METADATA, "creationTimestamp": case[0]})
    assert result is not None
    assert result.since == case[1]


def test_user_names_cannot_break_out_of_an_expression() -> None:
    hook = lock_webhook("ns1", WHERE, owners=['a" || true || "', "", "patterns*", "a?", "[a]"], virt_controllers=["v"])
    holder = next(c["expression"] for c in hook["matchConditions"] if c["name"] == "not-the-holder")
    assert r'["a\" || true || \""]' in holder


def test_whom_it_admits() -> None:
    assert admitted_by(lock()) == {"uid-migration-of-vm1/vm1"}
    assert admitted_by(lock(hook=HOOKS(admitted=["b/vm2", 'a"])/vm1']))) == {'a"])/vm1', "b/vm2"}
    edited = [{**condition, "expression": "true"} for condition in FOR_VM1["matchConditions"]]
    for hook in (HOOK, WITHOUT, {**HOOK, "matchConditions": edited}):
        assert not admitted_by(lock(hook=hook))


WITHOUT = {key: value for key, value in HOOK.items() if key != "matchConditions"}


@sentences(
    {
        "as wanted": ([HOOK], True),
        "with something that the API server added": ([{**HOOK, "more": 1}], True),
        "another CA": ([{**HOOK, "clientConfig": {**WHERE, "caBundle": "T0xE"}}], False),
        "other accounts": ([lock_webhook("ns1", WHERE, owners=["a-holder"], virt_controllers=["virt"])], False),
        "an old server keeps no conditions: no patch for ever": ([WITHOUT], True),
        "no webhook": ([], False),
        "one more": ([HOOK, HOOK], False),
    }
)
def test_fits(case: tuple[list[dict[str, Any]], bool]) -> None:
    result = recognised(webhooks=case[0])
    assert result is not None
    assert is_current(result, HOOK) is case[1]


def webhooks_at(address: Any, bundle: str = "QQ==") -> list[dict[str, Any]]:
    """A configuration's only webhook, by URL or service."""
    config = {"url": address} if isinstance(address, str) else {"service": address}
    return [{"clientConfig": config | ({"caBundle": bundle} if bundle else {})}]


SERVICE = {"name": "s", "namespace": "n", "port": 443}


@sentences(
    {
        "by URL": (
            webhooks_at("https://10.0.0.1:9443/probe"),
            webhooks_at("https://10.0.0.1:9443/validate-namespace"),
            {"url": "https://10.0.0.1:9443/lock", "caBundle": "QQ=="},
        ),
        "by service": (
            webhooks_at({**SERVICE, "path": "/probe"}),
            webhooks_at({**SERVICE, "path": "/validate-namespace"}),
            {"service": {**SERVICE, "path": "/lock"}, "caBundle": "QQ=="},
        ),
        "of several the first, with the API server's key": (
            [*webhooks_at("https://h:9443/probe"), *webhooks_at("https://other/x")],
            [*webhooks_at("https://h:9443/validate-pod/0123"), *webhooks_at("https://h:9443/validate-vm/4567")],
            {"url": "https://h:9443/lock/0123", "caBundle": "QQ=="},
        ),
        "by service, with the key": (
            webhooks_at({**SERVICE, "path": "/probe"}),
            webhooks_at({**SERVICE, "path": "/validate-pod/0123"}),
            {"service": {**SERVICE, "path": "/lock/0123"}, "caBundle": "QQ=="},
        ),
        "a broken registration is not copied": (
            webhooks_at("https://h:9443/probe"),
            webhooks_at("https://elsewhere/x", "Qg=="),
            {"url": "https://h:9443/lock", "caBundle": "QQ=="},
        ),
        "an empty caBundle is no use": (webhooks_at("https://h/probe", ""), webhooks_at("https://h/x"), None),
        "nowhere": ([{"clientConfig": {}}], webhooks_at("https://h/x"), None),
        "no webhooks": ([], webhooks_at("https://h/x"), None),
        "no probe": (None, webhooks_at("https://h/x"), None),
        "nothing registered": (webhooks_at("https://h/probe"), None, None),
    }
)
def test_the_lock_is_served_where_the_probe_is(case: tuple[Any, Any, Any]) -> None:
    proven, registered, expected = case
    assert client_config(proven, registered) == expected
