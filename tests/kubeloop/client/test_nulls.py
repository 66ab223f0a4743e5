"""Nulls on the wire are read as Go reads them; an object that is wrong in another way stays undecodable."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from kubeloop.api.core import LimitRange
from kubeloop.api.meta import Object, RawQuantity, Struct
from kubeloop.client.decode import Decoder, decoder_for
from kubeloop.client.errors import ServerError
from kubeloop.testing.scripted_steps import obj


class NullablePart(Struct):
    size: int = 3
    part: "NullablePart | None" = None


class NullableSpec(Struct):
    text: str = "default"
    size: int = 5
    part: NullablePart = NullablePart(size=4)
    maybe: NullablePart | None = NullablePart()
    parts: list[NullablePart] | None = None
    texts: tuple[str, ...] = ()
    numbers: dict[str, float] | None = None
    switches: Mapping[str, bool] | None = None
    quantities: dict[str, RawQuantity] | None = None
    lists: list[list[int]] | None = None
    anything: Any = "default"
    free: dict[str, Any] | None = None


class Nullable(Object):
    spec: NullableSpec = NullableSpec()


NULLS: dict[str, tuple[dict[str, Any], NullableSpec]] = {
    "a field keeps its default": ({"text": None, "size": None, "part": None}, NullableSpec()),
    "a field that takes null has it": (
        {"size": None, "maybe": None, "anything": None},
        NullableSpec(maybe=None, anything=None),
    ),
    "a field of a struct": ({"part": {"size": None}}, NullableSpec(part=NullablePart())),
    "a field of a struct in itself": (
        {"maybe": {"part": {"size": None}}},
        NullableSpec(maybe=NullablePart(part=NullablePart())),
    ),
    "an item is the zero value": (
        {"parts": [None, {"size": None}, {"size": 1}]},
        NullableSpec(parts=[NullablePart(), NullablePart(), NullablePart(size=1)]),
    ),
    "a text": ({"texts": ["a", None]}, NullableSpec(texts=("a", ""))),
    "numbers and booleans": (
        {"numbers": {"a": None}, "switches": {"a": None}},
        NullableSpec(numbers={"a": 0.0}, switches={"a": False}),
    ),
    "a quantity is 0": (
        {"quantities": {"cpu": None, "memory": "1Gi"}},
        NullableSpec(quantities={"cpu": 0, "memory": "1Gi"}),
    ),
    "a list in a list": ({"lists": [None, [None, 1]]}, NullableSpec(lists=[[], [0, 1]])),
    "what has no schema stays": ({"size": None, "free": {"a": None}}, NullableSpec(free={"a": None})),
}


@pytest.fixture
def things() -> Decoder[Nullable]:
    return decoder_for(Nullable)


@pytest.mark.parametrize("case", NULLS)
def test_a_null(things: Decoder[Nullable], case: str) -> None:
    raw, expected = NULLS[case]
    body = json.dumps(obj("a", "3", "ns", spec=raw)).encode()
    page = things.list_page(b'{"metadata":{},"items":[%s]}' % body)
    event = things.watch_event(b'{"type":"ADDED","object":%s}' % body).object
    assert event is not None
    assert page.undecodable == []
    for got in (things.object(body), page.items[0], event):
        assert (got.key, got.spec) == ("ns/a", expected)


def test_null_for_a_whole_part_of_the_object(things: Decoder[Nullable]) -> None:
    assert things.object(b'{"metadata":{"name":"a"},"spec":null}').spec == NullableSpec()


@pytest.mark.parametrize(
    ("spec", "problem"),
    [({"size": "12", "text": None}, "spec.size"), ({"parts": "x"}, "spec.parts"), ({"size": 1.5}, "spec.size")],
)
def test_another_type_is_still_refused(things: Decoder[Nullable], spec: dict[str, Any], problem: str) -> None:
    with pytest.raises(ServerError, match=problem):
        things.object(json.dumps(obj("a", "3", "ns", spec=spec)).encode())


def test_a_limit_range_without_limits() -> None:
    limits = decoder_for(LimitRange).object(b'{"metadata":{"name":"a"},"spec":{"limits":null}}')
    assert limits.spec.limits == []
