"""kubeconfig files, read and merged as kubectl reads and merges them.

The `kubernetes` package is asked for the tokens of auth-providers alone: importing it costs half a second of CPU.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import base64
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pkg.client.config import ClientConfig, Impersonation, environment_proxy
from pkg.client.credentials import CredentialSource, Reread, Static, read_token
from pkg.client.errors import ConfigError, one_line
from pkg.client.exec_plugin import Command, ExecPlugin
from pkg.client.tls import TLSFiles

_AUTH_PROVIDERS = ("oidc", "gcp")


def load(paths: list[str], context: str | None = None) -> ClientConfig:
    """The configuration of `context` (None: the current one) in these files, merged as kubectl merges them.

    Files that don't exist are left out as long as one does. Raises ConfigError with one line that names the
    file.
    """
    shown = os.pathsep.join(paths)
    found = [path for path in map(os.path.expanduser, paths) if os.path.exists(path)]
    if not found:
        raise ConfigError(f"kubeconfig {shown}: no such file")
    try:
        return _Kubeconfig(found, context).client_config()
    except ConfigError as err:
        raise ConfigError(f"kubeconfig {shown}: {err}") from err
    except yaml.YAMLError as err:
        raise ConfigError(f"kubeconfig {shown}: not valid YAML: {one_line(err)}") from err
    except OSError as err:
        where = f"{err.filename}: " if err.filename and err.filename not in found else ""
        raise ConfigError(f"kubeconfig {shown}: {where}{err.strerror or err}") from err
    except (TypeError, ValueError, KeyError, AttributeError) as err:
        # A file of another shape: a list, a string, bad base64.
        expected = "a mapping with clusters, contexts and users is expected"
        raise ConfigError(f"kubeconfig {shown}: not a kubeconfig: {expected} ({one_line(err)})") from err


@dataclass(frozen=True, slots=True)
class _Entry:
    """A context, cluster or user, and the folder of its file: relative paths begin there."""

    value: dict[str, Any]
    folder: Path

    def file_or_data(self, key: str) -> Path | str | None:
        """A file by its path, or the content of the field that holds one."""
        if data := self.value.get(f"{key}-data"):
            return base64.standard_b64decode(data.encode()).decode()
        return self.folder / self.value[key] if self.value.get(key) else None


class _Kubeconfig:
    """Files merged (the first that says something wins) and the context chosen in them."""

    def __init__(self, paths: list[str], context: str | None) -> None:
        self._files = [(Path(path).parent, _read(path)) for path in paths]
        self._context = self._entry("contexts", "context", context or self._current_context()).value
        self._cluster_name = str(self._context.get("cluster") or "")
        self._cluster = self._entry("clusters", "cluster", self._cluster_name)
        user = self._context.get("user")
        self._user = self._entry("users", "user", str(user)) if user else _Entry({}, self._cluster.folder)

    def client_config(self) -> ClientConfig:
        cluster = self._cluster.value
        if not cluster.get("server"):
            raise ConfigError(f"cluster {self._cluster_name!r} has no server")
        host = str(cluster["server"]).rstrip("/")
        verify = not cluster.get("insecure-skip-tls-verify")
        files = TLSFiles(verify=verify)
        if host.startswith("https"):
            files = TLSFiles(
                ca=self._cluster.file_or_data("certificate-authority"),
                certificate=self._user.file_or_data("client-certificate"),
                key=self._user.file_or_data("client-key"),
                verify=verify,
            )
        return ClientConfig(
            host=host,
            tls=files.read(),
            tls_files=files if files.on_disk else None,
            credentials=self._credentials(),
            server_name=cluster.get("tls-server-name"),
            proxy=cluster.get("proxy-url") or environment_proxy(host),
            namespace=self._context.get("namespace") or "default",
            impersonation=_impersonation(self._user.value),
        )

    def _credentials(self) -> CredentialSource:
        """The first of what the user has: a token file, a token or password, an auth-provider, a plugin."""
        user = self._user.value
        if user.get("tokenFile"):
            path = self._user.folder / user["tokenFile"]
            read_token(path)  # a file that is not there shows here, not at the first request
            return Reread(lambda: read_token(path))
        if user.get("token"):
            return Static(f"Bearer {user['token']}")
        if user.get("username") and user.get("password"):
            pair = f"{user['username']}:{user['password']}".encode()
            return Static(f"Basic {base64.b64encode(pair).decode()}")
        if user.get("auth-provider"):
            return _provider(user["auth-provider"])
        if user.get("exec"):
            return ExecPlugin(_plugin(self._user, self._cluster).run)
        return Static()

    def _current_context(self) -> str:
        for _folder, content in self._files:
            if name := content.get("current-context"):
                return str(name)
        raise ConfigError("no current-context is set")

    def _entry(self, section: str, key: str, name: str) -> _Entry:
        """The `key` part of the entry called `name` in one of the three lists."""
        for folder, content in self._files:
            for entry in content.get(section) or ():
                if entry["name"] == name:
                    # A user without credentials is one.
                    value = {} if key == "user" and entry.get(key) is None else entry.get(key)
                    if not isinstance(value, dict):
                        raise ConfigError(f"{key} {name!r} is not a mapping")
                    return _Entry(value, folder)
        raise ConfigError(f"{key} {name!r} does not exist")


def _read(path: str) -> dict[str, Any]:
    content = yaml.safe_load(Path(path).read_text())
    if content is None:
        raise ConfigError(f"{path} is empty")
    if not isinstance(content, dict):
        raise TypeError(f"it is a {type(content).__name__}")
    return content


def _impersonation(user: dict[str, Any]) -> Impersonation | None:
    if not user.get("as"):
        return None
    extra = user.get("as-user-extra") or {}
    return Impersonation(
        user["as"],
        tuple(user.get("as-groups") or ()),
        user.get("as-uid") or "",
        {str(key): tuple(map(str, values or ())) for key, values in extra.items()},
    )


def _plugin(user: _Entry, cluster: _Entry) -> Command:
    said = user.value["exec"]
    for key in ("command", "apiVersion"):
        if not said.get(key):
            raise ConfigError(f"exec: missing key {key!r}")
    return Command(
        api_version=said["apiVersion"],
        args=[said["command"], *(said.get("args") or ())],
        env={**os.environ, **{item["name"]: item["value"] for item in said.get("env") or ()}},
        folder=str(user.folder),
        cluster=cluster.value if said.get("provideClusterInfo") else None,
        install_hint=said.get("installHint") or "",
    )


def _provider(provider: dict[str, Any]) -> CredentialSource:
    name = provider.get("name")
    if name not in _AUTH_PROVIDERS:
        raise ConfigError(f"auth-provider {name!r} is no longer supported; use a credential plugin (exec)")
    return Reread(lambda: _provider_token(provider))


def _provider_token(provider: dict[str, Any]) -> str:
    """The auth-provider's token, renewed by the `kubernetes` package when it is about to expire. Blocks."""
    from kubernetes.client import Configuration
    from kubernetes.config.kube_config import KubeConfigLoader

    entry = "the-one"
    configuration = Configuration()
    try:
        KubeConfigLoader(
            config_dict={
                "current-context": entry,
                "contexts": [{"name": entry, "context": {"cluster": entry, "user": entry}}],
                "clusters": [{"name": entry, "cluster": {}}],
                "users": [{"name": entry, "user": {"auth-provider": provider}}],
            }
        ).load_and_set(configuration)
    except Exception as err:  # the providers' own libraries raise what they like
        raise ConfigError(f"auth-provider: {one_line(err)}") from err
    keys = configuration.api_key  # older releases of the package keep it under another name
    token: str | None = keys.get("BearerToken") or keys.get("authorization")
    if not token:
        raise ConfigError("auth-provider: it has no valid token and could not get one")
    return token
