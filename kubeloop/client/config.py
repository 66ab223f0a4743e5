"""The configuration of a client: the server, the user, and the proxy, by the rules of Go's httpproxy."""

import base64
import contextlib
import ipaddress
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import SplitResult, quote, unquote, urlsplit

from multidict import CIMultiDict

from kubeloop.client.credentials import Certificate, Credential, CredentialSource, Static, header_value
from kubeloop.client.errors import ConfigError
from kubeloop.client.tls import TLSContexts, TLSSettings

_PORTS = {"http": "80", "https": "443"}
_NO_URL: Final = re.compile(r"[\x00-\x20\x7f]|%(?![0-9a-fA-F]{2})")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_HEADER_SAFE = "!#$&'*+-.^_`|~"
"""The characters of a header's name beside letters and digits (RFC 9110); the rest is percent-encoded."""


@dataclass(frozen=True, slots=True)
class Impersonation:
    """Act as another user (the own account needs RBAC's `impersonate`)."""

    user: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def headers(self) -> CIMultiDict[str]:
        """Returns the headers of impersonation, as client-go's round_trippers.go sends them."""
        headers = [("Impersonate-User", self.user), *(("Impersonate-Group", group) for group in self.groups)]
        if self.uid:
            headers.append(("Impersonate-Uid", self.uid))
        for key, values in self.extra.items():
            headers += [(f"Impersonate-Extra-{quote(key, safe=_HEADER_SAFE)}", value) for value in values]
        return CIMultiDict((name, header_value(value, name)) for name, value in headers)


@dataclass(frozen=True)
class ClientConfig:
    """The address of an API server, and all that it takes to connect to it.

    `host` is scheme, host, port and an optional path prefix (a proxy's), without a trailing slash; `server_name` the
    name to verify in the certificate where it differs; `proxy` an HTTP proxy's URL; `namespace` the context's or the
    pod's own; `in_cluster`: it is a pod's. A login in a URL is taken out of it, and never shown: the server's becomes
    `credentials`, as Go's client has it, the proxy's is in `proxy_headers`."""

    host: str
    tls: TLSSettings = field(default_factory=TLSSettings, repr=False)
    credentials: CredentialSource = field(default_factory=Static, repr=False)
    server_name: str | None = None
    proxy: str | None = None
    proxy_headers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    namespace: str = "default"
    impersonation: Impersonation | None = None
    in_cluster: bool = False
    compression: bool = True
    """True if answers may come compressed."""
    _contexts: TLSContexts | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        host, login = without_login(self.host)
        proxy, proxy_login = without_login(self.proxy or "")
        if login is not None:
            object.__setattr__(self, "host", host)
            object.__setattr__(self, "credentials", Static(login))
        if proxy_login is not None:
            object.__setattr__(self, "proxy", proxy)
            object.__setattr__(self, "proxy_headers", {"Proxy-Authorization": proxy_login})
        parts = split_url(host)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"the server address {redacted_url(host)!r} is not an http:// or https:// URL")
        if proxy:
            check_proxy(proxy)
        if parts.scheme == "https":
            # A bad certificate shows here, not at the first request.
            object.__setattr__(self, "_contexts", TLSContexts(self.tls))

    def ssl_context(self, certificate: Certificate | None = None) -> ssl.SSLContext | None:
        """The context to connect with (None for http), the same one until a certificate changes."""
        return None if self._contexts is None else self._contexts.get(certificate)

    async def present(
        self, credential: Credential, *, reread: bool = False
    ) -> tuple[CIMultiDict[str], ssl.SSLContext | None]:
        """The headers and TLS context of a request with this credential; `reread`: files now. Raises ConfigError."""
        headers: CIMultiDict[str] = CIMultiDict()
        if credential.authorization:
            headers["Authorization"] = header_value(credential.authorization, "the token")
        if self.impersonation is not None:
            headers.extend(self.impersonation.headers())
        if self._contexts is None:
            headers.update(self.proxy_headers)  # with TLS the proxy gets a request of its own
        else:
            await self._contexts.reread(now=reread)
        return headers, self.ssl_context(credential.certificate)

    def impersonate(self, user: str, groups: tuple[str, ...] | list[str] = ()) -> "ClientConfig":
        return replace(self, impersonation=Impersonation(user, tuple(groups)))


def basic_authorization(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def without_login(url: str) -> tuple[str, str | None]:
    """The URL as it may be shown and logged, and the Authorization that stood before its @."""
    scheme, separator, address = url.rpartition("://")
    authority, slash, path = address.partition("/")
    login, at_sign, host = authority.rpartition("@")
    if not at_sign:
        return url, None
    user, _, password = login.partition(":")
    return f"{scheme}{separator}{host}{slash}{path}", basic_authorization(unquote(user), unquote(password))


def redacted_url(url: str) -> str:
    """The URL for a message, also where it is none: nothing before an @ is shown."""
    scheme, separator, address = url.rpartition("://")
    return f"{scheme}{separator}{address.rpartition('@')[2]}"


def check_proxy(url: str) -> None:
    """Raises ConfigError, without the password that the URL may hold."""
    proxy = redacted_url(url)
    scheme = proxy.partition("://")[0].lower()
    if scheme.startswith("socks"):
        raise ConfigError(
            f"the proxy {proxy!r} is a SOCKS proxy, which is not supported: give the URL of an HTTP proxy as"
            " proxy-url in the kubeconfig or in HTTPS_PROXY, or reach the server directly (NO_PROXY)"
        )
    if scheme not in _PORTS or not split_url(url).hostname:
        raise ConfigError(f"the proxy {proxy!r} is not an http:// or https:// URL")


def split_url(url: str) -> SplitResult:
    """The parts of a URL; those of an empty one where it is none (Python would drop what does not belong into one)."""
    if _NO_URL.search(url):
        return urlsplit("")
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # raises for one that is no number
    except ValueError:
        return urlsplit("")
    return parts


def is_loopback(hostname: str) -> bool:
    address = _address(hostname)
    if address is not None:
        return address.is_loopback
    return hostname == "localhost" or hostname.endswith(".localhost")


def environment_proxy(host: str) -> str | None:
    """The proxy that the environment (HTTPS_PROXY, NO_PROXY, …) names for a server's URL; never for loopback."""
    parts = split_url(host)
    hostname, port = parts.hostname or "", str(parts.port or _PORTS.get(parts.scheme, ""))
    proxy = _variable(f"{parts.scheme}_proxy")
    exceptions = filter(None, map(str.strip, _variable("no_proxy").lower().split(",")))
    if not proxy or is_loopback(hostname) or any(_matches(entry, hostname, port) for entry in exceptions):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _variable(name: str) -> str:
    return os.environ.get(name.upper()) or os.environ.get(name) or ""


def _matches(entry: str, hostname: str, port: str) -> bool:
    """Reports whether an entry of NO_PROXY is about this host: `*`, a network, an address or a domain, the last two
    with or without a port. `a.b` is a.b and what is below it, `.a.b` and `*.a.b` only what is below."""
    if entry == "*":
        return True
    address = _address(hostname)
    with contextlib.suppress(ValueError):
        if "/" in entry:
            network = ipaddress.ip_network(entry, strict=False)
            if address is not None and network.version > address.version:
                address = ipaddress.IPv6Address(f"::ffff:{address}")
            return address is not None and address in network
    name, colon, only = entry.rpartition(":")
    if not colon or (":" in name and not name.endswith("]")):
        name, only = entry, ""
    if only not in ("", port):
        return False
    name = name.strip("[]")
    if (listed := _address(name)) is not None or address is not None:
        return listed == address
    name = name.removeprefix("*") if name.startswith("*.") else name
    return bool(name) and (hostname.endswith(name if name.startswith(".") else f".{name}") or hostname == name)


def _address(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
