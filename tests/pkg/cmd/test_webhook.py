"""`headroom webhook` on the command line: what cannot work is one line and exit 2, before anything is started."""

from types import SimpleNamespace
from typing import Any

import pytest

from kubeloop.client.errors import ConfigError, Forbidden
from kubeloop.controllers.reconcile import Trouble
from pkg.cmd.options import (
    ControllerOptions,
    PolicyOptions,
    ProcessOptions,
    WebhookOptions,
    overhead_profile,
    settings_of,
)
from pkg.cmd.webhook import endpoint_of
from pkg.config.settings import RANCHER_USERS, QuotaGuard
from pkg.process.replica import HealthChecks
from pkg.util.resourcequota.policy import EXACT
from tests.decisions import sentences
from tests.pkg.cmd.rig import Call

WRONG = {
    "a URL without TLS": (["--webhook-url", "http://127.0.0.1:9443"], "is not https://host:port"),
    "a URL with a path": (["--webhook-url", "https://127.0.0.1:9443/x"], "is not https://host:port"),
    "a URL with a bad port": (["--webhook-url", "https://127.0.0.1:x"], "is not https://host:port"),
    "no URL at all": (["--webhook-url", "nonsense"], "is not https://host:port"),
    "a certificate without its key": (["--tls-cert-file", "tls.crt"], "must be given together"),
    "a key without its certificate": (["--tls-key-file", "tls.key"], "must be given together"),
    "a pattern that is none": (["--rancher-user", "it's"], "--rancher-user: "),
    "a pattern of KubeVirt's accounts": (
        ["--kubevirt-user", "system:serviceaccount:*:kubevirt-controller"],
        "--kubevirt-user",
    ),
    "a guard that is none": (["--quota-guard", "maybe"], "quota-guard"),
    "a failure policy that is none": (["--failure-policy", "Perhaps"], "failure-policy"),
    "a switch that is none": (["--reserve", "yes"], "reserve"),
    "a KubeVirt release that is none": (["--kubevirt-profile", "latest"], "latest"),
    "a CA that is not there": (["--client-ca-file", "/does/not/exist"], "--client-ca-file /does/not/exist"),
    "a CA that is none": (["--client-ca-file", __file__], "--client-ca-file"),
    "an address that is none": (["--bind-address", "9443"], "'9443' is not an address to listen on"),
    "no listener at all": (["--bind-address", "0"], "'0' is not an address to listen on"),
    "a kubeconfig that is not there": (["--kubeconfig", "/does/not/exist"], "/does/not/exist"),
}


@pytest.mark.parametrize("command", [["webhook"], ["controller", "--webhook"]], ids=["webhook", "controller"])
@sentences(WRONG)
def test_a_wrong_call_is_one_line_and_exit_2(call: Call, command: list[str], case: tuple[list[str], str]) -> None:
    arguments, sentence = case
    result = call(*command, *arguments)
    assert result.code == 2, result.err
    assert sentence in result.err
    assert "Traceback" not in result.err
    assert len(result.err.strip().splitlines()) == 1, result.err


def test_one_failure_policy_a_webhook() -> None:
    flags = WebhookOptions(failure_policy=["pods=Fail", "Ignore", "namespaces=Fail", "namespaces=Ignore"])
    settings = settings_of(PolicyOptions(), ProcessOptions(), flags, ControllerOptions())
    assert settings.strict == ["pods"]
    flags = WebhookOptions(failure_policy=["Fail", "pods=Ignore"])
    assert settings_of(PolicyOptions(), ProcessOptions(), flags, ControllerOptions()).strict == [
        "namespaces",
        "virtualmachines",
        "resourcequotas",
    ]


def test_defaults() -> None:
    settings = settings_of(PolicyOptions(), ProcessOptions(), WebhookOptions(), ControllerOptions())
    assert settings.quota_guard is QuotaGuard.CORRECT
    assert settings.strict == []
    assert settings.reserve
    assert settings.rancher_users == RANCHER_USERS


def test_who_is_who_is_passed_on() -> None:
    policy = PolicyOptions(kubevirt_user=["kubevirt"], controller_user=["controller"], kubevirt_profile="v1.5.0")
    flags = WebhookOptions(secret_name="tls", client_name=["api"], inject_ca_from="ns/certificate")
    settings = settings_of(policy, ProcessOptions(), flags, ControllerOptions())
    assert (settings.kubevirt_users, settings.controller_users) == (("kubevirt",), ("controller",))
    assert (settings.secret_name, settings.client_names, settings.inject_ca_from) == ("tls", ("api",), "ns/certificate")
    assert (settings.policy, settings.profile) == (EXACT, overhead_profile("v1.5.0"))


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("https://127.0.0.1:9443", "https://127.0.0.1:9443"),
        ("https://127.0.0.1:9443/", "https://127.0.0.1:9443"),
        ("https://webhook.example", "https://webhook.example"),
        ("https://[::1]:9443", "https://[::1]:9443"),
    ],
)
def test_a_url_is_taken_as_scheme_host_and_port(url: str, base: str) -> None:
    assert endpoint_of(WebhookOptions(webhook_url=url)).url == base


@pytest.mark.parametrize("url", ["https://", "https://a:b@c", "https://a?x=1", "https://a#b", "ftp://a"])
def test_other_urls_are_not(url: str) -> None:
    with pytest.raises(ConfigError):
        endpoint_of(WebhookOptions(webhook_url=url))


class Half:
    """A management, or the webhooks."""

    def __init__(self, *problems: str) -> None:
        self._problems = list(problems)

    def healthy(self) -> list[str]:
        return self._problems

    unready = stale = notes = healthy

    def hanging(self) -> list[str]:
        return ["pods: handler has been running for 400 s on ns/p"]

    def undecodable(self) -> list[str]:
        return ["pods: cannot be decoded: ns/p"]

    def troubles(self) -> list[tuple[Any, Trouble]]:
        controller: Any = SimpleNamespace(name="resourcequotas")
        return [
            (controller, Trouble("quotaController", "ns/q", Forbidden("may not"))),
            (controller, Trouble("quotaController", "ns/r", None)),
        ]


def test_health_and_readiness_are_those_of_both() -> None:
    both = HealthChecks()
    assert (both.healthy(), both.unready()) == ([], ["the API server has not answered yet"])
    management: Any = Half("a watch is stale")
    admission: Any = Half("webhook certificate")
    both.management = management
    assert both.unready() == ["a watch is stale"]
    waiting = [
        "resourcequotas: quotaController: ns/q: Forbidden: may not",
        "resourcequotas: quotaController: ns/r: waits for an answer for more than 5 s",
    ]
    further = [*waiting, *management.hanging(), *management.undecodable()]
    assert both.notes() == further, "a tenant may have caused it: still ready"
    both.admission = admission
    assert both.healthy() == ["a watch is stale", "webhook certificate"]
    assert both.unready() == ["a watch is stale", "not ready: webhook certificate"]
    assert both.notes() == ["webhook certificate", *further]


@pytest.mark.parametrize(
    ("host", "in_cluster", "expected"),
    [(None, True, ":9443"), (None, False, "127.0.0.1:9443"), ("127.0.0.1:1", True, "127.0.0.1:1")],
)
def test_in_a_pod_it_listens_for_a_service(host: str | None, in_cluster: bool, expected: str) -> None:
    assert WebhookOptions(bind_address=host).address(in_cluster) == expected
