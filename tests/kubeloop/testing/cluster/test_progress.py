from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from kubeloop.testing.cluster import progress
from kubeloop.testing.cluster.progress import Lines
from tests.kinds import Clock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def no_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)


def test_in_a_pipe_ticks_are_thinned_out_to_one_in_fifteen_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, clock = io.StringIO(), Clock(100.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=clock))
    lines = Lines(stream)
    lines.step("begins")
    for second in range(40):
        clock.now = 100.0 + second
        lines.tick(f"{second} s")
    assert stream.getvalue().splitlines() == ["begins", "15 s", "30 s"]


def test_on_a_terminal_ticks_rewrite_their_line_and_a_step_replaces_it() -> None:
    stream = Terminal()
    lines = Lines(stream)
    lines.tick("1 s")
    lines.tick("2 s")
    lines.step("done")
    assert stream.getvalue() == "\r\x1b[2K1 s\r\x1b[2K2 s\r\x1b[2Kdone\n"


def test_a_terminal_in_ci_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    stream = Terminal()
    lines = Lines(stream, interval=0)
    lines.tick("1 s")
    lines.step("done")
    assert stream.getvalue() == "1 s\ndone\n"
