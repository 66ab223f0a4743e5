"""How the steps are run, with a driver that has no cluster."""

from __future__ import annotations

import pytest

from kubeloop.client.errors import Forbidden
from kubeloop.testing.cluster.errors import ClusterError
from lab.demo import driver as drivers
from lab.demo.driver import Driver, Stopped
from lab.demo.run import run_steps
from lab.demo.scenario import SCENARIO, Step
from tests.lab.builder import RecordBuilder, driver_of


def step(letter: str, *, error: Exception | None = None) -> Step:
    async def run(driver: Driver) -> None:
        driver.check("it is run", letter, letter)
        if error is not None:
            raise error

    return Step(letter, f"step {letter}", run)


async def test_steps_run_in_order_each_under_its_letter() -> None:
    builder = RecordBuilder()
    driver = driver_of(builder)
    await run_steps(driver, [step("a"), step("b")])
    assert [(check.step, check.ok) for check in driver.report.checks] == [("a", True), ("b", True)]
    assert [mark.text for mark in builder.record.marks] == ["(a) step a", "(b) step b"]


@pytest.mark.parametrize(
    "error",
    [Stopped("no more"), Forbidden("no more", status=403), ClusterError("no\nmore")],
    ids=["a fact that did not come true", "the API server says no", "the cluster fails"],
)
async def test_a_step_that_cannot_go_on_ends_the_demo_as_failed(error: Exception) -> None:
    driver = driver_of(RecordBuilder())
    await run_steps(driver, [step("a"), step("b", error=error), step("c")])
    assert [check.step for check in driver.report.checks] == ["a", "b", "b"]
    assert driver.report.exit_code == 1
    assert "no more" in str(driver.report.checks[-1].seen)


async def test_a_fact_may_come_true_late() -> None:
    answers = iter(["not yet", "not yet", "yes"])
    driver = driver_of(RecordBuilder())
    await driver.expect("it comes", "yes", lambda: next(answers))
    assert driver.report.passed == 1


async def test_a_fact_that_never_comes_true_is_a_failed_check_and_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "PATIENCE", 0.01)
    driver = driver_of(RecordBuilder())
    with pytest.raises(Stopped, match="it comes"):
        await driver.expect("it comes", "yes", lambda: "no")
    (check,) = driver.report.checks
    assert (check.expected, check.seen, check.ok) == ("yes", "no", False)


async def test_a_closed_output_ends_the_demo() -> None:
    driver = driver_of(RecordBuilder(), deserted=True)
    with pytest.raises(Stopped, match="the output is closed"):
        await driver.expect("it comes", "yes", lambda: "no")


async def test_to_stop_headroom_where_none_runs_is_nothing() -> None:
    driver = driver_of(RecordBuilder())
    await driver.stop_headroom()
    assert driver.report.checks == []


def test_the_steps_have_letters_of_their_own() -> None:
    assert [step.letter for step in SCENARIO] == ["a", "b", "c", "d", "e", "f"]
