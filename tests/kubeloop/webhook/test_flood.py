"""Clients that mean no good, and what each of them costs the others (test_under_attack.py: five hundred of them)."""

import asyncio
import errno
import resource
import socket
from asyncio import sslproto
from collections.abc import Callable, Coroutine

import pytest
from aiohttp import web

from kubeloop.controllers.listener import Limits, _limit_to_system
from kubeloop.testing.polling import until
from kubeloop.testing.virtual_time import now
from kubeloop.webhook.admission import ALLOW, AdmissionRequest, Decision
from tests.decisions import sentences
from tests.kubeloop.webhook.listening import HEAD, REVIEW, Peer, allow, listening

pytestmark = pytest.mark.virtual_time

LAST = HEAD + b"Connection: close\r\n"
DEEP = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","object":'


async def _dribbles(peer: Peer, content: bytes, *, tls: bool = True) -> bytes:
    reader, writer = await peer.connect(tls=tls)
    try:
        for byte in content:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.1)
            if reader.at_eof():
                break
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def _sends(content: bytes) -> Callable[[Peer], Coroutine[None, None, bytes]]:
    return lambda peer: peer.send(content)


def _review(body: bytes, head: bytes = LAST) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


ATTACKS: dict[str, tuple[Callable[[Peer], Coroutine[None, None, bytes]], set[bytes]]] = {
    "no TLS handshake": (lambda peer: _dribbles(peer, b"", tls=False), {b""}),
    "no head": (_sends(b""), {b"408"}),
    "half a head": (_sends(HEAD), {b"408"}),
    "a head byte by byte": (lambda peer: _dribbles(peer, HEAD * 3), {b"408", b""}),
    "a body byte by byte": (
        lambda peer: _dribbles(peer, HEAD[:-2] + b"\r\nContent-Length: 100\r\n\r\n{{{{{{{{{{{{{"), {b"408", b""}
    ),
    "half a body": (_sends(HEAD + b"Content-Length: 1000000\r\n\r\n{"), {b"408"}),
    "an endless head": (_sends(HEAD + b"X: " + b"x" * 20000), {b"400", b""}),
    "what is no HTTP": (_sends(b"\x16\x03\x01 hello\r\n\r\n"), {b"400"}),
    "a length that is no number": (_sends(HEAD + b"Content-Length: x\r\n\r\n"), {b"400"}),
    "too large": (_sends(HEAD + b"Content-Length: 99999999\r\n\r\n" + b" " * 2_000_000), {b"413", b""}),
    "a byte a chunk": (_sends(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 100_000), {b"411", b""}),
    "whatever is in chunks": (
        _sends(LAST + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(REVIEW), REVIEW)), {b"411"}
    ),
    "malformed": (_sends(_review(b"{")), {b"400"}),
    "forged": (_sends(_review(REVIEW)), {b"200"}),
    "deep JSON": (_sends(_review(DEEP + b"[" * 10000 + b"]" * 10000 + b"}}")), {b"200"}),
    "another type of content": (_sends(_review(REVIEW, LAST.replace(b"application/json", b"text/plain"))), {b"415"}),
}  # fmt: skip
"""And the status of the answer; none where more is sent than is read."""


@sentences(ATTACKS)
async def test_each_is_answered_or_closed_and_costs_the_others_nothing(
    case: tuple[Callable[[Peer], Coroutine[None, None, bytes]], set[bytes]],
) -> None:
    attack, statuses = case
    async with listening({"/allow": allow}) as peer:
        attacks = [asyncio.create_task(attack(peer)) for _ in range(20)]
        await asyncio.sleep(0.05)
        assert (await asyncio.wait_for(peer.post("/allow"), 2))[0] == 200
        assert {answer[9:12] for answer in await asyncio.wait_for(asyncio.gather(*attacks), 5)} <= statuses
        assert (await peer.post("/allow"))[0] == 200


@pytest.mark.parametrize(
    "content",
    [
        HEAD + b"Content-Length: 99999999\r\n\r\n" + b" " * 16_000_000,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 400_000,
    ],
    ids=["too large", "a byte a chunk"],
)
async def test_what_comes_after_a_refusal_is_not_read(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    read, take = 0, web.RequestHandler.data_received

    def count(handler: web.RequestHandler, data: bytes) -> None:
        nonlocal read
        read += len(data)
        take(handler, data)

    monkeypatch.setattr(web.RequestHandler, "data_received", count)
    async with listening({"/allow": allow}) as peer:
        # It is closed while more is on its way.
        assert (await peer.send(content))[:11] in (b"HTTP/1.1 41", b"")
    assert read < 256 * 1024 < len(content)


async def test_where_a_connection_cannot_be_accepted_the_next_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    accept, failures = loop.sock_accept, [OSError(errno.EMFILE, "too many open files")]

    async def fail_once(listening: socket.socket) -> object:
        if failures:
            raise failures.pop()
        return await accept(listening)

    monkeypatch.setattr(loop, "sock_accept", fail_once)
    async with listening({"/allow": allow}) as peer:
        assert (await peer.post("/allow"))[0] == 200
    assert not failures


async def test_over_the_limit_connections_wait_until_silent_ones_end() -> None:
    limits = Limits(connections=20, handshake=0.5, head=0.5)
    async with listening({"/allow": allow}, limits=limits) as peer:
        await until(lambda: peer.recorded.open == 0)
        proven = await peer.connect()
        await ask(*proven)
        silent = [await peer.connect(tls=False) for _ in range(30)]
        await until(lambda: peer.recorded.open == 20)
        await asyncio.sleep(0.2)
        assert peer.recorded.open == 20
        silent += [await peer.connect() for _ in range(5)]
        await asyncio.wait_for(peer.post("/allow"), 5)
        for reader, _ in silent:
            await asyncio.wait_for(reader.read(), 5)
        await ask(*proven)
        for _, writer in [proven, *silent]:
            writer.close()


@pytest.mark.parametrize("with_tls", [True, False], ids=["after the handshake", "before it"])
async def test_a_silent_connection_ends(with_tls: bool) -> None:
    limits = Limits()
    assert limits.handshake + limits.head + limits.goodbye <= 15
    async with listening({"/allow": allow}, limits=Limits(handshake=0.3, head=0.3, goodbye=0.1)) as peer:
        reader, writer = await peer.connect(tls=with_tls)
        began = now()
        await reader.read()
        assert 0.2 < now() - began < 1.0
        assert peer.recorded.early == {"head" if with_tls else "handshake": 1}
        writer.close()


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "connections"),
    [
        (1024, 4096, 2048, 1024),
        (1024, -1, 2048, 1024),
        (256, 1000, 1000, 500),
        (2048, 4096, None, 1024),
        (-1, -1, None, 1024),
    ],
)
async def test_there_may_be_as_many_connections_as_files(
    soft: int, hard: int, raised: int | None, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And half of the process's files stay for everything else; -1 is without a limit."""
    sizes: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: sizes.append(limits))
    assert _limit_to_system(1024) == connections
    assert sizes == ([(raised, hard)] if raised else [])


async def test_other_tls_connections_of_the_process_are_not_changed() -> None:
    """The API client's connections read in pieces of this size."""
    async with listening({"/allow": allow}) as peer:
        assert (await peer.post("/allow"))[0] == 200
        assert sslproto.SSLProtocol.max_size == 256 * 1024


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str = "") -> None:
    writer.write(_review(REVIEW, HEAD.replace(b"/allow", f"/allow/{key}".encode()) if key else HEAD))
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r")[0]))


async def test_work_ends_with_its_client() -> None:
    end = asyncio.Event()

    async def for_ever(_: AdmissionRequest) -> Decision:
        try:
            await asyncio.Event().wait()
        finally:
            end.set()
        return ALLOW

    async with listening({"/allow": for_ever}) as peer:
        _, writer = await peer.connect()
        writer.write(_review(REVIEW))
        await asyncio.sleep(0.1)
        writer.close()
        await asyncio.wait_for(end.wait(), 2)
