"""Which server to talk to, and as whom: `load_config` finds it where kubectl and client-go would."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from multidict import CIMultiDict

from pkg.client.credentials import Certificate, CredentialSource, Static
from pkg.client.errors import ConfigError
from pkg.client.tls import TLSSettings

DEFAULT_KUBECONFIG = "~/.kube/config"


@dataclass(frozen=True, slots=True)
class Impersonation:
    """Act as somebody else (the own account needs RBAC's `impersonate`)."""

    user: str
    groups: tuple[str, ...] = ()
    uid: str = ""


@dataclass(frozen=True)
class ClientConfig:
    """How to reach one API server.

    `host` is scheme, host, port and an optional path prefix (Rancher's proxy), without a trailing slash;
    `server_name` the name to verify in the certificate where it differs; `proxy` an HTTP proxy's URL;
    `namespace` the context's or the pod's own.
    """

    host: str
    tls: TLSSettings = field(default_factory=TLSSettings, repr=False)
    credentials: CredentialSource = field(default_factory=Static, repr=False)
    server_name: str | None = None
    proxy: str | None = None
    namespace: str = "default"
    impersonation: Impersonation | None = None
    _contexts: dict[Certificate | None, ssl.SSLContext] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        parts = urlsplit(self.host)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"the server address {self.host!r} is not an http:// or https:// URL")
        if self.proxy and urlsplit(self.proxy).scheme not in ("http", "https"):
            raise ConfigError(f"the proxy {self.proxy!r} is not an http:// or https:// URL")
        self.ssl_context()  # a bad certificate shows here, not at the first request

    @property
    def hostname(self) -> str:
        return urlsplit(self.host).hostname or ""

    def ssl_context(self, certificate: Certificate | None = None) -> ssl.SSLContext | None:
        """The context to connect with (None for http), kept until a credential plugin hands out another certificate."""
        if not self.host.startswith("https:"):
            return None
        if certificate not in self._contexts:
            context = self.tls.context(certificate)
            self._contexts.clear()
            self._contexts[certificate] = context
        return self._contexts[certificate]

    async def auth_headers(self, *, refresh: bool = False) -> CIMultiDict[str]:
        """Headers that say who is asking. `refresh`: the last ones were refused (401). Raises ConfigError."""
        headers, _ = await self.authenticate(refresh=refresh)
        return headers

    async def authenticate(self, *, refresh: bool = False) -> tuple[CIMultiDict[str], ssl.SSLContext | None]:
        """The headers and the TLS context of the next request. Raises ConfigError."""
        credential = await self.credentials.get(refresh=refresh)
        headers: CIMultiDict[str] = CIMultiDict()
        if credential.authorization:
            headers["Authorization"] = credential.authorization
        if (who := self.impersonation) is not None:
            headers["Impersonate-User"] = who.user
            for group in who.groups:
                headers.add("Impersonate-Group", group)
            if who.uid:
                headers["Impersonate-Uid"] = who.uid
        return headers, self.ssl_context(credential.certificate)

    def impersonate(self, user: str, groups: tuple[str, ...] | list[str] = ()) -> ClientConfig:
        """This configuration, acting as `user` in `groups`."""
        return replace(self, impersonation=Impersonation(user, tuple(groups)))


def load_config(
    kubeconfig: str | None = None, context: str | None = None, *, environ: Mapping[str, str] | None = None
) -> ClientConfig:
    """The configuration to use: `kubeconfig`, else $KUBECONFIG, else in-cluster, else ~/.kube/config.

    `context` chooses another context than the file's current one. `environ` stands in for os.environ.
    Credential plugins don't run here but with the first request. Raises ConfigError.
    """
    # Imported here: the kubernetes package costs 0.3 s and 20 MB, and the offline commands need none of it.
    from pkg.client import incluster
    from pkg.client import kubeconfig as files

    environ = os.environ if environ is None else environ
    if kubeconfig:
        return files.load([kubeconfig], context)
    if from_environment := [path for path in environ.get("KUBECONFIG", "").split(os.pathsep) if path]:
        return files.load(from_environment, context)
    if context is None and incluster.available(environ):
        return incluster.load(environ)
    if Path(DEFAULT_KUBECONFIG).expanduser().exists():
        return files.load([DEFAULT_KUBECONFIG], context)
    raise ConfigError(
        "no cluster is configured: give --kubeconfig, set $KUBECONFIG, run in a pod with a service account,"
        f" or have {DEFAULT_KUBECONFIG}"
    )


def is_loopback(hostname: str) -> bool:
    """Whether the host is this machine."""
    try:
        return ipaddress.ip_address(hostname).is_loopback
    except ValueError:
        return hostname == "localhost" or hostname.endswith(".localhost")


def environment_proxy(host: str) -> str | None:
    """The proxy that the environment (HTTPS_PROXY, NO_PROXY, …) names for an address; never for loopback."""
    parts = urlsplit(host)
    hostname = parts.hostname or ""
    proxies = getproxies()
    if is_loopback(hostname) or _in_networks(hostname, proxies.get("no", "")):
        return None
    if proxy_bypass(f"{hostname}:{parts.port}" if parts.port else hostname):
        return None
    return proxies.get(parts.scheme)


def _in_networks(hostname: str, no_proxy: str) -> bool:
    """Whether NO_PROXY has a network that holds this address: Go reads those, the standard library does not."""
    try:
        address = ipaddress.ip_address(hostname)
    except ValueError:
        return False
    for entry in no_proxy.split(","):
        with contextlib.suppress(ValueError):
            if "/" in entry and address in ipaddress.ip_network(entry.strip(), strict=False):
                return True
    return False
