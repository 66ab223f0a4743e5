"""Finds the configuration where kubectl and client-go would: kubeconfig files, or the pod's service account."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kubeloop.client.config import ClientConfig
from kubeloop.client.credentials import Reread, read_token
from kubeloop.client.errors import ConfigError
from kubeloop.client.tls import TLSSettings
from kubeloop.errors import needs_extra

DEFAULT_KUBECONFIG = "~/.kube/config"
HOST, PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount/"
TOKEN_FILE: Final = _ACCOUNT + "token"
CA_FILE: Final = _ACCOUNT + "ca.crt"


def load_config(
    kubeconfig: str | None = None, context: str | None = None, *, environ: Mapping[str, str] | None = None
) -> ClientConfig:
    """The configuration to use: `kubeconfig`, else $KUBECONFIG, else in-cluster, else ~/.kube/config; `context` is
    another than the file's current one. Credential plugins run with the first request. Raises ConfigError."""
    environ = os.environ if environ is None else environ
    paths = [kubeconfig] if kubeconfig else list(filter(None, environ.get("KUBECONFIG", "").split(os.pathsep)))
    if not paths and context is None and in_cluster(environ):
        return in_cluster_config(environ)
    if not paths and not Path(DEFAULT_KUBECONFIG).expanduser().exists():
        raise ConfigError(
            "no cluster is configured: give --kubeconfig, set $KUBECONFIG, run in a pod with a service account,"
            f" or have {DEFAULT_KUBECONFIG}"
        )
    paths = paths or [DEFAULT_KUBECONFIG]
    config: ClientConfig = _reader(f"kubeconfig {os.pathsep.join(paths)}").load(paths, context)
    return config


def config_from_kubeconfig(content: str | bytes, context: str | None = None) -> ClientConfig:
    """The configuration that a kubeconfig's content means, as a Secret holds it (clientcmd.RESTConfigFromKubeConfig).
    Certificates and token must be in it: one that names a file or a plugin is refused. Raises ConfigError."""
    config: ClientConfig = _reader("kubeconfig").load_text(content, context)
    return config


def _reader(source: str) -> Any:
    """Returns the module that reads kubeconfigs, imported now: a pod needs no YAML. Raises ConfigError."""
    try:
        with needs_extra("kubeconfig"):
            from kubeloop.client import kubeconfig
    except ImportError as err:
        raise ConfigError(f"{source}: {err}") from err
    return kubeconfig


def in_cluster(environ: Mapping[str, str], token_file: str = TOKEN_FILE) -> bool:
    """Reports whether this process runs in a pod with a service account."""
    return bool(environ.get(HOST)) and Path(token_file).is_file()


def in_cluster_config(environ: Mapping[str, str], token_file: str = TOKEN_FILE, ca_file: str = CA_FILE) -> ClientConfig:
    """The pod's own configuration; its files are read again every minute. Raises ConfigError."""
    host, port, namespace = environ.get(HOST), environ.get(PORT), Path(token_file).with_name("namespace")
    try:
        if not host or not port:
            raise ConfigError(f"{HOST} and {PORT} are not both set: the kubelet does it in a pod")
        read_token(Path(token_file))
        return ClientConfig(
            host=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
            tls=TLSSettings(ca=Path(ca_file)),
            credentials=Reread(lambda: read_token(Path(token_file))),
            in_cluster=True,
            namespace=namespace.read_text().strip() if namespace.is_file() else "default",
        )
    except (ConfigError, OSError) as err:
        raise ConfigError(f"in-cluster configuration: {err}") from err
