"""TLS: who is trusted, and what is said of who is not."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from aiohttp import web

from kubeloop.client import errors, tls
from kubeloop.client.config import ClientConfig
from kubeloop.client.loading import load_config
from kubeloop.client.retry import Untrusted
from kubeloop.client.tls import TLSContexts, TLSSettings
from kubeloop.testing.scripted_server import GET, ScriptedServer, body, status
from tests.kinds import Clock
from tests.kubeloop.client.kubeconfigs import data, kubeconfig, write
from tests.kubeloop.client.pki import Authority
from tests.kubeloop.client.rig import PATH, TransportRig

OK = body({"ok": True})


async def test_a_server_of_another_authority_is_not_tried_again(rig: TransportRig) -> None:
    async with ScriptedServer(Authority().server_context()) as server:
        transport = rig.new_transport(server.config(tls=TLSSettings(Authority().pem)))
        with pytest.raises(Untrusted, match=r"no trusted TLS connection: .*verify failed") as caught:
            await transport.request("GET", PATH)
    assert "\n" not in str(caught.value)
    assert rig.sleeps == []


async def test_another_name_in_the_certificate_needs_tls_server_name(rig: TransportRig) -> None:
    authority = Authority()
    context = authority.server_context(common_name="api.example", loopback=False)
    async with ScriptedServer(context) as server:
        server.always(GET, PATH, OK)
        tls = TLSSettings(authority.pem)
        with pytest.raises(Untrusted):
            await rig.new_transport(server.config(tls=tls)).request("GET", PATH)
        named_transport = rig.new_transport(server.config(tls=tls, server_name="api.example"))
        assert await named_transport.request("GET", PATH) == b'{"ok": true}'


async def test_without_verification_any_server_will_do(rig: TransportRig) -> None:
    async with ScriptedServer(Authority().server_context()) as server:
        server.always(GET, PATH, OK)
        transport = rig.new_transport(server.config(tls=TLSSettings(verify=False)))
        assert await transport.request("GET", PATH) == b'{"ok": true}'


async def test_https_to_a_server_that_speaks_http_is_one_clear_line(rig: TransportRig) -> None:
    config = ClientConfig(rig.server.url.replace("http:", "https:"), tls=TLSSettings(verify=False))
    with pytest.raises(errors.Unreachable, match="can't be reached") as caught:
        await rig.new_transport(config).request("GET", PATH)
    assert "\n" not in str(caught.value)


def peer_name(request: web.Request) -> str:
    assert request.transport is not None
    subject = request.transport.get_extra_info("peercert")["subject"]
    return next(value for ((key, value),) in subject if key == "commonName")


async def test_client_certificates_are_reloaded(
    rig: TransportRig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority, certificates = Authority(), []

    async def note_client(request: web.Request) -> web.StreamResponse:
        certificates.append(peer_name(request))
        return await (status(401, "Unauthorized") if certificates[-1] == "jane" and renewed else OK)(request)

    renewed = False
    certificate, key = authority.issue("jane").write(tmp_path, "client")
    async with ScriptedServer(authority.server_context(ask_client=True)) as server:
        server.always(GET, PATH, note_client)
        user = {"client-certificate": "client.crt", "client-key": "client.key"}
        content = kubeconfig(user, server=server.url, cluster={"certificate-authority-data": data(authority.pem)})
        transport = rig.new_transport(load_config(write(tmp_path, content), environ={}))
        await transport.request("GET", PATH)
        renewed = True
        pair = authority.issue("joe")
        certificate.write_text(pair.certificate)
        with pytest.raises(errors.Unauthorized):
            await transport.request("GET", PATH)
        assert "keeping the certificates in use: the client certificate and key are not valid" in caplog.text
        key.write_text(pair.key)
        await transport.request("GET", PATH)
    assert [*dict.fromkeys(certificates)] == ["jane", "joe"]


async def test_ca_files_are_reloaded(rig: TransportRig, tmp_path: Path) -> None:
    old_authority, new_authority = Authority(), Authority()
    (tmp_path / "ca.crt").write_text(old_authority.pem)
    async with ScriptedServer(new_authority.server_context()) as server:
        server.always(GET, PATH, OK)
        content = kubeconfig(server=server.url, cluster={"certificate-authority": "ca.crt"})
        transport = rig.new_transport(load_config(write(tmp_path, content), environ={}))
        with pytest.raises(Untrusted):
            await transport.request("GET", PATH)
        (tmp_path / "ca.crt").write_text(new_authority.pem)
        assert await transport.request("GET", PATH) == b'{"ok": true}'


async def test_certificate_files_are_read_again_every_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, clock = tmp_path / "ca.crt", Clock(0.0)
    monkeypatch.setattr(tls, "time", SimpleNamespace(monotonic=clock))
    file.write_text(Authority().pem)
    contexts = TLSContexts(TLSSettings(ca=file))
    first_context = contexts.get()
    file.write_text(Authority().pem)
    for moment, changed in ((59.0, False), (60.0, True)):
        clock.now = moment
        await contexts.reread()
        assert (contexts.get() is not first_context) is changed
    second = contexts.get()
    file.unlink()
    clock.now = 120.0
    await contexts.reread()
    assert contexts.get() is second
