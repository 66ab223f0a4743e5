"""A list is decoded and handled in slices: between two of them the event loop goes on."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeloop.api.meta import Object, ObjectMeta
from kubeloop.api.registry import PODS
from kubeloop.cache.informer import SharedIndexInformer
from kubeloop.cache.recovery import ReflectorOptions
from kubeloop.client.client import Client
from kubeloop.client.decode import SLICE, Decoder, ListPage
from kubeloop.client.errors import ServerError
from kubeloop.testing.scripted_server import LIST, ScriptedServer, raw
from tests.decisions import sentences
from tests.kubeloop.cache.informing import Turns

CHUNK = 3 * SLICE
"""What aiohttp may bring at once."""


class Piece(Object):
    spec: Mapping[str, Any] | None = None


class CountedDecoder(Decoder[Piece]):
    def __init__(self) -> None:
        super().__init__(Piece)
        self.turns = Turns()

    def list_page(self, body: bytes) -> ListPage[Piece]:
        self.turns.add(len(body))
        return super().list_page(body)


async def chunks_of(body: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


def thing(number: int, **meta: Any) -> dict[str, Any]:
    return {"metadata": {"name": f"t{number}", "resourceVersion": "1", **meta}}


def core_list(*items: Any) -> bytes:
    """A list of a kind of Kubernetes' own: the items do not say their kind."""
    return msgspec.json.encode(
        {"kind": "PieceList", "apiVersion": "v1", "metadata": {"resourceVersion": "7", "continue": "c"}, "items": items}
    )


def custom_list(*items: Any) -> bytes:
    """A list of custom resources: in the order of the letters."""
    items = tuple({"apiVersion": "v1", "kind": "Piece"} | item for item in items)
    return msgspec.json.encode(
        {"apiVersion": "v1", "items": items, "kind": "PieceList", "metadata": {"resourceVersion": "7", "continue": "c"}}
    )


LOOKALIKES = {"list": [{"metadata": {"name": "t", "resourceVersion": "1"}}] * 4000, "text": '},{"metadata":{"name":"t'}
PAGES = {
    "with 256 KiB of annotations each": core_list(*(thing(n, annotations={"a": "x" * 262_144}) for n in range(40))),
    "with 9,000 labels each": core_list(*(thing(n, labels={f"k{n}": "v" for n in range(9000)}) for n in range(40))),
    "of a custom kind": custom_list(*(thing(n, annotations={"a": '"\\},{' * 20_000}) for n in range(40))),
    "that are small": core_list(*map(thing, range(9_000))),
    "full of what looks like items": core_list(*(thing(n) | {"spec": LOOKALIKES} for n in range(9))),
    "of which some do not decode": core_list(*(thing(n, labels={"a": "x" * 9999 if n % 9 else 5}) for n in range(400))),
}


@sentences(PAGES)
@pytest.mark.parametrize("size", [CHUNK, 9973])
async def test_a_page_of_objects_is_decoded_in_slices(case: bytes, size: int) -> None:
    decoder = CountedDecoder()
    whole = Decoder(Piece).list_page(case)
    longest = max(map(len, map(msgspec.json.encode, whole.items)))
    async with decoder.turns.counted():
        page = await decoder.read_list_page(chunks_of(case, size))
    assert page == whole
    assert page.items[-1].kind == "Piece"
    # A slice that did not end with an item is read twice.
    assert max(decoder.turns.work) <= 2 * (SLICE + longest) + 1000
    assert sum(decoder.turns.work) <= 3 * len(case)


@given(st.lists(st.text(max_size=40), max_size=12), st.integers(1, 200), st.integers(1, 400), st.booleans())
@settings(max_examples=200, deadline=None)
async def test_any_cutting_gives_the_same_page(texts: list[str], size: int, slice_: int, custom: bool) -> None:
    make = custom_list if custom else core_list
    things = [thing(n, annotations={text: '},{"metadata":{'}) | {"spec": {"l": texts}} for n, text in enumerate(texts)]
    body = make(*things)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kubeloop.client.decode.SLICE", slice_)
        page = await Decoder(Piece).read_list_page(chunks_of(body, size))
    assert page == Decoder(Piece).list_page(body)


@pytest.mark.parametrize("body", [b"", b"x" * CHUNK, PAGES["that are small"][:-2], b'{"items":[' + b"[" * CHUNK])
async def test_a_long_answer_that_is_no_list_is_an_error(body: bytes) -> None:
    with pytest.raises(ServerError, match="not a list of Piece"):
        await Decoder(Piece).read_list_page(chunks_of(body, CHUNK))


@pytest.mark.parametrize("is_live", [True, False], ids=["a live list", "an informer's list"])
async def test_a_slice_is_transformed_before_the_next_one_comes(is_live: bool) -> None:
    turns = Turns()

    def transform(pod: Any) -> Any:
        turns.add(len(pod.metadata.annotations["a"]))
        return type(pod)(metadata=ObjectMeta(name=pod.name, namespace="ns"))

    async with ScriptedServer() as server, Client(server.config()) as client:
        page = core_list(*(thing(n, annotations={"a": "x" * 20_000}) for n in range(100)))
        server.always(LIST, PODS.path(), raw(page.replace(b'"continue":"c"', b'"continue":""')))
        async with turns.counted():
            if is_live:
                await client.resource(PODS).transformed(transform).list()
            else:
                options = ReflectorOptions(watch_list=False)
                informer = SharedIndexInformer(client.resource(PODS), transform=transform, options=options)
                informer.start()
                await informer.wait_for_sync(60)
                await informer.stop()
    assert sum(turns.work) == 100 * 20_000
    assert max(turns.work) <= 2 * SLICE
