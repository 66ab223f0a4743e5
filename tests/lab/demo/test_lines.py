import io

import pytest

from lab.demo.lines import Check, Lines, Report, is_terminal
from lab.demo.picture import show
from tests.lab.builder import BASE, ENTRY, ONE, REFUSAL, RecordBuilder, sample


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_the_story_in_plain_lines() -> None:
    stream, builder, report = io.StringIO(), RecordBuilder(), Report()
    Lines(stream).follow(builder.record, report)
    sample(builder)
    report.add(Check("a", "phase", "Pending", "Pending"))
    lines = stream.getvalue().splitlines()
    for line in (
        "== (a) refused: a quota too small ==",
        "   2.0 s  quota     default-abc: limits.cpu 2015m/3, limits.memory 4797464313/5000Mi",
        "   3.0 s  migration m1 of vm1: Pending",
        f"   3.0 s  event     m1: FailedCreate: Error creating pod: {REFUSAL}",
        "   5.0 s  headroom  headroom controller --estimate harvester",
        "   7.0 s  pod       target (m1's target): Running",
        "   9.0 s  rancher   Rancher's agent restarts",
        "   9.5 s  quota     default-abc: limits.cpu 4030m/3, limits.memory 9594928626/5000Mi",
        "  19.0 s  headroom  stopped",
        "ok      (a) phase: expected and seen Pending",
    ):
        assert line in lines


def test_an_entry_alone_is_no_line() -> None:
    stream = io.StringIO()
    builder = RecordBuilder()
    Lines(stream).follow(builder.record, Report())
    builder.quota(1, BASE, ONE)
    builder.quota(2, BASE, ONE, ENTRY)
    assert len(stream.getvalue().splitlines()) == 1


@pytest.mark.parametrize(
    ("stream", "environment", "expected"),
    [
        pytest.param(Terminal(), {}, True, id="a terminal"),
        pytest.param(Terminal(), {"CI": "true"}, False, id="a terminal in CI"),
        pytest.param(Terminal(), {"TERM": "dumb"}, False, id="a terminal without colours"),
        pytest.param(io.StringIO(), {}, False, id="a pipe"),
    ],
)
def test_where_the_picture_is_shown(
    stream: io.StringIO, environment: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert is_terminal(stream) is expected


def test_a_terminal_gets_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    show(stream, sample().record, Report(), 20.0)
    assert "\x1b[" in stream.getvalue()
    assert "limits.memory" in stream.getvalue()


def test_a_terminal_gets_folded_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    Lines(stream).say("\n== cpu 5015m, memory 10040344313; cpu 5015m, memory 10040344313; cpu 5015m, memory 1 ==")
    assert [len(line) for line in stream.getvalue().splitlines()] == [0, 75, 21]
