"""Connections of a listener: how many there may be, and how long each may take until it asks something."""

import asyncio
import logging
import math
import os
import re
import resource
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass

from aiohttp import web

from kubeloop.controllers.errors import BindError
from kubeloop.logs import Once

log = logging.getLogger(__name__)

_BACKLOG = 4096
_AT_ONCE = 32 * 1024
"""Bytes of a connection that the system hands over at a time: they are worked through before anything else is."""
_KEEP_ALIVE = 300.0
"""Seconds without a request after which a connection of the API server's is closed: it gives one up after 90, and what
it sends on one that is just being closed is lost."""
_SILENT = logging.getLogger(f"{__name__}.http")
_SILENT.disabled = True
"""aiohttp's: it logs a traceback for every malformed request, which is what a flood of those would cost us most."""
_FULL = 0.05
"""Seconds until it is asked again whether there is room for a connection."""
_SWEEP = 0.1
"""Seconds between two looks for connections whose time is over."""
_REPEAT = 60.0
"""Seconds after which it is logged again that connections cannot be accepted."""
_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Limits:
    """A count of connections; seconds for a TLS handshake, from there to the end of the first request's head, for a
    request's body, for TLS's closing alert, and for all that is asked and answered on a connection (`total`).
    `crowded`: how long a silent one is left alone while others wait for a place."""

    connections: int = 1024
    handshake: float = 5.0
    head: float = 5.0
    body: float = 5.0
    goodbye: float = 2.0
    total: float = math.inf
    crowded: float = math.inf


class ConnectionMetrics:
    """The metrics of a listener's connections: how many are open, and each that was closed early (`handshake`, `head`,
    `total` or `crowded`); these methods do nothing with them."""

    def connections(self, count: int) -> None: ...
    def closed(self, reason: str) -> None: ...


@dataclass(eq=False, repr=False)
class Listener:
    """Accepts connections, and has aiohttp's low-level server answer what is asked on them. A full one lets new
    connections wait until another one ends, or was silent for too long."""

    answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
    context: ssl.SSLContext | None
    """None: plain HTTP."""
    limits: Limits
    metrics: ConnectionMetrics

    def __post_init__(self) -> None:
        async def handle_request(request: web.BaseRequest) -> web.StreamResponse:
            self._silent.discard(request.protocol)  # from now on the connection's time is the server's affair
            return await self.answer(request)

        self._server = web.Server(
            handle_request,
            # The work for a client ends with the client.
            handler_cancellation=True,
            access_log=None,
            logger=_SILENT,
            keepalive_timeout=_KEEP_ALIVE,
            # The API server never compresses a review; of others 3 MB can be 3 GB.
            auto_decompress=False,
            # An early answer does not wait for the rest of the body: one without end would hold the connection.
            lingering_time=0.0,
        )
        self._shaking_hands = 0
        self._opened: dict[web.RequestHandler, float] = {}
        # Invariant: when each open connection was ready for a request, the oldest first.
        self._silent: set[object] = set()
        # Invariant: the protocols that have not read a request's head yet.
        self._tasks: set[asyncio.Task[None]] = set()
        self._warnings = Once(_REPEAT)

    async def start(self, bind_address: str) -> tuple[str, int]:
        """Listens on every address of "host:port" (port 0: a free one); returns the first one. Raises BindError."""
        limit = _limit_to_system(self.limits.connections)
        host, port = parse_bind_address(bind_address)
        try:
            listening = await _open_listeners(host, port)
        except OSError as error:
            # asyncio puts its own sentence around the system's; the number is what tells.
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise BindError(f"cannot listen on {bind_address}: {reason}") from error
        bound = listening[0].getsockname()
        for listener in listening:
            self._start(self._accept(listener, limit))
        self._start(self._sweep())
        return bound[0], bound[1]

    async def close(self) -> None:
        """Stops accepting, and drops what has not asked anything yet; what is being answered gets two seconds."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._server.pre_shutdown()
        await self._server.shutdown(2.0)

    async def _accept(self, listening: socket.socket, limit: int) -> None:
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                if self._count() >= limit and not self._make_room():
                    await asyncio.sleep(_FULL)
                    continue
                try:
                    accepted, _ = await loop.sock_accept(listening)
                except OSError as exc:  # out of file descriptors: those that stand have to end first
                    if self._warnings.is_due():  # a flood of connections must not become one of lines
                        log.warning("connections could not be accepted: %s", exc)
                    await asyncio.sleep(_FULL)
                    continue
                self._start(self._serve(accepted))
                await asyncio.sleep(0)  # sock_accept does not wait while there are more

    def _count(self) -> int:
        count = self._shaking_hands + len(self._server.connections)
        self.metrics.connections(count)
        return count

    def _make_room(self) -> bool:
        """Closes a silent connection for one that waits, and reports whether there was one."""
        latest = asyncio.get_running_loop().time() - self.limits.crowded
        oldest = next((protocol for protocol in self._opened if protocol in self._silent), None)
        if oldest is None or self._opened[oldest] > latest:
            return False
        self._drop(oldest, "crowded")
        return True

    async def _serve(self, accepted: socket.socket) -> None:
        protocol, limits, tls = self._server(), self.limits, self.context is not None
        self._shaking_hands += 1
        self._silent.add(protocol)
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                lambda: protocol,
                accepted,
                ssl=self.context,
                ssl_handshake_timeout=limits.handshake if tls else None,
                ssl_shutdown_timeout=limits.goodbye if tls else None,
            )
            self._opened[protocol] = loop.time()
        except (OSError, TimeoutError) as exc:
            self.metrics.closed("handshake")
            log.debug("no TLS handshake: %s", exc or "timed out")
            self._silent.discard(protocol)
        finally:
            self._shaking_hands -= 1

    async def _sweep(self) -> None:
        """Ends the connections whose time is over."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP)
            self._count()
            connected, now = set(self._server.connections), loop.time()
            for protocol, since in list(self._opened.items()):
                if protocol not in connected:
                    self._forget(protocol)
                elif now - since >= self.limits.total:
                    self._drop(protocol, "total")
                elif now - since >= self.limits.head and protocol in self._silent:
                    self._drop(protocol, "head")

    def _drop(self, protocol: web.RequestHandler, reason: str) -> None:
        """Closes a connection early; where there is no hurry with an answer."""
        self._forget(protocol)
        self.metrics.closed(reason)
        transport = protocol.transport
        if transport is None:
            return
        if reason != "head":
            transport.abort()
        elif not transport.is_closing():
            transport.write(_TOO_LATE)
            transport.close()

    def _forget(self, protocol: web.RequestHandler) -> None:
        self._opened.pop(protocol, None)
        self._silent.discard(protocol)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def parse_bind_address(text: str) -> tuple[str, int]:
    """Parses "host:port", ":port" or "[v6]:port" to (host, port), host "" for every interface. Raises BindError."""
    match = re.fullmatch(r"(?:\[(?P<v6>[^]]*)\]|(?P<host>[^:]*)):(?P<port>[0-9]{1,5})", text)
    if match is None or int(match["port"]) > 65535:
        raise BindError(f"{text!r} is not an address to listen on: give host:port or :port")
    return match["v6"] or match["host"] or "", int(match["port"])


def _limit_to_system(connections: int) -> int:
    """Returns the number of connections that leaves half of the process's files (RLIMIT_NOFILE) for everything else."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 2 * connections
    files = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return files // 2


async def _open_listeners(host: str, port: int) -> list[socket.socket]:
    """Returns listening sockets on every address of a host; all of them on one port. Raises OSError."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, host or None, port, backlog=_BACKLOG, start_serving=False)
    try:
        sockets = [listener.dup() for listener in server.sockets]
    finally:
        server.close()
    for listener in sockets:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _AT_ONCE)  # accepted ones have it too
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    return sockets
