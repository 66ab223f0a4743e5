from __future__ import annotations

import io

import pytest
from rich.console import Console

from pkg.demo.checks import Check, Report
from pkg.demo.picture import svg
from pkg.demo.view import Size, view

from .story import REFUSAL, Story, told


def text_of(story: Story, report: Report, *, size: Size, now: float = 20.0, live: bool = True) -> list[str]:
    console = Console(file=io.StringIO(), width=size.width, color_system=None)
    with console.capture() as captured:
        console.print(view(story.chronicle, report, now=now, size=size, live=live))
    return captured.get().splitlines()


def checked(*checks: Check) -> Report:
    report = Report()
    for check in checks:
        report.add(check)
    return report


SIZE = Size(width=100, chart=6, talk=4)
SAID = Check("a", "quota says why", REFUSAL, REFUSAL, headline=True)


def test_it_shows_the_act_the_quota_and_the_migration() -> None:
    shown = "\n".join(text_of(told(), checked(SAID), size=SIZE))
    for expected in (
        "(b) with headroom: it makes room",
        "limits.cpu",
        "now 2015m of 3",
        "now 4797464313 of 5000Mi",
        "base 5000Mi",
        "m1 of vm1",
        "old pod",
        "Rancher's agent restarts",
    ):
        assert expected in shown


def test_before_anything_was_seen_it_has_its_size_already() -> None:
    empty = text_of(Story(), Report(), size=SIZE)
    later = text_of(told(), Report(), size=SIZE)
    assert 2 * (SIZE.chart + 1) < len(empty) <= len(later)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (120, 40), (200, 60)])
def test_it_fits_into_a_terminal(width: int, height: int) -> None:
    size = Size.fitting(width, height)
    story = told()
    for number in (2, 3, 4):
        story.migration(20, "Pending", name=f"m{number}")
    checks = [Check("a", f"check {number}", "x" * 300, "x" * 300) for number in range(30)]
    lines = text_of(story, checked(*checks), size=size, now=21.0)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


def test_the_picture_tells_the_whole_story() -> None:
    failed = Check("b", "raised", 1, 2)
    shown = "\n".join(text_of(told(), checked(SAID, failed), size=SIZE, live=False))
    assert REFUSAL in " ".join(shown.split())
    assert "FAILED  (b) raised: expected 1; seen 2" in shown
    assert "demo: 1 passed, 1 failed" in shown


def test_the_picture_is_the_same_for_the_same_play_and_loads_nothing() -> None:
    drawn = [svg(told().chronicle, checked(SAID), 20.0) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert drawn[0].startswith("<svg")
    assert "http" not in drawn[0].replace("http://www.w3.org/2000/svg", "")


def test_the_picture_has_colours_also_where_the_environment_wants_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_colours = svg(told().chronicle, checked(SAID), 20.0)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "40")
    assert svg(told().chronicle, checked(SAID), 20.0) == with_colours
