"""TLS: who is trusted, and what is said of who is not."""

from __future__ import annotations

import json

import pytest

from pkg.client import errors
from pkg.client.config import ClientConfig
from pkg.client.retry import Untrusted
from pkg.client.tls import TLSSettings
from tests.pkg.client.pki import Authority
from tests.pkg.client.rig import PATH, Rig
from tests.scripted_server import (
    GET,
    ScriptedServer,
    body,
)

OK = body({"ok": True})


async def test_a_server_of_the_configured_authority_is_trusted(rig: Rig) -> None:
    authority = Authority()
    async with ScriptedServer(authority.server_context()) as server:
        server.always(GET, PATH, OK)
        transport = rig.another(server.config(tls=TLSSettings(authority.pem)))
        assert json.loads(await transport.request("GET", PATH)) == {"ok": True}


async def test_a_server_of_another_authority_is_not_and_is_not_tried_again(rig: Rig) -> None:
    async with ScriptedServer(Authority().server_context()) as server:
        transport = rig.another(server.config(tls=TLSSettings(Authority().pem)))
        with pytest.raises(Untrusted, match=r"no trusted TLS connection: .*verify failed") as caught:
            await transport.request("GET", PATH)
    assert "\n" not in str(caught.value)
    assert rig.sleeps == []


async def test_another_name_in_the_certificate_needs_tls_server_name(rig: Rig) -> None:
    authority = Authority()
    context = authority.server_context(common_name="api.example", loopback=False)
    async with ScriptedServer(context) as server:
        server.always(GET, PATH, OK)
        tls = TLSSettings(authority.pem)
        with pytest.raises(Untrusted):
            await rig.another(server.config(tls=tls)).request("GET", PATH)
        named = rig.another(server.config(tls=tls, server_name="api.example"))
        assert await named.request("GET", PATH) == b'{"ok": true}'


async def test_without_verification_any_server_will_do(rig: Rig) -> None:
    async with ScriptedServer(Authority().server_context()) as server:
        server.always(GET, PATH, OK)
        transport = rig.another(server.config(tls=TLSSettings(verify=False)))
        assert await transport.request("GET", PATH) == b'{"ok": true}'


async def test_https_to_a_server_that_speaks_http_is_one_clear_line(rig: Rig) -> None:
    config = ClientConfig(rig.server.url.replace("http:", "https:"), tls=TLSSettings(verify=False))
    with pytest.raises(errors.Unreachable, match="can't be reached") as caught:
        await rig.another(config).request("GET", PATH)
    assert "\n" not in str(caught.value)
