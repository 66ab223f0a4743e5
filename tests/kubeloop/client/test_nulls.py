"""Nulls on the wire are read as Go reads them; an object that is wrong in another way stays undecodable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from kubeloop.api.core import LimitRange
from kubeloop.api.meta import Object, RawQuantity, Struct
from kubeloop.client.decode import Decoder, decoder_for
from kubeloop.client.errors import ServerError
from kubeloop.testing.scripted_steps import obj


class Part(Struct):
    size: int = 3
    part: Part | None = None


class Spec(Struct):
    text: str = "default"
    size: int = 5
    part: Part = Part(size=4)
    maybe: Part | None = Part()
    parts: list[Part] | None = None
    texts: tuple[str, ...] = ()
    numbers: dict[str, float] | None = None
    switches: Mapping[str, bool] | None = None
    quantities: dict[str, RawQuantity] | None = None
    lists: list[list[int]] | None = None
    anything: Any = "default"
    free: dict[str, Any] | None = None


class Thing(Object):
    spec: Spec = Spec()


NULLS: dict[str, tuple[dict[str, Any], Spec]] = {
    "a field keeps its default": ({"text": None, "size": None, "part": None}, Spec()),
    "a field that takes null has it": (
        {"size": None, "maybe": None, "anything": None},
        Spec(maybe=None, anything=None),
    ),
    "a field of a struct": ({"part": {"size": None}}, Spec(part=Part())),
    "a field of a struct in itself": ({"maybe": {"part": {"size": None}}}, Spec(maybe=Part(part=Part()))),
    "an item is the zero value": (
        {"parts": [None, {"size": None}, {"size": 1}]},
        Spec(parts=[Part(), Part(), Part(size=1)]),
    ),
    "a text": ({"texts": ["a", None]}, Spec(texts=("a", ""))),
    "numbers and booleans": (
        {"numbers": {"a": None}, "switches": {"a": None}},
        Spec(numbers={"a": 0.0}, switches={"a": False}),
    ),
    "a quantity is 0": ({"quantities": {"cpu": None, "memory": "1Gi"}}, Spec(quantities={"cpu": 0, "memory": "1Gi"})),
    "a list in a list": ({"lists": [None, [None, 1]]}, Spec(lists=[[], [0, 1]])),
    "what has no schema stays": ({"size": None, "free": {"a": None}}, Spec(free={"a": None})),
}


@pytest.fixture
def things() -> Decoder[Thing]:
    return decoder_for(Thing)


@pytest.mark.parametrize("case", NULLS)
def test_a_null(things: Decoder[Thing], case: str) -> None:
    raw, expected = NULLS[case]
    body = json.dumps(obj("a", "3", "ns", spec=raw)).encode()
    page = things.list_page(b'{"metadata":{},"items":[%s]}' % body)
    event = things.watch_event(b'{"type":"ADDED","object":%s}' % body).object
    assert event is not None
    assert page.undecodable == []
    for got in (things.object(body), page.items[0], event):
        assert (got.key, got.spec) == ("ns/a", expected)


def test_null_for_a_whole_part_of_the_object(things: Decoder[Thing]) -> None:
    assert things.object(b'{"metadata":{"name":"a"},"spec":null}').spec == Spec()


@pytest.mark.parametrize(
    ("spec", "problem"),
    [({"size": "12", "text": None}, "spec.size"), ({"parts": "x"}, "spec.parts"), ({"size": 1.5}, "spec.size")],
)
def test_another_type_is_still_refused(things: Decoder[Thing], spec: dict[str, Any], problem: str) -> None:
    with pytest.raises(ServerError, match=problem):
        things.object(json.dumps(obj("a", "3", "ns", spec=spec)).encode())


def test_a_limit_range_without_limits() -> None:
    limits = decoder_for(LimitRange).object(b'{"metadata":{"name":"a"},"spec":{"limits":null}}')
    assert limits.spec.limits == []
