"""Requests against a scripted server: what is sent, what is retried, what each failure becomes."""

import asyncio
import contextlib
import gzip
import os
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import REGISTRY

from kubeloop.api.registry import PODS
from kubeloop.client import errors, resource_reader
from kubeloop.client import transport as transport_module
from kubeloop.client.config import ClientConfig
from kubeloop.client.credentials import Credential
from kubeloop.client.resource_client import ResourceClient
from kubeloop.client.retry import NotSent
from kubeloop.client.tls import TLSSettings
from kubeloop.client.transport import MERGE_PATCH
from kubeloop.testing.scripted_server import (
    DELETE,
    GET,
    PATCH,
    POST,
    PUT,
    WATCH,
    LiveWatch,
    Reply,
    body,
    cut,
    raw,
    refuse,
    silent,
    status,
    watch,
)
from kubeloop.testing.scripted_steps import drop, hang, line, piece
from tests.kubeloop.client.rig import PATH, WATCHED, TransportRig, read_stream

pytestmark = pytest.mark.virtual_time

OK = body({"ok": True})
BUSY = status(429, "TooManyRequests")
AWAY = status(503, "ServiceUnavailable")


@dataclass(frozen=True)
class Retried:
    name: str
    verb: str
    replies: list[Reply]
    requests: int
    error: type[Exception] | None = None
    content_type: str = "application/json"
    repeatable: bool | None = None


RETRIED = [
    Retried("a get whose connection is reset is sent again", GET, [refuse(), OK], 2),
    Retried("a get whose answer breaks off is sent again", GET, [cut(b'{"a"', 100), OK], 2),
    Retried("a 500 without Retry-After is not", GET, [status(500, "InternalError")], 1, errors.ServerError),
    Retried("a 409 is final", PATCH, [status(409, "Conflict")], 1, errors.Conflict, content_type=MERGE_PATCH),
    Retried("a 401 with a fixed token is final", GET, [status(401, "Unauthorized")], 1, errors.Unauthorized),
    Retried("a redirect is not followed", GET, [raw(b"", 302, {"Location": "/login"})], 1, errors.ApiError),
    Retried("after five attempts the last error is raised", GET, [AWAY] * 5, 5, errors.ServiceUnavailable),
    Retried("a create that is throttled is not", POST, [BUSY], 1, errors.TooManyRequests),
    Retried("a create whose answer was lost is not", POST, [refuse()], 1, errors.Unreachable),
    Retried("a create whose answer was cut off is not", POST, [cut(b"{", 9)], 1, errors.Unreachable),
    Retried("a merge patch whose answer was lost is not", PATCH, [refuse()], 1, errors.Unreachable),
    Retried("a delete whose answer was lost is not", DELETE, [refuse()], 1, errors.Unreachable),
    Retried("a put whose answer was lost is not", PUT, [refuse()], 1, errors.Unreachable),
    Retried("a write with a precondition is", PATCH, [refuse(), AWAY, BUSY, OK], 4, repeatable=True),
]


@pytest.mark.parametrize("case", RETRIED, ids=lambda c: c.name)
async def test_what_is_sent_again(rig: TransportRig, case: Retried) -> None:
    rig.server.script(case.verb, PATH, *case.replies)
    sent = b"{}" if case.verb not in (GET, DELETE) else None
    request = rig.transport.request(
        case.verb, PATH, body=sent, content_type=case.content_type, repeatable=case.repeatable
    )
    if case.error:
        with pytest.raises(case.error) as caught:
            await request
        assert type(caught.value) is case.error
    else:
        assert await request == b'{"ok": true}'
    assert len(rig.server.seen(case.verb, PATH)) == case.requests
    assert len(rig.sleeps) == case.requests - 1


async def test_without_retry_one_request_is_all(rig: TransportRig) -> None:
    rig.server.always(GET, PATH, AWAY)
    with pytest.raises(errors.ServiceUnavailable):
        await rig.transport.request("GET", PATH, retry=False)
    assert len(rig.server.requests) == 1


async def test_a_closed_port_is_unreachable_and_names_the_host(rig: TransportRig) -> None:
    await rig.server.stop()
    with pytest.raises(errors.Unreachable) as caught:
        await rig.transport.request("POST", PATH, body=b"{}")
    assert str(caught.value) == f"{rig.server.url} can't be reached: connection refused"
    assert caught.value.status == 0
    assert len(rig.sleeps) == 4, "even a create is tried again: it was never sent"


async def test_an_unknown_host_is_unreachable(rig: TransportRig) -> None:
    transport = rig.new_transport(ClientConfig("http://no-such-host.invalid"))
    with pytest.raises(NotSent, match=r"^http://no-such-host\.invalid can't be reached: \w"):
        await transport.request("GET", PATH)


async def test_no_answer_in_the_time_of_one_attempt_is_unreachable(rig: TransportRig) -> None:
    rig.server.script(GET, PATH, silent(), silent(), OK)
    with pytest.raises(errors.Unreachable, match="connection lost: timed out"):
        await rig.transport.request("GET", PATH, timeout=0.05, retry=False)
    assert await rig.transport.request("GET", PATH, timeout=0.2) == b'{"ok": true}'


async def test_a_server_that_never_shakes_hands_is_given_up(rig: TransportRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport_module, "CONNECT_TIMEOUT", 0.1)

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent_server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    async with silent_server:
        port = silent_server.sockets[0].getsockname()[1]
        transport = rig.new_transport(ClientConfig(f"https://127.0.0.1:{port}", tls=TLSSettings(verify=False)))
        with pytest.raises(NotSent, match=f"^https://127.0.0.1:{port} can't be reached: timed out$"):
            await transport.request("GET", PATH, retry=False)


async def test_a_request_after_the_end_is_an_api_error(rig: TransportRig) -> None:
    rig.server.always(GET, PATH, silent())
    running = asyncio.create_task(rig.transport.request("GET", PATH))
    await rig.server.wait_seen(GET, PATH)
    await rig.transport.close()
    for request in (running, rig.transport.request("GET", PATH)):
        with pytest.raises(errors.Unreachable):
            await request
    with pytest.raises(errors.Unreachable, match="the client is closed"):
        await read_stream(rig.transport)
    assert len(rig.server.requests) == 1


async def test_a_cancelled_request_stays_cancelled(rig: TransportRig) -> None:
    rig.server.always(GET, PATH, silent())
    task = asyncio.create_task(rig.transport.request("GET", PATH))
    await rig.server.wait_seen(GET, PATH)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(rig.server.requests) == 1


async def test_what_goes_over_the_wire(rig: TransportRig) -> None:
    rig.server.always(PATCH, PATH, OK)
    params = {"labelSelector": "a=b,c in (d,e)", "continue": "x+/=&"}
    await rig.transport.request("PATCH", PATH, params=params, body=b'{"a":1}', content_type=MERGE_PATCH)
    request = rig.server.requests[0]
    assert request.query == params
    assert request.body == b'{"a":1}'
    assert request.headers["Content-Type"] == MERGE_PATCH
    assert request.headers["Accept"] == "application/json"
    assert request.headers["User-Agent"] == os.path.basename(sys.argv[0]), "the program's name"
    assert request.headers["Accept-Encoding"] == "gzip"
    assert "Authorization" not in request.headers


@pytest.mark.parametrize("method", [GET, POST, PATCH, PUT, DELETE])
async def test_a_strict_client_has_its_writes_validated_strictly(rig: TransportRig, method: str) -> None:
    rig.server.always(method, PATH, OK)
    strict = rig.new_transport(rig.server.config(), strict=True)
    await strict.request(method, PATH, params={"a": "b"}, body=b"{}")
    params = {} if method in (GET, DELETE) else {"fieldValidation": "Strict"}
    assert rig.server.requests[0].query == {"a": "b"} | params


async def test_a_kubeconfig_may_ask_for_uncompressed_answers(rig: TransportRig) -> None:
    rig.server.always(GET, PATH, OK)
    await rig.new_transport(rig.server.config(compression=False)).request("GET", PATH)
    assert rig.server.requests[0].headers["Accept-Encoding"] == "identity"


async def test_a_path_prefix_is_kept(rig: TransportRig) -> None:
    rig.server.always(GET, f"/k8s/clusters/c-1{PATH}", OK)
    transport = rig.new_transport(ClientConfig(f"{rig.server.url}/k8s/clusters/c-1"))
    assert await transport.request("GET", PATH) == b'{"ok": true}'


async def test_a_compressed_answer_may_be_large(rig: TransportRig) -> None:
    content = b"[" + b"1," * (40 * 1024 * 1024) + b"1]"
    rig.server.always(GET, PATH, raw(gzip.compress(content, 1), 200, {"Content-Encoding": "gzip"}))
    assert await rig.transport.request("GET", PATH) == content


async def test_a_compressed_answer_that_is_broken_is_unreachable(rig: TransportRig) -> None:
    rig.server.always(GET, PATH, raw(b"no gzip at all", 200, {"Content-Encoding": "gzip"}))
    with pytest.raises(errors.Unreachable, match="connection lost"):
        await rig.transport.request("GET", PATH)


async def test_one_connection_serves_many_requests(rig: TransportRig) -> None:
    peers: set[Any] = set()

    async def note_peer(request: web.Request) -> web.StreamResponse:
        peers.add(request.transport.get_extra_info("peername") if request.transport else None)
        return web.json_response({})

    rig.server.always(GET, PATH, note_peer)
    for _ in range(5):
        await rig.transport.request("GET", PATH)
    assert len(peers) == 1


class Tokens:
    """Credentials whose token changes with each refresh."""

    def __init__(self) -> None:
        self.credentials = [Credential("Bearer t1")]

    async def get(self, *, refresh: bool = False) -> Credential:
        if refresh:
            self.credentials.append(Credential(f"Bearer t{len(self.credentials) + 1}"))
        return self.credentials[-1]


async def test_a_refused_token_is_renewed_once(rig: TransportRig) -> None:
    rig.server.script(GET, PATH, status(401, "Unauthorized"), OK)
    transport = rig.new_transport(rig.server.config(credentials=Tokens()))
    assert await transport.request("GET", PATH) == b'{"ok": true}'
    assert [r.headers["Authorization"] for r in rig.server.requests] == ["Bearer t1", "Bearer t2"]
    assert rig.sleeps == []


async def test_a_token_that_stays_refused_is_unauthorized(rig: TransportRig) -> None:
    rig.server.always(GET, PATH, status(401, "Unauthorized"))
    transport = rig.new_transport(rig.server.config(credentials=Tokens()))
    with pytest.raises(errors.Unauthorized):
        await transport.request("GET", PATH)
    assert len(rig.server.requests) == 2


async def test_requests_are_counted_by_code_and_timed(rig: TransportRig) -> None:
    host = f"127.0.0.1:{rig.server.port}"
    labels = [{"code": code, "method": "GET", "host": host} for code in ("503", "<error>", "200")]
    series = [("rest_client_requests_total", its) for its in labels]
    series.append(("rest_client_request_duration_seconds_count", {"verb": "GET", "host": host}))

    def values() -> list[float]:
        return [REGISTRY.get_sample_value(*sample) or 0.0 for sample in series]

    old_values = values()
    rig.server.script(GET, PATH, AWAY, refuse(), OK)
    await rig.transport.request("GET", PATH)
    assert [new - old for new, old in zip(values(), old_values, strict=True)] == [1.0, 1.0, 1.0, 3.0]


async def test_watches_do_not_use_up_the_requests_connections(rig: TransportRig) -> None:
    rig.server.always(WATCH, PATH, watch(hang()))
    rig.server.always(GET, PATH, OK)
    async with contextlib.AsyncExitStack() as open_watches:
        for _ in range(120):
            await open_watches.enter_async_context(rig.transport.stream(PATH, WATCHED))
        assert await rig.transport.request("GET", PATH, timeout=2.0, retry=False) == b'{"ok": true}'


async def drip(request: web.Request) -> web.StreamResponse:
    """An answer that takes 0.6 s, and never 0.2 s for a byte."""
    response = web.StreamResponse()
    await response.prepare(request)
    for _ in range(12):
        await response.write(b" ")
        await asyncio.sleep(0.05)
    return response


async def test_a_slow_list_is_not_a_failed_list(rig: TransportRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_reader, "REQUEST_TIMEOUT", 0.2)
    pods = ResourceClient(rig.transport, PODS)

    async def slowly(request: web.Request) -> web.StreamResponse:
        response = await drip(request)
        await response.write(b'{"metadata":{"resourceVersion":"1"},"items":[]}')
        return response

    rig.server.script(GET, PATH, slowly, silent())
    assert (await pods.list_page()).metadata.resource_version == "1"
    with pytest.raises(errors.Unreachable, match="timed out"):
        await pods.list_page(retry=False)


async def test_a_stream_that_ends_properly_gives_its_lines(rig: TransportRig) -> None:
    rig.server.script("WATCH", PATH, watch(line(b"one"), piece(b"tw"), 0.01, line(b"o"), line(b""), line(b"3")))
    assert await read_stream(rig.transport) == [b"one", b"two", b"3"]


@dataclass(frozen=True)
class BrokenStream:
    name: str
    reply: Reply
    lines: list[bytes]
    message: str


BROKEN = [
    BrokenStream("a reset between lines", watch(line(b"a"), drop()), [b"a"], "connection lost"),
    BrokenStream("a reset within a line", watch(line(b"a"), piece(b"b"), drop()), [b"a"], "connection lost"),
    BrokenStream("an end within a line", watch(line(b"a"), piece(b"b")), [b"a"], "in the middle of a line"),
    BrokenStream("no answer", refuse(), [], "connection lost"),
    BrokenStream("silence after a line", watch(line(b"a"), hang()), [b"a"], "connection lost: timed out"),
    BrokenStream("silence from the start", watch(hang()), [], "connection lost: timed out"),
    BrokenStream("silence within a line", watch(piece(b"a"), hang()), [], "connection lost: timed out"),
]


@pytest.mark.parametrize("case", BROKEN, ids=lambda c: c.name)
async def test_a_broken_stream_is_unreachable_after_its_whole_lines(rig: TransportRig, case: BrokenStream) -> None:
    rig.server.script("WATCH", PATH, case.reply)
    got: list[bytes] = []
    with pytest.raises(errors.Unreachable, match=case.message) as caught:
        await read_stream(rig.transport, 0.15, got)
    assert got == case.lines
    assert rig.server.url in str(caught.value)


async def test_a_stream_that_speaks_now_and_then_stays_open(rig: TransportRig) -> None:
    rig.server.script("WATCH", PATH, watch(0.1, line(b"a"), 0.1, line(b"a"), 0.1, line(b"a"), 0.1, line(b"a")))
    assert await read_stream(rig.transport, read_timeout=0.3) == [b"a"] * 4


async def test_a_refused_stream_raises_on_entry_and_is_not_retried(rig: TransportRig) -> None:
    rig.server.script("WATCH", PATH, status(503, "ServiceUnavailable", retry_after=0))
    with pytest.raises(errors.ServiceUnavailable):
        await read_stream(rig.transport)
    assert len(rig.server.requests) == 1
    assert rig.sleeps == []


async def test_leaving_a_stream_closes_its_connection(rig: TransportRig) -> None:
    live = LiveWatch()
    rig.server.script("WATCH", PATH, live.reply)
    async with rig.transport.stream(PATH, WATCHED) as lines:
        live.send(line(b"a"))
        assert await anext(lines) == b"a"
    await asyncio.wait_for(live.closed.wait(), 2.0)


async def test_an_error_of_the_reader_is_left_alone(rig: TransportRig) -> None:
    rig.server.script("WATCH", PATH, watch(line(b"a"), hang()))

    async def read_for_a_moment() -> None:
        async with rig.transport.stream(PATH, WATCHED) as lines, asyncio.timeout(0.05):
            async for _ in lines:
                pass

    with pytest.raises(TimeoutError) as caught:
        await read_for_a_moment()
    assert not isinstance(caught.value, errors.ApiError)
