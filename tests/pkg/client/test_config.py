"""Where the configuration comes from, and what is said when there is none that works."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pkg.client import config as config_module
from pkg.client import incluster
from pkg.client.config import ClientConfig, Impersonation, environment_proxy, is_loopback, load_config
from pkg.client.credentials import Certificate
from pkg.client.errors import ConfigError
from pkg.client.tls import TLSSettings
from tests.pkg.client.kubeconfigs import Plugin, data, kubeconfig, write
from tests.pkg.client.pki import Authority

PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")


@pytest.fixture(autouse=True)
def nothing_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No configuration and no proxy of the machine's own; ~ and temporary files in a folder of the test's."""
    for name in PROXY_VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


@pytest.fixture(autouse=True)
def nothing_left(nothing_around: None, tmp_path: Path) -> Iterator[None]:
    """Keys that were written for the ssl module are gone afterwards, whatever went wrong."""
    yield
    assert os.listdir(tmp_path / "temporary") == []


def load(path: str, context: str | None = None, **environ: str) -> ClientConfig:
    return load_config(path, context, environ=environ)


async def token_of(config: ClientConfig) -> str | None:
    return (await config.auth_headers()).get("Authorization")


# Where it is looked for


async def test_the_explicit_file_beats_the_environment(tmp_path: Path) -> None:
    explicit = write(tmp_path, kubeconfig({"token": "x"}), "explicit")
    other = write(tmp_path, kubeconfig({"token": "y"}), "other")
    assert await token_of(load(explicit, KUBECONFIG=other)) == "Bearer x"


async def test_the_environment_beats_the_home_folder(tmp_path: Path) -> None:
    (tmp_path / "home" / ".kube").mkdir(parents=True)
    write(tmp_path / "home" / ".kube", kubeconfig({"token": "home"}))
    named = write(tmp_path, kubeconfig({"token": "named"}))
    assert await token_of(load_config(environ={"KUBECONFIG": named})) == "Bearer named"
    assert await token_of(load_config(environ={})) == "Bearer home"
    assert await token_of(load_config(environ={"KUBECONFIG": ""})) == "Bearer home"


async def test_a_pod_beats_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = service_account(tmp_path)
    monkeypatch.setattr(incluster, "available", lambda environ: True)
    found = load_account(account)
    monkeypatch.setattr(incluster, "load", lambda environ: found)
    (tmp_path / "home" / ".kube").mkdir(parents=True)
    write(tmp_path / "home" / ".kube", kubeconfig({"token": "home"}))
    assert await token_of(load_config(environ={})) == "Bearer pod-token"
    assert await token_of(load_config(None, "a", environ={})) == "Bearer home", "a context means a kubeconfig"


def test_nothing_at_all_says_where_it_looked() -> None:
    with pytest.raises(ConfigError, match=r"^no cluster is configured: give --kubeconfig, set \$KUBECONFIG"):
        load_config(environ={})


async def test_a_list_of_files_is_merged_and_missing_ones_are_left_out(tmp_path: Path) -> None:
    one = write(tmp_path, kubeconfig({"token": "1"}, name="one"), "one")
    two = write(tmp_path, kubeconfig({"token": "2"}, name="two"), "two")
    paths = os.pathsep.join([str(tmp_path / "missing"), one, two])
    assert await token_of(load_config(environ={"KUBECONFIG": paths})) == "Bearer 1", (
        "the first current-context"
    )
    assert await token_of(load_config(None, "two", environ={"KUBECONFIG": paths})) == "Bearer 2"


async def test_a_path_may_hold_a_colon_and_a_tilde(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "a:b"
    folder.mkdir(parents=True)
    write(folder, kubeconfig({"token": "x"}))
    assert await token_of(load("~/a:b/config")) == "Bearer x"


# What is in it


async def test_another_context_than_the_current(tmp_path: Path) -> None:
    both = kubeconfig({"token": "1"}, name="one")
    for section in ("contexts", "clusters", "users"):
        both[section] += kubeconfig({"token": "2"}, name="two", server="https://two:6443/")[section]
    path = write(tmp_path, both)
    one, two = load(path), load(path, "two")
    assert (one.host, one.namespace, await token_of(one)) == ("https://10.0.0.1:6443", "ns-one", "Bearer 1")
    assert (two.host, two.namespace, await token_of(two)) == ("https://two:6443", "ns-two", "Bearer 2")


@pytest.mark.parametrize(
    ("user", "header"),
    [
        ({}, None),
        ({"token": "abc"}, "Bearer abc"),
        ({"username": "jane", "password": "secret"}, "Basic amFuZTpzZWNyZXQ="),
        ({"token": "abc", "exec": {"command": "/no/such", "apiVersion": Plugin.API}}, "Bearer abc"),
    ],
    ids=["nobody", "a token", "a password", "a token beats a plugin"],
)
async def test_users(tmp_path: Path, user: dict[str, Any], header: str | None) -> None:
    assert await token_of(load(write(tmp_path, kubeconfig(user)))) == header


async def test_a_user_of_null_is_nobody(tmp_path: Path) -> None:
    content = kubeconfig()
    content["users"][0]["user"] = None
    assert await token_of(load(write(tmp_path, content))) is None


async def test_a_token_file_is_relative_to_its_kubeconfig_and_read_again(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    config = load(write(tmp_path, kubeconfig({"tokenFile": "token", "token": "stale"})))
    assert await token_of(config) == "Bearer first"
    (tmp_path / "token").write_text("second")
    assert await token_of(config) == "Bearer first", "not before its time"
    assert (await config.auth_headers(refresh=True))["Authorization"] == "Bearer second"


async def test_impersonation_in_the_file(tmp_path: Path) -> None:
    user = {"token": "t", "as": "jane", "as-groups": ["dev", "ops"], "as-uid": "7"}
    config = load(write(tmp_path, kubeconfig(user)))
    assert config.impersonation == Impersonation("jane", ("dev", "ops"), "7")
    headers = await config.auth_headers()
    assert headers.getall("Impersonate-Group") == ["dev", "ops"]
    assert (headers["Impersonate-User"], headers["Impersonate-Uid"]) == ("jane", "7")


async def test_impersonate_makes_another_configuration() -> None:
    config = ClientConfig("http://127.0.0.1:1")
    assert (await config.impersonate("jane").auth_headers())["Impersonate-User"] == "jane"
    assert "Impersonate-User" not in await config.auth_headers()


def test_certificates_as_data(tmp_path: Path) -> None:
    authority = Authority()
    pair = authority.issue("jane")
    user = {"client-certificate-data": data(pair.certificate), "client-key-data": data(pair.key)}
    path = write(tmp_path, kubeconfig(user, cluster={"certificate-authority-data": data(authority.pem)}))
    assert load(path).tls == TLSSettings(authority.pem, Certificate(pair.certificate, pair.key))
    assert load(path).tls.certificate == Certificate(pair.certificate, pair.key), "a second time as well"


def test_certificates_as_files_relative_to_the_kubeconfig(tmp_path: Path) -> None:
    authority = Authority()
    pair = authority.issue("jane")
    pair.write(tmp_path, "jane")
    (tmp_path / "ca.crt").write_text(authority.pem)
    user = {"client-certificate": "jane.crt", "client-key": "jane.key"}
    config = load(write(tmp_path, kubeconfig(user, cluster={"certificate-authority": "ca.crt"})))
    assert config.tls == TLSSettings(authority.pem, Certificate(pair.certificate, pair.key))


def test_what_a_configuration_prints_holds_no_secret(tmp_path: Path) -> None:
    pair = Authority().issue("jane")
    user = {
        "client-certificate-data": data(pair.certificate),
        "client-key-data": data(pair.key),
        "token": "hidden",
    }
    shown = repr(load(write(tmp_path, kubeconfig(user))))
    assert "PRIVATE KEY" not in shown
    assert "hidden" not in shown


def test_details_of_the_cluster(tmp_path: Path) -> None:
    cluster = {
        "tls-server-name": "api.example",
        "insecure-skip-tls-verify": True,
        "proxy-url": "http://proxy:3128",
    }
    config = load(write(tmp_path, kubeconfig(server="https://r/k8s/clusters/c-1/", cluster=cluster)))
    assert config.host == "https://r/k8s/clusters/c-1"
    assert (config.server_name, config.tls.verify, config.proxy) == (
        "api.example",
        False,
        "http://proxy:3128",
    )


def test_defaults_of_the_cluster(tmp_path: Path) -> None:
    config = load(write(tmp_path, kubeconfig()))
    assert (config.server_name, config.tls, config.proxy) == (None, TLSSettings(), None)
    assert config.impersonation is None


# What is wrong with it


@dataclass(frozen=True)
class Bad:
    name: str
    content: Any
    message: str
    context: str | None = None


def without(section: str) -> dict[str, Any]:
    content = kubeconfig()
    del content[section]
    return content


BAD = [
    Bad("an empty file", "", "is empty"),
    Bad("YAML that is broken", "a: [1,\nb: }", "not valid YAML: "),
    Bad("a tab where YAML allows none", "a:\n\t- b", "not valid YAML: "),
    Bad("a text", "hello", "not a kubeconfig: a mapping"),
    Bad("a list", "- a\n- b\n", "not a kubeconfig: a mapping"),
    Bad("bytes", "\x00\x01", "not valid YAML: "),
    Bad("no current context", without("current-context"), "no current-context is set"),
    Bad("a context that is not there", kubeconfig(), "context 'other' does not exist", "other"),
    Bad("no contexts", without("contexts"), "context 'a' does not exist"),
    Bad("no clusters", without("clusters"), "cluster 'a' does not exist"),
    Bad("no users", without("users"), "user 'a' does not exist"),
    Bad(
        "a cluster of another shape",
        kubeconfig() | {"clusters": [{"name": "a", "cluster": 5}]},
        "'a' is not a map",
    ),
    Bad("entries of another shape", kubeconfig() | {"users": [5]}, "not a kubeconfig: a mapping"),
    Bad("contexts of another shape", kubeconfig() | {"contexts": "x"}, "nvalid kube-config file"),
    Bad("no server", kubeconfig(server=""), "cluster 'a' has no server"),
    Bad("a server that is no URL", kubeconfig(server="10.0.0.1:6443"), "'10.0.0.1:6443' is not an http"),
    Bad("a server of another scheme", kubeconfig(server="ftp://x"), "'ftp://x' is not an http"),
    Bad("an authority that is not there", kubeconfig(cluster={"certificate-authority": "no"}), "no"),
    Bad(
        "an authority that is no certificate",
        kubeconfig(cluster={"certificate-authority-data": data("x")}),
        "certificate authority is not a valid PEM",
    ),
    Bad(
        "an authority that is not base64",
        kubeconfig(cluster={"certificate-authority-data": "é"}),
        "authority is empty",
    ),
    Bad(
        "a client certificate that is none",
        kubeconfig({"client-certificate-data": data("x"), "client-key-data": data("y")}),
        "client certificate and key are not valid",
    ),
    Bad(
        "a certificate without key",
        kubeconfig({"client-certificate-data": data("x")}),
        "only one of client-cert",
    ),
    Bad("a token file that is not there", kubeconfig({"tokenFile": "none"}), "token file"),
    Bad(
        "an auth-provider of old",
        kubeconfig({"auth-provider": {"name": "azure"}}),
        "'azure' is no longer supp",
    ),
    Bad(
        "a plugin without command", kubeconfig({"exec": {"apiVersion": Plugin.API}}), "missing key 'command'"
    ),
    Bad(
        "a proxy that can't be used",
        kubeconfig(cluster={"proxy-url": "socks5://p:1"}),
        "'socks5://p:1' is not an",
    ),
]


@pytest.mark.parametrize("case", BAD, ids=lambda c: c.name)
def test_bad_files_give_one_clear_line(tmp_path: Path, case: Bad) -> None:
    path = write(tmp_path, case.content)
    with pytest.raises(ConfigError) as caught:
        load(path, case.context)
    message = str(caught.value)
    assert message.startswith(f"kubeconfig {path}: ")
    assert case.message in message
    assert "\n" not in message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "none"
    with pytest.raises(ConfigError, match=f"^kubeconfig {path}: no such file$"):
        load(str(path))
    with pytest.raises(ConfigError, match=f"^kubeconfig {path}: no such file$"):
        load_config(environ={"KUBECONFIG": str(path)})


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^kubeconfig {tmp_path}: Is a directory$"):
        load(str(tmp_path))


def test_a_key_of_another_certificate_and_a_locked_key(tmp_path: Path) -> None:
    authority = Authority()
    jane, joe, locked = authority.issue("jane"), authority.issue("joe"), authority.issue("x", password=b"pw")
    for certificate, key in ((jane.certificate, joe.key), (locked.certificate, locked.key)):
        user = {"client-certificate-data": data(certificate), "client-key-data": data(key)}
        with pytest.raises(ConfigError, match="not valid or don't belong together"):
            load(write(tmp_path, kubeconfig(user)))


# In a pod


def service_account(folder: Path) -> Path:
    account = folder / "account"
    account.mkdir()
    (account / "token").write_text("pod-token\n")
    (account / "ca.crt").write_text(Authority().pem)
    (account / "namespace").write_text("cattle\n")
    return account


POD = {"KUBERNETES_SERVICE_HOST": "10.53.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def load_account(account: Path, environ: dict[str, str] | None = None) -> ClientConfig:
    return incluster.load(
        POD if environ is None else environ, str(account / "token"), str(account / "ca.crt")
    )


async def test_a_pods_service_account(tmp_path: Path) -> None:
    account = service_account(tmp_path)
    config = load_account(account)
    assert (config.host, config.namespace) == ("https://10.53.0.1:443", "cattle")
    assert config.tls == TLSSettings((account / "ca.crt").read_text())
    assert await token_of(config) == "Bearer pod-token"


async def test_a_pods_token_is_read_again(tmp_path: Path) -> None:
    account = service_account(tmp_path)
    config = load_account(account)
    await token_of(config)
    (account / "token").write_text("renewed")
    assert (await config.auth_headers(refresh=True))["Authorization"] == "Bearer renewed"


def test_an_ipv6_service_address_is_put_in_brackets(tmp_path: Path) -> None:
    account = service_account(tmp_path)
    config = load_account(account, {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"})
    assert (config.host, config.hostname) == ("https://[fd00::1]:443", "fd00::1")


@pytest.mark.parametrize("broken", ["token", "ca.crt"])
@pytest.mark.parametrize("content", [None, ""])
def test_a_pod_with_half_an_account(tmp_path: Path, broken: str, content: str | None) -> None:
    account = service_account(tmp_path)
    (account / broken).unlink()
    if content is not None:
        (account / broken).write_text(content)
    with pytest.raises(ConfigError, match=r"^in-cluster configuration: "):
        load_account(account)


def test_when_this_is_a_pod(tmp_path: Path) -> None:
    token = service_account(tmp_path) / "token"
    assert incluster.available(POD, str(token))
    assert not incluster.available({}, str(token))
    assert not incluster.available(POD, str(tmp_path / "none"))


# Addresses and proxies


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost", "x.localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "fd00::1", "example.com", "localhost.example.com", ""])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


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
        ("https://127.0.0.1:6443", "", None),
        ("https://localhost:6443", "", None),
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


def test_the_context_is_made_once_a_certificate() -> None:
    authority = Authority()
    config = ClientConfig("https://x", tls=TLSSettings(authority.pem))
    assert config.ssl_context() is config.ssl_context()
    jane = Certificate(*authority.issue("jane").__dict__.values())
    assert config.ssl_context(jane) is config.ssl_context(jane)
    assert config.ssl_context(jane) is not config.ssl_context()
    assert ClientConfig("http://x").ssl_context() is None


def test_offline_commands_do_not_pay_for_the_kubernetes_package() -> None:
    code = (
        "import sys, pkg.client.client; sys.exit(any(m.split('.')[0] == 'kubernetes' for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert config_module.__file__
