from __future__ import annotations

import io

import pytest
from rich.console import Console

from lab.demo.checks import Check, Report
from lab.demo.picture import svg, view
from tests.lab.builder import REFUSAL, RecordBuilder, sample


def text_of(builder: RecordBuilder, report: Report, now: float = 20.0) -> list[str]:
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None)
    with console.capture() as captured:
        console.print(view(builder.record, report, now=now, width=WIDTH, rows=ROWS))
    return captured.get().splitlines()


def checked(*checks: Check) -> Report:
    report = Report()
    for check in checks:
        report.add(check)
    return report


WIDTH, ROWS = 100, 6
STORY = """\
A namespace's quota while its VMs migrate, as the API server shows it   demo: 1 passed, 1 failed
limits.cpu    ─ allowed  █ used  ╌ base 3
                                       5                         5015m
                                       ╭──────────────┬────────────────────────────────────╮
                                       │              │                                    │
              ╌╌╌╌─────────────────────╯╌╌╌╌╌╌╌╌╌╌╌╌╌╌╵╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╰────────
                       2015m            4030m                                               2015m

limits.memory ─ allowed  █ used  ╌ base 5000Mi
                                       9980344313                10040344313
                                       ╭──────────────┬────────────────────────────────────╮
                                       │              │                                    │
              ╌╌╌╌─────────────────────╯╌╌╌╌╌╌╌╌╌╌╌╌╌╌╵╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╌╰────────
                       4797464313

              │0 s                 │5                    │10                  │15                  │
              (a) refused          (b) with headroom
headroom                            headroom controller --estimate harvester
Rancher                                             ▲ Rancher's agent restarts: reverted, repaired a
m1 of vm1                  Pending: refused      Running          old pod counts

✓ (a) quota says why: exceeded quota: default-abc, requested: limits.cpu=2015m
FAILED  (b) raised: expected 1; seen 2
"""
SAID = Check("a", "quota says why", REFUSAL, REFUSAL, headline=True)


def test_it_tells_the_whole_story() -> None:
    shown = text_of(sample(), checked(SAID, Check("b", "raised", 1, 2)))
    assert [line.rstrip() for line in shown] == STORY.splitlines()
    assert max(map(len, shown)) <= WIDTH


def test_before_anything_was_seen_it_has_its_size_already() -> None:
    empty = text_of(RecordBuilder(), Report())
    assert 2 * (ROWS + 1) < len(empty) <= len(text_of(sample(), Report()))


def test_the_picture_is_the_same_for_the_same_run_and_loads_nothing() -> None:
    drawn = [svg(sample().record, checked(SAID), 20.0) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert drawn[0].startswith("<svg")
    assert "exceeded&#160;quota:&#160;default-abc" in drawn[0]
    assert "http" not in drawn[0].replace("http://www.w3.org/2000/svg", "")


def test_the_picture_has_colours_also_where_the_environment_wants_none(monkeypatch: pytest.MonkeyPatch) -> None:
    with_colours = svg(sample().record, checked(SAID), 20.0)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "40")
    assert svg(sample().record, checked(SAID), 20.0) == with_colours
