"""Kubeconfigs of every shape, each with what client-go's clientcmd (v0.36.3) made of it when the vectors were recorded:
a configuration, or null for one that it, or the first request, refuses."""

import base64
import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from kubeloop.client.config import ClientConfig
from kubeloop.client.credentials import ExecPlugin, PluginCommand, Reread
from kubeloop.client.errors import ConfigError
from kubeloop.client.loading import load_config

VECTORS = Path(__file__).parents[2] / "vectors" / "kubeconfig.jsonl.gz"
with gzip.open(VECTORS, "rt", encoding="utf-8") as _file:
    SHAPES = {row["name"]: row for row in map(json.loads, _file)}

STRICTER = {
    "cluster: a CA of an empty file": "certificate authority is empty",
    "cluster: a SOCKS proxy": "is a SOCKS proxy",
    "server: no scheme": "is not an http:// or https:// URL",
    "server: a name without a scheme": "is not an http:// or https:// URL",
    "server: another scheme": "is not an http:// or https:// URL",
    "server: a port out of range": "is not an http:// or https:// URL",
    "context: a user that is not there": "user 'none' does not exist",
    "file: users of null": "user 'a' does not exist",
}
"""What is refused here and not there, and why: the table in docs/dev/porting.md."""
LENIENT = {"json: with a slash that is escaped"}

pytestmark = pytest.mark.usefixtures("bare_machine")


def load_shape(folder: Path, shape: dict[str, Any]) -> ClientConfig:
    for name, content in shape["files"].items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else base64.b64decode(content["base64"]))
    context = shape["context"] or None
    if names := shape["kubeconfig"]:
        paths = os.pathsep.join(str(folder / name) if name else "" for name in names.split(":"))
        return load_config(None, context, environ={"KUBECONFIG": paths})
    return load_config(str(folder / "config"), context, environ={})


async def described(config: ClientConfig, folder: Path) -> dict[str, Any]:
    """Describes a configuration as the vectors do."""
    plugin, authorization = None, None
    if isinstance(config.credentials, ExecPlugin):
        plugin = _plugin(config.credentials, folder)
    else:
        authorization = (await config.credentials.get()).authorization
        if isinstance(config.credentials, Reread) and authorization:
            authorization = authorization.replace("Bearer", "file")
    tls, user = config.tls.read(), config.impersonation
    return {
        "host": config.host.lower(),
        "namespace": config.namespace,
        "server_name": config.server_name,
        "verify": tls.verify,
        "ca": _stripped(tls.ca),
        "certificate": _stripped(tls.certificate),
        "key": _stripped(tls.key),
        "authorization": authorization,
        "proxy": config.proxy,
        "impersonation": user and [user.user, [*user.groups], user.uid, {k: [*v] for k, v in user.extra.items()}],
        "compression": config.compression,
        "plugin": plugin,
    }


def _plugin(source: ExecPlugin, folder: Path) -> dict[str, Any]:
    command: PluginCommand = source._run.__self__  # type: ignore[attr-defined]
    name, *args = command.args
    return {
        "command": os.path.relpath(name, folder) if name.startswith(str(folder.parent)) else name,
        "args": args,
        "env": command.env,
        "api": command.api_version,
        "mode": command.mode,
        "hint": command.install_hint,
        "cluster": command.cluster is not None,
    }


def _stripped(part: Path | str | None) -> str | None:
    assert not isinstance(part, Path)
    return part.strip() if part else None


@pytest.mark.parametrize("name", SHAPES)
async def test_a_kubeconfig_means_what_it_means_to_clientcmd(name: str, tmp_path: Path) -> None:
    shape = SHAPES[name]
    folder = tmp_path / "files"
    expected = shape["clientcmd"] if name not in STRICTER else None
    if name in LENIENT:
        load_shape(folder, shape)
    elif expected is None:
        with pytest.raises(ConfigError, match=STRICTER.get(name, "^kubeconfig ")) as caught:
            load_shape(folder, shape)
        assert "\n" not in str(caught.value)
    else:
        # The path of a token's file differs, and a login is kept apart from its proxy's address.
        words = (expected["authorization"] or "").split(" ")
        if words[0] == "file":
            expected["authorization"] = f"file {words[-1]}"
        if "@" in (expected["proxy"] or ""):
            expected["proxy"] = expected["proxy"].replace("u:p@", "")
        assert await described(load_shape(folder, shape), folder) == expected


def test_what_is_stricter_here_is_a_case_that_clientcmd_takes() -> None:
    assert all(SHAPES[name]["clientcmd"] for name in STRICTER)
    assert not any(SHAPES[name]["clientcmd"] for name in LENIENT)
