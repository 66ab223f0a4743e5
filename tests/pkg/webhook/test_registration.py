"""The webhook configurations: the requests that the API server asks about; how they are created, kept, shared and
taken away on an API server; and the Service and metrics of one process."""

import asyncio
import base64
import contextlib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import REGISTRY

from kubeloop.api.registry import MUTATING_WEBHOOK_CONFIGURATIONS, VALIDATING_WEBHOOK_CONFIGURATIONS
from kubeloop.client.errors import ServerError, Unreachable
from kubeloop.testing.fake.objects import Request
from kubeloop.testing.virtual_time import now
from kubeloop.webhook.admission import ALLOW, Decision, deny
from kubeloop.webhook.registration import TIMEOUT_SECONDS, Endpoint, NotReached, Webhook, split_key
from kubeloop.webhook.serving_certificate import server_context
from pkg.config.management import Management
from pkg.config.settings import RANCHER_USERS, WEBHOOKS, QuotaGuard, Settings
from pkg.selfcheck.api_server import PROBE_CONFIGURATION, PROBE_MARK, PROBE_WEBHOOK
from pkg.util.constants import WEBHOOK_CONFIGURATION_NAME
from pkg.webhook.configurations import MANAGED_BY, fingerprint, mutating, probing, validating
from pkg.webhook.register import HeadroomMetrics, Webhooks
from pkg.webhook.registration import (
    EVENT_CHANGED,
    EVENT_NOT_REACHED,
    EVENT_OTHER_FLAGS,
    INJECT_CA_FROM,
    WITHDRAWN_AFTER,
    Registrar,
    unregister,
)
from tests import kinds
from tests.decisions import sentences
from tests.kinds import Server

pytestmark = pytest.mark.virtual_time

URL = Endpoint(url="https://127.0.0.1:9443")
SETTINGS = Settings()


class RegistrationServer(kinds.Server):
    """It asks the webhook about the probe's object."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = {URL.url}
        """The addresses that the API server reaches, and who answers there: with whose mark."""
        self.mark = fingerprint(URL, SETTINGS)
        self.away = False
        self.failing = PROBE_WEBHOOK
        self.probing = 0.0
        """Seconds that a probe takes."""
        self.validating = self.kind(VALIDATING_WEBHOOK_CONFIGURATIONS)
        self.mutating = self.kind(MUTATING_WEBHOOK_CONFIGURATIONS)
        self.reactors.append(self._probe)

    async def _probe(self, request: Request) -> None:
        if (request.verb, request.plural, request.key) != ("create", "events", "default"):
            return
        if self.away:
            raise Unreachable("connection refused")
        webhook = self.mutating.objects[PROBE_CONFIGURATION]["webhooks"][0]
        await asyncio.sleep(self.probing)
        if split_key(webhook["clientConfig"].get("url", URL.url))[0].removesuffix("/probe") not in self.reached:
            raise ServerError(f'failed calling webhook "{self.failing}": connection refused', status=500)
        request.body["metadata"]["annotations"] = {PROBE_MARK: self.mark}

    @property
    def writes(self) -> list[str]:
        calls = [*self.validating.calls, *self.mutating.calls]
        return [verb for verb, _, _ in calls if verb != "get"]

    def standing(self) -> list[dict[str, Any]]:
        """Returns the webhooks of the ValidatingWebhookConfiguration."""
        webhooks: list[dict[str, Any]] = self.validating.objects[WEBHOOK_CONFIGURATION_NAME]["webhooks"]
        return webhooks

    def webhooks(self) -> list[dict[str, Any]]:
        """The same without the key at the end of their paths."""
        return without_key(self.standing())


def without_key(webhooks: list[Webhook]) -> list[Webhook]:
    configs = [{**hook["clientConfig"], "url": split_key(hook["clientConfig"]["url"])[0]} for hook in webhooks]
    return [{**hook, "clientConfig": config} for hook, config in zip(webhooks, configs, strict=True)]


@pytest.fixture
def server() -> RegistrationServer:
    return RegistrationServer()


@pytest.fixture
def registrar(server: RegistrationServer) -> Registrar:
    return Registrar(server.client(), URL, SETTINGS)


async def test_both_are_created_and_then_left_alone(server: RegistrationServer, registrar: Registrar) -> None:
    await registrar.ensure(b"ca")
    assert server.writes == ["create", "create", "create"]
    assert server.webhooks() == validating(URL, SETTINGS, b"ca")
    mutated = server.mutating.objects[WEBHOOK_CONFIGURATION_NAME]["webhooks"]
    assert without_key(mutated) == mutating(URL, SETTINGS, b"ca")
    await registrar.ensure(b"ca")
    assert server.writes == ["create", "create", "create"]


def written(operation: str) -> float:
    """Returns how often this process says that it wrote a webhook configuration."""
    kinds = (VALIDATING_WEBHOOK_CONFIGURATIONS.kind, MUTATING_WEBHOOK_CONFIGURATIONS.kind)
    name = "headroom_webhook_configuration_writes_total"
    labels = [{"kind": kind, "operation": operation} for kind in kinds]
    return sum(REGISTRY.get_sample_value(name, label) or 0.0 for label in labels)


async def test_every_write_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """No admission policy sees them."""
    caplog.set_level("INFO", "pkg.config.metrics")
    operations = ("created", "updated", "removed")
    earlier = [written(operation) for operation in operations]
    server = RegistrationServer()
    registrar = Registrar(server.client(), URL, SETTINGS)
    await registrar.ensure(b"ca")
    server.validating.edited(WEBHOOK_CONFIGURATION_NAME, {"webhooks": []})
    await registrar.ensure(b"ca")
    assert await unregister(server.client()) == ["ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"]
    assert await unregister(server.client()) == []
    assert [written(operation) for operation in operations] == [earlier[0] + 3, earlier[1] + 1, earlier[2] + 3]
    said = [record.getMessage() for record in caplog.records if record.levelname == "INFO"]
    assert len(said) == 7
    assert f"MutatingWebhookConfiguration {PROBE_CONFIGURATION} removed" in said


async def test_drift_is_repaired(server: RegistrationServer, registrar: Registrar) -> None:
    await registrar.ensure(b"ca")
    server.validating.edited(WEBHOOK_CONFIGURATION_NAME, {"webhooks": [], "metadata": {"labels": None}})
    await registrar.ensure(b"ca")
    assert server.webhooks() == validating(URL, SETTINGS, b"ca")
    assert server.validating.objects[WEBHOOK_CONFIGURATION_NAME]["metadata"]["labels"] == MANAGED_BY


def blanked(server: RegistrationServer) -> None:
    webhooks = [{**hook, "clientConfig": {"url": hook["clientConfig"]["url"]}} for hook in server.standing()]
    server.validating.edited(WEBHOOK_CONFIGURATION_NAME, {"webhooks": webhooks})


CHANGES: dict[str, tuple[Callable[[RegistrationServer], object], str]] = {
    "it is deleted": (
        lambda server: server.validating.gone(WEBHOOK_CONFIGURATION_NAME),
        "was deleted by another client",
    ),
    "its caBundle is blanked": (blanked, "was changed by another client"),
    "a webhook is taken away": (
        lambda server: server.validating.edited(WEBHOOK_CONFIGURATION_NAME, {"webhooks": server.standing()[1:]}),
        "was changed by another client",
    ),
}


@pytest.mark.parametrize("case", CHANGES)
async def test_anothers_change_is_repaired_and_reported_once(case: str, server: RegistrationServer) -> None:
    change, said = CHANGES[case]
    events: list[tuple[str, str]] = []
    registrar = Registrar(server.client(), URL, SETTINGS, lambda *event: events.append(event))
    for _ in range(3):
        await registrar.ensure(b"ca")
    assert events == []
    change(server)
    for _ in range(3):
        await registrar.ensure(b"ca")
    assert server.webhooks() == validating(URL, SETTINGS, b"ca")
    ((reason, event),) = events
    assert reason == EVENT_CHANGED
    assert f"ValidatingWebhookConfiguration headroom.harvesterhci.io {said}" in event
    assert event.endswith("and is written again")
    change(server)
    await registrar.ensure(b"ca")
    assert len(events) == 2, "done again, said again"


async def test_a_new_authority_and_a_withdrawal_are_our_own_changes(server: RegistrationServer) -> None:
    events: list[tuple[str, str]] = []
    registrar = Registrar(server.client(), URL, SETTINGS, lambda *event: events.append(event))
    await registrar.ensure(b"ca")
    await registrar.ensure(b"another")
    server.reached.clear()
    for _ in range(3):
        with contextlib.suppress(NotReached):
            await registrar.ensure(b"another")
        await asyncio.sleep(WITHDRAWN_AFTER)
    server.reached.add(URL.url)
    await registrar.ensure(b"another")
    assert [reason for reason, _ in events] == [EVENT_NOT_REACHED]


async def test_a_configuration_without_webhooks_goes(server: RegistrationServer) -> None:
    await Registrar(server.client(), URL, SETTINGS).ensure(b"ca")
    changed = Registrar(server.client(), URL, Settings(quota_guard=QuotaGuard.DENY))
    server.mark = changed.mark
    await changed.ensure(b"ca")
    assert list(server.mutating.objects) == [PROBE_CONFIGURATION]
    assert server.validating.objects


async def test_an_injector_is_told_of_the_certificate(server: RegistrationServer) -> None:
    registrar = Registrar(server.client(), URL, Settings(inject_ca_from="ns/certificate"))
    await registrar.ensure(None)
    for configuration in (server.validating.objects[WEBHOOK_CONFIGURATION_NAME], *server.mutating.objects.values()):
        assert configuration["metadata"]["annotations"][INJECT_CA_FROM] == "ns/certificate"
    assert not any("caBundle" in webhook["clientConfig"] for webhook in server.standing())


async def test_replicas_that_start_together_share_one_key(server: RegistrationServer) -> None:
    registrars = [Registrar(server.client(), URL, SETTINGS) for _ in range(5)]
    await asyncio.gather(*(registrar.ensure(b"ca") for registrar in registrars))
    (key,) = {registrar.endpoint.key for registrar in registrars}
    assert server.standing() == validating(replace(URL, key=key), SETTINGS, b"ca")
    restarted = Registrar(server.client(), URL, SETTINGS)
    await restarted.adopt()
    other_registrar = Registrar(server.client(), URL, Settings(strict=WEBHOOKS))
    await other_registrar.ensure(b"ca")  # though it leaves the registration alone
    assert restarted.endpoint.key == other_registrar.endpoint.key == key


async def test_the_probe_is_asked_with_a_key_that_every_replica_knows(server: RegistrationServer) -> None:
    """Before anything else is registered; and once 0.1.0's, which has none, is written again."""
    first, second = (Registrar(server.client(), URL, SETTINGS) for _ in range(2))
    server.reached.clear()
    with pytest.raises(NotReached):
        await first.ensure(b"ca")
    assert await second.knows(first.endpoint.key)
    server.reached.add(URL.url)
    await first.ensure(b"ca")
    server.mutating.edited(PROBE_CONFIGURATION, {"webhooks": probing(URL, SETTINGS, b"ca")})
    restarted = Registrar(server.client(), URL, SETTINGS)
    await restarted.adopt()
    await restarted.ensure(b"ca")
    assert server.mutating.objects[PROBE_CONFIGURATION]["webhooks"] == probing(first.endpoint, SETTINGS, b"ca")
    assert server.standing() == validating(first.endpoint, SETTINGS, b"ca")


async def test_a_live_replicas_url_stays_and_a_dead_ones_goes(server: RegistrationServer) -> None:
    theirs = Endpoint(url="https://127.0.0.1:9444")
    server.reached.add(theirs.url)
    await Registrar(server.client(), theirs, SETTINGS).ensure(b"ca")
    own_registrar = Registrar(server.client(), URL, SETTINGS)
    await own_registrar.ensure(b"ca")
    assert server.webhooks() == validating(theirs, SETTINGS, b"ca")
    server.reached.remove(theirs.url)
    await own_registrar.ensure(b"ca")
    assert server.webhooks() == validating(URL, SETTINGS, b"ca")


NOT_REACHED, AWAY, ANOTHERS = "not reached", "away", "another webhook fails on the probe's object"
OUTAGES = {
    "after a minute": [(0, NOT_REACHED, True), (55, NOT_REACHED, True), (2, NOT_REACHED, False)],
    "an API server that is away says nothing": [(60, AWAY, True)] * 10,
    "the minute begins anew after that": [
        (0, NOT_REACHED, True), (30, AWAY, True), (300, NOT_REACHED, True), (61, NOT_REACHED, False),
    ],
    "a webhook of others says nothing": [(60, ANOTHERS, True)] * 10,
}  # fmt: skip


class TestReach:
    """Registered only where the API server reaches us, and withdrawn when it no longer does."""

    @pytest.mark.parametrize("strict", [(), WEBHOOKS], ids=["Ignore", "Fail"])
    async def test_nothing_but_the_probe_is_registered_before(
        self, strict: tuple[str, ...], server: RegistrationServer
    ) -> None:
        server.reached.clear()
        registrar = Registrar(server.client(), URL, Settings(strict=strict))
        for _ in range(2):
            with pytest.raises(NotReached, match="connection refused"):
                await registrar.ensure(b"ca")
            assert list(server.mutating.objects) == [PROBE_CONFIGURATION]
            assert not server.validating.objects
            await asyncio.sleep(WITHDRAWN_AFTER)

    @sentences(OUTAGES)
    async def test_withdrawn(
        self, case: list[tuple[float, str, bool]], server: RegistrationServer, registrar: Registrar
    ) -> None:
        await registrar.ensure(b"ca")
        server.reached.clear()
        for seconds, event, present in case:
            await asyncio.sleep(seconds)
            server.away = event == AWAY
            server.failing = "validate.another.example" if event == ANOTHERS else PROBE_WEBHOOK
            with pytest.raises((NotReached, Unreachable, ServerError)):
                await registrar.ensure(b"ca")
            assert bool(server.validating.objects) is present
            assert server.mutating.objects[PROBE_CONFIGURATION]["webhooks"][0]["name"] == PROBE_WEBHOOK

    @pytest.mark.parametrize(
        ("options", "left", "said"),
        [
            (Settings(), [], "the webhooks are withdrawn until"),
            (Settings(strict=["pods"]), ["pods"], "writes to pods fail"),
            (Settings(strict=WEBHOOKS), list(WEBHOOKS), "writes to namespaces, virtualmachines, "),
        ],
        ids=["all have Ignore", "one has Fail", "all have"],
    )
    async def test_only_those_with_ignore_are_withdrawn(
        self, options: Settings, left: list[str], said: str, server: RegistrationServer
    ) -> None:
        events: list[tuple[str, str]] = []
        server.mark = fingerprint(URL, options)
        registrar = Registrar(server.client(), URL, options, report=lambda *said: events.append(said))
        await registrar.ensure(b"ca")
        server.reached.clear()
        for seconds in (0.0, 61.0, 10.0):
            await asyncio.sleep(seconds)
            with pytest.raises(NotReached):
                await registrar.ensure(b"ca")
        present = server.webhooks() if server.validating.objects else []
        assert [webhook["name"] for webhook in present] == [f"{name}.{WEBHOOK_CONFIGURATION_NAME}" for name in left]
        assert (WEBHOOK_CONFIGURATION_NAME in server.mutating.objects) is ("resourcequotas" in left)
        ((reason, line),) = events
        assert (reason, said in line) == (EVENT_NOT_REACHED, True)
        assert REGISTRY.get_sample_value("headroom_webhook_unreachable") == 1
        server.reached.add(URL.url)
        await registrar.ensure(b"ca")
        assert REGISTRY.get_sample_value("headroom_webhook_unreachable") == 0
        assert server.webhooks() == validating(URL, options, b"ca")
        server.reached.clear()
        for _ in range(2):
            with pytest.raises(NotReached):
                await registrar.ensure(b"ca")
            await asyncio.sleep(WITHDRAWN_AFTER)
        assert len(events) == 2, "another outage"

    async def test_the_minute_begins_with_the_first_probe_that_fails(
        self, server: RegistrationServer, registrar: Registrar
    ) -> None:
        await registrar.ensure(b"ca")
        server.reached.clear()
        server.probing = 4.0
        began = now()
        while server.validating.objects:
            with pytest.raises(NotReached):
                await registrar.ensure(b"ca")
            await asyncio.sleep(10.0)
        assert now() - began == 70.0

    async def test_the_probes_configuration_is_one_for_all_flags(self) -> None:
        server, service = RegistrationServer(), Endpoint(service_namespace="own", service_name="headroom-webhook")
        server.mark = fingerprint(service, SETTINGS)
        replicas = [Registrar(server.client(), service, settings) for settings in (SETTINGS, Settings(reserve=False))]
        await replicas[0].ensure(b"ca")
        earlier = len(server.writes)
        for replica in replicas * 3:
            await replica.ensure(b"ca")
        assert len(server.writes) == earlier

    async def test_replicas_with_other_flags_do_not_rewrite_each_other(self, server: RegistrationServer) -> None:
        await Registrar(server.client(), URL, SETTINGS).ensure(b"ca")
        events: list[tuple[str, str]] = []
        options = Settings(reserve=False)
        other_registrar = Registrar(server.client(), URL, options, report=lambda *said: events.append(said))
        earlier = len(server.writes)
        for drift in (0, 1, 1):  # a rollout is over by the second look
            await other_registrar.ensure(b"ca")
            assert [reason for reason, _ in events] == [EVENT_OTHER_FLAGS] * drift
        server.mark = other_registrar.mark  # now and then it answers itself
        await other_registrar.ensure(b"ca")
        assert server.webhooks() == validating(URL, SETTINGS, b"ca")
        assert len(server.writes) <= earlier + 1
        await asyncio.sleep(61.0)  # the other one is gone
        await other_registrar.ensure(b"ca")
        assert server.webhooks() == validating(URL, Settings(reserve=False), b"ca")


# ---- the requests that the API server asks about -------------------------------------------------------------

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


@sentences(OPTIONS, "options, validated, mutated")
def test_which_webhooks_there_are(options: Settings, validated: set[str], mutated: set[str]) -> None:
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
        for expression in conditions(webhook).values():  # CEL's optional syntax came a release after matchConditions
            assert not {".?", "[?"} & {expression[at : at + 2] for at in range(len(expression))}


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


def test_the_guard_is_asked_about_limits_only() -> None:
    guarded = conditions(by_name(validating(URL, Settings(), b"ca"))["resourcequotas"])
    assert "object.spec.hard != oldObject.spec.hard" in guarded["limits-change"]
    assert "!(has(object.spec.hard) && object.status.hard == object.spec.hard)" in guarded["limits-change"]
    assert "resourcequota.management.cattle.io/default-resource-quota" in guarded["managed"]
    assert "headroom.harvesterhci.io/managed" in guarded["managed"]


SKIP, OWNER, BASE, LABEL = (
    "harvesterhci.io/skipResourceQuotaAutoScaling",
    "headroom.harvesterhci.io/owner",
    "headroom.harvesterhci.io/base",
    "headroom.harvesterhci.io/managed",
)
ASKED: dict[str, tuple[dict[str, str] | None, dict[str, str] | None, bool]] = {
    "no annotations": (None, None, False),
    "the owner stays": ({SKIP: "true", OWNER: "headroom"}, {SKIP: "true", OWNER: "headroom"}, False),
    "the owner goes": ({SKIP: "true", OWNER: "headroom"}, {SKIP: "true"}, True),
    "an empty owner goes": ({SKIP: "true", OWNER: ""}, {SKIP: "true"}, True),
    "an empty owner goes, the last but the skip": ({OWNER: ""}, {SKIP: "true"}, True),
    "both go": ({SKIP: "true", OWNER: "headroom"}, None, False),
    "the base stays": ({BASE: "{}"}, {BASE: "{}"}, False),
    "the first base": (None, {BASE: "{}"}, False),
    "the base goes": ({BASE: "{}"}, None, True),
    "an empty base goes": ({BASE: ""}, {}, True),
    "an empty base is written": ({BASE: ""}, {BASE: "{}"}, True),
}


def holds(expression: str, old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Returns the value of a condition in CEL, of which it knows what the guard's conditions need."""
    text = re.sub(r"has\(([\w.]+)\.(\w+)\)", r"('\2' in \1)", expression)
    text = re.sub(r"\((\('\w+' in [\w.]+\) && '[^']+' in [\w.]+) \? (\S+) : ''\)", r"(\2 if \1 else '')", text)
    text = re.sub(r"(\w*[oO]bject|request)((?:\.\w+)+)", lambda m: m[1] + re.sub(r"\.(\w+)", r"['\1']", m[2]), text)
    text = text.replace("(oldObject == null ? '' :", "('' if oldObject is None else")
    text = re.sub(r"!(?!=)", " not ", text.replace("&&", "and").replace("||", "or"))
    return bool(eval(text, {"object": new, "oldObject": old, "request": {"operation": "UPDATE"}}))


@pytest.mark.parametrize("case", ASKED)
def test_the_guard_is_asked_about_marks_whatever_their_text(case: str) -> None:
    """An annotation that a first write has emptied is there all the same: a second one would take it away unseen."""
    *annotations, asked = ASKED[case]
    old, new = (
        {"metadata": {"labels": {LABEL: "true"}, **({} if a is None else {"annotations": a})}, "spec": {}}
        for a in annotations
    )
    guarded = conditions(by_name(validating(URL, Settings(), b"ca"))["resourcequotas"])
    assert holds(guarded["managed"], old, new)
    assert holds(guarded["limits-change"], old, new) == asked


# ---- the webhooks of one process: its Service and its metrics ------------------------------------------------


async def test_the_service_is_in_our_own_namespace() -> None:
    server, endpoint = Server(), Endpoint(service_name="headroom-webhook")
    settings = Settings(namespace="own", register=False)
    served: Any = await Webhooks(endpoint, server_context()).server(
        settings, server.client(), Management(server.client())
    )
    assert served.certificate.hosts[0] == "headroom-webhook.own.svc"


@pytest.mark.parametrize(
    ("decision", "counted"),
    [
        (ALLOW, [1, 0, 0, 0]),
        (Decision(patch=[{"op": "remove", "path": "/spec"}]), [0, 1, 0, 0]),
        (deny("no", reason="no-room"), [0, 0, 1, 1]),
    ],
    ids=["allowed", "patched", "denied"],
)
def test_a_decision_is_counted_by_what_became_of_the_request(decision: Decision, counted: list[int]) -> None:
    metrics = HeadroomMetrics()

    def counts() -> list[float]:
        name, answers = "headroom_admission_decisions_total", ("allowed", "patched", "denied")
        values = [REGISTRY.get_sample_value(name, {"webhook": "pods", "decision": answer}) for answer in answers]
        denials = {"webhook": "pods", "reason": "no-room"}
        return [
            value or 0.0 for value in (*values, REGISTRY.get_sample_value("headroom_admission_denials_total", denials))
        ]

    counts_before = counts()
    metrics.decided("pods", decision)
    assert [now - was for now, was in zip(counts(), counts_before, strict=True)] == counted
