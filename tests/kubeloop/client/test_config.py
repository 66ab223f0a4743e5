"""The places of the configuration, its content, and a pod's own; proxies and TLS contexts."""

import base64
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kubeloop.client import loading
from kubeloop.client.config import ClientConfig, Impersonation, environment_proxy
from kubeloop.client.credentials import Certificate
from kubeloop.client.errors import ConfigError
from kubeloop.client.loading import config_from_kubeconfig, load_config
from kubeloop.client.tls import TLSSettings
from tests.decisions import sentences
from tests.kubeloop.client.kubeconfigs import data, kubeconfig, write
from tests.kubeloop.client.pki import Authority
from tests.kubeloop.client.rig import authenticate, load, token_of

pytestmark = pytest.mark.usefixtures("bare_machine")


def service_account(folder: Path) -> Path:
    account = folder / "account"
    account.mkdir()
    (account / "token").write_text("pod-token\n")
    (account / "ca.crt").write_text(Authority().pem)
    (account / "namespace").write_text("cattle\n")
    return account


POD = {"KUBERNETES_SERVICE_HOST": "10.53.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def load_account(account: Path, environ: dict[str, str] | None = None) -> ClientConfig:
    return loading.in_cluster_config(
        POD if environ is None else environ, str(account / "token"), str(account / "ca.crt")
    )


# -- where it is looked for


async def test_the_explicit_file_beats_the_environment(tmp_path: Path) -> None:
    explicit = write(tmp_path, kubeconfig({"token": "x"}), "explicit")
    other_path = write(tmp_path, kubeconfig({"token": "y"}), "other")
    assert await token_of(load(explicit, KUBECONFIG=other_path)) == "Bearer x"


async def test_a_secrets_kubeconfig_is_used_as_it_is() -> None:
    content = json.dumps(kubeconfig({"token": "x"}, cluster={"certificate-authority-data": data(Authority().pem)}))
    config = config_from_kubeconfig(content)
    assert (config.host, config.namespace, await token_of(config)) == ("https://10.0.0.1:6443", "ns-a", "Bearer x")
    assert await token_of(config_from_kubeconfig(content.encode(), "a")) == "Bearer x"


OUTSIDE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a program": ({"exec": {"command": "x", "apiVersion": "client.authentication.k8s.io/v1"}}, {}),
    "a file of a token": ({"tokenFile": "/etc/passwd"}, {}),
    "a file of a certificate": ({"client-certificate": "/etc/passwd", "client-key": "/etc/passwd"}, {}),
    "a file of an authority": ({"token": "x"}, {"certificate-authority": "/etc/passwd"}),
    "an auth-provider": ({"auth-provider": {"name": "gcp"}}, {}),
}


@sentences(OUTSIDE)
def test_a_secrets_kubeconfig_runs_and_reads_nothing_here(case: tuple[dict[str, Any], dict[str, Any]]) -> None:
    user, cluster = case
    with pytest.raises(ConfigError, match=r"^kubeconfig: it names a file or a credential plugin: give "):
        config_from_kubeconfig(json.dumps(kubeconfig(user, cluster=cluster)))


def in_home(folder: Path, name: str = ".kube") -> None:
    """A kubeconfig."""
    (folder / "home" / name).mkdir(parents=True)
    write(folder / "home" / name, kubeconfig({"token": "home"}))


async def test_a_field_of_another_list_is_nobodys() -> None:
    """An entry that was copied from one list to another, with what was in it: clientcmd does not look at it."""
    content = kubeconfig({"token": "x"})
    content["clusters"][0] |= {"user": "text", "context": 1}
    content["users"][0]["cluster"] = []
    assert await token_of(config_from_kubeconfig(json.dumps(content))) == "Bearer x"


async def test_the_environment_beats_the_home_folder(tmp_path: Path) -> None:
    in_home(tmp_path)
    named_path = write(tmp_path, kubeconfig({"token": "named"}))
    assert await token_of(load_config(environ={"KUBECONFIG": named_path})) == "Bearer named"
    assert await token_of(load_config(environ={})) == "Bearer home"
    assert await token_of(load_config(environ={"KUBECONFIG": ""})) == "Bearer home"


async def test_a_pod_beats_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = service_account(tmp_path)
    monkeypatch.setattr(loading, "in_cluster", lambda environ: True)
    config = load_account(account)
    monkeypatch.setattr(loading, "in_cluster_config", lambda environ: config)
    in_home(tmp_path)
    assert await token_of(load_config(environ={})) == "Bearer pod-token"
    assert await token_of(load_config(None, "a", environ={})) == "Bearer home", "a context means a kubeconfig"


def test_nothing_at_all_says_where_it_looked() -> None:
    with pytest.raises(ConfigError, match=r"^no cluster is configured: give --kubeconfig, set \$KUBECONFIG"):
        load_config(environ={})


async def test_a_path_may_hold_a_colon_and_a_tilde(tmp_path: Path) -> None:
    in_home(tmp_path, "a:b")
    assert await token_of(load("~/a:b/config")) == "Bearer home"


# -- what is in it


async def test_a_token_file_is_relative_and_read_again(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first\n")
    config = load(write(tmp_path, kubeconfig({"tokenFile": "token", "token": "stale"})))
    assert await token_of(config) == "Bearer first"
    (tmp_path / "token").write_text("second")
    assert await token_of(config) == "Bearer first", "not before its time"
    assert (await authenticate(config, refresh=True))[0]["Authorization"] == "Bearer second"


async def test_impersonation_in_the_file(tmp_path: Path) -> None:
    extra = {"scopes": ["view", "edit"], "example.com/Team": ["a"], "none": None}
    user = {"token": "t", "as": "jane", "as-groups": ["dev", "ops"], "as-uid": "7", "as-user-extra": extra}
    config = load(write(tmp_path, kubeconfig(user)))
    assert config.impersonation == Impersonation(
        "jane", ("dev", "ops"), "7", {"scopes": ("view", "edit"), "example.com/Team": ("a",), "none": ()}
    )
    headers, _ = await authenticate(config)
    assert headers.getall("Impersonate-Extra-scopes") == ["view", "edit"]
    assert headers.getall("Impersonate-Extra-example.com%2FTeam") == ["a"]
    assert headers.getall("Impersonate-Group") == ["dev", "ops"]
    assert (headers["Impersonate-User"], headers["Impersonate-Uid"]) == ("jane", "7")


async def test_impersonate_makes_another_configuration() -> None:
    config = ClientConfig("http://127.0.0.1:1")
    assert (await authenticate(config.impersonate("jane")))[0]["Impersonate-User"] == "jane"
    assert "Impersonate-User" not in (await authenticate(config))[0]


def test_what_a_configuration_prints_holds_no_secret(tmp_path: Path) -> None:
    pair = Authority().issue("jane")
    user = {"client-certificate-data": data(pair.certificate), "client-key-data": data(pair.key), "token": "hidden"}
    text = repr(load(write(tmp_path, kubeconfig(user))))
    assert "PRIVATE KEY" not in text + repr(TLSSettings(key=pair.key))
    assert "hidden" not in text


@pytest.mark.parametrize("lasts", [3600, None], ids=["lasts", "no token at all"])
async def test_a_token_of_openid_connect(tmp_path: Path, lasts: int | None) -> None:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": time.time() + (lasts or 0)}).encode()).decode().rstrip("=")
    token = f"e30.{claims}.e30" if lasts else "no-token"
    user = {"auth-provider": {"name": "oidc", "config": {"id-token": token}}}
    config = load(write(tmp_path, kubeconfig(user)))
    if lasts:
        assert await token_of(config) == f"Bearer {token}"
    else:
        with pytest.raises(ConfigError, match="auth-provider: it has no valid token"):
            await token_of(config)


# -- the configuration of a pod


async def test_a_pods_service_account(tmp_path: Path) -> None:
    account = service_account(tmp_path)
    config = load_account(account)
    assert (config.host, config.namespace) == ("https://10.53.0.1:443", "cattle")
    assert config.tls.read() == TLSSettings((account / "ca.crt").read_text())
    assert await token_of(config) == "Bearer pod-token"
    (account / "token").write_text("renewed")
    assert (await authenticate(config, refresh=True))[0]["Authorization"] == "Bearer renewed"


def test_an_ipv6_service_address_is_put_in_brackets(tmp_path: Path) -> None:
    account = service_account(tmp_path)
    config = load_account(account, {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"})
    assert config.host == "https://[fd00::1]:443"


@pytest.mark.parametrize("broken", ["token", "ca.crt"])
@pytest.mark.parametrize("content", [None, ""])
def test_a_pod_with_half_an_account(tmp_path: Path, broken: str, content: str | None) -> None:
    account = service_account(tmp_path)
    (account / broken).unlink()
    if content is not None:
        (account / broken).write_text(content)
    with pytest.raises(ConfigError, match=r"^in-cluster configuration: "):
        load_account(account)


@pytest.mark.parametrize("missing", POD)
def test_a_pod_without_the_address_of_its_cluster(tmp_path: Path, missing: str) -> None:
    with pytest.raises(ConfigError, match="HOST and KUBERNETES_SERVICE_PORT are not both set"):
        load_account(service_account(tmp_path), {**POD, missing: ""})


def test_when_this_is_a_pod(tmp_path: Path) -> None:
    token = service_account(tmp_path) / "token"
    assert loading.in_cluster(POD, str(token))
    assert not loading.in_cluster({}, str(token))
    assert not loading.in_cluster(POD, str(tmp_path / "none"))


def test_a_pod_starts_without_the_kubeconfig_package(tmp_path: Path) -> None:
    """It takes 0.3 s of CPU to import."""
    token = service_account(tmp_path) / "token"
    code = (
        "import sys; import kubeloop.client.client; from kubeloop.client import loading;"
        "from kubeloop.client.loading import load_config;"
        f"loading.in_cluster.__defaults__ = ({str(token)!r},);"
        f"loading.in_cluster_config.__defaults__ = ({str(token)!r}, {str(token.with_name('ca.crt'))!r});"
        f"config = load_config(environ={POD!r});"
        "sys.exit(not config.in_cluster or 'kubernetes' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- loopback, proxies and TLS contexts


@pytest.mark.parametrize(
    ("host", "no_proxy", "proxy"),
    [
        ("https://10.0.0.1:6443", "", "http://p:1"),
        ("https://10.0.0.1:6443", "10.0.0.0/8", None),
        ("https://10.0.0.1:6443", "192.168.0.0/16, 10.0.0.0/8,.svc", None),
        ("https://11.0.0.1:6443", "10.0.0.0/8", "http://p:1"),
        ("https://10.0.0.1:6443", "10.0.0.1", None),
        ("https://api.example.com", ".example.com", None),
        ("https://example.com", ".example.com", "http://p:1"),
        ("https://example.com", "EXAMPLE.com", None),
        ("https://api.example.com", "example.com", None),
        ("https://badexample.com", "example.com", "http://p:1"),
        ("https://api.example.com", "*.example.com", None),
        ("https://example.com", "*.example.com", "http://p:1"),
        ("https://api.example.com", "*example.com", "http://p:1"),
        ("https://api.example.com", "api.example.com:443", None),
        ("https://api.example.com:6443", "api.example.com:443", "http://p:1"),
        ("https://api.example.com", "x, *", None),
        ("https://[fd00::1]:6443", "FD00:0:0::1", None),
        ("https://[fd00::1]:6443", "[fd00::1]:6443", None),
        ("https://[fd00::1]:6443", "[fd00::1]:443", "http://p:1"),
        ("https://[fd00::1]:6443", "fd00::/8", None),
        ("https://[::ffff:10.0.0.1]:6443", "10.0.0.1", None),
        ("https://10.0.0.1", "::ffff:10.0.0.0/104", None),
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


@pytest.mark.parametrize(
    ("variable", "proxy"),
    [("p:3128", "http://p:3128"), ("u:p@p:1", "http://u:p@p:1"), ("https://p", "https://p"), ("", None)],
)
def test_a_proxy_of_the_environment_needs_no_scheme(
    monkeypatch: pytest.MonkeyPatch, variable: str, proxy: str | None
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", variable)
    assert environment_proxy("https://10.0.0.1") == proxy


def test_a_kubeconfig_for_loopback_uses_no_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://p:1")
    assert load(write(tmp_path, kubeconfig(server="https://127.0.0.1:6443"))).proxy is None
    assert load(write(tmp_path, kubeconfig())).proxy == "http://p:1"


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "https_proxy"])
def test_socks_proxies_are_refused_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
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
