from __future__ import annotations

import pytest

from lab.demo.checks import Check, Report
from lab.record import Amounts

GOOD = Check("a", "it is so", 1, 1)
BAD = Check("b", "it is so", 1, 2)


@pytest.mark.parametrize(
    ("check", "line"),
    [
        pytest.param(
            Check("a", "phase", "Pending", "Pending"), "ok      (a) phase: expected and seen Pending", id="as expected"
        ),
        pytest.param(
            Check("b", "quota", Amounts.of("3", "5000Mi"), Amounts.of("3", "5242880k")),
            "ok      (b) quota: expected cpu 3, memory 5000Mi; seen cpu 3, memory 5242880k",
            id="the same value, written otherwise",
        ),
        pytest.param(
            Check("c", "quota", Amounts.of("5", "1"), Amounts.of("5", "2")),
            "FAILED  (c) quota: expected cpu 5, memory 1; seen cpu 5, memory 2",
            id="a byte off",
        ),
    ],
)
def test_a_check_is_a_named_line(check: Check, line: str) -> None:
    assert str(check) == line


@pytest.mark.parametrize(
    ("checks", "last_line", "code"),
    [
        pytest.param([GOOD, GOOD], "demo: 2 passed, 0 failed", 0, id="all passed"),
        pytest.param([GOOD, BAD], "demo: 1 passed, 1 failed", 1, id="one failed"),
        pytest.param([], "demo: 0 passed, 0 failed", 1, id="a demo that checked nothing is no success"),
    ],
)
def test_the_last_line_and_the_exit_code(checks: list[Check], last_line: str, code: int) -> None:
    heard: list[Check] = []
    report = Report(heard.append)
    for check in checks:
        report.add(check)
    assert (report.last_line, report.exit_code) == (last_line, code)
    assert heard == report.checks == checks
