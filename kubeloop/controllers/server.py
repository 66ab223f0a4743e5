"""/healthz, /readyz and /metrics over HTTP."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from aiohttp import web
from prometheus_client import REGISTRY
from prometheus_client.exposition import choose_encoder

from kubeloop.controllers.errors import BindError, described

log = logging.getLogger(__name__)

OFF = "0"
"""The bind address that means: do not listen (controller-runtime's)."""


class Checks(Protocol):
    """What is asked; Management is one."""

    def healthy(self) -> list[str]:
        """What only a restart repairs, a line each."""

    def unready(self) -> list[str]:
        """What is missing until ready, a line each."""

    def notes(self) -> list[str]:
        """Further lines of /readyz."""


class HealthServer:
    """What `serve_health` started. `addresses` are the bound (host, port) pairs, in the order asked for."""

    def __init__(self) -> None:
        self.addresses: list[tuple[str, int]] = []
        self._runners: list[web.AppRunner] = []

    async def listen(self, application: web.Application, bind_address: str) -> None:
        """Serve an application. Raises BindError."""
        host, port = parse_bind_address(bind_address)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        self._runners.append(runner)
        try:
            await web.TCPSite(runner, host or None, port).start()
        except OSError as error:
            raise BindError.of(bind_address, error) from error
        bound = runner.addresses[0]
        self.addresses.append((bound[0], bound[1]))

    def log_addresses(self) -> None:
        """Once the start has succeeded: one that fails is one line, its error."""
        for host, port in self.addresses:
            log.info("serving on %s:%d", host, port)

    async def close(self) -> None:
        """Stop listening; requests that are being answered get a second."""
        await asyncio.gather(*(runner.cleanup() for runner in self._runners))
        self._runners.clear()


async def serve_health(management: Checks, bind_address: str, metrics_bind_address: str | None = None) -> HealthServer:
    """Serve /healthz and /readyz on `bind_address`, /metrics on `metrics_bind_address` or beside them if None.

    Addresses are "host:port", ":port" (every interface) or "0" (off); port 0 takes a free one. Raises BindError.
    """
    server, routes = HealthServer(), {bind_address: _health(management)}
    metrics_bind_address = bind_address if metrics_bind_address is None else metrics_bind_address
    routes.setdefault(metrics_bind_address, []).append(web.get("/metrics", _metrics))
    routes.pop(OFF, None)
    try:
        for address, served in routes.items():
            application = web.Application()
            application.add_routes(served)
            await server.listen(application, address)
    except BindError:
        await server.close()
        raise
    return server


def parse_bind_address(text: str) -> tuple[str, int]:
    """ "host:port", ":port" or "[v6]:port" to (host, port), host "" for every interface. Raises BindError."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise BindError(f"{text!r} is not an address to listen on: give host:port or :port")
    return host, int(port)


def _health(checks: Checks) -> list[web.RouteDef]:
    async def healthz(request: web.Request) -> web.Response:
        return _answer(checks.healthy, 500, list)

    async def readyz(request: web.Request) -> web.Response:
        # As kube-apiserver's own: what is named is not looked at.
        excluded = tuple(f"not ready: {name}:" for name in request.query.getall("exclude", ()))

        def missing() -> list[str]:
            return [line for line in checks.unready() if not line.startswith(excluded)]

        return _answer(missing, 503, checks.notes)

    return [web.get("/healthz", healthz), web.get("/readyz", readyz)]


def _answer(check: Callable[[], list[str]], failed: int, notes: Callable[[], list[str]]) -> web.Response:
    try:
        problems, said = check(), notes()
    except Exception as error:
        log.exception("a health check failed")
        problems, said = [f"check failed: {described(error)}"], []
    if problems:
        return web.Response(status=failed, text="\n".join(problems) + "\n")
    return web.Response(text="\n".join(["ok", *said]))


async def _metrics(request: web.Request) -> web.Response:
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return web.Response(body=encode(REGISTRY), headers={"Content-Type": content_type})
