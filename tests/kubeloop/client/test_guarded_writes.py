"""Writes that are asked about when their bytes leave."""

import asyncio

import pytest

from kubeloop.client import transport as transport_module
from kubeloop.client.errors import ApiError, Unreachable
from kubeloop.testing.scripted_server import DELETE, GET, PATCH, POST, PUT, body, refuse, slow, status
from tests.kubeloop.client.rig import PATH, TransportRig

pytestmark = pytest.mark.virtual_time

OK = body({"ok": True})


class Refused(ApiError):
    """The error that the guard of these tests raises."""


class Guard:
    """Lets `allowed` sends pass."""

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        self.count = 0

    def __call__(self) -> None:
        self.count += 1
        if self.count > self.allowed:
            raise Refused("not any more")


@pytest.mark.parametrize("verb", [POST, PATCH, PUT, DELETE])
@pytest.mark.parametrize("content", [b'{"a":1}', None], ids=["with a body", "without a body"])
async def test_an_allowed_write_arrives_whole_and_a_refused_one_never(
    rig: TransportRig, verb: str, content: bytes | None
) -> None:
    rig.server.script(verb, PATH, OK)
    transport = rig.new_transport(rig.server.config(), before_write=Guard(1))
    assert await transport.request(verb, PATH, body=content) == b'{"ok": true}'
    with pytest.raises(Refused, match="not any more"):
        await transport.request(verb, PATH, body=content)
    assert [request.body for request in rig.server.requests] == [content or b""]
    assert rig.sleeps == []


async def test_reads_are_not_asked_about(rig: TransportRig) -> None:
    rig.server.script(GET, PATH, OK)
    guard = Guard(0)
    await rig.new_transport(rig.server.config(), before_write=guard).request("GET", PATH)
    assert guard.count == 0


async def test_every_attempt_is_asked_about(rig: TransportRig) -> None:
    rig.server.always(PATCH, PATH, status(503, "ServiceUnavailable", retry_after=0))
    transport = rig.new_transport(rig.server.config(), before_write=Guard(2))
    with pytest.raises(Refused):
        await transport.request("PATCH", PATH, body=b"{}")
    assert len(rig.server.requests) == 2


async def test_a_repeat_of_the_http_library_is_guarded_too(rig: TransportRig) -> None:
    """A kept connection that the server has closed meanwhile: aiohttp would send it again by itself."""
    rig.server.script(GET, PATH, OK)
    rig.server.script(PUT, PATH, refuse(), OK)
    transport = rig.new_transport(rig.server.config(), before_write=Guard(1))
    await transport.request("GET", PATH)
    with pytest.raises((Refused, Unreachable)):
        await transport.request("PUT", PATH, body=b"{}", retry=False)
    assert len(rig.server.seen(PUT)) == 1


async def test_the_guard_is_asked_when_a_write_gets_its_connection(
    rig: TransportRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "_CONNECTIONS", 1)
    rig.server.script(GET, PATH, slow(0.2, OK))
    guard = Guard(1)
    transport = rig.new_transport(rig.server.config(), before_write=guard)
    read = asyncio.create_task(transport.request("GET", PATH))
    await rig.server.wait_seen(GET, PATH)
    write = asyncio.create_task(transport.request("PATCH", PATH, body=b"{}"))
    await asyncio.sleep(0.05)
    assert guard.count == 0
    guard.allowed = 0
    with pytest.raises(Refused):
        await write
    await read
    assert rig.server.seen(PATCH) == []


async def test_the_connection_of_a_refused_write_is_not_used_again(rig: TransportRig) -> None:
    """Its server may still wait for the rest of a request."""
    rig.server.always(GET, PATH, OK)
    transport = rig.new_transport(rig.server.config(), before_write=Guard(0))
    await transport.request("GET", PATH)
    with pytest.raises(Refused):
        await transport.request("PATCH", PATH, body=b"{}")
    assert await transport.request("GET", PATH) == b'{"ok": true}'
