"""A kubeconfig that can't work: one clear line, whatever is wrong with it."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubeloop.client.errors import ConfigError
from kubeloop.client.loading import load_config
from tests.decisions import sentences
from tests.kubeloop.client.kubeconfigs import Plugin, data, kubeconfig, write
from tests.kubeloop.client.pki import Authority
from tests.kubeloop.client.rig import load, token_of

pytestmark = pytest.mark.usefixtures("bare_machine")


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
        "clusters[0].cluster: Expected",
    ),
    Bad("entries of another shape", kubeconfig() | {"users": [5]}, "users[0]: Expected `object`, got a number"),
    Bad("contexts of another shape", kubeconfig() | {"contexts": "x"}, "contexts: Expected `array`, got `str`"),
    Bad("a text for a token", kubeconfig({"token": 12345}), "users[0].user.token: Expected `str`, got a number"),
    Bad(
        "verification off, as a text",
        kubeconfig(cluster={"insecure-skip-tls-verify": "false"}),
        "Expected `bool`, got `str`",
    ),
    Bad(
        "an authority, and verification off",
        kubeconfig(cluster={"insecure-skip-tls-verify": True, "certificate-authority-data": data("x")}),
        "cluster 'a' has both insecure-skip-tls-verify and a certificate authority: remove one of them",
    ),
    Bad("a token and a password", kubeconfig({"token": "t", "password": "p"}), "both a token and a password: remove"),
    Bad(
        "two users of one name", kubeconfig() | {"users": [{"name": "a"}, {"name": "a"}]}, "two entries are called 'a'"
    ),
    Bad("another kind", kubeconfig() | {"kind": "Pod"}, "not a kubeconfig: it is a Pod of v1"),
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
        "certificate-authority-data is not base64",
    ),
    Bad(
        "a client certificate that is none",
        kubeconfig({"client-certificate-data": data("x"), "client-key-data": data("y")}),
        "client certificate and key are not valid",
    ),
    Bad("a certificate without key", kubeconfig({"client-certificate-data": data("x")}), "only one of client-cert"),
    Bad("a token file that is not there", kubeconfig({"tokenFile": "none"}), "token file"),
    Bad("an auth-provider of old", kubeconfig({"auth-provider": {"name": "azure"}}), "'azure' is no longer supp"),
    Bad(
        "a plugin without command", kubeconfig({"exec": {"apiVersion": Plugin.API}}), "(exec) whose command is missing"
    ),
    Bad(
        "a proxy that can't be used",
        kubeconfig(cluster={"proxy-url": "socks5://p:1"}),
        "'socks5://p:1' is a SOCKS proxy, which is not supported",
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


SECRET = "s3cret"
SECRETS: dict[str, str] = {
    "a token that is a list": json.dumps(kubeconfig({"token": [SECRET]})),
    "a user that is a text": json.dumps(kubeconfig(SECRET)),
    "YAML that is broken behind a token": f"users:\n- token: {SECRET}\n  x: [1,\n",
    "a tab before a token": f"users:\n- user:\n\ttoken: {SECRET}\n",
    "a token with a control character": f"token: {SECRET}\x07\n",
    "a key that is not base64": json.dumps(
        kubeconfig({"client-certificate-data": data("x"), "client-key-data": f"{SECRET}-"})
    ),
    "a token with a line break": json.dumps(kubeconfig({"token": f"{SECRET}\nx"})),
    "a proxy with a password": json.dumps(kubeconfig(cluster={"proxy-url": f"ftp://me:{SECRET}@p"})),
    "a server with a password": json.dumps(kubeconfig(server=f"ftp://me:{SECRET}@p")),
    "an anchor in a token": f"users: [{{user: {{token: &{SECRET}",
}


@sentences(SECRETS)
def test_no_error_shows_a_secret_of_the_file(case: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(write(tmp_path, case))
    error: BaseException | None = caught.value
    assert SECRET not in str(error)


def test_aliases_of_aliases_cost_nothing(tmp_path: Path) -> None:
    bomb = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9) if n else 'x'}]\n" for n in range(30))
    assert load(write(tmp_path, bomb + yaml.safe_dump(kubeconfig()))).host == "https://10.0.0.1:6443"


def test_the_file_with_a_fault_is_named_among_several(tmp_path: Path) -> None:
    paths = [write(tmp_path, kubeconfig({"token": token}, name=name), name) for name, token in (("a", "t"), ("b", 5))]
    with pytest.raises(ConfigError, match=rf": {paths[1]}: users\[0\].user.token: Expected `str`"):
        load_config(environ={"KUBECONFIG": os.pathsep.join(paths)})


async def test_credentials_are_not_sent_over_http(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = load(write(tmp_path, kubeconfig({"token": SECRET, "as": "jane"}, server="http://10.0.0.1:8080")))
    assert await token_of(config) is None
    assert config.impersonation is not None, "a proxy on this machine may add credentials, as kubectl's does"
    assert caplog.messages == ["the credentials of user 'a' are not sent to 'http://10.0.0.1:8080': it is not https://"]
