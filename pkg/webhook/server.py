"""The listener: HTTP/1.1 over TLS, one path a webhook.

aiohttp's low-level server: there is one table to look a path up in, and no middleware to pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Final

from aiohttp import web
from aiohttp.http import HttpVersion11

from kubeloop.controllers.errors import BindError
from kubeloop.controllers.server import parse_bind_address
from pkg.webhook.admission import AdmissionRequest, BadReview, Decision, TooLarge, decode_review, deny, encode_answer
from pkg.webhook.caller import Caller
from pkg.webhook.deadline import REVIEW_SECONDS, deadline
from pkg.webhook.listener import Limits, Listener
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
_KEEP_ALIVE: Final = 300.0
"""Seconds without a request after which a connection of the API server's is closed: it gives one up after 90, and what
it sends on one that is just being closed is lost."""
_LONGEST_UID: Final = 1024
"""Characters; it comes back in the answer."""

Hook = Callable[[AdmissionRequest], Awaitable[Decision]]
"""Answers one request. BadReview becomes a 400, for the API server's own a refusal: the failurePolicy must not let pass
what cannot be read. Whatever else it raises becomes a 500, and then the failurePolicy decides."""


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
        self._server: web.Server | None = None
        self._listener: Listener | None = None
        self.address: tuple[str, int] = ("", 0)

    async def start(self, bind_address: str) -> None:
        """Listen on "host:port" (port 0: a free one); `address` says where then. Raises BindError."""
        host, port = parse_bind_address(bind_address)
        self._server = web.Server(
            self._handle,
            # What a client has asked for ends with the client.
            handler_cancellation=True,
            access_log=None,
            logger=_SILENT,
            keepalive_timeout=_KEEP_ALIVE,
            # The API server never compresses a review; of others 3 MB can be 3 GB.
            auto_decompress=False,
            # What an early answer leaves unread is not waited for: a body without end would hold the connection.
            lingering_time=0.0,
        )
        self._listener = Listener(self._server, self._context, self._limits)
        try:
            self.address = await self._listener.start(host, port)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise BindError(f"cannot listen on {bind_address}: {reason}") from error
        log.info("webhooks on %s:%d: %s", *self.address, ", ".join(sorted(self._hooks)))

    async def close(self) -> None:
        """Stop listening; what is being answered gets two seconds."""
        if self._listener is not None and self._server is not None:
            await self._listener.close()
            self._server.pre_shutdown()
            await self._server.shutdown(2.0)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        started = time.perf_counter()
        path, by_key = self._caller.split(request.path)
        authenticated = self._may_ask(request) and (by_key or _certified(request))
        if self._listener is not None:
            self._listener.asked(request.protocol)
        metrics = self._metrics.get(path, self._unknown)
        metrics.in_flight.inc()
        try:
            response = await self._answer(request, path, metrics, authenticated=authenticated)
        finally:
            metrics.in_flight.dec()
        if not authenticated and self._turn is not None:
            response.force_close()  # a stranger keeps no connection
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
            began = time.perf_counter()
            try:
                return await self._review(request, body, path, metrics, authenticated=authenticated)
            finally:
                if not authenticated:
                    self._last_cost = time.perf_counter() - began

    async def _review(
        self, request: web.BaseRequest, body: bytes, path: str, metrics: WebhookMetrics, *, authenticated: bool
    ) -> web.Response:
        try:
            review = decode_review(body, authenticated=authenticated)
        except TooLarge as exc:
            return self._too_large(body, path, metrics) or _refusal(400, str(exc))
        except BadReview as exc:
            return _refusal(400, str(exc))
        if len(review.uid) > _LONGEST_UID:
            return _refusal(400, f"a uid has at most {_LONGEST_UID} characters")
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

    async def _deny_unread(self, request: web.BaseRequest, path: str, metrics: WebhookMetrics) -> web.Response:
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
        return self._decided(review.uid, decision, metrics)

    def _decided(self, uid: str, decision: Decision, metrics: WebhookMetrics) -> web.Response:
        metrics.decided(allowed=decision.allowed, patched=bool(decision.patch), reason=decision.reason)
        return web.Response(body=encode_answer(uid, decision), content_type="application/json")

    async def _read(self, request: web.BaseRequest, kept: contextlib.AsyncExitStack, *, authenticated: bool) -> bytes:
        """The body. The API server's own do not wait for those of others; of these, a large one has one of few places
        until `kept` ends."""
        small = (request.content_length or 0) <= _LARGE
        async with asyncio.timeout(self._limits.body):
            if not (small or authenticated):
                await kept.enter_async_context(self._large)
            return await request.content.read()  # a Content-Length bounds it

    def _may_ask(self, request: web.BaseRequest) -> bool:
        if not self._client_names or request.transport is None:
            return not self._client_names
        certificate = request.transport.get_extra_info("peercert") or {}
        names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
        names += [value for _kind, value in certificate.get("subjectAltName", ())]
        return not self._client_names.isdisjoint(names)


def _certified(request: web.BaseRequest) -> bool:
    """Whether the client has shown a certificate: with --client-ca-file each one is verified."""
    return request.transport is not None and bool(request.transport.get_extra_info("peercert"))


def _refusal(status: int, reason: str, headers: Mapping[str, str] | None = None) -> web.Response:
    response = web.Response(status=status, text=reason + "\n", headers=headers)
    # Whatever of the request is still to come is not read: the connection cannot be used again.
    response.force_close()
    return response
