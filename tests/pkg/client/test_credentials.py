"""Credentials: when they are fetched anew, and what happens when they can't be had."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pkg.client import credentials as module
from pkg.client.config import ClientConfig, load_config
from pkg.client.credentials import Certificate, Credential, ExecPlugin, Reread, Static, parse_exec_status
from pkg.client.errors import ConfigError
from pkg.client.transport import Transport
from tests.pkg.client.kubeconfigs import Plugin, data, kubeconfig, write
from tests.pkg.client.pki import Authority
from tests.scripted_server import GET, ScriptedServer, body, status


class Clock:
    """A monotonic clock that the test turns."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_static_never_changes() -> None:
    source = Static("Bearer x")
    assert await source.get() == await source.get(refresh=True) == Credential("Bearer x")
    assert not source.refreshable


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


async def test_a_token_is_read_again_after_a_minute() -> None:
    clock, reader = Clock(), Reader()
    source = Reread(reader, clock=clock)
    for moment, reads in ((0.0, 1), (59.0, 1), (60.0, 2), (119.0, 2), (120.0, 3)):
        clock.now = 1000.0 + moment
        assert (await source.get()).authorization == "t1"
        assert reader.reads == reads


async def test_a_refused_token_is_read_again_at_once() -> None:
    reader = Reader()
    source = Reread(reader)
    await source.get()
    reader.value = "t2"
    assert (await source.get(refresh=True)).authorization == "t2"


async def test_a_token_that_can_not_be_read_again_stays_in_use(caplog: pytest.LogCaptureFixture) -> None:
    clock, reader = Clock(), Reader()
    source = Reread(reader, clock=clock)
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


class Runs:
    """What a plugin would do, counted."""

    def __init__(self, **fields: Any) -> None:
        self.count = 0
        self.fields = fields
        self.seconds = 0.0

    def __call__(self) -> dict[str, Any]:
        time.sleep(self.seconds)
        self.count += 1
        return {"token": f"t{self.count}", **self.fields}


async def test_a_plugin_runs_once_without_expiry() -> None:
    runs = Runs()
    source = ExecPlugin(runs)
    assert [(await source.get()).authorization for _ in range(3)] == ["Bearer t1"] * 3
    assert runs.count == 1


async def test_a_plugin_runs_again_shortly_before_its_token_expires() -> None:
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)
    moment = [now]
    source = ExecPlugin(Runs(expirationTimestamp="2026-01-01T12:10:00Z"), now=lambda: moment[0])
    tokens = []
    for seconds in (0, 500, 589, 591):
        moment[0] = now + timedelta(seconds=seconds)
        tokens.append((await source.get()).authorization)
    assert tokens == ["Bearer t1", "Bearer t1", "Bearer t1", "Bearer t2"]


async def test_a_plugin_runs_again_when_its_token_is_refused() -> None:
    source = ExecPlugin(Runs())
    await source.get()
    assert (await source.get(refresh=True)).authorization == "Bearer t2"


async def test_many_requests_at_once_run_a_plugin_once() -> None:
    runs = Runs()
    runs.seconds = 0.05
    source = ExecPlugin(runs)
    first = await asyncio.gather(*(source.get() for _ in range(10)))
    assert {c.authorization for c in first} == {"Bearer t1"}
    again = await asyncio.gather(*(source.get(refresh=True) for _ in range(10)))
    assert {c.authorization for c in again} == {"Bearer t2"}


async def test_a_plugin_does_not_stop_the_loop() -> None:
    runs = Runs()
    runs.seconds = 0.2
    task = asyncio.create_task(ExecPlugin(runs).get())
    started = time.monotonic()
    for _ in range(5):
        await asyncio.sleep(0.01)
    assert time.monotonic() - started < 0.15
    assert not task.done()
    assert (await task).authorization == "Bearer t1"


async def test_a_plugin_that_hangs_is_given_up() -> None:
    runs = Runs()
    runs.seconds = 0.3
    with pytest.raises(ConfigError, match=r"did not answer within 0\.05 s"):
        await ExecPlugin(runs, timeout=0.05).get()


async def test_a_plugin_that_failed_is_asked_again() -> None:
    answers: list[Any] = [ConfigError("no"), {"token": "yes"}]

    def run() -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    source = ExecPlugin(run)
    with pytest.raises(ConfigError, match="no"):
        await source.get()
    assert (await source.get()).authorization == "Bearer yes"


@pytest.mark.parametrize(
    ("given", "credential"),
    [
        ({"token": "t"}, Credential("Bearer t")),
        ({"clientCertificateData": "c", "clientKeyData": "k"}, Credential(None, Certificate("c", "k"))),
        (
            {"token": "t", "clientCertificateData": "c", "clientKeyData": "k"},
            Credential("Bearer t", Certificate("c", "k")),
        ),
    ],
)
def test_what_a_plugin_may_give(given: dict[str, Any], credential: Credential) -> None:
    assert parse_exec_status(given) == (credential, None)


@pytest.mark.parametrize(
    ("given", "expiry"),
    [
        ("2026-01-01T12:00:00Z", datetime(2026, 1, 1, 12, tzinfo=UTC)),
        ("2026-01-01T14:00:00+02:00", datetime(2026, 1, 1, 12, tzinfo=UTC)),
        ("2026-01-01T12:00:00.5Z", datetime(2026, 1, 1, 12, 0, 0, 500000, tzinfo=UTC)),
        ("2026-01-01T12:00:00", datetime(2026, 1, 1, 12, tzinfo=UTC)),
        (None, None),
    ],
)
def test_expiry(given: str | None, expiry: datetime | None) -> None:
    assert parse_exec_status({"token": "t", "expirationTimestamp": given})[1] == expiry


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "neither a token nor a client certificate"),
        (None, "is not an object"),
        ([], "is not an object"),
        ({"clientKeyData": "k"}, "only one of"),
        ({"token": "t", "clientCertificateData": "c"}, "only one of"),
        ({"token": "t", "expirationTimestamp": "tomorrow"}, "'tomorrow' is not an RFC 3339 time"),
    ],
)
def test_what_a_plugin_may_not_give(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_exec_status(given)


# A real plugin, run from a kubeconfig


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
    assert (await config.auth_headers())["Authorization"] == "Bearer t"
    await config.auth_headers()
    assert plugin.calls == ["get token"]
    assert plugin.mood() == "good"
    info = plugin.info()
    assert (info["kind"], info["apiVersion"]) == ("ExecCredential", Plugin.API)
    assert "cluster" not in info["spec"]


async def test_a_plugin_is_told_about_the_cluster_when_it_asks(tmp_path: Path, plugin: Plugin) -> None:
    await config_of(tmp_path, plugin.user(provideClusterInfo=True)).auth_headers()
    assert plugin.info()["spec"]["cluster"]["server"] == "https://10.0.0.1:6443"


async def test_a_relative_plugin_is_found_beside_its_kubeconfig(tmp_path: Path, plugin: Plugin) -> None:
    config = config_of(tmp_path, plugin.user(command="./plugin/plugin.sh"))
    assert (await config.auth_headers())["Authorization"] == "Bearer t"


async def test_a_plugin_that_is_not_installed_says_how_to_install_it(tmp_path: Path, plugin: Plugin) -> None:
    config = config_of(tmp_path, plugin.user(command="no-such-plugin", installHint="Get it\nat example.com"))
    with pytest.raises(ConfigError) as caught:
        await config.auth_headers()
    assert (
        str(caught.value) == "the credential plugin 'no-such-plugin' is not installed: Get it at example.com"
    )


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
        await config_of(tmp_path, plugin.user()).auth_headers()
    assert str(caught.value).startswith(f"the credential plugin '{plugin.path}' failed: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_refused_token_makes_the_plugin_run_again(tmp_path: Path, plugin: Plugin) -> None:
    async with ScriptedServer() as server:
        server.script(GET, "/api", status(401, "Unauthorized"), body({}))
        transport = Transport(config_of(tmp_path, plugin.user(), server=server.url))
        asyncio.get_running_loop().call_later(0, plugin.answers, {"token": "t2"})
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
            await config.auth_headers(refresh=True)
            await transport.request("GET", "/api")
        await transport.close()
    assert seen == ["jane", "joe"]


def test_a_plugin_that_hangs_does_not_hold_up_the_exit(tmp_path: Path, plugin: Plugin) -> None:
    plugin.hangs()
    config = config_of(tmp_path, plugin.user())

    async def ask() -> None:
        async with asyncio.timeout(0.2):
            await config.auth_headers()

    started = time.monotonic()
    with pytest.raises(TimeoutError):
        asyncio.run(ask())
    assert time.monotonic() - started < 2.0
    assert module.EXEC_TIMEOUT > 5.0, "it was the test's time that ran out"
