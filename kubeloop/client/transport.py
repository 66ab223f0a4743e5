"""HTTP to one API server: credentials, timeouts, retries, metrics. Bytes in, bytes out."""

import asyncio
import contextlib
import copy
import math
import os
import ssl
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypedDict, TypeVar
from urllib.parse import urlencode

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from kubeloop.client.config import ClientConfig
from kubeloop.client.connections import BeforeWrite, GuardedBody, ServerClock, log_warnings, open_session
from kubeloop.client.credentials import Credential, Static
from kubeloop.client.decode import split_lines
from kubeloop.client.errors import ApiError, Unauthorized, Unreachable, error_from_response
from kubeloop.client.retry import Closed, RetryPolicy, Untrusted, api_errors
from kubeloop.errors import one_line
from kubeloop.metrics import FRAMEWORK

R = TypeVar("R")
CONNECT_TIMEOUT = 5.0
REQUEST_TIMEOUT = 30.0
READ_TIMEOUT = 90.0
"""Seconds of silence after which a stream counts as dead: bookmarks come every minute."""
_LONGEST_ERROR = 1024 * 1024
"""Bytes of an error's body that are read: what is longer is no metav1.Status, and need not have an end."""
_CONNECTIONS = 100
"""Connections that requests share. Watches have their own, as many as there are."""
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_WRITES_OBJECTS = frozenset({"POST", "PUT", "PATCH"})
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

# Under client-go's names, labels and buckets (tools/metrics): dashboards know them.
_REQUESTS = FRAMEWORK["rest_client_requests_total"].counter()
_BUCKETS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)
_DURATION = FRAMEWORK["rest_client_request_duration_seconds"].histogram(_BUCKETS)


class TransportOptions(TypedDict, total=False):
    """The options that Client passes on: see Transport."""

    user_agent: str
    retry: RetryPolicy | None
    strict: bool
    before_write: BeforeWrite | None


class Transport:
    """Requests to the server of `config`. Make and use it within one event loop; `close` it at the end.

    `strict`, for tests: the server refuses a write with a field that it does not know, instead of dropping the field
    with a warning (which is logged). `before_write` is asked at each attempt of each write, in the step of the loop in
    which its bytes leave; the ApiError that it raises is what the request raises, and nothing was sent."""

    checked_caches = False
    """True if caches of this client notice objects that are changed in place; a fake cluster's do."""

    def __init__(
        self,
        config: ClientConfig,
        *,
        user_agent: str = "",
        retry: RetryPolicy | None = None,
        strict: bool = False,
        before_write: BeforeWrite | None = None,
    ) -> None:
        self.config = config
        self.server_clock = ServerClock()
        self._strict = strict
        self._before_write = before_write
        self._headers = {
            # The program's name, as client-go has it: the API server takes it for the field manager too.
            "User-Agent": user_agent or os.path.basename(sys.argv[0]) or "python",
            "Accept": JSON,
            # Measured over loopback too: a third less CPU for a list here, the same in the server, which compresses
            # only what is longer than 128 KiB and no watch.
            "Accept-Encoding": "gzip" if config.compression else "identity",
        }
        self._retry = retry or RetryPolicy()
        self._metrics_host = URL(config.host).authority
        self._sessions: dict[bool, aiohttp.ClientSession] = {}
        # Invariant: one for requests, one for streams.
        self._separate: list[Transport] = []
        self._closed = False

    def separate(self) -> "Transport":
        """Returns another transport to the same server and for the same user, with connections of its own: what has
        to get through (a lease) waits for nothing that is asked here. It is closed with this one."""
        transport = copy.copy(self)
        transport._sessions, transport._separate = {}, []
        self._separate.append(transport)
        return transport

    async def request(self, method: str, path: str, **options: Any) -> bytes:
        """Returns the body of the answer; with the options of `read_answer`."""
        return await self.read_answer(_read, method, path, **options)

    async def read_answer(
        self,
        read: Callable[[AsyncIterator[bytes]], Awaitable[R]],
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = JSON,
        accept: str = JSON,
        timeout: float | None = REQUEST_TIMEOUT,
        read_timeout: float | None = None,
        retry: bool = True,
        repeatable: bool | None = None,
    ) -> R:
        """Returns what `read` makes of the answer's body, whose chunks it gets once an attempt; `path` is encoded
        already.

        `timeout` (seconds) is that of each attempt, None: as long as something comes every `read_timeout` seconds. All
        attempts together have REQUEST_TIMEOUT, or `timeout` where that is longer; without a timeout none begins later.
        With `retry`, what never left or what the server asks to repeat (429 or 5xx with Retry-After) is sent again,
        with jittered backoff; what is `repeatable` (reads; writes with a precondition, if the caller says so) also
        after a broken connection, a bare 429 or 503. Raises ApiError: Unreachable where no whole answer came."""
        headers = {"Accept": accept} | ({"Content-Type": content_type} if body is not None else {})
        if self._strict and method in _WRITES_OBJECTS:
            params = {**(params or {}), "fieldValidation": "Strict"}
        timeouts, longest, error = _timeouts(timeout, read_timeout), max(timeout or 0.0, REQUEST_TIMEOUT), None

        async def attempt() -> R:
            nonlocal error
            error = None
            try:
                with api_errors(self.config.host):
                    answer = await self._exchange(method, path, params, body, headers, timeouts)
                async with answer, contextlib.aclosing(self._chunks(answer)) as chunks:
                    return await read(chunks)
            except ApiError as err:
                error = err
                raise

        if repeatable is None:
            repeatable = method in _READS
        try:
            async with asyncio.timeout(None if timeout is None else longest):
                if not retry:
                    return await attempt()
                return await self._retry.run(attempt, repeatable=repeatable, seconds=longest)
        except TimeoutError:
            raise error or Unreachable(f"{self.config.host}: no answer within {longest:g} s") from None

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, params: Mapping[str, str] | None = None, read_timeout: float = READ_TIMEOUT, accept: str = JSON
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """A watch: `async with transport.stream(...) as lines`, then `async for line in lines`, until the server closes
        it properly; never retried. Raises ApiError on entry, Unreachable while reading when the connection breaks, ends
        in the middle of a line, or `read_timeout` seconds pass without a byte."""
        timeouts, headers = _timeouts(None, read_timeout), {"Accept": accept}
        with api_errors(self.config.host):
            response = await self._exchange("GET", path, params, None, headers, timeouts, streaming=True)
        chunks = self._chunks(response)
        lines = split_lines(chunks, source=self.config.host)
        try:
            yield lines
        finally:
            await lines.aclose()
            await chunks.aclose()
            response.close()  # not `release`: there is more to come that will not be read

    async def close(self) -> None:
        self._closed = True
        for transport in self._separate:
            await transport.close()
        while self._sessions:
            _, session = self._sessions.popitem()
            await session.close()

    async def _chunks(self, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        with api_errors(self.config.host):
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
        streaming: bool = False,
    ) -> aiohttp.ClientResponse:
        """An answer of 2xx with its body unread; after a 401 it is sent once more with fresh credentials."""
        url = URL(self.config.host + path + (f"?{urlencode(params)}" if params else ""), encoded=True)
        refused, again = None, False
        while True:
            credential, auth, context = await self._authenticate(refused, again, timeouts)
            auth.update(headers)
            try:
                session, tls = self._open_session(streaming), context or True
                response = await self._send(session, method, url, body, headers=auth, ssl=tls, timeout=timeouts)
            except Untrusted:
                if again or not self.config.tls.on_disk:
                    raise
                again = True  # the authority's file may have been renewed together with the server's certificate
                continue
            log_warnings(method, url.path, response.headers.getall("Warning", ()))
            if 200 <= response.status < 300:
                return response
            async with response, contextlib.aclosing(self._chunks(response)) as chunks:
                body_start = await _read(chunks, _LONGEST_ERROR)
            error = error_from_response(response.status, body_start, response.headers)
            if not isinstance(error, Unauthorized):
                raise error
            if again or (isinstance(self.config.credentials, Static) and not self.config.tls.on_disk):
                error.message = f"{self.config.host}: {error.message}"  # of several clusters, which
                raise error
            refused, again = credential, True

    async def _authenticate(
        self, refused: Credential | None, again: bool, timeouts: aiohttp.ClientTimeout
    ) -> tuple[Credential, CIMultiDict[str], ssl.SSLContext | None]:
        limit = timeouts.total or timeouts.connect
        try:
            async with asyncio.timeout(limit):
                credential = await self.config.credentials.get()
                if credential is refused:  # by the first of several requests; the others use what it gets
                    credential = await self.config.credentials.get(refresh=True)
                return credential, *await self.config.present(credential, reread=again)
        except TimeoutError:
            raise Unauthorized(f"no credentials within {limit:g} s", reason="Credentials") from None
        except Exception as err:
            # An ApiError, so that a controller backs off and goes on when a token can't be had for a while.
            raise Unauthorized(one_line(err), reason="Credentials") from err

    async def _send(
        self, session: aiohttp.ClientSession, method: str, url: URL, body: bytes | None, **options: Any
    ) -> aiohttp.ClientResponse:
        """Sends the request once, and times it until the headers come."""
        guarded = None
        if self._before_write is not None and method not in _READS:
            guarded = GuardedBody(body or b"", self._before_write)
        started = time.perf_counter()
        code = "<error>"  # no answer, as client-go's label says it
        try:
            with api_errors(self.config.host):
                response = await session.request(
                    method,
                    url,
                    data=guarded or body,
                    proxy=self.config.proxy,
                    proxy_headers=self.config.proxy_headers,
                    server_hostname=self.config.server_name,
                    # A redirect leads to a login page, not to an API server.
                    allow_redirects=False,
                    **options,
                )
            code = str(response.status)
            self.server_clock.heard(response.headers.get("Date", ""))
        except ApiError as err:
            # A request that was refused before it was sent is no connection that broke.
            if guarded is None or guarded.refused is None or guarded.refused is err:
                raise
            raise guarded.refused from err
        finally:
            _REQUESTS.labels(code, method, self._metrics_host).inc()
            _DURATION.labels(method, self._metrics_host).observe(time.perf_counter() - started)
        return response

    def _open_session(self, streaming: bool) -> aiohttp.ClientSession:
        if self._closed:
            raise Closed(f"{self.config.host} gets no request: the client is closed")
        if streaming not in self._sessions:
            self._sessions[streaming] = open_session(self._headers, 0 if streaming else _CONNECTIONS)
        return self._sessions[streaming]


def _timeouts(total: float | None, read: float | None) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=total, connect=REQUEST_TIMEOUT, sock_connect=CONNECT_TIMEOUT, sock_read=read)


async def _read(chunks: AsyncIterator[bytes], longest: float = math.inf) -> bytes:
    """Returns the body, of a longer one the beginning."""
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > longest:
            break
    return bytes(body)
