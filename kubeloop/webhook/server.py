"""The listener: HTTP/1.1 over TLS, one path a webhook.

aiohttp's low-level server: there is one table to look a path up in, and no middleware to pass.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import ssl
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from aiohttp import web
from aiohttp.http import HttpVersion11

from kubeloop.controllers.errors import BindError, described
from kubeloop.controllers.listener import Limits, Listener
from kubeloop.controllers.server import parse_bind_address
from kubeloop.webhook.admission import (
    REVIEW_SECONDS,
    BadReview,
    Decision,
    Hook,
    TooLarge,
    deadline,
    decode_review,
    deny,
    encode_answer,
)
from kubeloop.webhook.metrics import UNKNOWN_PATH, ServerMetrics, WebhookMetrics
from kubeloop.webhook.registration import without_key

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


class _Refused(Exception):
    """An answer to what is not a review that is answered, in one line."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class WebhookServer:
    """Serves hooks by path. The context belongs to the caller, who may load another certificate into it while it is
    in use: connections that stand keep theirs, new ones get the new one."""

    def __init__(
        self,
        hooks: Mapping[str, Hook],
        context: ssl.SSLContext,
        *,
        client_names: Collection[str] = (),
        key: Callable[[], str] | None = None,
        limits: Limits | None = None,
        metrics: ServerMetrics | None = None,
    ) -> None:
        """`client_names`: whose client certificates are answered; empty: every client is, with or without one. `key`
        is the one by which the API server's requests are known; None: they cannot be told."""
        self._hooks = dict(hooks)
        self._client_names = frozenset(client_names)
        self._key = key
        self._limits = limits or Limits()
        self._told = metrics or ServerMetrics()
        self._metrics = {path: WebhookMetrics(self._told.name(path)) for path in self._hooks}
        self._unknown = WebhookMetrics(UNKNOWN_PATH)
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)
        self._turn = asyncio.Lock() if key is not None else None
        self._last_cost = 0.0
        # Where the API server's reviews are known, others begin one after the other, with a pause as long as the last
        # one took: they get half of a core at most, and a review of the API server's waits for one of them.
        self._listener = Listener(self._handle, context, self._limits, self._told)
        self.address: tuple[str, int] = ("", 0)

    async def start(self, bind_address: str) -> None:
        """Listen on "host:port" (port 0: a free one); `address` says where then. Raises BindError."""
        host, port = parse_bind_address(bind_address)
        try:
            self.address = await self._listener.start(host, port)
        except OSError as error:
            raise BindError.of(bind_address, error) from error
        log.info("webhooks on %s:%d: %s", *self.address, ", ".join(sorted(self._hooks)))

    async def close(self) -> None:
        """Stop listening; what is being answered gets two seconds."""
        await self._listener.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        started = time.perf_counter()
        path, by_key = without_key(request.path, self._key() if self._key else "")
        metrics = self._metrics.get(path, self._unknown)
        certificate = request.transport.get_extra_info("peercert") if request.transport else None
        may_ask = self._may_ask(certificate or {})
        # Where there is a CA for clients, each certificate is verified.
        authenticated = may_ask and (by_key or bool(certificate))
        metrics.in_flight.inc()
        try:
            if not may_ask:
                raise _Refused(403, "the client certificate is not the API server's")
            uid, decision = await self._answer(request, path, authenticated=authenticated)
            self._told.decided(metrics.name, decision)
            response = web.Response(body=encode_answer(uid, decision), content_type="application/json")
        except _Refused as exc:
            response = web.Response(status=exc.status, text=f"{exc}\n", headers={"Allow": "POST"})
            # Whatever of the request is still to come is not read: the connection cannot be used again.
            response.force_close()
        finally:
            metrics.in_flight.dec()
        if not authenticated and self._turn is not None:
            response.force_close()  # a stranger keeps no connection
        metrics.answered(response.status, time.perf_counter() - started)
        return response

    def _may_ask(self, certificate: Mapping[str, Any]) -> bool:
        names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
        names += [value for _kind, value in certificate.get("subjectAltName", ())]
        return not self._client_names or not self._client_names.isdisjoint(names)

    async def _answer(self, request: web.BaseRequest, path: str, *, authenticated: bool) -> tuple[str, Decision]:
        """The uid of the review and its answer. Raises _Refused."""
        length = self._checked(request, path, authenticated=authenticated)
        if request.version >= HttpVersion11 and request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        async with contextlib.AsyncExitStack() as kept:
            try:
                async with asyncio.timeout(self._limits.body):
                    # The API server's own do not wait for those of others.
                    if length > _LARGE and not authenticated:
                        await kept.enter_async_context(self._large)
                    body = await _read(request, length)
            except TimeoutError as exc:
                raise _Refused(408, f"the request did not end within {self._limits.body:g} s") from exc
            except web.RequestPayloadError as exc:
                raise _Refused(400, f"the request was cut off: {exc}") from exc
            if authenticated or self._turn is None:
                return await self._decide(path, body, whole=length <= MAX_BODY, authenticated=authenticated)
            async with self._turn:
                await asyncio.sleep(self._last_cost)
            began = time.perf_counter()
            try:
                return await self._decide(path, body, whole=True, authenticated=False)
            finally:
                self._last_cost = time.perf_counter() - began

    def _checked(self, request: web.BaseRequest, path: str, *, authenticated: bool) -> int:
        """The body's length, of a head with which nothing is wrong. Raises _Refused."""
        if path not in self._hooks:
            raise _Refused(404, f"no webhook is served on {path[:200]}")
        if request.method != "POST":
            raise _Refused(405, "reviews are sent with POST")
        if request.content_type != "application/json":
            raise _Refused(415, "a review is application/json")
        if request.content_length is None:
            # Chunks of one byte each cost a hundred times what other bodies cost; the API server sends none.
            raise _Refused(411, "a review has a Content-Length")
        if request.content_length > (_LARGEST if authenticated else MAX_BODY):
            raise _Refused(413, _TOO_LARGE)
        return request.content_length

    async def _decide(self, path: str, body: bytes, *, whole: bool, authenticated: bool) -> tuple[str, Decision]:
        """`whole`: not just the beginning. Raises _Refused."""
        review = None
        try:
            if not whole:
                raise TooLarge(_TOO_LARGE)
            review = decode_review(body, authenticated=authenticated)
            # For a stranger nothing is asked of the API server: that is work that others pay for.
            with deadline(REVIEW_SECONDS if authenticated else 0.0):
                decision = await self._hooks[path](review)
        except TooLarge as exc:
            if (found := _UID.search(body[:_UID_WITHIN])) is None:
                raise _Refused(413, str(exc)) from exc
            return found[1].decode(errors="replace"), deny("the object is too large to be checked", reason="too-large")
        except BadReview as exc:
            if review is None or not authenticated:
                raise _Refused(400, str(exc)) from exc
            decision = deny(f"the request cannot be checked: {exc}", reason="unreadable")
        except Exception as exc:
            log.error("%s: no decision on %s: %s", path, review or "what cannot be read", described(exc))
            log.debug("%s: traceback", path, exc_info=exc)
            raise _Refused(500, f"no decision: {type(exc).__name__}") from exc
        if not decision.allowed and authenticated:
            log.info("%s: denied to %s: %s", path, review.user_info.username, decision.message)
        return review.uid, decision


async def _read(request: web.BaseRequest, length: int) -> bytes:
    """The body, which a Content-Length bounds. Of one that is too large the beginning, once all of it has come: an
    earlier answer could be missed."""
    if length <= MAX_BODY:
        return await request.content.read()
    head = b""
    async for chunk in request.content.iter_any():
        head += chunk[: _UID_WITHIN - len(head)]
    return head
