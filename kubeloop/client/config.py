"""Which server to use, and as which user; loading.py finds it."""

from __future__ import annotations

import contextlib
import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

from multidict import CIMultiDict

from kubeloop.client.credentials import Certificate, CredentialSource, Static
from kubeloop.client.errors import ConfigError
from kubeloop.client.tls import TLSContexts, TLSSettings

_HEADER_SAFE = "!#$&'*+-.^_`|~"
"""What may stand in a header's name beside letters and digits (RFC 9110); the rest is percent-encoded."""


@dataclass(frozen=True, slots=True)
class Impersonation:
    """Act as another user (the own account needs RBAC's `impersonate`)."""

    user: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def headers(self) -> CIMultiDict[str]:
        """As client-go's round_trippers.go sends them."""
        headers: CIMultiDict[str] = CIMultiDict({"Impersonate-User": self.user})
        for group in self.groups:
            headers.add("Impersonate-Group", group)
        if self.uid:
            headers["Impersonate-Uid"] = self.uid
        for key, values in self.extra.items():
            for value in values:
                headers.add(f"Impersonate-Extra-{quote(key, safe=_HEADER_SAFE)}", value)
        return headers


@dataclass(frozen=True)
class ClientConfig:
    """How to reach one API server.

    `host` is scheme, host, port and an optional path prefix (a proxy's), without a trailing slash;
    files in `tls` are read again while the client runs; `server_name` is the name to verify in the certificate where
    it differs; `proxy` an HTTP proxy's URL; `namespace` the context's or the pod's own; `in_cluster`: it is a pod's.
    """

    host: str
    tls: TLSSettings = field(default_factory=TLSSettings, repr=False)
    credentials: CredentialSource = field(default_factory=Static, repr=False)
    server_name: str | None = None
    proxy: str | None = None
    namespace: str = "default"
    impersonation: Impersonation | None = None
    in_cluster: bool = False
    _contexts: TLSContexts | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        parts = urlsplit(self.host)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"the server address {self.host!r} is not an http:// or https:// URL")
        if self.proxy:
            _check_proxy(self.proxy)
        if parts.scheme == "https":
            # A bad certificate shows here, not at the first request.
            object.__setattr__(self, "_contexts", TLSContexts(self.tls))

    @property
    def hostname(self) -> str:
        return urlsplit(self.host).hostname or ""

    @property
    def refreshable(self) -> bool:
        """Whether a 401 may be retried with other credentials."""
        return self.credentials.refreshable or self.tls.on_disk

    def ssl_context(self, certificate: Certificate | None = None) -> ssl.SSLContext | None:
        """The context to connect with (None for http), the same one until a certificate changes."""
        return None if self._contexts is None else self._contexts.get(certificate)

    async def authenticate(self, *, refresh: bool = False) -> tuple[CIMultiDict[str], ssl.SSLContext | None]:
        """The headers and the TLS context of the next request. Raises ConfigError."""
        credential = await self.credentials.get(refresh=refresh)
        headers: CIMultiDict[str] = CIMultiDict()
        if credential.authorization:
            headers["Authorization"] = credential.authorization
        if self.impersonation is not None:
            headers.extend(self.impersonation.headers())
        if self._contexts is not None:
            await self._contexts.reread(now=refresh)
        return headers, self.ssl_context(credential.certificate)

    def impersonate(self, user: str, groups: tuple[str, ...] | list[str] = ()) -> ClientConfig:
        """This configuration, acting as `user` in `groups`."""
        return replace(self, impersonation=Impersonation(user, tuple(groups)))


def _check_proxy(proxy: str) -> None:
    """Raises ConfigError, without the password that the URL may hold."""
    scheme, _, rest = proxy.rpartition("://")
    shown = f"{scheme}://{rest.rpartition('@')[2]}" if scheme else proxy
    if scheme.startswith("socks"):
        raise ConfigError(
            f"the proxy {shown!r} is a SOCKS proxy, which is not supported: give the URL of an HTTP proxy as"
            " proxy-url in the kubeconfig or in HTTPS_PROXY, or reach the server directly (NO_PROXY)"
        )
    if scheme not in ("http", "https"):
        raise ConfigError(f"the proxy {shown!r} is not an http:// or https:// URL")


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
