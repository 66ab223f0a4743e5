"""base + entries + compensation, and what of it spec.hard does not say yet."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from kubeloop.api.meta import RawResourceList
from pkg.util.quantity import ZERO, Quantity
from pkg.util.resource_list import parse_resource_list, total
from pkg.util.resourcequota.balance import shortage
from pkg.util.resourcequota.base import (
    difference,
    hard,
    limits_are_empty,
    quantity_of,
)
from tests.decisions import by_value, drawn, sentences


@dataclass(frozen=True)
class Sum:
    """What is added up, and spec.hard's part of it."""

    base: RawResourceList
    entries: list[RawResourceList]
    hard: RawResourceList
    compensation: RawResourceList = field(default_factory=dict)


SUMS = {
    "nothing is added: the base": Sum({"limits.cpu": "3"}, [], {"limits.cpu": "3"}),
    "the seed": Sum(
        {"limits.cpu": "3", "limits.memory": "5000Mi"},
        [{"limits.cpu": "2", "limits.memory": "4737464313"}],
        {"limits.cpu": "5", "limits.memory": "9980344313"},
    ),
    "the seed of the older release": Sum(
        {"limits.memory": "60Gi"}, [{"limits.memory": "4531245057"}], {"limits.memory": "68955754497"}
    ),
    "all entries and the compensation": Sum(
        {"limits.memory": "1Gi"},
        [{"limits.memory": "1Gi"}, {"limits.memory": "2Gi"}, {}],
        {"limits.memory": "8Gi"},
        {"limits.memory": "4Gi"},
    ),
    "what the base does not limit is left out": Sum(
        {"limits.cpu": "3"}, [{"limits.memory": "1Gi"}], {"limits.cpu": "3"}
    ),
    "a base of zero limits nothing": Sum(
        {"limits.cpu": "0", "limits.memory": "1"}, [{"limits.cpu": "1"}], {"limits.memory": "1"}
    ),
}


@sentences(SUMS)
def test_sum(case: Sum) -> None:
    added = total(map(parse_resource_list, [*case.entries, case.compensation]))
    assert hard(parse_resource_list(case.base), added) == by_value(case.hard)


@dataclass(frozen=True)
class Difference:
    """spec.hard, what is wanted, and what has to be written."""

    hard: RawResourceList
    wanted: RawResourceList
    written: dict[str, str]


DIFFERENCES = {
    "the same": Difference({"limits.cpu": "3"}, {"limits.cpu": "3"}, {}),
    "the same in another spelling": Difference({"limits.cpu": "3000m"}, {"limits.cpu": "3"}, {}),
    "a plain number": Difference({"limits.cpu": 3}, {"limits.cpu": "3"}, {}),
    "another amount": Difference({"limits.cpu": "3"}, {"limits.cpu": "5"}, {"limits.cpu": "5"}),
    "a resource that is not there": Difference({}, {"limits.cpu": "5"}, {"limits.cpu": "5"}),
    "zero is not absent": Difference({}, {"limits.cpu": "0"}, {"limits.cpu": "0"}),
    "garbage is no amount": Difference({"limits.cpu": "x"}, {"limits.cpu": "5"}, {"limits.cpu": "5"}),
    "resources that are not wanted stay": Difference({"pods": "1"}, {}, {}),
}


@sentences(DIFFERENCES)
def test_difference(case: Difference) -> None:
    assert difference(case.hard, parse_resource_list(case.wanted)) == case.written


EMPTY = {
    "nothing": ({}, True),
    "both zero": ({"limits.cpu": "0", "limits.memory": "0Mi"}, True),
    "only others": ({"pods": "10", "requests.cpu": "1"}, True),
    "cpu": ({"limits.cpu": "1m"}, False),
    "memory": ({"limits.memory": "1"}, False),
    "garbage is none": ({"limits.memory": "x"}, True),
}


@sentences(EMPTY)
def test_limits_are_empty(case: tuple[RawResourceList, bool]) -> None:
    hard, empty = case
    assert limits_are_empty(hard) is empty


def test_quantity_of_what_is_absent_or_garbage_is_zero() -> None:
    assert quantity_of({}, "pods") == quantity_of({"pods": "ten"}, "pods") == ZERO
    assert quantity_of({"pods": 10}, "pods") == Quantity.of(10)


amounts = st.integers(min_value=0, max_value=2**50).map(Quantity.of)


@drawn
@given(amounts, amounts, amounts)
def test_shortage_is_what_is_missing_and_never_negative(
    used: Quantity, need: Quantity, limit: Quantity
) -> None:
    missing = shortage(used, need, limit)
    assert missing >= ZERO
    assert used + need <= limit + missing
    assert missing.is_zero() or used + need == limit + missing
