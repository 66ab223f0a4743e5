"""Steps and checks, with a driver that has no cluster."""

import pytest

from kubeloop.api.registry import RESOURCE_QUOTAS
from kubeloop.client.errors import Forbidden
from kubeloop.testing.cluster.reporting import ClusterError
from kubeloop.testing.fake.server import FakeCluster
from lab.demo import driver as drivers
from lab.demo import seed
from lab.demo.driver import Driver, Stopped
from lab.demo.lines import Check, Report
from lab.demo.run import run_steps
from lab.demo.scenario import Step
from lab.record import Amounts
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
    assert "no more" in str(driver.report.checks[-1].actual)


async def test_a_fact_may_come_true_late() -> None:
    answers = iter(["not yet", "not yet", "yes"])
    driver = driver_of(RecordBuilder())
    await driver.expect("it comes", "yes", lambda: next(answers))
    assert driver.report.passed_count == 1


async def test_a_fact_that_never_comes_true_fails_and_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "PATIENCE", 0.01)
    driver = driver_of(RecordBuilder())
    with pytest.raises(Stopped, match="it comes"):
        await driver.expect("it comes", "yes", lambda: "no")
    (check,) = driver.report.checks
    assert (check.expected, check.actual, check.ok) == ("yes", "no", False)


async def test_a_closed_output_ends_the_demo() -> None:
    driver = driver_of(RecordBuilder(), deserted=True)
    with pytest.raises(Stopped, match="the output is closed"):
        await driver.expect("it comes", "yes", lambda: "no")


@pytest.mark.parametrize("is_newest", [True, False], ids=["the newest version was seen", "there is one more"])
async def test_whether_all_versions_of_the_quota_were_seen(is_newest: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drivers, "PATIENCE", 0.05)
    builder, server = RecordBuilder(), FakeCluster()
    quota = {"metadata": {"name": "default-abc", "namespace": seed.NAMESPACE}, "spec": {"hard": {}}}
    builder.record.see_quota(server.put(RESOURCE_QUOTAS, quota))
    if not is_newest:
        server.put(RESOURCE_QUOTAS, quota)
    assert await driver_of(builder, client=server.client()).catch_up() is is_newest


@pytest.mark.parametrize(
    ("numbers", "last_line", "code"),
    [
        pytest.param([1, 1], "demo: 2 passed, 0 failed", 0, id="all passed"),
        pytest.param([1, 2], "demo: 1 passed, 1 failed", 1, id="one failed"),
        pytest.param([], "demo: 0 passed, 0 failed", 1, id="a demo that checked nothing is no success"),
    ],
)
def test_the_last_line_and_the_exit_code(numbers: list[int], last_line: str, code: int) -> None:
    report = Report()
    for number in numbers:
        report.add(Check("a", "it is so", 1, number))
    assert (report.last_line, report.exit_code) == (last_line, code)


def test_amounts_compare_by_value_and_are_printed_as_written() -> None:
    check = Check("b", "quota", Amounts.of("3", "5000Mi"), Amounts.of("3", "5242880k"))
    assert str(check) == "ok      (b) quota: expected cpu 3, memory 5000Mi; seen cpu 3, memory 5242880k"
