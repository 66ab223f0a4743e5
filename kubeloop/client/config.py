"""The configuration of a client: the server and the user; loading.py finds it."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import quote

from multidict import CIMultiDict

from kubeloop.client.credentials import Certificate, Credential, CredentialSource, Static, header_value
from kubeloop.client.errors import ConfigError
from kubeloop.client.proxies import check_proxy, redacted_url, split_url, without_login
from kubeloop.client.tls import TLSContexts, TLSSettings

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
        headers: CIMultiDict[str] = CIMultiDict({"Impersonate-User": self.user})
        for group in self.groups:
            headers.add("Impersonate-Group", group)
        if self.uid:
            headers["Impersonate-Uid"] = self.uid
        for key, values in self.extra.items():
            for value in values:
                headers.add(f"Impersonate-Extra-{quote(key, safe=_HEADER_SAFE)}", value)
        for name, value in headers.items():
            header_value(value, name)
        return headers


@dataclass(frozen=True)
class ClientConfig:
    """The address of an API server, and all that it takes to connect to it.

    `host` is scheme, host, port and an optional path prefix (a proxy's), without a trailing slash; files in `tls` are
    read again while the client runs; `server_name` is the name to verify in the certificate where it differs; `proxy`
    an HTTP proxy's URL; `namespace` the context's or the pod's own; `in_cluster`: it is a pod's. A login in a URL is
    taken out of it: the server's becomes `credentials`, as Go's client has it, the proxy's `proxy_authorization`.
    Neither is ever shown."""

    host: str
    tls: TLSSettings = field(default_factory=TLSSettings, repr=False)
    credentials: CredentialSource = field(default_factory=Static, repr=False)
    server_name: str | None = None
    proxy: str | None = None
    proxy_authorization: str | None = field(default=None, repr=False)
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
            object.__setattr__(self, "proxy_authorization", proxy_login)
        parts = split_url(host)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"the server address {redacted_url(host)!r} is not an http:// or https:// URL")
        if proxy:
            check_proxy(proxy)
        if parts.scheme == "https":
            # A bad certificate shows here, not at the first request.
            object.__setattr__(self, "_contexts", TLSContexts(self.tls))

    @property
    def hostname(self) -> str:
        """The name or address in `host`, an IPv6 address without brackets."""
        return split_url(self.host).hostname or ""

    @property
    def refreshable(self) -> bool:
        """Reports whether a 401 may be retried with other credentials."""
        return self.credentials.refreshable or self.tls.on_disk

    def ssl_context(self, certificate: Certificate | None = None) -> ssl.SSLContext | None:
        """The context to connect with (None for http), the same one until a certificate changes."""
        return None if self._contexts is None else self._contexts.get(certificate)

    async def credential(self, refused: Credential | None = None) -> Credential:
        """The credential to use now. Where it is `refused`, another one is fetched: the first request that was refused
        does so, those that were sent with the same one use what it got. Raises ConfigError."""
        credential = await self.credentials.get()
        return await self.credentials.get(refresh=True) if credential is refused else credential

    async def present(
        self, credential: Credential, *, reread: bool = False
    ) -> tuple[CIMultiDict[str], ssl.SSLContext | None]:
        """The headers and the TLS context of a request with this credential; `reread` reads files now. Raises
        ConfigError."""
        headers: CIMultiDict[str] = CIMultiDict()
        if credential.authorization:
            headers["Authorization"] = header_value(credential.authorization, "the token")
        if self.impersonation is not None:
            headers.extend(self.impersonation.headers())
        if self._contexts is None:
            headers.update(self.proxy_headers())  # with TLS the proxy gets a request of its own
        else:
            await self._contexts.reread(now=reread)
        return headers, self.ssl_context(credential.certificate)

    def proxy_headers(self) -> dict[str, str]:
        """Returns the headers for the proxy alone."""
        return {"Proxy-Authorization": self.proxy_authorization} if self.proxy_authorization else {}

    def impersonate(self, user: str, groups: tuple[str, ...] | list[str] = ()) -> ClientConfig:
        """Returns this configuration, acting as `user` in `groups`."""
        return replace(self, impersonation=Impersonation(user, tuple(groups)))
