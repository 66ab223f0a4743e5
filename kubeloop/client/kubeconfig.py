"""kubeconfig files, read and merged by the `kubernetes` package; token files and plugins are read and run here.

The package's loader is used for all it does well. Exec plugins and token files are taken out of its hands:
it logs a failing plugin and goes on without credentials, and it reads a token file only once.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import yaml
from kubernetes.client import Configuration
from kubernetes.config import ConfigException
from kubernetes.config.exec_provider import ExecProvider
from kubernetes.config.kube_config import ConfigNode, KubeConfigLoader, KubeConfigMerger

from kubeloop.client.config import ClientConfig, Impersonation, environment_proxy
from kubeloop.client.credentials import CredentialSource, Reread, Static, read_token
from kubeloop.client.errors import ConfigError
from kubeloop.client.exec_plugin import Command, ExecPlugin
from kubeloop.client.tls import TLSSettings
from kubeloop.errors import one_line


def load(paths: list[str], context: str | None = None) -> ClientConfig:
    """The configuration of `context` (None: the current one) in these files, merged as kubectl merges them.

    Files that don't exist are left out as long as one does. Raises ConfigError with one line that names the file.
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
    except ConfigException as err:
        raise ConfigError(f"kubeconfig {shown}: {one_line(err)}") from err
    except (TypeError, ValueError, KeyError, AttributeError) as err:
        # What the package raises for a file of another shape: a list, a string, bad base64.
        expected = "a mapping with clusters, contexts and users is expected"
        raise ConfigError(f"kubeconfig {shown}: not a kubeconfig: {expected} ({one_line(err)})") from err


class _Kubeconfig:
    """One merged kubeconfig and the context chosen in it."""

    def __init__(self, paths: list[str], context: str | None) -> None:
        self._merged = _merge(paths)
        root = self._merged.config
        name = context or _current_context(self._merged)
        chosen = _entry(root, "contexts", "context", name)
        self._context = chosen.value
        self._cluster_name = str(self._context.get("cluster") or "")
        self._cluster = _entry(root, "clusters", "cluster", self._cluster_name)
        user = self._context.get("user")
        self._user = _entry(root, "users", "user", str(user)) if user else ConfigNode("user", {}, self._cluster.path)
        # Not for the loader: it swallows a plugin's errors, and runs it here and now.
        self._exec: ConfigNode | None = self._user["exec"] if self._user.value.get("exec") else None
        self._user.value.pop("exec", None)
        self._token_file = self._user.value.pop("tokenFile", None)
        self._auth_provider = self._user.value.pop("auth-provider", None)
        self._name = name

    def client_config(self) -> ClientConfig:
        if not self._cluster.value.get("server"):
            raise ConfigError(f"cluster {self._cluster_name!r} has no server")
        with _temporary_folder() as folder:
            loaded = self._load(folder)
            tls = TLSSettings(
                ca=_kept(loaded.ssl_ca_cert, folder),
                certificate=_kept(loaded.cert_file, folder),
                key=_kept(loaded.key_file, folder),
                verify=loaded.verify_ssl,
            )
        host = str(self._cluster.value["server"]).rstrip("/")
        return ClientConfig(
            host=host,
            tls=tls,
            credentials=self._credentials(loaded),
            server_name=self._cluster.value.get("tls-server-name"),
            proxy=self._cluster.value.get("proxy-url") or environment_proxy(host),
            namespace=self._context.get("namespace") or "default",
            impersonation=_impersonation(self._user.value),
        )

    def _load(self, folder: str) -> Configuration:
        """The package's own reading of the chosen context; data fields become files in `folder`."""
        loader = KubeConfigLoader(
            config_dict=self._merged.config,
            active_context=self._name,
            config_base_path=None,  # relative paths are relative to the file that holds them
            temp_file_path=folder,
        )
        configuration = Configuration()
        configuration.ssl_ca_cert = configuration.cert_file = configuration.key_file = None
        loader.load_and_set(configuration)
        return configuration

    def _credentials(self, loaded: Configuration) -> CredentialSource:
        """The first of what the user has: a token file, a token or password, an auth-provider, a plugin."""
        if self._token_file:
            path = Path(os.path.dirname(self._user.path or ""), self._token_file)
            read_token(path)  # a file that is not there shows here, not at the first request
            return Reread(lambda: read_token(path))
        if token := bearer_token(loaded):
            return Static(token)
        if self._auth_provider:
            return self._provider()
        if self._exec is not None:
            return ExecPlugin(_plugin(self._exec, self._cluster).run)
        return Static()

    def _provider(self) -> CredentialSource:
        name = self._auth_provider.get("name")
        if name not in ("oidc", "gcp"):
            raise ConfigError(f"auth-provider {name!r} is no longer supported; use a credential plugin (exec)")
        self._user.value["auth-provider"] = self._auth_provider
        return Reread(self._provider_token)

    def _provider_token(self) -> str | None:
        """The auth-provider's token, renewed by the package when it is about to expire. Blocks."""
        try:
            with _temporary_folder() as folder:
                token = bearer_token(self._load(folder))
        except Exception as err:  # the providers' own libraries raise what they like
            raise ConfigError(f"auth-provider: {one_line(err)}") from err
        if not token:
            raise ConfigError("auth-provider: it has no valid token and could not get one")
        return token


def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="kubeconfig-", ignore_cleanup_errors=True)


def bearer_token(configuration: Configuration) -> str | None:
    """The Authorization value that the package loaded; older releases keep it under another name."""
    keys = configuration.api_key
    return keys.get("BearerToken") or keys.get("authorization")


def _merge(paths: list[str]) -> KubeConfigMerger:
    merged = KubeConfigMerger("")
    for path in paths:
        merged.load_config(path)  # one by one: given together, a path with a colon would be taken apart
    return merged


def _current_context(merged: KubeConfigMerger) -> str:
    # kubectl: the first file that sets it wins; the package's own merge takes the last.
    for content in merged.config_files.values():
        if name := content.get("current-context"):
            return str(name)
    raise ConfigError("no current-context is set")


def _entry(root: ConfigNode, section: str, key: str, name: str) -> ConfigNode:
    """The `key` part of the entry called `name` in one of the three lists."""
    entry = root[section].get_with_name(name, safe=True) if root.value.get(section) else None
    if entry is None:
        raise ConfigError(f"{key} {name!r} does not exist")
    if key == "user" and entry.value.get(key) is None:
        entry.value[key] = {}  # a user without credentials is one
    if not isinstance(entry.value.get(key), dict):
        raise ConfigError(f"{key} {name!r} is not a mapping")
    found: ConfigNode = entry[key]
    return found


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


def _kept(path: str | None, folder: str) -> Path | str | None:
    """A file of the kubeconfig's by its path; one that the package made of a data field by its content."""
    if not path:
        return None
    return Path(path).read_text() if Path(path).is_relative_to(folder) else Path(path)


def _plugin(node: ConfigNode, cluster: ConfigNode) -> Command:
    provider = ExecProvider(node, os.path.dirname(node.path or "") or None, cluster)
    return Command(
        api_version=provider.api_version,
        args=provider.args,
        env=provider.env,
        folder=provider.cwd,
        cluster=provider.cluster and provider.cluster.value,
        install_hint=node.value.get("installHint") or "",
    )
