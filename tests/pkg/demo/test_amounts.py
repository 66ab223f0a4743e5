from __future__ import annotations

import pytest

from pkg.demo.history import Amounts, Quota
from pkg.util.quantity import QuantityError


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        pytest.param(("3", "5000Mi"), ("3000m", "5242880k"), True, id="other ways to write the same"),
        pytest.param(("3", "5000Mi"), ("3", "5242880001"), False, id="a byte more"),
        pytest.param(("3", "5000Mi"), ("3001m", "5000Mi"), False, id="a thousandth more"),
    ],
)
def test_amounts_are_compared_by_value(one: tuple[str, str], other: tuple[str, str], equal: bool) -> None:
    assert (Amounts.of(*one) == Amounts.of(*other)) is equal


def test_they_are_printed_as_the_api_server_prints_them() -> None:
    assert str(Amounts.of("2015m", "5000Mi")) == "cpu 2015m, memory 5000Mi"
    assert str(Quota(Amounts.of("3", "1k"), Amounts())) == "hard cpu 3, memory 1k; used cpu 0, memory 0"


def test_a_resource_list_without_the_two_is_zero() -> None:
    assert Amounts.within({"pods": 3}) == Amounts()


def test_two_are_added_by_resource() -> None:
    assert Amounts.of("2015m", "1") + Amounts.of("985m", "2") == Amounts.of("3", "3")


def test_garbage_is_refused() -> None:
    with pytest.raises(QuantityError):
        Amounts.within({"limits.cpu": "much"})
