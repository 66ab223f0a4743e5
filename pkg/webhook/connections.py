"""Connections of the listener: how many there may be, and how long each may take.

An address can be the API server's and an attacker's at once (a node, a proxy), so what is over the limit is not simply
turned away: the connection that was used least recently gives way, and one on which the API server has asked only if
there is no other. A connection that a review is being answered on is never closed, one whose review is still to come
is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace

from kubeloop.metrics import LateGauge
from pkg.util.metrics import METRICS

log = logging.getLogger(__name__)

_PACE = 0.002
"""Seconds from one handshake to the next: a burst of them must not hold up reviews on connections that stand."""

OPEN = LateGauge(METRICS["headroom_webhook_connections"])
CLOSED = METRICS["headroom_webhook_connections_closed_total"].counter()


@dataclass(frozen=True, slots=True)
class Limits:
    """Counts of connections; seconds for a TLS handshake, a request's head, its body."""

    connections: int = 1024
    per_source: int = 512
    handshake: float = 5.0
    head: float = 5.0
    body: float = 5.0


@dataclass(eq=False, slots=True)
class Connection:
    """One accepted socket. `transport` is None until the handshake is done."""

    source: str
    socket: socket.socket
    transport: asyncio.BaseTransport | None = None
    proven: bool = False
    """A request on it is known to be the API server's."""
    busy: bool = False
    """A review that has come in whole is being answered on it."""

    def abort(self) -> None:
        """Close it without an answer."""
        if isinstance(self.transport, asyncio.Transport):
            self.transport.abort()
        else:
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)


class Acceptor:
    """Accepts connections on listening sockets and hands each, once TLS is set up, to a protocol of `factory`."""

    def __init__(
        self,
        factory: Callable[[Connection], asyncio.Protocol],
        context: ssl.SSLContext | None,
        limits: Limits,
    ) -> None:
        self._factory = factory
        self._context = context
        self._limits = limits
        self._connections: dict[Connection, None] = {}
        # Invariant: every socket that is open, the least recently used first.
        self._per_source: Counter[str] = Counter()
        self._waiting: dict[Connection, asyncio.Event] = {}
        # Whose handshake is still to begin, the newest last.
        self._is_pausing = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._listening: list[socket.socket] = []

    def listen(self, sockets: list[socket.socket]) -> None:
        """Start to accept."""
        self._limits = _within_the_systems(self._limits)
        self._listening = sockets
        for each in sockets:
            each.setblocking(False)
            self._start(self._accept(each))

    async def close(self) -> None:
        """Stop accepting. Open connections are left to their protocols."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for each in self._listening:
            each.close()
        self._listening = []

    def lost(self, connection: Connection) -> None:
        """Forget a connection that was closed."""
        if connection in self._connections:
            del self._connections[connection]
            self._per_source[connection.source] -= 1
            if not self._per_source[connection.source]:
                del self._per_source[connection.source]
            OPEN.set(len(self._connections))

    def used(self, connection: Connection) -> None:
        """A request on it was answered."""
        if connection in self._connections:
            del self._connections[connection]
            self._connections[connection] = None

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError as exc:  # out of file descriptors: those that stand have to end first
                log.warning("a connection could not be accepted: %s", exc)
                await asyncio.sleep(0.1)
                continue
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(str(address[0]), accepted)
            if not self._make_room(connection.source):
                CLOSED.labels("limit").inc()
                accepted.close()
                continue
            self._connections[connection] = None
            self._per_source[connection.source] += 1
            OPEN.set(len(self._connections))
            self._start(self._shake_hands(connection))
            await asyncio.sleep(0)  # sock_accept does not wait while there are more

    def _make_room(self, source: str) -> bool:
        """Whether one more may be accepted; another one goes for it."""
        if self._per_source[source] >= self._limits.per_source:
            return self._evict(source)
        if len(self._connections) >= self._limits.connections:
            return self._evict("")
        return True

    def _evict(self, source: str) -> bool:
        victim = None
        for each in self._connections:
            if not each.busy and source in ("", each.source):
                if not each.proven:
                    victim = each
                    break
                victim = victim or each
        if victim is None:
            return False
        CLOSED.labels("limit").inc()
        victim.abort()
        self.lost(victim)
        return True

    async def _shake_hands(self, connection: Connection) -> None:
        loop, begun = asyncio.get_running_loop(), False
        try:
            async with asyncio.timeout(self._limits.handshake):
                await _first_byte(connection.socket)
                await self._turn(connection)
                begun = True
                await loop.connect_accepted_socket(
                    lambda: self._factory(connection), connection.socket, ssl=self._context
                )
        except BaseException as exc:
            connection.abort()
            if not begun:
                connection.socket.close()  # later asyncio does: a transport may still use the file descriptor
            self.lost(connection)
            if not isinstance(exc, OSError | TimeoutError):
                raise
            CLOSED.labels("handshake").inc()
            log.debug("no TLS handshake with %s: %s", connection.source, exc or "timed out")

    async def _turn(self, connection: Connection) -> None:
        """Handshakes begin one after the other, the newest client's first: in a flood the oldest have given up."""
        turn = self._waiting[connection] = asyncio.Event()
        if not self._is_pausing:
            self._next_turn()
        try:
            await turn.wait()
        finally:
            self._waiting.pop(connection, None)

    def _next_turn(self) -> None:
        self._is_pausing = bool(self._waiting)
        if self._waiting:
            self._waiting.popitem()[1].set()
            asyncio.get_running_loop().call_later(_PACE, self._next_turn)

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _within_the_systems(limits: Limits) -> Limits:
    """Half of the process's files stay for everything else: the usual soft limit is as many as the connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * limits.connections
    files = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return replace(limits, connections=files // 2)


async def _first_byte(client: socket.socket) -> None:
    """Until something has come: a silent client costs no handshake, and keeps none waiting. Raises OSError when the
    connection has ended."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(client, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(client)
    if not client.recv(1, socket.MSG_PEEK):
        raise ConnectionResetError("closed")
