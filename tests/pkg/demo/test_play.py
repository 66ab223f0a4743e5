"""How the acts are played, on a stage without a cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pkg.client.errors import Forbidden
from pkg.demo import stage as stages
from pkg.demo.checks import Report
from pkg.demo.play import perform
from pkg.demo.scenario import SCENARIO, Act
from pkg.demo.stage import Stage, Stopped
from pkg.testcluster.errors import ClusterError

from .story import Story


class Watching:
    """Time goes by without anything to see."""

    async def changed(self, timeout: float) -> None:
        await asyncio.sleep(0)


def stage_of(story: Story, *, deserted: bool = False) -> Stage:
    nothing: Any = None
    watching: Any = Watching()
    return Stage(nothing, nothing, story.chronicle, watching, Report(), speed=1.0, deserted=lambda: deserted)


def act(letter: str, *, error: Exception | None = None) -> Act:
    async def play(stage: Stage) -> None:
        stage.check("it is played", letter, letter)
        if error is not None:
            raise error

    return Act(letter, f"act {letter}", play)


async def test_acts_are_played_in_order_each_under_its_letter() -> None:
    story = Story()
    stage = stage_of(story)
    await perform(stage, [act("a"), act("b")])
    assert [(check.act, check.ok) for check in stage.report.checks] == [("a", True), ("b", True)]
    assert [mark.text for mark in story.chronicle.marks] == ["(a) act a", "(b) act b"]


@pytest.mark.parametrize(
    "error",
    [Stopped("no more"), Forbidden("no more", status=403), ClusterError("no\nmore")],
    ids=["a fact that did not come true", "the API server says no", "the cluster fails"],
)
async def test_an_act_that_cannot_go_on_ends_the_play_as_failed(error: Exception) -> None:
    stage = stage_of(Story())
    await perform(stage, [act("a"), act("b", error=error), act("c")])
    assert [check.act for check in stage.report.checks] == ["a", "b", "b"]
    assert stage.report.exit_code == 1
    assert "no more" in str(stage.report.checks[-1].seen)


async def test_a_fact_may_come_true_late() -> None:
    answers = iter(["not yet", "not yet", "yes"])
    stage = stage_of(Story())
    await stage.expect("it comes", "yes", lambda: next(answers))
    assert stage.report.passed == 1


async def test_a_fact_that_never_comes_true_is_a_failed_check_and_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stages, "PATIENCE", 0.01)
    stage = stage_of(Story())
    with pytest.raises(Stopped, match="it comes"):
        await stage.expect("it comes", "yes", lambda: "no")
    (check,) = stage.report.checks
    assert (check.expected, check.seen, check.ok) == ("yes", "no", False)


async def test_nobody_reading_any_more_stops_the_play() -> None:
    stage = stage_of(Story(), deserted=True)
    with pytest.raises(Stopped, match="nobody reads"):
        await stage.expect("it comes", "yes", lambda: "no")


async def test_to_stop_headroom_where_none_runs_is_nothing() -> None:
    stage = stage_of(Story())
    await stage.stop_headroom()
    assert stage.report.checks == []


def test_the_acts_have_letters_of_their_own() -> None:
    assert [act.letter for act in SCENARIO] == ["a", "b", "c", "d", "e"]
