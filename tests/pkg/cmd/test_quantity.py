"""`headroom quantity`: a JSON line for each line, whatever stands in it."""

from typing import Any

import pytest

from pkg.cmd.quantity import QuantityOptions, quantity
from tests.pkg.cmd.delta_rig import Call


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    return Call(monkeypatch, capsys, quantity, QuantityOptions)


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        pytest.param("1.5", {"canonical": "1500m", "value": 2}, id="a fraction rounds up in value"),
        pytest.param("-1500m", {"canonical": "-1500m", "value": -2}, id="a negative number"),
        pytest.param("1Gi\r", {"in": "1Gi", "canonical": "1Gi", "value": 2**30}, id="a line from Windows"),
    ],
)
def test_a_quantity_is_described(call: Call, line: str, printed: dict[str, Any]) -> None:
    assert call(line + "\n") == call(line) == [{"in": line, **printed}]


@pytest.mark.parametrize(
    ("line", "shown_text"),
    [
        pytest.param(b"", "", id="an empty line"),
        pytest.param(b"1\r2", "1\r2", id="a carriage return within"),
        pytest.param(b"1\t2", "1\t2", id="two quantities without an operation"),
        pytest.param(b"\xff\xfe\x00", "\ufffd\ufffd\x00", id="bytes that are no text"),
        pytest.param(b"1e" + b"9" * 100_000, "1e" + "9" * 100_000, id="an exponent without end"),
    ],
)
def test_a_line_that_is_no_quantity_is_an_error_of_its_own(call: Call, line: bytes, shown_text: str) -> None:
    bad, good = call(line + b"\n7\n")
    assert (bad["in"], bad.keys()) == (shown_text, {"in", "error"})
    assert len(bad["error"]) < 200
    assert good == {"in": "7", "canonical": "7", "value": 7}


@pytest.mark.parametrize(
    ("flag", "line", "result"),
    [
        ("add", "1Gi\t1G", "2073741824"),
        ("sub", "3\t2015m", "985m"),
        ("cmp", "1024Mi\t1Gi", 0),
        ("cmp", "1m\t1", -1),
        ("cmp", "1\t-1", 1),
    ],
)
def test_an_operation_adds_its_result(call: Call, flag: str, line: str, result: str | int) -> None:
    (printed,) = call(line, **{flag: True})
    assert (printed["in"], printed["result"]) == (line, result)
    assert printed.keys() == {"in", "canonical", "value", "result"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        pytest.param("1", "needs two quantities", id="one quantity only"),
        pytest.param("1\t", "''", id="nothing after the tab"),
        pytest.param("1\t2\t3", r"'2\t3'", id="three of them"),
    ],
)
def test_an_operation_without_two_quantities_is_an_error(call: Call, line: str, says: str) -> None:
    bad, good = call(f"{line}\n1\t1\n", add=True)
    assert says in bad["error"]
    assert good["result"] == "2"


def test_two_operations_at_once_are_a_wrong_call(call: Call) -> None:
    assert call("1\t1\n", sub=True, cmp=True) == []
    assert (call.code, call.stderr) == (2, "headroom: --sub and --cmp exclude each other\n")
