"""HTTP to one API server: one aiohttp session, credentials, timeouts, retries, metrics. Bytes in, bytes out."""

from __future__ import annotations

import contextlib
import os
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from pkg.client.config import ClientConfig
from pkg.client.errors import ConfigError, Unauthorized, Unreachable, error_from_response
from pkg.client.limiter import TokenBucket
from pkg.client.lines import split_lines
from pkg.client.metrics import RestClientMetrics, default_metrics
from pkg.client.retry import Closed, NotSent, RetryPolicy, Untrusted

CONNECT_TIMEOUT = 5.0
REQUEST_TIMEOUT = 30.0
READ_TIMEOUT = 90.0
"""Seconds of silence after which a stream counts as dead: bookmarks come every minute."""
_CONNECTIONS = 100
"""Connections to the server at once: a watch holds one each, requests share the rest."""
_READ_BUFFER = 512 * 1024
_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE"})
_KEEP_ALIVE = 60.0
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
USER_AGENT = "headroom"


class Transport:
    """Requests to the server of `config`. Make and use it within one event loop; `close` it at the end.

    `qps`/`burst` limit requests on this side (None: API priority and fairness does it on the server's).
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        user_agent: str = USER_AGENT,
        qps: float | None = None,
        burst: int | None = None,
        retry: RetryPolicy | None = None,
        metrics: RestClientMetrics | None = None,
    ) -> None:
        self.config = config
        self._headers = {
            "User-Agent": user_agent,
            "Accept": "application/json",
            # Measured over loopback too: a third less CPU for a list here, the same in the server, which compresses
            # only what is longer than 128 KiB and no watch.
            "Accept-Encoding": "gzip",
        }
        self._limiter = TokenBucket(qps, burst or max(1, int(qps * 2))) if qps else None
        self._retry = retry or RetryPolicy()
        self._metrics = metrics or default_metrics()
        self._metrics_host = URL(config.host).authority
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout: float = REQUEST_TIMEOUT,
        retry: bool = True,
    ) -> bytes:
        """The body of the answer; `path` is encoded already, `timeout` (seconds) is that of each attempt.

        With `retry`, what the server refused for now (429, 503) or what can be repeated safely is sent again
        with jittered backoff. Raises ApiError: a subclass by status, Unreachable where no whole answer came.
        """
        timeouts = aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT_TIMEOUT)
        headers = {"Content-Type": content_type} if body is not None else {}

        async def attempt() -> bytes:
            async with await self._exchange(method, path, params, body, headers, timeouts) as response:
                with unreachable_errors(self.config.host):
                    return await response.read()

        if not retry:
            return await attempt()
        # A merge patch sent twice ends in the same state, or in a Conflict when it names a resourceVersion.
        repeatable = method in _IDEMPOTENT or content_type == MERGE_PATCH
        return await self._retry.retrying(repeatable=repeatable)(attempt)

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, str] | None = None, read_timeout: float = READ_TIMEOUT
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """A watch: `async with transport.stream(...) as lines`, then `async for line in lines`; never retried.

        The lines end when the server closes the stream properly. Raises ApiError on entry, Unreachable while
        reading when the connection breaks, ends in the middle of a line, or `read_timeout` seconds pass
        without a byte.
        """
        timeouts = aiohttp.ClientTimeout(
            total=None, connect=REQUEST_TIMEOUT, sock_connect=CONNECT_TIMEOUT, sock_read=read_timeout
        )
        response = await self._exchange("GET", path, params, None, {}, timeouts)
        chunks = self._chunks(response)
        lines = split_lines(chunks, source=self.config.host)
        try:
            yield lines
        finally:
            await lines.aclose()
            await chunks.aclose()
            response.close()  # not `release`: there is more to come that nobody will read

    async def close(self) -> None:
        """Closes every connection; running requests and streams fail, later ones too."""
        self._closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _chunks(self, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        with unreachable_errors(self.config.host):
            async for chunk in response.content.iter_any():
                yield chunk

    async def _exchange(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        body: bytes | None,
        headers: Mapping[str, str],
        timeouts: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        """An answer of 2xx with its body unread; after a 401 the request is sent once more with fresh credentials."""
        url = URL(self.config.host + path + (f"?{urlencode(params)}" if params else ""), encoded=True)
        refresh = False
        while True:
            if self._limiter is not None:
                await self._limiter.take()
            auth, context = await self._authenticate(refresh)
            auth.update(headers)
            response = await self._send(method, url, data=body, headers=auth, ssl=context, timeout=timeouts)
            if 200 <= response.status < 300:
                return response
            async with response:
                with unreachable_errors(self.config.host):
                    error = error_from_response(response.status, await response.read(), response.headers)
            if refresh or not isinstance(error, Unauthorized) or not self.config.credentials.refreshable:
                raise error
            refresh = True

    async def _authenticate(self, refresh: bool) -> tuple[CIMultiDict[str], ssl.SSLContext | None]:
        try:
            return await self.config.authenticate(refresh=refresh)
        except ConfigError as err:
            # An ApiError, so that a controller backs off and goes on when a token can't be had for a while.
            raise Unauthorized(str(err), status=401, reason="Credentials") from err

    async def _send(self, method: str, url: URL, **options: Any) -> aiohttp.ClientResponse:
        """One attempt, timed until the headers come."""
        if options["ssl"] is None:
            options["ssl"] = True
        started = time.perf_counter()
        code = 0
        try:
            with unreachable_errors(self.config.host):
                response = await self._opened().request(
                    method,
                    url,
                    proxy=self.config.proxy,
                    server_hostname=self.config.server_name,
                    # A redirect leads to a login page, not to an API server.
                    allow_redirects=False,
                    **options,
                )
            code = response.status
        finally:
            self._metrics.observe(method, self._metrics_host, code, time.perf_counter() - started)
        return response

    def _opened(self) -> aiohttp.ClientSession:
        if self._closed:
            raise Closed(f"{self.config.host} is no longer asked: the client is closed")
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=_CONNECTIONS, keepalive_timeout=_KEEP_ALIVE),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=self._headers,
                read_bufsize=_READ_BUFFER,
            )
        return self._session


@contextlib.contextmanager
def unreachable_errors(host: str) -> Iterator[None]:
    """Turns what aiohttp and the sockets raise into Unreachable, or its kinds where the server can't have seen it."""
    try:
        yield
    except aiohttp.ClientSSLError as err:
        raise Untrusted(f"{host} can't be reached: no trusted TLS connection: {cause(err)}") from err
    except (
        aiohttp.ClientConnectorError,
        aiohttp.ClientHttpProxyError,
        aiohttp.ConnectionTimeoutError,
    ) as err:
        raise NotSent(f"{host} can't be reached: {cause(err)}") from err
    except (aiohttp.ClientError, TimeoutError, OSError) as err:
        raise Unreachable(f"{host} broke off: {cause(err)}") from err


def cause(err: BaseException) -> str:
    """What went wrong, in the system's own words where it has some."""
    if isinstance(err, TimeoutError) and not isinstance(err, aiohttp.ClientConnectorError):
        return "timed out"
    if isinstance(err, aiohttp.ClientConnectorCertificateError):
        return str(err.certificate_error)
    if isinstance(err, aiohttp.ClientConnectorError):
        err = err.os_error
    if isinstance(err, OSError) and err.errno and err.errno > 0 and not isinstance(err, ssl.SSLError):
        return os.strerror(err.errno).lower()
    return getattr(err, "strerror", None) or str(err) or type(err).__name__
