"""The choice of the proxy for a server: the kubeconfig's, or the environment's, by the rules of Go's httpproxy."""

from __future__ import annotations

import base64
import ipaddress
import os
import re
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from kubeloop.client.errors import ConfigError

_PORTS = {"http": "80", "https": "443"}
_NO_URL: Final = re.compile(r"[\x00-\x20\x7f]|%(?![0-9a-fA-F]{2})")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def basic_authorization(user: str, password: str) -> str:
    """The value of an Authorization header."""
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
    """Reports whether the host is this machine."""
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
    if "/" in entry and (network := _network(entry)) is not None:
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


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
