"""The configuration that a kubeconfig means, with clientcmd's checks (tools/clientcmd: validation, client_config)."""

# mypy: disable-error-code="no-untyped-call"
import base64
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from kubeloop.client import config, credentials
from kubeloop.client.config import ClientConfig, Impersonation
from kubeloop.client.errors import ConfigError
from kubeloop.client.kubeconfig_file import ClusterEntry, Context, Exec, Kubeconfig, User, decoded, parsed, read
from kubeloop.client.tls import TLSSettings
from kubeloop.errors import one_line

log = logging.getLogger(__name__)
_CLUSTER_CONFIG: Final = "client.authentication.k8s.io/exec"
"""The extension of a cluster that a plugin is handed as `config`."""


def load(paths: list[str], context: str | None = None) -> ClientConfig:
    """The configuration of `context` (None: the current one) in these files, merged as kubectl merges them. Files that
    don't exist are left out as long as one does. Raises ConfigError with one line that names the file."""
    names = os.pathsep.join(paths)
    existing = [path for path in map(os.path.expanduser, paths) if os.path.exists(path)]
    if not existing:
        raise ConfigError(f"kubeconfig {names}: no such file")
    try:
        return _client_config(read(existing), context)
    except ConfigError as err:
        raise ConfigError(f"kubeconfig {names}: {err}") from err


def load_text(content: str | bytes, context: str | None = None) -> ClientConfig:
    """The configuration of `context` in a kubeconfig's content. Raises ConfigError, also where it names a program or a
    file: whoever may write a Secret should not choose what runs, or is read, here."""
    try:
        return _client_config(parsed(content, ""), context, alone=True)
    except ConfigError as err:
        raise ConfigError(f"kubeconfig: {err}") from err


def _client_config(kubeconfig: Kubeconfig, name: str | None, *, alone: bool = False) -> ClientConfig:
    """`alone`: what needs more than the content is refused."""
    if kubeconfig == Kubeconfig():
        raise ConfigError("the file is empty")
    name = name or kubeconfig.current_context
    if not name:
        raise ConfigError("no current-context is set: set it, or name a context")
    context: Context = _entry(kubeconfig.contexts, "context", name)
    cluster: ClusterEntry = _entry(kubeconfig.clusters, "cluster", context.cluster)
    user: User = _entry(kubeconfig.users, "user", context.user) if context.user else User()
    problems = [f"cluster {context.cluster!r} {problem}" for problem in _cluster_problems(cluster)]
    problems += [f"user {context.user!r} {problem}" for problem in _user_problems(user)]
    outside = (cluster.certificate_authority, user.client_certificate, user.client_key, user.token_file)
    if alone and (any(outside) or user.exec or user.auth_provider):
        problems = ["it names a file or a credential plugin: give certificates and token in it (*-data, token)"]
    if problems:
        raise ConfigError("; ".join(problems))
    host = cluster.server.partition("?")[0].partition("#")[0].rstrip("/")
    is_secure = config.split_url(host).scheme == "https"
    if not is_secure and any((user.token, user.token_file, user.password, user.exec, user.auth_provider)):
        # As clientcmd: any listener could use them.
        message = "the credentials of user %r are not sent to %r: it is not https://"
        log.warning(message, context.user, config.redacted_url(host))
    return ClientConfig(
        host=host,
        tls=_tls(cluster, user) if is_secure else TLSSettings(),
        credentials=_credentials(user, cluster) if is_secure else credentials.Static(),
        server_name=cluster.tls_server_name or None,
        proxy=cluster.proxy_url or config.environment_proxy(host),
        namespace=context.namespace or "default",
        impersonation=_impersonation(user),
        compression=not cluster.disable_compression,
    )


def _entry(entries: dict[str, Any], kind: str, name: str) -> Any:
    if name not in entries:
        raise ConfigError(f"{kind} {name!r} does not exist, but {', '.join(entries) or 'none'}")
    return entries[name]


def _cluster_problems(cluster: ClusterEntry) -> Iterator[str]:
    file, data = cluster.certificate_authority, cluster.certificate_authority_data
    if not cluster.server:
        yield "has no server"
    yield from _conflict("certificate-authority", file, "certificate-authority-data", data)
    skips = cluster.insecure_skip_tls_verify
    yield from _conflict("insecure-skip-tls-verify", skips, "a certificate authority", file or data)
    yield from _unreadable(cluster.folder, file)


def _user_problems(user: User) -> Iterator[str]:
    file, data = user.client_certificate, user.client_certificate_data
    yield from _conflict("a token", user.token or user.token_file, "a password", user.username or user.password)
    if file or data:
        yield from _conflict("client-certificate", file, "client-certificate-data", data)
        yield from _conflict("client-key", user.client_key, "client-key-data", user.client_key_data)
        if not user.client_key and not user.client_key_data:
            yield "has only one of client-certificate and client-key"
        yield from _unreadable(user.folder, user.client_certificate, user.client_key)
    if (user.as_uid or user.as_groups or user.as_user_extra) and not user.impersonate:
        yield "has as-uid, as-groups or as-user-extra, and no as"
    if user.exec is not None:
        yield from _conflict("exec", user.exec, "auth-provider", user.auth_provider)
        yield from (f"has a plugin (exec) whose {problem}" for problem in _exec_problems(user.exec))


def _conflict(name: str, value: object, other_name: str, other: object) -> Iterator[str]:
    if value and other:
        yield f"has both {name} and {other_name}: remove one of them"


def _exec_problems(plugin: Exec) -> Iterator[str]:
    if not plugin.command:
        yield "command is missing"
    if plugin.api_version not in credentials.API_VERSIONS:
        yield f"apiVersion is {plugin.api_version!r}, give one of {', '.join(credentials.API_VERSIONS)}"
    if any(not variable.name for variable in plugin.env):
        yield "env has a variable without a name"
    if _mode(plugin) not in credentials.MODES:
        yield f"interactiveMode is {plugin.interactive_mode!r}, give one of {', '.join(credentials.MODES)}"


def _unreadable(folder: str, *files: str) -> Iterator[str]:
    for file in filter(None, files):
        try:
            os.close(os.open(Path(folder, file), os.O_RDONLY | os.O_NONBLOCK))
        except OSError as err:
            yield f"names {file}: {err.strerror}"


def _credentials(user: User, cluster: ClusterEntry) -> credentials.CredentialSource:
    """The first of what the user has: a token file, a token or password, an auth-provider, a plugin."""
    token = f"Bearer {credentials.header_value(user.token, 'the token')}" if user.token else None
    if user.token_file:
        path = Path(user.folder, user.token_file)
        if token is None:
            credentials.read_token(path)  # a file that is not there shows here, not at the first request
        return credentials.Reread(lambda: credentials.read_token(path), first=token)
    if token:
        return credentials.Static(token)
    if user.username or user.password:
        return credentials.Static(config.basic_authorization(user.username, user.password))
    if user.auth_provider is not None:
        name, options = user.auth_provider.name, user.auth_provider.config
        if name not in ("oidc", "gcp"):
            raise ConfigError(f"auth-provider {name!r} is no longer supported; use a credential plugin (exec)")
        # The package keeps a token that it renews in the same mapping.
        return credentials.Reread(lambda: _provider_token({"name": name, "config": options}))
    if user.exec is not None and not (user.client_certificate or user.client_certificate_data):
        return credentials.ExecPlugin(_command(user.exec, user.folder, cluster).run)
    return credentials.Static()


def _mode(plugin: Exec) -> str:
    """Returns the interactive mode, which need not be given before v1."""
    return plugin.interactive_mode or ("" if plugin.api_version == credentials.API_VERSIONS[0] else "IfAvailable")


def _tls(cluster: ClusterEntry, user: User) -> TLSSettings:
    certificate = _part(user, "client_certificate")
    key = _part(user, "client_key") if certificate else None
    verify = not cluster.insecure_skip_tls_verify
    return TLSSettings(_part(cluster, "certificate_authority"), certificate, key, verify)


def _part(entry: ClusterEntry | User, name: str) -> Path | str | None:
    """A file by its path, or the content of a data field."""
    if text := getattr(entry, f"{name}_data"):
        return decoded(text, f"{name}_data".replace("_", "-"))
    file = getattr(entry, name)
    return Path(entry.folder, file) if file else None


def _impersonation(user: User) -> Impersonation | None:
    if not user.impersonate:
        return None
    extra = {key: tuple(values) for key, values in user.as_user_extra.items()}
    return Impersonation(user.impersonate, tuple(user.as_groups), user.as_uid, extra)


def _command(plugin: Exec, folder: str, cluster: ClusterEntry) -> credentials.PluginCommand:
    # A path is relative to the file that has it, a name is looked for in PATH; it runs where this program runs.
    command = os.path.join(folder, plugin.command) if os.sep in plugin.command else plugin.command
    return credentials.PluginCommand(
        api_version=plugin.api_version,
        args=[os.path.normpath(command), *plugin.args],
        env={variable.name: variable.value for variable in plugin.env},
        mode=_mode(plugin),
        cluster=_cluster_info(cluster) if plugin.provide_cluster_info else None,
        install_hint=plugin.install_hint,
    )


def _cluster_info(cluster: ClusterEntry) -> dict[str, Any]:
    """The cluster as a plugin is told of it (clientauthentication/v1)."""
    ca = _part(cluster, "certificate_authority")
    text = ca.read_text(errors="replace") if isinstance(ca, Path) else ca
    config = {entry.name: entry.extension for entry in cluster.extensions}.get(_CLUSTER_CONFIG)
    optional = {
        "tls-server-name": cluster.tls_server_name,
        "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
        "certificate-authority-data": base64.b64encode((text or "").encode()).decode(),
        "proxy-url": cluster.proxy_url,
        "disable-compression": cluster.disable_compression,
    }
    return {"server": cluster.server, **{name: value for name, value in optional.items() if value}, "config": config}


def _provider_token(provider: dict[str, Any]) -> str:
    """The auth-provider's token, renewed by the package when it is about to expire. Blocks."""
    entries: dict[str, dict[str, Any]] = {
        "context": {"cluster": "a", "user": "a"},
        "cluster": {"server": "https://a"},
        "user": {"auth-provider": provider},
    }
    content = {f"{kind}s": [{"name": "a", kind: entry}] for kind, entry in entries.items()}
    try:
        # Imported here: the package costs 0.3 s and 20 MB.
        from kubernetes.client import Configuration
        from kubernetes.config.kube_config import KubeConfigLoader

        with tempfile.TemporaryDirectory(prefix="kubeconfig-", ignore_cleanup_errors=True) as folder:
            configuration = Configuration()
            KubeConfigLoader({**content, "current-context": "a"}, temp_file_path=folder).load_and_set(configuration)
            # Older releases keep it under another name.
            keys = configuration.api_key
            token: str | None = keys.get("BearerToken") or keys.get("authorization")
    except Exception as err:  # the providers' own libraries raise what they like
        raise ConfigError(f"auth-provider: {one_line(err)}") from err
    if not token:
        raise ConfigError("auth-provider: it has no valid token and could not get one")
    return token
