"""Sessions of aiohttp for the API server, threads for what must not wait for others, an answer's warnings and time."""

import asyncio
import contextlib
import inspect
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final, TypeVar

import aiohttp
from aiohttp import BytesPayload
from aiohttp.abc import AbstractStreamWriter

from kubeloop.client.errors import ApiError
from kubeloop.logs import Once

log = logging.getLogger(__name__)
T = TypeVar("T")
_KEEP_ALIVE: Final = 60.0
_READ_BUFFER: Final = 512 * 1024
_HEADER: Final = 10 * 1024 * 1024
"""Bytes of an answer's head: Go's transport reads as many. aiohttp refuses what is longer than 8 KiB, warnings for
instance, when the server has already done what was asked."""
_HEAD_LIMITS: Final = {"max_line_size": _HEADER, "max_field_size": _HEADER, "max_headers": 100_000}
_SILENCE: Final = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}
"""TCP's options, where the platform has them: 35 seconds after the peer has vanished a connection is known to be dead,
whether it was idle (15 s, then a probe each 5 s) or something was sent and not confirmed (30 s, in milliseconds).
client-go needs 30 and 45 s, by HTTP/2's pings."""


def open_session(headers: Mapping[str, str], connections: int) -> aiohttp.ClientSession:
    """A session with `connections` at most, 0: without a limit."""
    parameters = inspect.signature(aiohttp.ClientSession).parameters
    limits: dict[str, Any] = {name: value for name, value in _HEAD_LIMITS.items() if name in parameters}
    resolver = aiohttp.ThreadedResolver(_Lookups())  # type: ignore[arg-type]
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=connections, keepalive_timeout=_KEEP_ALIVE, resolver=resolver, socket_factory=_open_socket
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=headers,
        read_bufsize=_READ_BUFFER,
        **limits,
    )
    # aiohttp sends a DELETE or PUT again by itself when a connection breaks: that is for RetryPolicy to decide.
    session._retry_connection = False
    return session


def _open_socket(address: tuple[Any, ...]) -> socket.socket:
    opened = socket.socket(*address[:3])
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _SILENCE.items():
        if (option := getattr(socket, name, None)) is not None:
            with contextlib.suppress(OSError):
                opened.setsockopt(socket.IPPROTO_TCP, option, value)
    return opened


BeforeWrite = Callable[[], None]
"""Raises ApiError where a write must not be sent (any more)."""


class GuardedBody(BytesPayload):
    """Asks `before_write` in the step of the loop in which the body goes to the socket: the loop may wait for long
    before, for a token, a connection, a TLS handshake, or because the process was stopped. aiohttp holds the headers
    back until the body's first byte, so a write that is refused here leaves no trace on the wire."""

    def __init__(self, body: bytes, before_write: BeforeWrite) -> None:
        super().__init__(body)
        self._before_write = before_write
        self.refused: ApiError | None = None

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        try:
            self._before_write()
        except ApiError as err:
            self.refused = err
            raise
        await super().write_with_length(writer, content_length)


class _Lookups:
    """A loop's lookups of names, in threads of their own."""

    async def getaddrinfo(self, host: str, port: int, **options: Any) -> Any:
        return await in_own_thread(partial(socket.getaddrinfo, host, port, **options))

    async def getnameinfo(self, address: Any, flags: int) -> Any:
        return await in_own_thread(socket.getnameinfo, address, flags)


class _OwnThreads(Executor):
    """A thread for each call, and none for the process's end to wait for. The loop's default executor has a few, and
    programs are told to put what blocks there: behind that a renewal of the lease would wait for a token, or a name."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # who waits may be cancelled, the call may not

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as err:
                future.set_exception(err)

        threading.Thread(target=run, name="kubeloop client", daemon=True).start()
        return future


async def in_own_thread(work: Callable[..., T], *args: Any) -> T:
    """The result of a call that blocks; raises what it raises."""
    return await asyncio.get_running_loop().run_in_executor(_OwnThreads(), work, *args)


_WARNING: Final = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
_OBJECT: Final = re.compile(r"^(/api/[^/]+|/apis/[^/]+/[^/]+)(?:/namespaces/[^/]+(?=/.))?/([^/]+)(?:/[^/]+(/[^/]+)?)?$")
"""Prefix, plural and subresource of a path; without the namespace and the name, which are the tenants'."""
_logged: Final = Once(60.0)


def log_warnings(method: str, path: str, headers: Iterable[str]) -> None:
    """Logs each warning of an answer (RFC 7234 §5.5), for the program's author: once a minute for kind and method."""
    for header in headers:
        for text in _WARNING.findall(header):
            match = _OBJECT.search(path)
            warned = method, f"{match[1]}/{match[2]}{match[3] or ''}" if match else path, text.replace('\\"', '"')
            if _logged.is_due(*warned):
                log.warning("%s %s: the API server warns: %s", *warned)


_SLACK = 2.0
"""Seconds: the Date header has whole ones, and an answer takes a while."""


class ServerClock:
    """Seconds since 1970 by the API server's clock, which creationTimestamps are of: the Date header of an answer, plus
    monotonic time since. At most a second behind, and closer with every answer; never ahead by more than two. Before
    the first answer, or where a proxy removes the header, it is this machine's clock as it was at the start."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._monotonic = monotonic
        self._offset = wall() - monotonic()
        self._last_date = ""

    def __call__(self) -> float:
        return self._monotonic() + self._offset

    def heard(self, date: str) -> None:
        if date == self._last_date:
            return  # the first answer of a second tells most
        self._last_date = date
        with contextlib.suppress(ValueError, OverflowError):
            least = parsedate_to_datetime(date).timestamp() - self._monotonic()
            if not least <= self._offset <= least + _SLACK:
                self._offset = least
