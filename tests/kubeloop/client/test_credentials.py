"""Credentials: when they are fetched anew, and what happens when they can't be had."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kubeloop.client import credentials
from kubeloop.client.credentials import Reread
from kubeloop.client.errors import ConfigError
from tests.kinds import Clock


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
