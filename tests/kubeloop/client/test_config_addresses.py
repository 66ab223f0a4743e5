"""Loopback, proxies and TLS contexts."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubeloop.client.config import ClientConfig, environment_proxy
from kubeloop.client.credentials import Certificate
from kubeloop.client.errors import ConfigError
from kubeloop.client.tls import TLSSettings
from tests.kubeloop.client.kubeconfigs import kubeconfig, write
from tests.kubeloop.client.pki import Authority
from tests.kubeloop.client.rig import load

pytestmark = pytest.mark.usefixtures("bare_machine")


@pytest.mark.parametrize(
    ("host", "no_proxy", "proxy"),
    [
        ("https://10.0.0.1:6443", "", "http://p:1"),
        ("https://10.0.0.1:6443", "10.0.0.0/8", None),
        ("https://10.0.0.1:6443", "192.168.0.0/16, 10.0.0.0/8,.svc", None),
        ("https://11.0.0.1:6443", "10.0.0.0/8", "http://p:1"),
        ("https://10.0.0.1:6443", "10.0.0.1", None),
        ("https://api.example.com", ".example.com", None),
        ("https://api.example.com", "not/a/network,other.com", "http://p:1"),
        ("https://[fd00::1]:6443", "", "http://p:1"),
        ("https://localhost.example.com", "", "http://p:1"),
        ("https://127.9.9.9:6443", "", None),
        ("https://localhost:6443", "", None),
        ("https://x.localhost:6443", "", None),
        ("https://[::1]:6443", "", None),
        ("http://10.0.0.1:8080", "", None),
    ],
)
def test_a_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, host: str, no_proxy: str, proxy: str | None
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://p:1")
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert environment_proxy(host) == proxy


def test_a_kubeconfig_for_loopback_uses_no_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://p:1")
    assert load(write(tmp_path, kubeconfig(server="https://127.0.0.1:6443"))).proxy is None
    assert load(write(tmp_path, kubeconfig())).proxy == "http://p:1"


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy"])
def test_socks_proxies_are_refused_with_a_clear_error_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "socks5://me:secret@p:1080")
    with pytest.raises(ConfigError, match="'socks5://p:1080' is a SOCKS proxy, which is not supported: give") as caught:
        load(write(tmp_path, kubeconfig()))
    assert "secret" not in str(caught.value)


def test_the_context_is_made_once_a_certificate() -> None:
    authority = Authority()
    config = ClientConfig("https://x", tls=TLSSettings(authority.pem))
    assert config.ssl_context() is config.ssl_context()
    jane = Certificate(*authority.issue("jane").__dict__.values())
    assert config.ssl_context(jane) is config.ssl_context(jane)
    assert config.ssl_context(jane) is not config.ssl_context()
    assert ClientConfig("http://x").ssl_context() is None
