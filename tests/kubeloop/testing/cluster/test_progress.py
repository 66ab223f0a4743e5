from __future__ import annotations

import io
from types import SimpleNamespace

import pytest

from kubeloop.testing.cluster import progress
from kubeloop.testing.cluster.progress import Lines
from tests.kinds import Clock

THINNED_OUT = "begins\n15 s\n30 s\ndone\n"
REWRITTEN = "begins\n" + "".join(f"\r\x1b[2K{second} s" for second in range(40)) + "\r\x1b[2Kdone\n"


@pytest.mark.parametrize(
    ("terminal", "ci", "report"),
    [(False, "", THINNED_OUT), (True, "true", THINNED_OUT), (True, "", REWRITTEN)],
    ids=["a pipe", "a terminal in CI", "a terminal"],
)
def test_ticks_on(terminal: bool, ci: str, report: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, clock = io.StringIO(), Clock(100.0)
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=clock))
    lines = Lines(stream)
    lines.step("begins")
    for second in range(40):
        clock.now = 100.0 + second
        lines.tick(f"{second} s")
    lines.step("done")
    assert stream.getvalue() == report
