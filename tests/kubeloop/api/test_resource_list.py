"""Resource lists: arithmetic key by key, and the JSON that annotations hold."""

from __future__ import annotations

import pytest

from kubeloop.api.quantity import QuantityError
from kubeloop.api.resource_list import (
    ResourceList,
    add,
    format_resource_list,
    marshal,
    maximum,
    parse_resource_list,
    subtract,
    total,
    unmarshal,
)


def of(**quantities: str) -> ResourceList:
    return parse_resource_list(quantities)


@pytest.mark.parametrize(
    ("a", "b", "added", "subtracted", "larger"),
    [
        pytest.param({}, {}, {}, {}, {}, id="nothing and nothing is nothing"),
        pytest.param(
            {"cpu": "2"},
            {"cpu": "500m"},
            {"cpu": "2500m"},
            {"cpu": "1500m"},
            {"cpu": "2"},
            id="a name of both sides is computed with",
        ),
        pytest.param(
            {"cpu": "2"},
            {"memory": "1Gi"},
            {"cpu": "2", "memory": "1Gi"},
            {"cpu": "2", "memory": "-1Gi"},
            {"cpu": "2", "memory": "1Gi"},
            id="a name of one side keeps that side's quantity",
        ),
        pytest.param(
            {"cpu": "0"},
            {"cpu": "1"},
            {"cpu": "1"},
            {"cpu": "-1"},
            {"cpu": "1"},
            id="zero is a quantity, not an absence",
        ),
    ],
)
def test_arithmetic(
    a: dict[str, str], b: dict[str, str], added: dict[str, str], subtracted: dict[str, str], larger: dict[str, str]
) -> None:
    assert format_resource_list(add(of(**a), of(**b))) == added
    assert format_resource_list(subtract(of(**a), of(**b))) == subtracted
    assert format_resource_list(maximum(of(**a), of(**b))) == larger


def test_arithmetic_leaves_its_operands_alone() -> None:
    a, b = of(cpu="1"), of(cpu="2", memory="1Gi")
    add(a, b)
    subtract(a, b)
    maximum(a, b)
    assert (a, b) == (of(cpu="1"), of(cpu="2", memory="1Gi"))


def test_a_total_sums_any_number_of_lists() -> None:
    assert total([]) == {}
    assert total([of(cpu="1"), of(cpu="1", pods="1"), of(memory="1Ki")]) == of(cpu="2", pods="1", memory="1Ki")


def test_entries_are_marshalled_as_go_does_it_compact_and_sorted() -> None:
    entry = parse_resource_list({"limits.memory": "4531245057", "limits.cpu": "+2"})
    assert marshal(entry) == '{"limits.cpu":"+2","limits.memory":"4531245057"}'
    assert marshal({}) == "{}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param('{"limits.cpu":"2"}', {"limits.cpu": "2"}, id="an entry as Harvester writes it"),
        pytest.param(' { "cpu" : "2" } ', {"cpu": "2"}, id="white space between the tokens"),
        pytest.param('{"cpu":" 2 "}', {"cpu": "2"}, id="white space around a quantity, which Go drops"),
        pytest.param('{"cpu":2}', {"cpu": "2"}, id="a plain number"),
        pytest.param('{"cpu":null}', {"cpu": "0"}, id="null, which is zero for Go"),
        pytest.param("null", {}, id="null, which is an empty list for Go"),
        pytest.param("{}", {}, id="an empty list"),
    ],
)
def test_an_entry_is_read(text: str, expected: dict[str, str]) -> None:
    assert unmarshal(text) == parse_resource_list(expected)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("", "not JSON", id="nothing"),
        pytest.param("{", "not JSON", id="half an object"),
        pytest.param("[]", "not a JSON object", id="a list"),
        pytest.param('"2"', "not a JSON object", id="a string"),
        pytest.param('{"cpu":"two"}', "cpu: 'two' is not a quantity", id="a word for a quantity"),
        pytest.param('{"cpu":{}}', "cpu: {} is not a quantity", id="an object for a quantity"),
        pytest.param('{"cpu":true}', "cpu: True is not a quantity", id="a boolean for a quantity"),
        pytest.param("\ud800", "not JSON", id="half a surrogate pair"),
        pytest.param("[" * 5000 + "]" * 5000, "not JSON", id="lists, 5,000 deep"),
    ],
)
def test_garbage_is_an_error_that_says_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(ValueError, match="^" + says.replace("{", r"\{").replace("}", r"\}")):
        unmarshal(text)


def test_a_bad_quantity_is_an_error_of_its_own_that_names_the_resource() -> None:
    with pytest.raises(QuantityError, match=r"^limits\.memory: '1 Gi' is not a quantity"):
        parse_resource_list({"limits.cpu": "1", "limits.memory": "1 Gi"})
