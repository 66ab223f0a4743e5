"""Clients that open the health and metrics port and mean no good: probes and scrapes are answered all the same."""

import asyncio
import errno
import logging
import socket

import aiohttp
import pytest

from kubeloop.controllers.server import LIMITS
from kubeloop.testing.polling import until
from kubeloop.testing.virtual_time import now
from tests.decisions import sentences
from tests.kubeloop.controllers.test_server import Checks, get, serving

pytestmark = pytest.mark.virtual_time

MANY = 3 * LIMITS.connections

CONTENT: dict[str, bytes] = {
    "silent from the start": b"",
    "silent in the middle of a head": b"GET /metrics HTTP/1.1\r\nHost: x\r\nX: ",
    "silent after a request": b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "silent in the middle of a body": b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n{",
    "no HTTP": b"\x16\x03\x01 hello\r\n\r\n",
    "a body in a GET": b"GET /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n",
}


@sentences(CONTENT)
async def test_a_probe_is_answered_at_once_among_connections_that(case: bytes) -> None:
    async with serving(Checks(), "127.0.0.1:0") as server:
        (address,) = server.addresses
        streams = [await asyncio.open_connection(*address) for _ in range(MANY)]
        for _, writer in streams:
            writer.write(case)
        began = now()
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await asyncio.wait_for(get(address, path), 2))[0] == 200
        # Each of the kubelet's probes has a second at least.
        assert now() - began < 1.0
        for _, writer in streams:
            writer.close()


async def test_a_silent_connection_is_told_and_closed() -> None:
    async with serving(Checks(), "127.0.0.1:0") as server:
        reader, writer = await asyncio.open_connection(*server.addresses[0])
        began = now()
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        assert LIMITS.head <= now() - began < LIMITS.head + 0.5
        writer.close()


async def test_who_takes_no_answer_is_closed() -> None:
    """More than what the system keeps for a peer that does not read."""
    checks = Checks(waiting=["x" * 1000] * 20_000)
    async with serving(checks, "127.0.0.1:0") as server:
        with socket.create_connection(server.addresses[0]) as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
            listener = server._listeners[0]
            await until(lambda: listener._count() == 1)
            began = now()
            await until(lambda: listener._count() == 0, seconds=30)
            assert now() - began < LIMITS.total + 1


async def test_refused_connections_are_one_line_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio's own servers write a traceback for each attempt."""
    loop = asyncio.get_running_loop()
    caplog.set_level(logging.DEBUG)

    async def fail(listening: socket.socket) -> object:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(loop, "sock_accept", fail)
    async with serving(Checks(), "127.0.0.1:0"):
        await asyncio.sleep(50)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("kubeloop")]
    assert lines == ["connections could not be accepted: [Errno 24] too many open files"]


@pytest.mark.parametrize(("method", "path", "status"), [("POST", "/healthz", 405), ("HEAD", "/healthz", 200)])
async def test_other_methods(method: str, path: str, status: int) -> None:
    async with (
        serving(Checks(), "127.0.0.1:0") as server,
        aiohttp.ClientSession() as session,
        session.request(method, "http://{}:{}{}".format(*server.addresses[0], path)) as answer,
    ):
        assert (answer.status, answer.headers["Connection"]) == (status, "close")
