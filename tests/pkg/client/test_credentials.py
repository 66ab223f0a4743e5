"""Credentials: when they are fetched anew, and what happens when they can't be had."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pkg.client.credentials import Certificate, Credential, ExecPlugin, Reread, Static, parse_exec_status
from pkg.client.errors import ConfigError


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
