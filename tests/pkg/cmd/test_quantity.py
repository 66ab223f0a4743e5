"""`headroom quantity`: a JSON line for each line, whatever stands in it."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pkg.cmd import quantity as command
from pkg.cmd.options import WrongCall
from tests.pkg.util import vectors


class Call:
    """The command, with stdin given and stdout read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self.stderr = ""

    def __call__(self, stdin: bytes, **flags: bool) -> list[dict[str, Any]]:
        self._monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(stdin)))
        command.quantity(command.QuantityOptions(**flags))
        printed = self._capsys.readouterr()
        self.stderr = printed.err
        return [json.loads(line) for line in printed.out.splitlines()]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    return Call(monkeypatch, capsys)


def test_all_vectors_go_through(call: Call) -> None:
    wanted = list(vectors.lines("quantity"))
    printed = call("".join(f"{vector['in']}\n" for vector in wanted).encode())
    assert [line["in"] for line in printed] == [vector["in"] for vector in wanted]
    for line, vector in zip(printed, wanted, strict=True):
        assert ("error" in line) == ("error" in vector)
        assert line.get("canonical") == vector.get("canonical")


@pytest.mark.parametrize(("flag", "key"), [("add", "prev_plus"), ("sub", "prev_minus"), ("cmp", "cmp_prev")])
def test_all_vectors_are_computed_with(call: Call, flag: str, key: str) -> None:
    wanted = [vector for vector in vectors.lines("quantity") if "prev" in vector]
    printed = call("".join(f"{v['prev']}\t{v['in']}\n" for v in wanted).encode(), **{flag: True})
    assert [line["result"] for line in printed] == [vector[key] for vector in wanted]


@pytest.mark.parametrize(
    ("line", "printed"),
    [
        pytest.param(
            b"1.5", {"in": "1.5", "canonical": "1500m", "value": 2}, id="a fraction rounds up in value"
        ),
        pytest.param(
            b"2730Mi", {"in": "2730Mi", "canonical": "2730Mi", "value": 2862612480}, id="a memory size"
        ),
        pytest.param(b"1Gi\r", {"in": "1Gi", "canonical": "1Gi", "value": 2**30}, id="a line from Windows"),
        pytest.param(b"-1500m", {"in": "-1500m", "canonical": "-1500m", "value": -2}, id="a negative number"),
    ],
)
def test_a_quantity_is_described(call: Call, line: bytes, printed: dict[str, Any]) -> None:
    assert call(line + b"\n") == [printed]
    assert call(line) == [printed]


@pytest.mark.parametrize(
    ("line", "given"),
    [
        pytest.param(b"", "", id="an empty line"),
        pytest.param(b"\r", "", id="an empty line from Windows"),
        pytest.param(b" 1", " 1", id="white space"),
        pytest.param(b"1\r2", "1\r2", id="a carriage return within"),
        pytest.param(b"1\t2", "1\t2", id="two quantities without an operation"),
        pytest.param(b"\xff\xfe\x00", "\ufffd\ufffd\x00", id="bytes that are no text"),
        pytest.param(b"9" * 100_000, "9" * 100_000, id="digits without end"),
        pytest.param(b"1e2000000000", "1e2000000000", id="a number that would fill memory"),
        pytest.param("１".encode(), "１", id="a digit of another script"),
    ],
)
def test_a_line_that_is_no_quantity_has_an_error_and_the_next_goes_on(
    call: Call, line: bytes, given: str
) -> None:
    bad, good = call(line + b"\n7\n")
    assert bad["in"] == given
    assert bad.keys() == {"in", "error"}
    assert len(bad["error"]) < 200
    assert good == {"in": "7", "canonical": "7", "value": 7}


@pytest.mark.parametrize(
    ("flag", "line", "result"),
    [
        pytest.param("add", "1Gi\t1G", "2073741824", id="a sum takes the left side's format"),
        pytest.param("add", "0\t512Mi", "512Mi", id="unless that is zero"),
        pytest.param("sub", "5000Mi\t5000Mi", "0", id="a difference of equals"),
        pytest.param("sub", "3\t2015m", "985m", id="a difference in thousandths"),
        pytest.param("cmp", "1024Mi\t1Gi", 0, id="equal amounts"),
        pytest.param("cmp", "1m\t1", -1, id="less"),
        pytest.param("cmp", "1\t-1", 1, id="more"),
    ],
)
def test_an_operation_adds_its_result(call: Call, flag: str, line: str, result: str | int) -> None:
    (printed,) = call(line.encode(), **{flag: True})
    assert printed["in"] == line
    assert printed["result"] == result
    assert printed.keys() == {"in", "canonical", "value", "result"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        pytest.param("1", "needs two quantities", id="one quantity only"),
        pytest.param("1\t", "''", id="nothing after the tab"),
        pytest.param("\t1", "''", id="nothing before the tab"),
        pytest.param("1\tx", "'x'", id="a bad second one"),
        pytest.param("1\t2\t3", r"'2\t3'", id="three of them"),
        pytest.param("1 2", "needs two quantities", id="a space instead of the tab"),
    ],
)
def test_an_operation_without_two_quantities_is_an_error_of_that_line(
    call: Call, line: str, says: str
) -> None:
    bad, good = call(f"{line}\n1\t1\n".encode(), add=True)
    assert says in bad["error"]
    assert good["result"] == "2"


@pytest.mark.parametrize(
    "flags", [{"add": True, "sub": True}, {"sub": True, "cmp": True}, {"add": True, "sub": True, "cmp": True}]
)
def test_two_operations_at_once_are_a_wrong_call(call: Call, flags: dict[str, bool]) -> None:
    with pytest.raises(WrongCall, match="exclude each other"):
        call(b"1\t1\n", **flags)


def test_no_input_prints_nothing(call: Call) -> None:
    assert call(b"") == []
    assert call.stderr == ""
