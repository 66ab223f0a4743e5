"""The lock: what it asks about, whose it is, which namespace it locks; and the record of a quota."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from kubeloop.api.core import ValidatingWebhookConfiguration
from kubeloop.api.quantity import QuantityError
from pkg.api.mtq import VirtualMachineMigrationResourceQuota
from pkg.util.constants import ANNOTATION_ORIGINALS
from pkg.util.managedtenantquota.lock import (
    Lock,
    admitted_by,
    client_config,
    lock_body,
    lock_name,
    lock_webhook,
    recognise,
)
from pkg.util.managedtenantquota.model import Record, is_in_use, is_lowering_enforced, record_of
from tests.decisions import by_value, sentences
from tests.objects import Resources, build
from tests.pkg.util.managedtenantquota.objects import (
    FOR_VM1,
    HOOK,
    HOOKS,
    NOW,
    WHERE,
    lock,
    name_of,
    next_step,
    observed,
    quota,
)

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
    assert (result.since, result.longest, result.owner, result.reason) == (NOW, 130.0, "me", "vm1")
    assert all(len(part) <= 63 for part in result.configuration.name.split("."))
    assert len(result.configuration.name) <= 253


def test_another_installations_lock_is_recognised_by_its_label() -> None:
    result = recognised(metadata=UPSTREAM)
    assert result is not None
    assert (result.namespace, result.owner, result.since, result.longest) == ("ns1", "", 1767225600.0, 0.0)


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
        "as wanted": ([FOR_VM1], True),
        "with something that the API server added": ([{**FOR_VM1, "more": 1}], True),
        "another CA": ([{**FOR_VM1, "clientConfig": {**WHERE, "caBundle": "T0xE"}}], False),
        "other accounts": ([lock_webhook("ns1", WHERE, owners=["a-holder"], virt_controllers=["virt"])], False),
        "no webhook": ([], False),
        "one more": ([FOR_VM1, FOR_VM1], False),
    }
)
def test_a_lock_is_updated_unless_its_webhook_is_as_wanted(case: tuple[list[dict[str, Any]], bool]) -> None:
    step = next_step(observed(lock=recognised(webhooks=case[0])))
    assert (name_of(step) != "UpdateLock") is case[1]


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
    },
    "proven, registered, expected",
)
def test_the_lock_is_served_where_the_probe_is(proven: Any, registered: Any, expected: Any) -> None:
    assert client_config(proven, registered) == expected


# ---- the record of a quota: the limits that it is raised to, restored to, and keeps --------------------------


class RecordedQuota(NamedTuple):
    """A quota with the limit 3 before 2 were added: its limit now, and what it is changed to; "" if it stays."""

    now: str
    raised: str
    restored: str


@sentences(
    {
        "as it was": RecordedQuota("3", "5", ""),
        "in another spelling": RecordedQuota("3000m", "5", ""),
        "raised": RecordedQuota("5", "", "3"),
        "raised, in another spelling": RecordedQuota("5000m", "", "3"),
        "something between, by another client": RecordedQuota("4", "5", ""),
        "more than that": RecordedQuota("9", "", ""),
        "less than what was recorded": RecordedQuota("2", "", ""),
    }
)
def test_one_limit(case: RecordedQuota) -> None:
    record, now = Record({"limits.cpu": "3"}, {"limits.cpu": "2"}), {"limits.cpu": case.now}
    changes = record.to_raise(now), record.to_restore(now)
    assert [change.get("limits.cpu", "") for change in changes] == [case.raised, case.restored]


class Names(NamedTuple):
    hard: Resources
    added: Resources
    now: Resources
    raised: Resources
    restored: Resources


UP = {"limits.cpu": "5", "pods": "5"}


@sentences(
    {
        "what both name is added": Names(
            {"limits.cpu": "3"}, {"limits.cpu": "2"}, {"limits.cpu": 3}, {"limits.cpu": 5}, {}
        ),
        "what only the quota names stays": Names(
            {"pods": "5", "limits.cpu": "3"}, {"limits.cpu": "2"}, UP, {}, {"limits.cpu": 3}
        ),
        "what only the budget names is not put in": Names({"pods": "5"}, {"limits.cpu": "2"}, {"pods": "5"}, {}, {}),
        "another name of the same thing is another name": Names(
            {"cpu": "3"}, {"requests.cpu": "2"}, {"cpu": "3"}, {}, {}
        ),
        "a half raised quota": Names(
            {"limits.cpu": "3", "pods": 5}, {"limits.cpu": "2", "pods": 1}, UP, {"pods": 6}, {"limits.cpu": 3}
        ),
        "what a person took out is not put back": Names(
            {"limits.cpu": "3", "pods": "5"}, {"limits.cpu": "2"}, {"pods": "5"}, {}, {}
        ),
        "what a person put in stays": Names({"limits.cpu": "3"}, {"limits.cpu": "2"}, UP, {}, {"limits.cpu": 3}),
    }
)
def test_several_limits(case: Names) -> None:
    record = Record(case.hard, case.added)
    assert by_value(record.to_raise(case.now)) == by_value(case.raised)
    assert by_value(record.to_restore(case.now)) == by_value(case.restored)


def test_a_record_that_is_no_quantity_names_its_resource() -> None:
    with pytest.raises(QuantityError, match=r"limits\.cpu"):
        Record({"limits.cpu": "3"}, {"limits.cpu": "much"}).to_raise({"limits.cpu": "3"})


SAID = '{"additional":{"limits.cpu":"2"},"quotas":{"quota":{"limits.cpu":"3","pods":5}}}'


@sentences(
    {
        "what was recorded": (SAID, Record({"limits.cpu": "3", "pods": 5}, {"limits.cpu": "2"})),
        "what is no quantity, or less than nothing, is not": (
            '{"additional":{"limits.cpu":"much","pods":"0"},"quotas":{"quota":{"limits.cpu":"-3","pods":5}}}',
            Record({"pods": 5}, {"pods": "0"}),
        ),
        "of another quota": ('{"quotas":{"other":{"pods":5}}}', None),
        "garbage": ("{", None),
        "of another type": ('{"quotas":7}', None),
    }
)
def test_what_a_quota_says_of_itself(case: tuple[str, Record | None]) -> None:
    assert record_of(quota(annotations={ANNOTATION_ORIGINALS: case[0]})) == case[1]


def test_what_is_written() -> None:
    assert Record({"pods": 5, "limits.cpu": "3"}, {"limits.cpu": "2"}).text("quota") == SAID
    assert Record({"pods": 5}, {}).text("quota") == '{"quotas":{"quota":{"pods":5}}}'
    assert record_of(quota()) is None


@sentences(
    {
        "status says the same": ({"limits.cpu": "5", "pods": "5"}, True),
        "status is raised still": ({"limits.cpu": "6", "pods": "5"}, False),
        "status is lower": ({"limits.cpu": "5", "pods": "1"}, True),
        "status is of something else": ({"secrets": "1"}, True),
    }
)
def test_admission_goes_by_the_status(case: tuple[Resources, bool]) -> None:
    assert is_lowering_enforced(quota(UP, enforced=case[0])) is case[1]


@sentences(
    {
        "nothing": ({}, False),
        "originals": ({"originalBlockingResourceQuotas": [{"name": "quota"}]}, True),
        "migrations": ({"migrationsToBlockingResourceQuotas": {"one": ["quota"]}}, True),
        "what may be added": ({"additionalMigrationResources": UP}, False),
    }
)
def test_what_a_status_says_is_raised(case: tuple[dict[str, Any], bool]) -> None:
    assert is_in_use(build(VirtualMachineMigrationResourceQuota, "budget", {}, case[0])) is case[1]
