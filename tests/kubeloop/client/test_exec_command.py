"""A real credential plugin, run from a kubeconfig."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kubeloop.client import exec_plugin as module
from kubeloop.client.config import ClientConfig
from kubeloop.client.errors import ConfigError, Unauthorized
from kubeloop.client.loading import load_config
from kubeloop.client.transport import Transport
from kubeloop.testing.scripted_server import GET, ScriptedServer, body, status
from tests.kubeloop.client.kubeconfigs import Plugin, data, kubeconfig, write
from tests.kubeloop.client.pki import Authority


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    folder = tmp_path / "plugin"
    folder.mkdir()
    return Plugin(folder)


def config_of(folder: Path, user: dict[str, Any], **options: Any) -> ClientConfig:
    return load_config(write(folder, kubeconfig(user, **options)), environ={})


async def test_a_kubeconfigs_plugin_runs_with_the_first_request(tmp_path: Path, plugin: Plugin) -> None:
    user = plugin.user(args=["get", "token"], env=[{"name": "MOOD", "value": "good"}])
    config = config_of(tmp_path, user)
    assert plugin.calls == []
    assert (await config.authenticate())[0]["Authorization"] == "Bearer t"
    await config.authenticate()
    assert plugin.calls == ["get token"]
    assert plugin.mood() == "good"
    info = plugin.info()
    assert (info["kind"], info["apiVersion"]) == ("ExecCredential", Plugin.API)
    assert "cluster" not in info["spec"]


async def test_a_plugin_is_told_about_the_cluster_when_it_asks(tmp_path: Path, plugin: Plugin) -> None:
    await config_of(tmp_path, plugin.user(provideClusterInfo=True)).authenticate()
    assert plugin.info()["spec"]["cluster"]["server"] == "https://10.0.0.1:6443"


async def test_a_relative_plugin_is_found_beside_its_kubeconfig(tmp_path: Path, plugin: Plugin) -> None:
    config = config_of(tmp_path, plugin.user(command="./plugin/plugin.sh"))
    assert (await config.authenticate())[0]["Authorization"] == "Bearer t"


async def test_a_plugin_that_is_not_installed_says_how_to_install_it(tmp_path: Path, plugin: Plugin) -> None:
    config = config_of(tmp_path, plugin.user(command="no-such-plugin", installHint="Get it\nat example.com"))
    with pytest.raises(ConfigError) as caught:
        await config.authenticate()
    assert str(caught.value) == "the credential plugin 'no-such-plugin' is not installed: Get it at example.com"


@pytest.mark.parametrize(
    ("text", "code", "complaint", "message"),
    [
        ("", 3, "please\nlog in", "process returned 3. please log in"),
        ("nonsense", 0, "", "failed to decode process output"),
        ("{}", 0, "", "missing key 'apiVersion'"),
        ('{"apiVersion":"client.authentication.k8s.io/v9","kind":"ExecCredential","status":{}}', 0, "", "v9"),
    ],
    ids=["it fails", "it prints no JSON", "it prints other JSON", "it speaks another version"],
)
async def test_a_plugin_that_fails_is_one_clear_line(
    tmp_path: Path, plugin: Plugin, text: str, code: int, complaint: str, message: str
) -> None:
    plugin.prints(text, code, complaint)
    with pytest.raises(ConfigError) as caught:
        await config_of(tmp_path, plugin.user()).authenticate()
    assert str(caught.value).startswith(f"the credential plugin '{plugin.path}' failed: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_refused_token_makes_the_plugin_run_again(tmp_path: Path, plugin: Plugin) -> None:
    async with ScriptedServer() as server:

        async def expire(request: web.Request) -> web.StreamResponse:
            plugin.answers({"token": "t2"})
            return await status(401, "Unauthorized")(request)

        server.script(GET, "/api", expire, body({}))
        transport = Transport(config_of(tmp_path, plugin.user(), server=server.url))
        await transport.request("GET", "/api")
        await transport.close()
    assert server.requests[-1].headers["Authorization"] == "Bearer t2"
    assert len(plugin.calls) == 2


async def test_a_plugins_certificate_is_presented_and_renewed(tmp_path: Path, plugin: Plugin) -> None:
    authority = Authority()
    seen: list[str] = []

    async def note_client(request: Any) -> Any:
        peer = request.transport.get_extra_info("peercert")
        seen.append(next(value for ((key, value),) in peer["subject"] if key == "commonName"))
        return await body({})(request)

    async with ScriptedServer(authority.server_context(ask_client=True)) as server:
        server.always(GET, "/api", note_client)
        cluster = {"certificate-authority-data": data(authority.pem)}
        config = config_of(tmp_path, plugin.user(), server=server.url, cluster=cluster)
        transport = Transport(config)
        for name in ("jane", "joe"):
            pair = authority.issue(name)
            plugin.answers({"clientCertificateData": pair.certificate, "clientKeyData": pair.key})
            await config.authenticate(refresh=True)
            await transport.request("GET", "/api")
        await transport.close()
    assert seen == ["jane", "joe"]


def test_a_plugin_that_hangs_does_not_hold_up_the_exit(tmp_path: Path, plugin: Plugin) -> None:
    plugin.hangs()
    config = config_of(tmp_path, plugin.user())

    async def ask() -> None:
        async with asyncio.timeout(0.2):
            await config.authenticate()

    started = time.monotonic()
    with pytest.raises(TimeoutError):
        asyncio.run(ask())
    assert time.monotonic() - started < plugin.HANGS / 2
    assert module.EXEC_TIMEOUT > plugin.HANGS, "it was the test's time that ran out"


async def test_a_hung_plugin_delays_no_request_beyond_its_time(tmp_path: Path, plugin: Plugin) -> None:
    plugin.hangs()
    async with ScriptedServer() as server:
        server.always(GET, "/api", body({}))
        transport = Transport(config_of(tmp_path, plugin.user(), server=server.url))
        started = time.monotonic()
        answers = await asyncio.gather(
            *(transport.request("GET", "/api", timeout=0.3) for _ in range(5)), return_exceptions=True
        )
        assert [type(each) for each in answers] == [Unauthorized] * 5
        assert time.monotonic() - started < plugin.HANGS / 2
        assert len(plugin.calls) <= 1, "one run for all of them"
        await transport.close()


async def test_a_hung_plugin_is_killed_and_the_next_request_runs_it_again(
    tmp_path: Path, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EXEC_TIMEOUT", 0.3)
    plugin.hangs()
    async with ScriptedServer() as server:
        server.always(GET, "/api", body({}))
        transport = Transport(config_of(tmp_path, plugin.user(), server=server.url))
        with pytest.raises(Unauthorized):
            await transport.request("GET", "/api")
        plugin.recovers()
        monkeypatch.setattr(module, "EXEC_TIMEOUT", 60.0)
        assert await transport.request("GET", "/api") == b"{}"
        await transport.close()
