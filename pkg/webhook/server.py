"""The listener: HTTP/1.1 over TLS, one path a webhook.

aiohttp's low-level server: there is one table to look a path up in, and no middleware to pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion11, RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from kubeloop.controllers.errors import BindError
from kubeloop.controllers.server import parse_bind_address
from pkg.webhook.admission import (
    AdmissionRequest,
    BadReview,
    Decision,
    TooLarge,
    decode_review,
    deny,
    encode_answer,
)
from pkg.webhook.caller import Caller
from pkg.webhook.connections import CLOSED, Acceptor, Connection, Limits
from pkg.webhook.deadline import REVIEW_SECONDS, deadline
from pkg.webhook.metrics import UNKNOWN_PATH, WebhookMetrics

log = logging.getLogger(__name__)

MAX_BODY: Final = 3 * 1024 * 1024
"""Bytes. An object holds at most 1.5 MB in etcd, and an update's review has two of them."""
_TOO_LARGE: Final = f"a review holds at most {MAX_BODY} bytes"
_LARGEST: Final = 8 * MAX_BODY
"""Bytes that are read of the API server's own reviews, to no other end than to answer: in its JSON a `<` has six bytes,
and what gets no answer the failure policy may let pass."""
_UID: Final = re.compile(rb'"request"\s*:\s*\{\s*"uid"\s*:\s*"([^"\\]+)"')
_UID_WITHIN: Final = 1024
_LARGE: Final = 64 * 1024
_LARGE_AT_ONCE: Final = 16
"""Bodies above _LARGE bytes that are read at a time, of reviews that are not known to be the API server's: what a flood
of them holds in memory is bounded."""
_SILENT: Final = logging.getLogger(f"{__name__}.http")
_SILENT.disabled = True
"""aiohttp's: it logs a traceback for every malformed request, which is what a flood of those would cost us most."""
_UNREAD: Final = 64 * 1024
"""Bytes of answers to strangers that wait to be read: a review's uid comes back, however long."""
_KEEP_ALIVE: Final = 300.0
_BACKLOG: Final = 1024

_AT_ONCE: Final = 32 * 1024
"""Bytes of a connection that the system keeps, and hands over, at a time: what is read at once is worked through before
anything else is."""
_END_OF_HEAD: Final = b"\r\n\r\n"

Hook = Callable[[AdmissionRequest], Awaitable[Decision]]
"""Answers one request. BadReview becomes a 400, for the API server's own a refusal: the failurePolicy must not let pass
what cannot be read. Whatever else it raises becomes a 500, and then the failurePolicy decides."""

_Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class WebhookServer:
    """Serves hooks by path. The context belongs to the caller, who may load another certificate into it while it is
    in use: connections that stand keep theirs, new ones get the new one."""

    def __init__(
        self,
        hooks: Mapping[str, Hook],
        context: ssl.SSLContext | None,
        *,
        client_names: Collection[str] = (),
        caller: Caller | None = None,
        limits: Limits | None = None,
    ) -> None:
        """`client_names`: whose client certificates are answered; empty: every client is, with or without one. `caller`
        tells the API server's requests by their path; None: they cannot be told."""
        self._hooks = dict(hooks)
        self._context = context
        self._client_names = frozenset(client_names)
        self._caller = caller or Caller()
        self._limits = limits or Limits()
        self._metrics = {path: WebhookMetrics(path) for path in self._hooks}
        self._unknown = WebhookMetrics(UNKNOWN_PATH)
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)
        self._turn = asyncio.Lock() if caller is not None else None
        self._last_cost = 0.0
        # Where the API server's reviews are known, others begin one after the other, with a pause as long as the last
        # one took: they get half of a core at most, and a review of the API server's waits for one of them.
        self._server: _Server | None = None
        self._acceptor: Acceptor | None = None
        self.address: tuple[str, int] = ("", 0)

    async def start(self, bind_address: str) -> None:
        """Listen on "host:port" (port 0: a free one); `address` says where then. Raises BindError."""
        host, port = parse_bind_address(bind_address)
        try:
            listening = await _listening(host, port)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise BindError(f"cannot listen on {bind_address}: {reason}") from error
        self._server = _Server(self._handle, self._limits)
        self._acceptor = Acceptor(self._server.protocol, self._context, self._limits)
        self._server.acceptor = self._acceptor
        self._acceptor.listen(listening)
        bound = listening[0].getsockname()
        self.address = (bound[0], bound[1])
        log.info("webhooks on %s:%d: %s", *self.address, ", ".join(sorted(self._hooks)))

    async def close(self) -> None:
        """Stop listening; what is being answered gets two seconds."""
        acceptor, self._acceptor = self._acceptor, None
        server, self._server = self._server, None
        if acceptor is not None:
            await acceptor.close()
        if server is not None:
            server.pre_shutdown()
            await server.shutdown(2.0)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        started = time.perf_counter()
        path, by_key = self._caller.split(request.path)
        authenticated = self._may_ask(request) and (by_key or _certified(request))
        if authenticated and isinstance(request.protocol, _Protocol):
            request.protocol.connection.proven = True
        metrics = self._metrics.get(path, self._unknown)
        metrics.in_flight.inc()
        try:
            response = await self._answer(request, path, metrics, authenticated=authenticated)
        finally:
            metrics.in_flight.dec()
        if isinstance(request.protocol, _Protocol):
            request.protocol.answered(request.content_length or 0, response)
        metrics.answered(response.status, time.perf_counter() - started)
        return response

    async def _answer(
        self, request: web.BaseRequest, path: str, metrics: WebhookMetrics, *, authenticated: bool
    ) -> web.Response:
        refused = self._refused(request, path, authenticated=authenticated)
        if refused is not None:
            return refused
        if request.version >= HttpVersion11 and request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        async with contextlib.AsyncExitStack() as kept:
            try:
                if (request.content_length or 0) > MAX_BODY:
                    return await self._deny_unread(request, path, metrics)
                body = await self._read(request, kept, authenticated=authenticated)
            except TimeoutError:
                return _refusal(408, f"the request did not end within {self._limits.body:g} s")
            except web.RequestPayloadError as exc:
                return _refusal(400, f"the request was cut off: {exc}")
            if not authenticated and self._turn is not None:
                async with self._turn:
                    await asyncio.sleep(self._last_cost)
            began = time.thread_time()
            try:
                return await self._review(request, body, path, metrics, authenticated=authenticated)
            finally:
                if not authenticated:
                    self._last_cost = time.thread_time() - began

    async def _review(
        self,
        request: web.BaseRequest,
        body: bytes,
        path: str,
        metrics: WebhookMetrics,
        *,
        authenticated: bool,
    ) -> web.Response:
        try:
            review = decode_review(body, authenticated=authenticated)
        except TooLarge as exc:
            return self._too_large(body, path, metrics) or _refusal(400, str(exc))
        except BadReview as exc:
            return _refusal(400, str(exc))
        if isinstance(request.protocol, _Protocol):
            request.protocol.connection.busy = True
        return await self._decide(path, review, metrics)

    def _refused(self, request: web.BaseRequest, path: str, *, authenticated: bool) -> web.Response | None:
        """What is wrong with a request's head, as an answer."""
        if not self._may_ask(request):
            return _refusal(403, "the client certificate is not the API server's")
        if path not in self._hooks:
            return _refusal(404, f"no webhook is served on {path[:200]}")
        if request.method != "POST":
            return _refusal(405, "reviews are sent with POST", {"Allow": "POST"})
        if request.content_type != "application/json":
            return _refusal(415, "a review is application/json")
        if request.content_length is None:
            # Chunks of one byte each cost a hundred times what other bodies cost; the API server sends none.
            return _refusal(411, "a review has a Content-Length")
        if request.content_length > (_LARGEST if authenticated else MAX_BODY):
            return _refusal(413, _TOO_LARGE)
        return None

    async def _deny_unread(
        self, request: web.BaseRequest, path: str, metrics: WebhookMetrics
    ) -> web.Response:
        """The answer to a review that is too large, once all of it has come: an earlier one could be missed."""
        head = b""
        async with asyncio.timeout(self._limits.body):
            async for chunk in request.content.iter_any():
                head += chunk[: _UID_WITHIN - len(head)]
        return self._too_large(head, path, metrics) or _refusal(413, _TOO_LARGE)

    def _too_large(self, head: bytes, path: str, metrics: WebhookMetrics) -> web.Response | None:
        """The denial of a review that is not read; None where its beginning is none of a review."""
        found = _UID.search(head[:_UID_WITHIN])
        if found is None:
            return None
        uid = found[1].decode(errors="replace")
        log.debug("%s: denied review %s, which is too large", path, uid)
        return self._decided(uid, deny("the object is too large to be checked", reason="too-large"), metrics)

    async def _decide(self, path: str, review: AdmissionRequest, metrics: WebhookMetrics) -> web.Response:
        try:
            # For a stranger nothing is asked of the API server: that is work that others pay for.
            with deadline(REVIEW_SECONDS if review.authenticated else 0.0):
                decision = await self._hooks[path](review)
        except BadReview as exc:
            if not review.authenticated:
                return _refusal(400, str(exc))
            decision = deny(f"the request cannot be checked: {exc}", reason="unreadable")
        except Exception as exc:
            log.error("%s: no decision: %s: %s", path, type(exc).__name__, exc)
            log.debug("%s: traceback", path, exc_info=exc)
            return _refusal(500, f"no decision: {type(exc).__name__}")
        if not decision.allowed and review.authenticated:
            log.info("%s: denied to %s: %s", path, review.user_info.username, decision.message)
        answer = self._decided(review.uid, decision, metrics)
        if not review.authenticated and (answer.content_length or 0) > _UNREAD:
            return _refusal(400, "the answer would be longer than what a client may leave unread")
        return answer

    def _decided(self, uid: str, decision: Decision, metrics: WebhookMetrics) -> web.Response:
        metrics.decided(allowed=decision.allowed, patched=bool(decision.patch), reason=decision.reason)
        return web.Response(body=encode_answer(uid, decision), content_type="application/json")

    async def _read(
        self, request: web.BaseRequest, kept: contextlib.AsyncExitStack, *, authenticated: bool
    ) -> bytes:
        """The body. The API server's own do not wait for those of others; of these, a large one has one of few places
        until `kept` ends."""
        small = (request.content_length or 0) <= _LARGE
        async with asyncio.timeout(self._limits.body):
            if not (small or authenticated):
                await kept.enter_async_context(self._large)
            return await request.read()

    def _may_ask(self, request: web.BaseRequest) -> bool:
        if not self._client_names or request.transport is None:
            return not self._client_names
        certificate = request.transport.get_extra_info("peercert") or {}
        names = [
            value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"
        ]
        names += [value for _kind, value in certificate.get("subjectAltName", ())]
        return not self._client_names.isdisjoint(names)


def _certified(request: web.BaseRequest) -> bool:
    """Whether the client has shown a certificate: with --client-ca-file each one is verified."""
    return request.transport is not None and bool(request.transport.get_extra_info("peercert"))


async def _listening(host: str, port: int) -> list[socket.socket]:
    """Listening sockets on every address of a host; all of them on one port. Raises OSError."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        asyncio.Protocol, host or None, port, backlog=_BACKLOG, start_serving=False
    )
    try:
        found = [each.dup() for each in server.sockets]
    finally:
        server.close()
    for each in found:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _AT_ONCE)  # accepted ones have it too
        each.listen(_BACKLOG)
    return found


class _Server(web.Server):
    """aiohttp's, with a time limit for each head: it waits for those without end."""

    def __init__(self, handler: _Handler, limits: Limits) -> None:
        super().__init__(
            handler,
            request_factory=self._request,
            # What a client has asked for ends with the client.
            handler_cancellation=True,
            access_log=None,
            logger=_SILENT,
            keepalive_timeout=_KEEP_ALIVE,
            # The API server never compresses a review; of others 3 MB can be 3 GB.
            auto_decompress=False,
            # What an early answer leaves unread is not waited for: a body without end would hold the connection.
            lingering_time=1.0,
        )
        self.limits = limits
        self.acceptor: Acceptor | None = None

    def protocol(self, connection: Connection) -> asyncio.Protocol:
        """One for a new connection."""
        return _Protocol(self, connection, **self._kwargs)

    def _request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        assert isinstance(protocol, _Protocol)
        protocol.begun()
        loop = asyncio.get_running_loop()
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MAX_BODY)


class _Protocol(RequestHandler):
    """One connection. The first head is waited for from the handshake on, each further one from its first byte."""

    __slots__ = ("_after_head", "_head", "_is_over", "_server", "_timer", "connection")

    def __init__(self, server: _Server, connection: Connection, **options: Any) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **options)
        self.connection = connection
        self._server = server
        self._head = b""
        # The last bytes of a head that is coming in: its end may have come in part.
        self._after_head: int | None = None
        # Invariant: None while a head is coming in; else the bytes that came after it.
        self._is_over = False
        # The connection's last answer is given: what still comes is dropped.
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.connection.transport = transport
        super().connection_made(transport)
        assert isinstance(transport, asyncio.WriteTransport)
        transport.set_write_buffer_limits(_UNREAD)
        self._await_head()

    def pause_writing(self) -> None:
        """The client does not read: of answers to strangers no more than _UNREAD is kept."""
        super().pause_writing()
        if not self.connection.proven:
            CLOSED.labels("unread").inc()
            self.connection.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_waiting()
        if self._server.acceptor is not None:
            self._server.acceptor.lost(self.connection)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        if self._after_head is not None:
            self._after_head += len(data)
        else:
            # The parser passes over empty lines ahead of a head; they are no end of one.
            head = self._head + data if self._head else data.lstrip(b"\r\n")
            end = head.find(_END_OF_HEAD)
            if end >= 0:
                self._after_head = len(head) - end - len(_END_OF_HEAD)
                self._head = b""
            else:
                self._head = head[1 - len(_END_OF_HEAD) :]
                if head and self._timer is None:
                    self._await_head()
        super().data_received(data)

    def begun(self) -> None:
        """A whole head was read."""
        self._stop_waiting()

    def answered(self, content_length: int, response: web.StreamResponse) -> None:
        """A request is over. Where more than it has come in, the connection is not used again: the API server never
        sends a request before it has the answer to the last one."""
        if (self._after_head or 0) > content_length:
            response.force_close()
        self._is_over = response.keep_alive is False
        self._after_head = None
        self.connection.busy = False
        if self._server.acceptor is not None:
            self._server.acceptor.used(self.connection)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _await_head(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._server.limits.head, self._too_late)

    def _too_late(self) -> None:
        self._timer = None
        transport = self.connection.transport
        CLOSED.labels("head").inc()
        if isinstance(transport, asyncio.Transport):
            transport.write(b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            transport.close()


def _refusal(status: int, reason: str, headers: Mapping[str, str] | None = None) -> web.Response:
    response = web.Response(status=status, text=reason + "\n", headers=headers)
    # Whatever of the request is still to come is not read: the connection cannot be used again.
    response.force_close()
    return response
