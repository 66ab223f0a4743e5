"""In-cluster configuration: the pod's service account.

Without the `kubernetes` package, which a start would take a third of its time to import; client-go: rest/config.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pkg.client.config import ClientConfig
from pkg.client.credentials import Reread, read_token
from pkg.client.errors import ConfigError
from pkg.client.tls import TLSFiles

HOST, PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
_ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount/"
TOKEN_FILE: Final = _ACCOUNT + "token"
CA_FILE: Final = _ACCOUNT + "ca.crt"


def available(environ: Mapping[str, str], token_file: str = TOKEN_FILE) -> bool:
    """Whether this process runs in a pod with a service account."""
    return bool(environ.get(HOST)) and Path(token_file).is_file()


def load(environ: Mapping[str, str], token_file: str = TOKEN_FILE, ca_file: str = CA_FILE) -> ClientConfig:
    """The pod's own configuration. Token and certificate authority are read again every minute, as the kubelet renews
    them. Raises ConfigError.
    """
    files = TLSFiles(ca=Path(ca_file))
    namespace = Path(token_file).with_name("namespace")
    try:
        read_token(Path(token_file))
        return ClientConfig(
            host=_host(environ),
            tls=files.read(),
            tls_files=files,
            credentials=Reread(lambda: read_token(Path(token_file))),
            in_cluster=True,
            namespace=namespace.read_text().strip() if namespace.is_file() else "default",
        )
    except (ConfigError, OSError) as err:
        raise ConfigError(f"in-cluster configuration: {err}") from err


def _host(environ: Mapping[str, str]) -> str:
    host, port = environ.get(HOST), environ.get(PORT)
    if not host or not port:
        raise ConfigError(f"{HOST} and {PORT} are not both set")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
