"""Whatever a request raises is an ApiError in our own words, once, without a secret."""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from kubeloop.client import errors
from kubeloop.client.config import ClientConfig, Impersonation
from kubeloop.client.credentials import Certificate, Credential, ExecPlugin, Static
from kubeloop.client.errors import ApiError, ConfigError
from kubeloop.client.tls import TLSSettings
from kubeloop.testing.scripted_server import GET, PATCH, POST, body, raw, status
from tests.decisions import sentences
from tests.kubeloop.client.rig import PATH, TransportRig

OK = body({"ok": True})
SECRET = "s3cret"


@contextlib.asynccontextmanager
async def answering(content: bytes) -> AsyncIterator[int]:
    """The port of a server that answers everything with these bytes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(content)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


ANSWERS: dict[str, bytes] = {
    "a proxy that wants a login": b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n",
    "a proxy that cannot reach the server": b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
    "a proxy that does not speak HTTP": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "a proxy that closes": b"",
    "a proxy with a header without a name": b"HTTP/1.1 200 OK\r\n: x\r\n\r\n",
}


@sentences(ANSWERS)
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_an_odd_answer_is_one_line_of_ours(
    case: bytes, scheme: str, rig: TransportRig, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with answering(case) as port:
        config = ClientConfig(f"{scheme}://10.0.0.1:6443", proxy=f"http://me:{SECRET}@127.0.0.1:{port}")
        with pytest.raises(ApiError) as caught:
            await rig.new_transport(config).request("GET", PATH)
    text = str(caught.value)
    assert text.startswith((f"{scheme}://10.0.0.1:6443", "the server answered"))
    assert "\n" not in text
    assert SECRET not in "".join(map(repr, _chain(caught.value))) + text + caplog.text + repr(config)


async def test_an_error_need_not_have_an_end(rig: TransportRig) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=503)
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(b"x" * 65536)
        return response

    rig.server.always(GET, PATH, endless)
    with pytest.raises(errors.ServiceUnavailable, match=r"^the server answered 503: x{300}$"):
        await rig.transport.request("GET", PATH, retry=False)


def _chain(error: BaseException | None) -> list[str]:
    """Returns the errors that a traceback would show."""
    texts = []
    while error is not None:
        texts.append(f"{error!r} {error}")
        error = error.__cause__ or error.__context__
    return texts


async def test_a_proxy_gets_the_login_of_its_url(rig: TransportRig) -> None:
    rig.server.always(GET, f"http://10.0.0.1{PATH}", OK)
    rig.server.always(GET, PATH, OK)
    config = ClientConfig("http://10.0.0.1", proxy=rig.server.url.replace("//", f"//me:{SECRET}%40@"))
    await rig.new_transport(config.impersonate("jane")).request("GET", PATH)
    assert rig.server.requests[0].headers["Proxy-Authorization"] == "Basic bWU6czNjcmV0QA=="
    assert rig.server.requests[0].headers["Impersonate-User"] == "jane"


async def test_a_login_in_the_servers_address_is_used_and_not_shown(rig: TransportRig) -> None:
    rig.server.always(GET, PATH, status(401, "Unauthorized"))
    config = ClientConfig(rig.server.url.replace("//", f"//me:{SECRET}@"), credentials=Static("Bearer t"))
    with pytest.raises(errors.Unauthorized) as caught:
        await rig.new_transport(config).request("GET", PATH)
    assert rig.server.requests[0].headers["Authorization"] == "Basic bWU6czNjcmV0", "as Go's client has it"
    assert SECRET not in f"{caught.value} {caught.value!r} {config!r} {config.host}"


async def test_an_answer_with_a_large_head_is_read(rig: TransportRig) -> None:
    """The server has already done what was asked for."""
    warnings = [("Warning", f'299 - "unknown field \\"spec.field{number}\\""') for number in range(500)]
    head = b"".join(f"{name}: {value}\r\n".encode() for name, value in warnings)
    large = b"X-Large: " + b"x" * 200_000 + b"\r\n"
    async with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n" + head + large + b"\r\n{}") as port:
        assert (
            await rig.new_transport(ClientConfig(f"http://127.0.0.1:{port}")).request("PATCH", PATH, body=b"{}")
            == b"{}"
        )


UNSENDABLE: dict[str, Callable[[ClientConfig], ClientConfig]] = {
    "a token that ends in a newline": lambda config: _with(config, credentials=Static(f"Bearer {SECRET}\n")),
    "a token with a control character": lambda config: _with(config, credentials=Static(f"Bearer {SECRET}\x00")),
    "a user to impersonate with a newline": lambda config: _with(config, impersonation=Impersonation("a\r\nX: y")),
    "credentials that fail in their own way": lambda config: _with(config, credentials=Odd(TypeError("not ASCII"))),
    "credentials that cannot be had": lambda config: _with(config, credentials=Odd(ConfigError("no login"))),
}


class Odd:
    def __init__(self, error: Exception) -> None:
        self._error = error

    async def get(self, *, refresh: bool = False) -> Credential:
        raise self._error


def _with(config: ClientConfig, **fields: Any) -> ClientConfig:
    return ClientConfig(config.host, **fields)


@sentences(UNSENDABLE)
async def test_what_no_request_can_carry_is_said_and_not_sent(
    case: Callable[[ClientConfig], ClientConfig], rig: TransportRig
) -> None:
    rig.server.always(GET, PATH, OK)
    with pytest.raises(errors.Unauthorized) as caught:
        await rig.new_transport(case(rig.server.config())).request("GET", PATH)
    assert caught.value.reason == "Credentials"
    assert SECRET not in str(caught.value)
    assert (rig.server.requests, rig.sleeps) == ([], [])


async def test_a_request_that_cannot_be_made_is_not_repeated(rig: TransportRig) -> None:
    with pytest.raises(ApiError, match="the request cannot be made: ValueError") as caught:
        await rig.transport.request("GET\r\nX", PATH)
    assert (caught.value.status, rig.sleeps) == (0, [])


SHOWN: dict[str, object] = {
    "a token": Credential(f"Bearer {SECRET}"),
    "a key": Credential(certificate=Certificate("c", SECRET)),
    "a pair": Certificate("c", SECRET),
    "a key's file": TLSSettings("ca", "c", SECRET),
    "a password": ClientConfig("http://x", credentials=Static(f"Basic {SECRET}")),
    "a login in the server's address": ClientConfig(f"http://me:{SECRET}@x"),
    "a login in a proxy's address": ClientConfig("http://x", proxy=f"http://me:{SECRET}@p:1"),
}


@sentences(SHOWN)
def test_no_repr_shows(case: object) -> None:
    assert SECRET not in repr(case)


@pytest.mark.parametrize(
    "address", [f"ftp://me:{SECRET}@x", f"https://me:{SECRET}@x:port", f"me:{SECRET}@x", f"https://me:{SECRET}/@x"]
)
def test_no_error_shows_the_login_of_an_address(address: str) -> None:
    for fields in ({"host": address}, {"host": "http://x", "proxy": address}):
        with pytest.raises(ConfigError) as caught:
            ClientConfig(**fields)  # type: ignore[arg-type]
        assert SECRET not in str(caught.value)


async def test_the_same_warning_is_logged_once_for_a_kind_and_a_minute(
    rig: TransportRig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    warning = {"Warning": '299 - "unknown field \\"spec.x\\"", 299 - "v1beta1 is deprecated"'}
    for number in range(100):
        path = f"/api/v1/namespaces/ns{number}/pods/p{number}"
        rig.server.always(PATCH, path, raw(b"{}", 200, warning))
        await rig.transport.request("PATCH", path, body=b"{}")
    rig.server.always(POST, "/api/v1/namespaces/ns/configmaps", raw(b"{}", 200, warning))
    await rig.transport.request("POST", "/api/v1/namespaces/ns/configmaps", body=b"{}")
    assert caplog.messages == [
        f"{request}: the API server warns: {warned}"
        for request in ("PATCH /api/v1/pods", "POST /api/v1/configmaps")
        for warned in ('unknown field "spec.x"', "v1beta1 is deprecated")
    ]


class TokenPlugin:
    """Prints a token that the server takes until the next one."""

    def __init__(self, repeats: bool) -> None:
        self.runs = 0
        self._repeats = repeats

    async def __call__(self) -> tuple[Credential, float]:
        self.runs += 1
        await asyncio.sleep(0.05)
        return Credential("Bearer t" if self._repeats else f"Bearer t{self.runs}"), math.inf


@pytest.mark.parametrize("repeats", [False, True], ids=["another token", "the same token"])
async def test_requests_that_are_refused_together_run_a_plugin_once(repeats: bool, rig: TransportRig) -> None:
    plugin = TokenPlugin(repeats)
    refused = 0

    async def answer(request: Any) -> Any:
        nonlocal refused
        await asyncio.sleep(refused / 200)  # they learn of it one after the other
        if plugin.runs < 2 or refused < 60:
            refused += 1
            return await status(401, "Unauthorized")(request)
        return await OK(request)

    rig.server.always(GET, PATH, answer)
    transport = rig.new_transport(rig.server.config(credentials=ExecPlugin(plugin)))
    answers = await asyncio.gather(
        *(transport.request("GET", PATH, retry=False) for _ in range(60)), return_exceptions=True
    )
    assert plugin.runs == 2
    assert b'{"ok": true}' in answers


async def test_a_token_about_to_expire_does_not_rerun_its_plugin(rig: TransportRig) -> None:
    """A plugin that caches its token to the end gives the same one again."""
    runs = 0

    async def run() -> tuple[Credential, float]:
        nonlocal runs
        runs += 1
        return Credential("Bearer t"), 1e9

    rig.server.always(GET, PATH, OK)
    transport = rig.new_transport(rig.server.config(credentials=ExecPlugin(run)))
    for _ in range(60):
        await transport.request("GET", PATH)
    assert runs <= 3
