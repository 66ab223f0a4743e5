"""The webhook configurations: the requests that the API server asks about."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from typing import Any

import pytest

from kubeloop.webhook.registration import TIMEOUT_SECONDS, Endpoint, Webhook
from pkg.config.settings import RANCHER_USERS, WEBHOOKS, QuotaGuard, Settings
from pkg.webhook.configurations import mutating, probing, validating

URL = Endpoint(url="https://127.0.0.1:9443")
KEY = "0123456789abcdef" * 2
SERVICE = Endpoint(service_namespace="harvester-system", service_name="headroom-webhook")


def by_name(webhooks: list[Webhook]) -> dict[str, Webhook]:
    return {webhook["name"].partition(".")[0]: webhook for webhook in webhooks}


def conditions(webhook: Webhook) -> dict[str, str]:
    return {condition["name"]: condition["expression"] for condition in webhook.get("matchConditions", ())}


OPTIONS = {
    "everything": (Settings(), {"namespaces", "virtualmachines", "resourcequotas", "pods"}, {"resourcequotas"}),
    "deny all": (
        Settings(quota_guard=QuotaGuard.DENY), {"namespaces", "virtualmachines", "resourcequotas", "pods"}, set(),
    ),
    "no guard": (Settings(quota_guard=QuotaGuard.OFF), {"namespaces", "virtualmachines", "pods"}, set()),
    "no reserve": (Settings(reserve=False), {"namespaces", "virtualmachines", "resourcequotas"}, {"resourcequotas"}),
    "no Rancher": (
        Settings(rancher_users=()), {"namespaces", "virtualmachines", "resourcequotas", "pods"}, set(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", list(OPTIONS.values()), ids=list(OPTIONS))
def test_which_webhooks_there_are(case: tuple[Settings, set[str], set[str]]) -> None:
    options, validated, mutated = case
    assert set(by_name(validating(URL, options, b"ca"))) == validated
    assert set(by_name(mutating(URL, options, b"ca"))) == mutated


def test_other_namespaces_are_not_asked_about() -> None:
    options = Settings(only_namespaces=["scale-ab-*", "try"])
    webhooks = (*validating(URL, options, b"ca"), *mutating(URL, options, b"ca"))
    conditions_by_name = [(hook["name"].partition(".")[0], conditions(hook)["served"]) for hook in webhooks]
    for name, served in conditions_by_name:
        subject = "request.name" if name == "namespaces" else "request.namespace"
        assert served == rf"{subject}.matches(r'^(?:scale\-ab\-.*|try)$')"
    assert len(conditions_by_name) == 5
    assert "served" not in conditions(probing(URL, options, b"ca")[0]), "it has its own namespace"
    with pytest.raises(ValueError, match="not a pattern of names"):
        validating(URL, Settings(only_namespaces=["it's"]), b"ca")


@pytest.mark.parametrize(("strict", "policy"), [((), "Ignore"), (WEBHOOKS, "Fail")])
def test_what_all_have_in_common(strict: tuple[str, ...], policy: str) -> None:
    options = Settings(strict=strict)
    for webhook in (*validating(URL, options, b"ca"), *mutating(URL, options, b"ca")):
        assert webhook["timeoutSeconds"] == TIMEOUT_SECONDS == 5
        assert webhook["failurePolicy"] == policy
        assert webhook["sideEffects"] in ("None", "NoneOnDryRun")
        assert webhook["admissionReviewVersions"] == ["v1"]
        assert base64.b64decode(webhook["clientConfig"]["caBundle"]) == b"ca"
        assert webhook["name"].endswith(".headroom.harvesterhci.io")
        for rule in webhook["rules"]:
            assert "*" not in rule["operations"]
            assert "*" not in rule["resources"]
            assert "*" not in rule["apiGroups"]


RULES = {
    "namespaces": [("", ["namespaces", "namespaces/status", "namespaces/finalize"], ["UPDATE"], "Cluster")],
    "resourcequotas": [("", ["resourcequotas", "resourcequotas/status"], ["UPDATE", "DELETE"], "Namespaced")],
    "virtualmachines": [("kubevirt.io", ["virtualmachines"], ["CREATE", "UPDATE"], "Namespaced")],
    "pods": [("", ["pods"], ["CREATE"], "Namespaced"), ("", ["pods/resize"], ["UPDATE"], "Namespaced")],
}


@pytest.mark.parametrize("name", list(RULES))
def test_rules_are_as_narrow_as_can_be(name: str) -> None:
    webhook = by_name(validating(URL, Settings(), b"ca"))[name]
    rules = [(r["apiGroups"][0], r["resources"], r["operations"], r["scope"]) for r in webhook["rules"]]
    assert rules == RULES[name]


def test_pods_are_looked_at_where_room_is_held_and_nowhere_else() -> None:
    for name, webhook in by_name(validating(URL, Settings(), b"ca")).items():
        selector: dict[str, Any] = {"matchLabels": {"headroom.harvesterhci.io/holding": "true"}}
        assert webhook["namespaceSelector"] == (selector if name == "pods" else {})


def test_a_url_or_a_service() -> None:
    by_url = by_name(validating(URL, Settings(), None))["namespaces"]["clientConfig"]
    assert by_url == {"url": "https://127.0.0.1:9443/validate-namespace"}
    service = by_name(validating(SERVICE, Settings(), None))["namespaces"]["clientConfig"]["service"]
    assert service == {
        "namespace": "harvester-system",
        "name": "headroom-webhook",
        "path": "/validate-namespace",
        "port": 443,
    }
    names = ["headroom-webhook.harvester-system.svc", "headroom-webhook.harvester-system.svc.cluster.local"]
    assert (URL.hosts, SERVICE.hosts) == (["127.0.0.1"], names)


@pytest.mark.parametrize("endpoint", [URL, SERVICE], ids=["by URL", "by Service"])
def test_the_key_is_at_the_end_of_every_path(endpoint: Endpoint) -> None:
    keyed = replace(endpoint, key=KEY)
    for make in (validating, mutating, probing):
        for webhook in make(keyed, Settings(), b"ca"):
            config = webhook["clientConfig"]
            assert (config.get("url") or config["service"]["path"]).endswith(f"/{KEY}")


def test_only_ranchers_writes_are_changed() -> None:
    (webhook,) = mutating(URL, Settings(), b"ca")
    expression = conditions(webhook)["by-rancher"]
    match = re.fullmatch(r"request\.userInfo\.username\.matches\(r'(.*)'\)", expression)
    assert match is not None
    pattern = re.compile(match[1])
    for user in (
        "system:serviceaccount:cattle-system:cattle",
        "system:serviceaccount:cattle-fleet-system:fleet-agent",
        "cattle-cluster-agent",
    ):
        assert pattern.match(user)
        assert Settings().is_rancher(user)
    for user in ("alice", "system:serviceaccount:cattle-systemx:a", "xsystem:serviceaccount:cattle-system:a", ""):
        assert not pattern.match(user)
        assert not Settings().is_rancher(user)


@pytest.mark.parametrize("pattern", ["it's", "a b", "x'||true", "", "a\nb", "[a-z]"])
def test_a_pattern_that_breaks_out_of_the_expression_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="not a pattern of names"):
        mutating(URL, Settings(rancher_users=(*RANCHER_USERS, pattern)), b"ca")


def test_headrooms_own_writes_never_come_here() -> None:
    own_user_name = "system:serviceaccount:harvester-system:headroom"
    guarded = by_name(validating(URL, Settings(own_user=own_user_name), b"ca"))["resourcequotas"]
    assert conditions(guarded)["not-headroom"] == f"request.userInfo.username != '{own_user_name}'"
    person = by_name(validating(URL, Settings(own_user="kubernetes-admin"), b"ca"))["resourcequotas"]
    assert "not-headroom" not in conditions(person)


def test_expressions_need_no_optional_types() -> None:
    """CEL's optional syntax came a release after matchConditions did."""
    for webhook in (*validating(URL, Settings(), b"ca"), *mutating(URL, Settings(), b"ca")):
        for expression in conditions(webhook).values():
            assert ".?" not in expression
            assert "[?" not in expression


def test_the_guard_is_asked_about_limits_only() -> None:
    guarded = conditions(by_name(validating(URL, Settings(), b"ca"))["resourcequotas"])
    assert "object.spec.hard != oldObject.spec.hard" in guarded["limits-change"]
    assert "!(has(object.spec.hard) && object.status.hard == object.spec.hard)" in guarded["limits-change"]
    assert "resourcequota.management.cattle.io/default-resource-quota" in guarded["managed"]
    assert "headroom.harvesterhci.io/managed" in guarded["managed"]
