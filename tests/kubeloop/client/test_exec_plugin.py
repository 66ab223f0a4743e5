"""The credential of a plugin: when it is run, for whom, and what it may give; a real one, run from a kubeconfig."""

import asyncio
import json
import math
import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from kubeloop.api.meta import from_rfc3339
from kubeloop.client import credentials
from kubeloop.client.config import ClientConfig
from kubeloop.client.credentials import Certificate, Credential, ExecPlugin, PluginCommand, Reread, parse_answer
from kubeloop.client.errors import ConfigError, Unauthorized
from kubeloop.client.loading import load_config
from kubeloop.testing.scripted_server import GET, ScriptedServer, body, status
from tests.decisions import sentences
from tests.kinds import Clock
from tests.kubeloop.client.kubeconfigs import Plugin, data, kubeconfig, write
from tests.kubeloop.client.pki import Authority
from tests.kubeloop.client.rig import TransportRig, authenticate

NOON = from_rfc3339("2026-01-01T12:00:00Z")


class Runs:
    """A plugin's runs, counted."""

    def __init__(self, expiry: float = math.inf) -> None:
        self.count = 0
        self.expiry = expiry
        self.seconds = 0.0

    async def __call__(self) -> tuple[Credential, float]:
        await asyncio.sleep(self.seconds)
        self.count += 1
        return Credential(f"Bearer t{self.count}"), self.expiry


def answered(status: Any) -> tuple[Credential, float]:
    answer = {"apiVersion": Plugin.API, "kind": "ExecCredential", "status": status}
    return parse_answer(json.dumps(answer).encode(), Plugin.API)


async def test_a_plugin_runs_again_shortly_before_its_token_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(NOON)
    monkeypatch.setattr(credentials, "time", SimpleNamespace(time=clock))
    source = ExecPlugin(Runs(NOON + 600))
    tokens = []
    for seconds in (0, 500, 589, 591):
        clock.now = NOON + seconds
        tokens.append((await source.get()).authorization)
    assert tokens == ["Bearer t1", "Bearer t1", "Bearer t1", "Bearer t2"]


async def test_many_requests_at_once_run_a_plugin_once() -> None:
    runs = Runs()
    runs.seconds = 0.05
    source = ExecPlugin(runs)
    credentials = await asyncio.gather(*(source.get() for _ in range(10)))
    assert {c.authorization for c in credentials} == {"Bearer t1"}
    new_credentials = await asyncio.gather(*(source.get(refresh=True) for _ in range(10)))
    assert {c.authorization for c in new_credentials} == {"Bearer t2"}


async def test_who_stops_waiting_takes_nothing_from_the_others() -> None:
    runs = Runs()
    runs.seconds = 0.05
    source = ExecPlugin(runs)
    impatient, patient = asyncio.create_task(source.get()), asyncio.create_task(source.get())
    await asyncio.sleep(0)
    impatient.cancel()
    assert (await patient).authorization == "Bearer t1"
    assert runs.count == 1


@pytest.mark.parametrize(
    ("status", "credential"),
    [
        ({"token": "t"}, Credential("Bearer t")),
        ({"clientCertificateData": "c", "clientKeyData": "k"}, Credential(None, Certificate("c", "k"))),
        (
            {"token": "t", "clientCertificateData": "c", "clientKeyData": "k"},
            Credential("Bearer t", Certificate("c", "k")),
        ),
    ],
)
def test_what_a_plugin_may_give(status: dict[str, Any], credential: Credential) -> None:
    assert answered(status) == (credential, math.inf)


@pytest.mark.parametrize(
    ("timestamp", "expiry"),
    [
        ("2026-01-01T12:00:00Z", NOON),
        ("2026-01-01T14:00:00+02:00", NOON),
        ("2026-01-01T12:00:00.5Z", NOON + 0.5),
        (None, math.inf),
    ],
)
def test_expiry(timestamp: str | None, expiry: float) -> None:
    assert answered({"token": "t", "expirationTimestamp": timestamp})[1] == expiry


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ({}, "neither a token nor a client certificate"),
        (None, "Expected `object`"),
        ([], "Expected `object`"),
        ({"clientKeyData": "k"}, "only one of"),
        ({"token": "t", "clientCertificateData": "c"}, "only one of"),
        ({"token": "t", "expirationTimestamp": "tomorrow"}, "'tomorrow' is not a time"),
    ],
)
def test_what_a_plugin_may_not_give(status: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        answered(status)


# -- a real plugin


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
    assert (await authenticate(config))[0]["Authorization"] == "Bearer t"
    await authenticate(config)
    assert plugin.calls == ["get token"]
    assert plugin.mood() == "good"
    info = plugin.info()
    assert (info["kind"], info["apiVersion"]) == ("ExecCredential", Plugin.API)
    assert "cluster" not in info["spec"]


async def test_a_plugin_is_told_about_the_cluster_when_it_asks(tmp_path: Path, plugin: Plugin) -> None:
    """The plugin gets what client-go sends: the authority by its content, the extension as `config`, nothing that is
    not set."""
    pem = Authority().pem
    (tmp_path / "ca.crt").write_text(pem)
    extensions = [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}]
    cluster = {"certificate-authority": "ca.crt", "tls-server-name": "api", "extensions": extensions}
    await authenticate(config_of(tmp_path, plugin.user(provideClusterInfo=True), cluster=cluster))
    assert plugin.info()["spec"] == {
        "interactive": False,
        "cluster": {
            "server": "https://10.0.0.1:6443",
            "tls-server-name": "api",
            "certificate-authority-data": data(pem),
            "config": {"audience": "x"},
        },
    }


async def test_a_plugin_that_has_to_ask_needs_a_terminal(tmp_path: Path, plugin: Plugin) -> None:
    with pytest.raises(ConfigError, match=r"failed: it asks for input .* is not a terminal"):
        await authenticate(config_of(tmp_path, plugin.user(interactiveMode="Always")))
    assert plugin.calls == []


async def test_a_relative_plugin_is_found_beside_its_kubeconfig(tmp_path: Path, plugin: Plugin) -> None:
    config = config_of(tmp_path, plugin.user(command="./plugin/plugin.sh"))
    assert (await authenticate(config))[0]["Authorization"] == "Bearer t"
    assert plugin.folder() == os.getcwd(), "it runs in the folder of the process"


async def test_a_plugin_that_is_not_installed_says_how_to_install_it(tmp_path: Path, plugin: Plugin) -> None:
    config = config_of(
        tmp_path, plugin.user(command="no-such-plugin", args=["get"], installHint="Get it\nat example.com")
    )
    with pytest.raises(ConfigError) as caught:
        await authenticate(config)
    assert str(caught.value) == "the credential plugin 'no-such-plugin' is not installed: Get it at example.com"


@pytest.mark.parametrize(
    ("text", "code", "complaint", "message"),
    [
        ("", 3, "please\nlog in", "process returned 3. please log in"),
        ("nonsense", 0, "", "JSON is malformed"),
        ("{}", 0, "", "missing required field `apiVersion`"),
        ('{"apiVersion":"client.authentication.k8s.io/v9","kind":"ExecCredential","status":{}}', 0, "", "v9"),
    ],
    ids=["it fails", "it prints no JSON", "it prints other JSON", "it speaks another version"],
)
async def test_a_plugin_that_fails_is_one_clear_line(
    tmp_path: Path, plugin: Plugin, text: str, code: int, complaint: str, message: str
) -> None:
    plugin.prints(text, code, complaint)
    with pytest.raises(ConfigError) as caught:
        await authenticate(config_of(tmp_path, plugin.user()))
    assert str(caught.value).startswith(f"the credential plugin '{plugin.path}' failed: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_refused_token_makes_the_plugin_run_again(rig: TransportRig, tmp_path: Path, plugin: Plugin) -> None:
    async def expire(request: web.Request) -> web.StreamResponse:
        plugin.answers({"token": "t2"})
        return await status(401, "Unauthorized")(request)

    rig.server.script(GET, "/api", expire, body({}))
    await rig.new_transport(replace(config_of(tmp_path, plugin.user()), host=rig.server.url)).request("GET", "/api")
    assert rig.server.requests[-1].headers["Authorization"] == "Bearer t2"
    assert len(plugin.calls) == 2


async def test_a_plugins_certificate_is_presented_and_renewed(
    rig: TransportRig, tmp_path: Path, plugin: Plugin
) -> None:
    authority = Authority()
    tokens: list[str] = []

    async def note_client(request: Any) -> Any:
        peer = request.transport.get_extra_info("peercert")
        tokens.append(next(value for ((key, value),) in peer["subject"] if key == "commonName"))
        return await body({})(request)

    async with ScriptedServer(authority.server_context(ask_client=True)) as server:
        server.always(GET, "/api", note_client)
        cluster = {"certificate-authority-data": data(authority.pem)}
        config = config_of(tmp_path, plugin.user(), server=server.url, cluster=cluster)
        transport = rig.new_transport(config)
        for name in ("jane", "joe"):
            pair = authority.issue(name)
            plugin.answers({"clientCertificateData": pair.certificate, "clientKeyData": pair.key})
            await authenticate(config, refresh=True)
            await transport.request("GET", "/api")
    assert tokens == ["jane", "joe"]


def test_a_plugin_that_hangs_does_not_hold_up_the_exit(tmp_path: Path, plugin: Plugin) -> None:
    plugin.hangs()
    config = config_of(tmp_path, plugin.user())

    async def ask() -> None:
        async with asyncio.timeout(0.2):
            await authenticate(config)

    started = time.monotonic()
    with pytest.raises(TimeoutError):
        asyncio.run(ask())
    assert time.monotonic() - started < plugin.HANGS / 2
    assert credentials.EXEC_TIMEOUT > plugin.HANGS, "it was the test's time that ran out"


async def test_a_hung_plugin_delays_no_request_beyond_its_time(
    rig: TransportRig, tmp_path: Path, plugin: Plugin
) -> None:
    plugin.hangs()
    rig.server.always(GET, "/api", body({}))
    transport = rig.new_transport(replace(config_of(tmp_path, plugin.user()), host=rig.server.url))
    started = time.monotonic()
    requests = (transport.request("GET", "/api", timeout=0.3) for _ in range(5))
    answers = await asyncio.gather(*requests, return_exceptions=True)
    assert [type(answer) for answer in answers] == [Unauthorized] * 5
    assert time.monotonic() - started < plugin.HANGS / 2
    assert len(plugin.calls) <= 1, "one run for all of them"


async def test_a_hung_plugin_is_killed_and_run_again(
    rig: TransportRig, tmp_path: Path, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "EXEC_TIMEOUT", 0.3)
    plugin.hangs()
    rig.server.always(GET, "/api", body({}))
    transport = rig.new_transport(replace(config_of(tmp_path, plugin.user()), host=rig.server.url))
    with pytest.raises(Unauthorized):
        await transport.request("GET", "/api")
    plugin.recovers()
    monkeypatch.setattr(credentials, "EXEC_TIMEOUT", 60.0)
    assert await transport.request("GET", "/api") == b"{}"


@sentences(
    {
        "it prints without an end": "yes",
        "a program that it has started holds the pipe": f"sleep {Plugin.HANGS} & sleep {Plugin.HANGS}",
    }
)
async def test_a_plugin_that_does_not_end_is_not_waited_for(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "EXEC_TIMEOUT", 0.3)
    command = PluginCommand(credentials.API_VERSIONS[0], ["sh", "-c", case], {}, "Never")
    started = time.monotonic()
    with pytest.raises(ConfigError):
        await command.run()
    assert time.monotonic() - started < Plugin.HANGS / 2


class Reader:
    """A token file's content, read in a thread."""

    def __init__(self) -> None:
        self.value: str | ConfigError = "t1"
        self.reads = 0

    def __call__(self) -> str:
        self.reads += 1
        if isinstance(self.value, ConfigError):
            raise self.value
        return self.value


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(credentials, "time", SimpleNamespace(monotonic=clock))
    return clock


async def test_a_token_is_read_again_after_a_minute(clock: Clock) -> None:
    reader = Reader()
    source = Reread(reader)
    for moment, reads in ((0.0, 1), (59.0, 1), (60.0, 2), (119.0, 2), (120.0, 3)):
        clock.now = 1000.0 + moment
        assert (await source.get()).authorization == "t1"
        assert reader.reads == reads


async def test_a_token_that_can_not_be_read_again_stays_in_use(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    reader = Reader()
    source = Reread(reader)
    await source.get()
    reader.value = ConfigError("token file x is empty")
    clock.now += 60.0
    assert (await source.get()).authorization == "t1"
    assert caplog.messages == ["keeping the credentials in use: token file x is empty"]
    assert (await source.get()).authorization == "t1"
    assert reader.reads == 2, "not asked again with every request"


async def test_a_token_that_was_never_read_is_an_error() -> None:
    reader = Reader()
    reader.value = ConfigError("token file x is empty")
    with pytest.raises(ConfigError, match="is empty"):
        await Reread(reader).get()
