"""Quantities against apimachinery's own results, and what must hold for any."""

import time
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kubeloop.api.quantity import NANOS, ZERO, Format, Quantity, QuantityError
from tests.pkg.util import vectors

VECTORS = list(vectors.lines("quantity"))
GOOD = [vector for vector in VECTORS if "error" not in vector]
INT64 = 2**63


def parse(text: str | int | float) -> Quantity:
    return Quantity.parse(text)


def outcome(text: str) -> dict[str, Any]:
    """Returns a vector's statements about its text, apart from the numbers."""
    try:
        quantity = parse(text)
    except QuantityError:
        return {"in": text, "error": True}
    return {"in": text, "canonical": str(quantity), "zero": quantity.is_zero()}


def test_a_text_is_a_quantity_exactly_as_in_apimachinery() -> None:
    keys = ("in", "error", "canonical", "zero")
    expected = [{key: vector[key] for key in keys if key in vector} for vector in VECTORS]
    assert (len(VECTORS), len(GOOD)) == (625, 525)
    assert [outcome(vector["in"]) for vector in VECTORS] == expected


def test_sums_differences_and_comparisons_are_apimachinerys() -> None:
    compared = 0
    for vector in GOOD:
        if "prev" not in vector:
            continue
        a, b = parse(vector["prev"]), parse(vector["in"])
        result = ((a > b) - (a < b), str(a + b), str(a - b))
        assert result == (vector["cmp_prev"], vector["prev_plus"], vector["prev_minus"]), vector
        compared += 1
    assert compared > 400


def test_the_integer_value_is_gos_where_go_does_not_overflow() -> None:
    compared = 0
    for vector in GOOD:
        quantity = parse(vector["in"])
        # Go's slow path cuts negative numbers to 64 bits before it divides: its results for those are noise.
        if quantity.nanos >= 0 and quantity.value() < INT64:
            assert quantity.value() == int(vector["value"]), vector
            compared += 1
        if 0 <= quantity.milli_value() < INT64:
            assert quantity.milli_value() == int(vector["milli"]), vector
    assert compared > 300


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("1e99999999999999999999", id="an exponent beyond 64 bits"),
        pytest.param("0" * 1_000_000 + "x", id="a million zeros and garbage"),
        pytest.param("1" + "." * 900, id="dots without end"),
    ],
)
def test_hostile_text_is_refused_at_once(text: str) -> None:
    started = time.thread_time()
    with pytest.raises(QuantityError) as caught:
        parse(text)
    assert time.thread_time() - started < 1
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", ["Ei", "Pi", "-Ei", ".Ei", "e-12", "1_000", " 1", "1\n", "١", "1e", "0x10", "∞"])
def test_text_that_only_looks_like_a_quantity_is_none(text: str) -> None:
    with pytest.raises(QuantityError):
        parse(text)


@pytest.mark.parametrize(
    ("number", "printed"),
    [(2, "2"), (2.5, "2500m"), (1e22, "10e21"), (0.1, "100m"), (-3, "-3"), (10**30, "1"), (4294967296, "4294967296")],
)
def test_plain_json_numbers_are_quantities(number: float, printed: str) -> None:
    assert str(parse(number)) == printed


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        pytest.param("0e-5000", "0", id="no zero is rounded up"),
        pytest.param("1e-5000", "1e-9", id="whatever is more than zero is"),
        pytest.param("1e301", "9" * 300, id="more is as much"),
        pytest.param("-1e2000000000", "-" + "9" * 300, id="an exponent that would fill memory"),
        pytest.param("9" * 1_000_000, "9" * 300, id="a million digits"),
        pytest.param("1." + "9" * 1_000_000, "2", id="a million decimals"),
        pytest.param("+12345678901Ki", "+12345678901Ki", id="as long as Go keeps the text"),
        pytest.param("+123456789012Ki", "123456789012Ki", id="too long"),
    ],
)
def test_at_the_bounds(text: str, printed: str) -> None:
    assert str(parse(text)) == printed


@pytest.mark.parametrize("raw", [True, None, [], {}, float("nan"), float("inf"), b"1"])
def test_other_json_values_are_none(raw: Any) -> None:
    with pytest.raises(QuantityError):
        parse(raw)


def test_equal_amounts_are_equal_however_they_are_spelled() -> None:
    assert parse("1024Mi") == parse("1Gi") == parse("1073741824")
    assert len({parse("1"), parse("1000m"), parse("1e0")}) == 1
    assert parse("1") != 1


def test_a_quantity_is_true_when_it_is_not_zero() -> None:
    assert parse("1n")
    assert not parse("0.0")


def test_a_text_is_parsed_once() -> None:
    assert parse("4737464313") is parse("4737464313")


NANO = st.integers(min_value=-(10**30), max_value=10**30)
QUANTITIES = st.builds(Quantity, NANO, st.sampled_from(Format))
SUFFIXES = st.sampled_from(["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "e3", "e-3", "E2"])
TEXTS = st.builds(
    lambda sign, whole, fraction, suffix: f"{sign}{whole}{fraction}{suffix}",
    st.sampled_from(["", "+", "-"]),
    st.integers(min_value=0, max_value=10**12),
    st.one_of(st.just(""), st.integers(min_value=0, max_value=10**6).map(lambda n: f".{n}")),
    SUFFIXES,
)


def prints_in_full(quantity: Quantity) -> bool:
    """Reports whether a quantity prints in full: from 10^21 on round numbers lose their zeros in print, and binary ones
    are capped when read."""
    bound = INT64 if quantity.format is Format.BINARY_SI else 10**21
    return abs(quantity.nanos) < bound * NANOS


@given(QUANTITIES.filter(prints_in_full))
def test_what_is_printed_reads_back_as_the_same_amount(quantity: Quantity) -> None:
    assert parse(str(quantity)) == quantity


@given(TEXTS)
@example("5E")
@example("1000000000000E")
def test_printing_is_stable(text: str) -> None:
    quantity = parse(text)
    printed = str(quantity)
    assert str(parse(printed)) == printed
    assert parse(printed) == quantity or not prints_in_full(quantity)


@given(QUANTITIES, QUANTITIES)
def test_adding_and_subtracting_are_inverse(a: Quantity, b: Quantity) -> None:
    assert (a + b) - b == a
    assert (a - b) + b == a
    assert -(a - b) == b - a
    assert a + b == b + a


@given(QUANTITIES, QUANTITIES)
def test_the_order_is_the_order_of_amounts(a: Quantity, b: Quantity) -> None:
    assert (a < b) == (a.nanos < b.nanos)
    assert (a <= b) == (a - b <= ZERO)


@given(QUANTITIES)
def test_the_integer_value_is_the_least_that_covers_the_amount(quantity: Quantity) -> None:
    value = quantity.value()
    assert abs(value) * NANOS >= abs(quantity.nanos)
    assert abs(quantity.nanos) > (abs(value) - 1) * NANOS


@given(st.text(max_size=12))
def test_any_text_is_a_quantity_or_an_error_of_its_own(text: str) -> None:
    try:
        text_again = str(parse(text))
    except QuantityError as error:
        text_again = str(error)
    assert text_again
    assert "\n" not in text_again
