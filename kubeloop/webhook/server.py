"""The listener: HTTP/1.1 over TLS, one path a webhook.

aiohttp's low-level server: there is one table to look a path up in, and no middleware to pass."""

import asyncio
import logging
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from aiohttp import web
from aiohttp.http import HttpVersion11

from kubeloop.controllers.errors import described
from kubeloop.controllers.listener import ConnectionMetrics, Limits, Listener
from kubeloop.metrics import FRAMEWORK
from kubeloop.webhook import admission
from kubeloop.webhook.registration import split_key

log = logging.getLogger(__name__)

MAX_BODY: Final = 3 * 1024 * 1024
"""Bytes. An object holds at most 1.5 MB in etcd, and an update's review has two of them."""
_TOO_LARGE: Final = f"a review holds at most {MAX_BODY} bytes"
_LARGEST: Final = 8 * MAX_BODY
"""Bytes that are read of a review, to no other end than to answer: in the API server's JSON a `<` has six bytes, and
what gets no answer the failure policy may let pass."""
_UID: Final = re.compile(rb'"request"\s*:\s*\{\s*"uid"\s*:\s*"([^"\\]+)"')
_UID_WITHIN: Final = 1024


# controller-runtime leaves Prometheus' default buckets; the answers here are faster than the first of those.
_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

REQUESTS = FRAMEWORK["controller_runtime_webhook_requests_total"].counter()
LATENCY = FRAMEWORK["controller_runtime_webhook_latency_seconds"].histogram(_BUCKETS)
IN_FLIGHT = FRAMEWORK["controller_runtime_webhook_requests_in_flight"].gauge()

UNKNOWN_PATH: Final = "unknown"
"""The label of requests to paths that nothing is served on: a stranger's paths must not become series."""


class WebhookMetrics:
    """The series of one webhook; those of the usual codes exist from the start, as dashboards expect."""

    def __init__(self, name: str) -> None:
        self.name = name
        for code in ("200", "500"):
            REQUESTS.labels(name, code)
        self._latency = LATENCY.labels(name)
        self.in_flight = IN_FLIGHT.labels(name)

    def answered(self, code: int, seconds: float) -> None:
        """Records a request that ended with an HTTP status."""
        REQUESTS.labels(self.name, str(code)).inc()
        self._latency.observe(seconds)


class ServerMetrics(ConnectionMetrics):
    """The metrics of a server, for a program to export; these methods do nothing with them."""

    def name(self, path: str) -> str:
        """Returns the name of a path's webhook in metrics."""
        return path

    def decided(self, webhook: str, decision: admission.Decision) -> None:
        """A review was answered."""

    def certificate(self, expires: float) -> None:
        """Records the end of the serving certificate, in seconds since 1970."""


class _Refused(Exception):
    """An answer to what is not a review that is answered, in one line."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(eq=False, repr=False)
class WebhookServer:
    """Serves hooks by path. The context belongs to the caller, who may load another certificate into it while it is
    in use: connections that stand keep theirs, new ones get the new one."""

    hooks: Mapping[str, admission.Hook]
    context: ssl.SSLContext
    _: KW_ONLY
    client_names: Collection[str] = ()
    """Whose client certificates are answered; empty: every client is, with or without one."""
    knows_key: Callable[[str], Awaitable[bool]] | None = None
    """Whether a path's key is the registered one; who has neither that nor a certificate is refused. None: no key."""
    limits: Limits = field(default_factory=Limits)
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    address: tuple[str, int] = field(default=("", 0), init=False)

    def __post_init__(self) -> None:
        self._metrics = {path: WebhookMetrics(self.metrics.name(path)) for path in self.hooks}
        self._unknown = WebhookMetrics(UNKNOWN_PATH)
        self._listener = Listener(self._handle, self.context, self.limits, self.metrics)

    async def start(self, bind_address: str) -> None:
        """Listens on "host:port" (port 0: a free one); `address` says where then. Raises BindError."""
        self.address = await self._listener.start(bind_address)
        log.info("webhooks on %s:%d: %s", *self.address, ", ".join(sorted(self.hooks)))

    async def close(self) -> None:
        """Stops listening; what is being answered gets two seconds."""
        await self._listener.close()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        started = time.perf_counter()
        path, key = split_key(request.path)
        metrics = self._metrics.get(path, self._unknown)
        metrics.in_flight.inc()
        try:
            await self._check_sender(request, key)
            uid, decision = await self._answer(request, path)
            self.metrics.decided(metrics.name, decision)
            response = web.Response(body=admission.encode_answer(uid, decision), content_type="application/json")
        except _Refused as exc:
            response = web.Response(status=exc.status, text=f"{exc}\n", headers={"Allow": "POST"})
            # Whatever of the request is still to come is not read: the connection cannot be used again.
            response.force_close()
        finally:
            metrics.in_flight.dec()
        metrics.answered(response.status, time.perf_counter() - started)
        return response

    async def _check_sender(self, request: web.BaseRequest, key: str) -> None:
        """Raises _Refused."""
        # Where there is a CA for clients, each certificate is verified.
        certificate = (request.transport and request.transport.get_extra_info("peercert")) or {}
        names = [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]
        names += [value for _kind, value in certificate.get("subjectAltName", ())]
        if self.client_names and set(names).isdisjoint(self.client_names):
            raise _Refused(403, "the client certificate is not the API server's")
        if not certificate and self.knows_key is not None and not await self.knows_key(key):
            raise _Refused(403, "only the API server gets answers, on the registered paths")

    async def _answer(self, request: web.BaseRequest, path: str) -> tuple[str, admission.Decision]:
        """The uid of the review and its answer. Raises _Refused."""
        length = self._check_head(request, path)
        if request.version >= HttpVersion11 and request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            async with asyncio.timeout(self.limits.body):
                body = await _read(request, length)
        except TimeoutError as exc:
            raise _Refused(408, f"the request did not end within {self.limits.body:g} s") from exc
        except web.RequestPayloadError as exc:
            raise _Refused(400, f"the request was cut off: {exc}") from exc
        if length <= MAX_BODY:
            return await self._decide(path, body)
        if (uid := _UID.search(body[:_UID_WITHIN])) is None:  # only the beginning is known
            raise _Refused(413, _TOO_LARGE)
        decision = admission.deny("the object is too large to be checked", reason="too-large")
        return uid[1].decode(errors="replace"), decision

    def _check_head(self, request: web.BaseRequest, path: str) -> int:
        """The body's length, of a head with which nothing is wrong. Raises _Refused."""
        if path not in self.hooks:
            raise _Refused(404, f"no webhook is served on {path[:200]}")
        if request.method != "POST":
            raise _Refused(405, "reviews are sent with POST")
        if request.content_type != "application/json":
            raise _Refused(415, "a review is application/json")
        if request.content_length is None:
            # Chunks of one byte each cost a hundred times what other bodies cost; the API server sends none.
            raise _Refused(411, "a review has a Content-Length")
        if request.content_length > _LARGEST:
            raise _Refused(413, _TOO_LARGE)
        return request.content_length

    async def _decide(self, path: str, body: bytes) -> tuple[str, admission.Decision]:
        """Raises _Refused."""
        review = None
        try:
            review = admission.decode_review(body)
            with admission.deadline(admission.REVIEW_SECONDS):
                decision = await self.hooks[path](review)
            if not isinstance(decision, admission.Decision):
                raise TypeError(f"a hook returns a Decision, not {decision!r}")
        except admission.BadReview as exc:
            if review is None:
                raise _Refused(400, str(exc)) from exc
            decision = admission.deny(f"the request cannot be checked: {exc}", reason="unreadable")
        except Exception as exc:
            log.error("%s: no decision on %s: %s", path, review or "what cannot be read", described(exc))
            log.debug("%s: traceback", path, exc_info=exc)
            raise _Refused(500, f"no decision: {type(exc).__name__}") from exc
        if not decision.allowed:
            log.info("%s: denied to %s: %s", path, review.user_info.username, decision.message)
        return review.uid, decision


async def _read(request: web.BaseRequest, length: int) -> bytes:
    """The body; of one that is too large the beginning, once all has come: an earlier answer could be missed."""
    if length <= MAX_BODY:
        return await request.content.read()
    head = b""
    async for chunk in request.content.iter_any():
        head += chunk[: _UID_WITHIN - len(head)]
    return head
