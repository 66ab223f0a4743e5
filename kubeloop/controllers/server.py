"""/healthz, /readyz and /metrics over HTTP."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from aiohttp import web
from prometheus_client import REGISTRY
from prometheus_client.exposition import choose_encoder

from kubeloop.controllers.errors import BindError, described
from kubeloop.controllers.listener import ConnectionMetrics, Limits, Listener

log = logging.getLogger(__name__)

OFF = "0"
"""The bind address that means: do not listen (controller-runtime's)."""
LIMITS = Limits(connections=256, total=10.0, crowded=0.1)
"""Anybody may connect: a probe or a scrape asks at once, and takes its answer. It never waits for what is silent."""

Page = Callable[[web.BaseRequest], web.Response]


class Checks(Protocol):
    """The checks that the server asks, a line each: what only a restart repairs, what is not ready, further notes."""

    def healthy(self) -> list[str]: ...
    def unready(self) -> list[str]: ...
    def notes(self) -> list[str]: ...


@dataclass(eq=False)
class HealthServer:
    """The server that `serve_health` starts. `addresses` are the bound (host, port) pairs, in the order asked for."""

    addresses: list[tuple[str, int]] = field(default_factory=list)
    _listeners: list[Listener] = field(default_factory=list)

    async def listen(self, pages: Mapping[str, Page], bind_address: str) -> None:
        """Serves pages by path. Raises BindError."""

        async def answer(request: web.BaseRequest) -> web.Response:
            if (page := pages.get(request.path)) is None:
                response = web.Response(status=404, text=f"here are {', '.join(pages)}\n")
            elif request.method not in ("GET", "HEAD"):
                response = web.Response(status=405, text="ask with GET\n", headers={"Allow": "GET, HEAD"})
            else:
                response = page(request)
            response.force_close()  # a connection for each request: an idle one holds no place
            return response

        listener = Listener(answer, None, LIMITS, ConnectionMetrics())
        self.addresses.append(await listener.start(bind_address))
        self._listeners.append(listener)

    def log_addresses(self) -> None:
        """Logs the addresses, once the start has succeeded: a start that fails is one line, its error."""
        for host, port in self.addresses:
            log.info("serving on %s:%d", host, port)

    async def close(self) -> None:
        """Stops listening; requests that are being answered get two seconds."""
        await asyncio.gather(*(listener.close() for listener in self._listeners))
        self._listeners.clear()


async def serve_health(management: Checks, bind_address: str, metrics_bind_address: str | None = None) -> HealthServer:
    """Serves /healthz and /readyz on `bind_address`, /metrics on `metrics_bind_address` or beside them if None.
    Addresses are "host:port", ":port" (every interface) or "0" (off); port 0 takes a free one. Raises BindError."""
    server, pages = HealthServer(), {bind_address: _health(management)}
    metrics_bind_address = bind_address if metrics_bind_address is None else metrics_bind_address
    pages.setdefault(metrics_bind_address, {})["/metrics"] = _metrics
    pages.pop(OFF, None)
    try:
        for address, served in pages.items():
            await server.listen(served, address)
    except BindError:
        await server.close()
        raise
    return server


def _health(checks: Checks) -> dict[str, Page]:
    def healthz(request: web.BaseRequest) -> web.Response:
        return _answer(checks.healthy, 500, list)

    def readyz(request: web.BaseRequest) -> web.Response:
        # As kube-apiserver's own: what is named is not looked at.
        excluded = tuple(f"not ready: {name}:" for name in request.query.getall("exclude", ()))

        def missing() -> list[str]:
            return [line for line in checks.unready() if not line.startswith(excluded)]

        return _answer(missing, 503, checks.notes)

    return {"/healthz": healthz, "/readyz": readyz}


def _answer(check: Callable[[], list[str]], failed: int, notes: Callable[[], list[str]]) -> web.Response:
    try:
        problems, note_lines = check(), notes()
    except Exception as error:
        log.exception("a health check failed")
        problems, note_lines = [f"check failed: {described(error)}"], []
    if problems:
        return web.Response(status=failed, text="\n".join(problems) + "\n")
    return web.Response(text="\n".join(["ok", *note_lines]))


def _metrics(request: web.BaseRequest) -> web.Response:
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return web.Response(body=encode(REGISTRY), headers={"Content-Type": content_type})
