"""Resource lists: arithmetic key by key, and the JSON that annotations hold."""

import pytest

from kubeloop.api.quantity import QuantityError
from kubeloop.api.resource_list import (
    ResourceList,
    add,
    format_resource_list,
    marshal,
    maximum,
    parse_resource_list,
    positive,
    subtract,
    total,
    unmarshal,
)
from tests.decisions import sentences


def resource_list(**quantities: str) -> ResourceList:
    return parse_resource_list(quantities)


ARITHMETIC: dict[str, list[dict[str, str]]] = {
    # a, b; their sum, their difference, the larger of both
    "nothing and nothing is nothing": [{}, {}, {}, {}, {}],
    "a name of both sides is computed with": [
        *({"cpu": "2"}, {"cpu": "500m"}),
        *({"cpu": "2500m"}, {"cpu": "1500m"}, {"cpu": "2"}),
    ],
    "a name of one side keeps that side's quantity": [
        *({"cpu": "2"}, {"memory": "1Gi"}),
        *({"cpu": "2", "memory": "1Gi"}, {"cpu": "2", "memory": "-1Gi"}, {"cpu": "2", "memory": "1Gi"}),
    ],
    "zero is a quantity, not an absence": [{"cpu": quantity} for quantity in ("0", "1", "1", "-1", "1")],
}


@sentences(ARITHMETIC)
def test_arithmetic(case: list[dict[str, str]]) -> None:
    a, b = (resource_list(**amounts) for amounts in case[:2])
    assert [format_resource_list(amounts) for amounts in (add(a, b), subtract(a, b), maximum(a, b))] == case[2:]


def test_arithmetic_leaves_its_operands_alone() -> None:
    a, b = resource_list(cpu="1"), resource_list(cpu="2", memory="1Gi")
    add(a, b)
    subtract(a, b)
    maximum(a, b)
    assert (a, b) == (resource_list(cpu="1"), resource_list(cpu="2", memory="1Gi"))


def test_positive_is_what_is_more_than_nothing() -> None:
    assert positive(resource_list(cpu="1n", pods="0", memory="-1")) == resource_list(cpu="1n")


def test_a_total_sums_any_number_of_lists() -> None:
    assert total([]) == {}
    assert total(
        [resource_list(cpu="1"), resource_list(cpu="1", pods="1"), resource_list(memory="1Ki")]
    ) == resource_list(cpu="2", pods="1", memory="1Ki")


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
        pytest.param("[" * 5000 + "]" * 5000, "not (JSON|a JSON object)", id="lists, 5,000 deep"),
    ],
)
def test_garbage_is_an_error_that_says_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(ValueError, match="^" + says.replace("{", r"\{").replace("}", r"\}")):
        unmarshal(text)


def test_a_bad_quantity_is_an_error_that_names_the_resource() -> None:
    with pytest.raises(QuantityError, match=r"^limits\.memory: '1 Gi' is not a quantity"):
        parse_resource_list({"limits.cpu": "1", "limits.memory": "1 Gi"})
