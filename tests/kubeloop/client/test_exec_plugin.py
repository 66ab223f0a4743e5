"""The credential of a plugin: when it is run, for whom, and what it may give."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kubeloop.api.meta import from_rfc3339
from kubeloop.client import exec_plugin
from kubeloop.client.credentials import Certificate, Credential
from kubeloop.client.errors import ConfigError
from kubeloop.client.exec_plugin import ExecPlugin, parse_exec_status
from tests.kinds import Clock

NOON = from_rfc3339("2026-01-01T12:00:00Z")


class Runs:
    """What a plugin would do, counted."""

    def __init__(self, **fields: Any) -> None:
        self.count = 0
        self.fields = fields
        self.seconds = 0.0

    async def __call__(self) -> dict[str, Any]:
        await asyncio.sleep(self.seconds)
        self.count += 1
        return {"token": f"t{self.count}", **self.fields}


async def test_a_plugin_runs_once_without_expiry() -> None:
    runs = Runs()
    source = ExecPlugin(runs)
    assert [(await source.get()).authorization for _ in range(3)] == ["Bearer t1"] * 3
    assert runs.count == 1


async def test_a_plugin_runs_again_shortly_before_its_token_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(NOON)
    monkeypatch.setattr(exec_plugin, "time", SimpleNamespace(time=clock))
    source = ExecPlugin(Runs(expirationTimestamp="2026-01-01T12:10:00Z"))
    tokens = []
    for seconds in (0, 500, 589, 591):
        clock.now = NOON + seconds
        tokens.append((await source.get()).authorization)
    assert tokens == ["Bearer t1", "Bearer t1", "Bearer t1", "Bearer t2"]


async def test_many_requests_at_once_run_a_plugin_once() -> None:
    runs = Runs()
    runs.seconds = 0.05
    source = ExecPlugin(runs)
    first = await asyncio.gather(*(source.get() for _ in range(10)))
    assert {c.authorization for c in first} == {"Bearer t1"}
    again = await asyncio.gather(*(source.get(refresh=True) for _ in range(10)))
    assert {c.authorization for c in again} == {"Bearer t2"}


async def test_who_stops_waiting_takes_nothing_from_the_others() -> None:
    runs = Runs()
    runs.seconds = 0.05
    source = ExecPlugin(runs)
    impatient, patient = asyncio.create_task(source.get()), asyncio.create_task(source.get())
    await asyncio.sleep(0)
    impatient.cancel()
    assert (await patient).authorization == "Bearer t1"
    assert runs.count == 1


async def test_a_plugin_that_failed_is_asked_again() -> None:
    answers: list[Any] = [ConfigError("no"), {"token": "yes"}]

    async def run() -> Any:
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
        ("2026-01-01T12:00:00Z", NOON),
        ("2026-01-01T14:00:00+02:00", NOON),
        ("2026-01-01T12:00:00.5Z", NOON + 0.5),
        (None, None),
    ],
)
def test_expiry(given: str | None, expiry: float | None) -> None:
    assert parse_exec_status({"token": "t", "expirationTimestamp": given})[1] == expiry


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "neither a token nor a client certificate"),
        (None, "is not an object"),
        ([], "is not an object"),
        ({"clientKeyData": "k"}, "only one of"),
        ({"token": "t", "clientCertificateData": "c"}, "only one of"),
        ({"token": "t", "expirationTimestamp": "tomorrow"}, "expirationTimestamp 'tomorrow' is not a time"),
    ],
)
def test_what_a_plugin_may_not_give(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_exec_status(given)
