"""In-cluster configuration: the pod's service account."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from kubernetes.client import Configuration
from kubernetes.config import ConfigException
from kubernetes.config.incluster_config import (
    SERVICE_CERT_FILENAME,
    SERVICE_HOST_ENV_NAME,
    SERVICE_TOKEN_FILENAME,
    InClusterConfigLoader,
)

from pkg.client.config import ClientConfig
from pkg.client.credentials import Reread
from pkg.client.errors import ConfigError
from pkg.client.kubeconfig import read_token
from pkg.client.tls import TLSSettings


def available(environ: Mapping[str, str], token_file: str = SERVICE_TOKEN_FILENAME) -> bool:
    """Whether this process runs in a pod with a service account."""
    return bool(environ.get(SERVICE_HOST_ENV_NAME)) and Path(token_file).is_file()


def load(
    environ: Mapping[str, str], token_file: str = SERVICE_TOKEN_FILENAME, ca_file: str = SERVICE_CERT_FILENAME
) -> ClientConfig:
    """The pod's own configuration. The token is read again every minute, as the kubelet renews it. Raises
    ConfigError.
    """
    configuration = Configuration()
    try:
        InClusterConfigLoader(token_file, ca_file, try_refresh_token=False, environ=environ).load_and_set(
            configuration
        )
    except (ConfigException, OSError) as err:
        raise ConfigError(f"in-cluster configuration: {err}") from err
    namespace = Path(token_file).with_name("namespace")
    return ClientConfig(
        host=configuration.host,
        tls=TLSSettings(ca_pem=Path(ca_file).read_text()),
        credentials=Reread(lambda: read_token(Path(token_file))),
        namespace=namespace.read_text().strip() if namespace.is_file() else "default",
    )
