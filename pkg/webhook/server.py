"""The listener: HTTP/1.1 over TLS, one path a webhook.

aiohttp's low-level server: there is one table to look a path up in, and no middleware to pass.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from aiohttp.streams import StreamReader
from aiohttp.web_protocol import RequestHandler

from pkg.generic.errors import BindError
from pkg.generic.server import parse_bind_address
from pkg.webhook.admission import AdmissionRequest, BadReview, Decision, decode_review, encode_answer
from pkg.webhook.metrics import UNKNOWN_PATH, WebhookMetrics

log = logging.getLogger(__name__)

MAX_BODY: Final = 3 * 1024 * 1024
"""Bytes. An object holds at most 1.5 MB in etcd, and an update's review has two of them."""
_TOO_LARGE: Final = f"a review holds at most {MAX_BODY} bytes"
READ_TIMEOUT: Final = 10.0
"""Seconds that a request's body may take: twice what the API server gives us for everything."""
_KEEP_ALIVE: Final = 300.0
_BACKLOG: Final = 1024

Hook = Callable[[AdmissionRequest], Awaitable[Decision]]
"""Answers one request. BadReview becomes a 400; whatever else it raises a 500, and then the failurePolicy decides."""

_Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class WebhookServer:
    """Serves hooks by path. The context belongs to the caller, who may load another certificate into it while it is
    in use: connections that stand keep theirs, new ones get the new one."""

    def __init__(
        self, hooks: Mapping[str, Hook], context: ssl.SSLContext | None, *, read_timeout: float = READ_TIMEOUT
    ) -> None:
        self._hooks = dict(hooks)
        self._context = context
        self._read_timeout = read_timeout
        self._metrics = {path: WebhookMetrics(path) for path in self._hooks}
        self._unknown = WebhookMetrics(UNKNOWN_PATH)
        self._runner: web.ServerRunner | None = None
        self.address: tuple[str, int] = ("", 0)

    async def start(self, bind_address: str) -> None:
        """Listen on "host:port" (port 0: a free one); `address` says where then. Raises BindError."""
        host, port = parse_bind_address(bind_address)
        server = _Server(
            self._handle,
            self._read_timeout,
            access_log=None,
            keepalive_timeout=_KEEP_ALIVE,
            # What an early answer leaves unread is not waited for: a body without end would hold the connection.
            lingering_time=1.0,
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=2.0)
        await self._runner.setup()
        try:
            site = web.TCPSite(self._runner, host or None, port, ssl_context=self._context, backlog=_BACKLOG)
            await site.start()
        except OSError as error:
            await self.close()
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise BindError(f"cannot listen on {bind_address}: {reason}") from error
        bound = self._runner.addresses[0]
        self.address = (bound[0], bound[1])
        log.info("webhooks on %s:%d: %s", *self.address, ", ".join(sorted(self._hooks)))

    async def close(self) -> None:
        """Stop listening; what is being answered gets two seconds."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        started = time.perf_counter()
        metrics = self._metrics.get(request.path, self._unknown)
        metrics.in_flight.inc()
        try:
            response = await self._answer(request, metrics)
        finally:
            metrics.in_flight.dec()
        metrics.answered(response.status, time.perf_counter() - started)
        return response

    async def _answer(self, request: web.BaseRequest, metrics: WebhookMetrics) -> web.Response:
        hook = self._hooks.get(request.path)
        if hook is None:
            return _refusal(404, f"no webhook is served on {request.path[:200]}")
        if request.method != "POST":
            return _refusal(405, "reviews are sent with POST", {"Allow": "POST"})
        if request.content_type != "application/json":
            return _refusal(415, "a review is application/json")
        if (request.content_length or 0) > MAX_BODY:
            return _refusal(413, _TOO_LARGE)
        try:
            # Checked against the limit by aiohttp while it comes in, whatever Content-Length says.
            async with asyncio.timeout(self._read_timeout):
                body = await request.read()
            review = decode_review(body)
            decision = await hook(review)
        except TimeoutError:
            return _refusal(408, f"the request did not end within {self._read_timeout:g} s")
        except web.HTTPRequestEntityTooLarge:
            return _refusal(413, _TOO_LARGE)
        except web.RequestPayloadError as exc:
            return _refusal(400, f"the request broke off: {exc}")
        except BadReview as exc:
            return _refusal(400, str(exc))
        except Exception as exc:
            log.error("%s: no decision: %s: %s", request.path, type(exc).__name__, exc)
            log.debug("%s: traceback", request.path, exc_info=exc)
            return _refusal(500, f"no decision: {type(exc).__name__}")
        metrics.decided(allowed=decision.allowed, patched=bool(decision.patch))
        if not decision.allowed:
            log.info("%s: denied to %s: %s", request.path, review.user_info.username, decision.message)
        return web.Response(body=encode_answer(review.uid, decision), content_type="application/json")


class _Server(web.Server):
    """Also ends connections whose first request's head does not come: aiohttp waits for that without limit."""

    def __init__(self, handler: _Handler, head_timeout: float, **options: Any) -> None:
        super().__init__(handler, request_factory=self._request, **options)
        self._head_timeout = head_timeout
        self._waiting: dict[RequestHandler, asyncio.TimerHandle] = {}
        # Invariant: the connections that have not begun a request yet.

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        loop = asyncio.get_running_loop()
        self._waiting[handler] = loop.call_later(self._head_timeout, self._too_late, handler, transport)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        self._begun(handler)
        super().connection_lost(handler, exc)

    def _begun(self, handler: RequestHandler) -> None:
        timer = self._waiting.pop(handler, None)
        if timer is not None:
            timer.cancel()

    def _too_late(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        self._waiting.pop(handler, None)
        transport.write(b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        transport.close()

    def _request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        self._begun(protocol)
        loop = asyncio.get_running_loop()
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MAX_BODY)


def _refusal(status: int, reason: str, headers: Mapping[str, str] | None = None) -> web.Response:
    response = web.Response(status=status, text=reason + "\n", headers=headers)
    # Whatever of the request is still to come is not read: the connection cannot be used again.
    response.force_close()
    return response
