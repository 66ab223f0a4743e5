"""Decoding: typed objects out of bytes, and one bad object costs only itself."""

import asyncio
import itertools
import json
import logging
import math
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from kubeloop.api.core import Namespace, Pod, ResourceQuota
from kubeloop.api.meta import Object, PartialObjectMetadata, Struct
from kubeloop.client import decode
from kubeloop.client.decode import Decoder, WatchEvent, decoder_for, split_lines
from kubeloop.client.errors import ApiError, Gone, ServerError, Unreachable
from kubeloop.client.lenient import CUT, shallow
from kubeloop.logs import Once
from kubeloop.testing.scripted_steps import obj
from pkg.api.kubevirt import VirtualMachineInstance


def encoded(content: Any) -> bytes:
    return json.dumps(content).encode()


def page(*items: Any, **meta: Any) -> bytes:
    return encoded({"kind": "List", "metadata": {"resourceVersion": "7", **meta}, "items": list(items)})


def event(kind: str, content: Any) -> bytes:
    return encoded({"type": kind, "object": content})


BAD_QUOTA = obj("bad", "3", "ns", spec={"hard": ["not", "a", "map"]})
GOOD_QUOTA = obj("good", "4", "ns", spec={"hard": {"limits.cpu": "3"}})


@pytest.fixture(autouse=True)
def nothing_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "_REPORTED", Once(600.0))


@pytest.fixture
def quotas() -> Decoder[ResourceQuota]:
    return decoder_for(ResourceQuota)


def test_a_decoder_is_made_once() -> None:
    assert decoder_for(Pod) is decoder_for(Pod)
    assert decoder_for(Pod) is not decoder_for(Namespace)


def test_metadata_alone_is_of_its_own_kind_not_of_the_answers() -> None:
    decoder = decoder_for(PartialObjectMetadata, ("v1", "Secret"))
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "a"}}
    changed = decoder.watch_event(event("ADDED", partial)).object
    assert changed is not None
    whole, (item,), (beside_a_bad_one,) = (
        decoder.object(encoded(partial)),
        decoder.list_page(page(partial)).items,
        decoder.list_page(page(partial, 3)).items,
    )
    for decoded in (changed, whole, item, beside_a_bad_one):
        assert (decoded.api_version, decoded.kind) == ("v1", "Secret")


def test_a_page_gives_items_and_metadata(quotas: Decoder[ResourceQuota]) -> None:
    got = quotas.list_page(page(GOOD_QUOTA, **{"continue": "next"}))
    assert [quota.key for quota in got.items] == ["ns/good"]
    assert got.items[0].spec.hard == {"limits.cpu": "3"}
    assert (got.metadata.resource_version, got.metadata.continue_) == ("7", "next")
    assert got.undecodable == []


@pytest.mark.parametrize("items", ["[]", "null"])
def test_an_empty_list_is_empty(quotas: Decoder[ResourceQuota], items: str) -> None:
    got = quotas.list_page(f'{{"metadata":{{"resourceVersion":"7"}},"items":{items}}}'.encode())
    assert (got.items, got.metadata.resource_version) == ([], "7")


def test_an_object_that_does_not_decode_is_left_out_and_logged(
    quotas: Decoder[ResourceQuota], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        got = quotas.list_page(page(BAD_QUOTA, GOOD_QUOTA, "not even an object", {"metadata": {"name": 5}}))
    assert [quota.key for quota in got.items] == ["ns/good"]
    assert [meta.name for meta in got.undecodable] == ["bad", "", ""]
    assert got.metadata.resource_version == "7"
    assert "ResourceQuota ns/bad cannot be decoded, what was decoded of it before is kept" in caplog.messages[0]


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"items": 5}', b'{"items": [{]}', b'{"items": ["\xff"]'])
def test_what_is_no_list_is_a_server_error(quotas: Decoder[ResourceQuota], body: bytes) -> None:
    with pytest.raises(ServerError, match="not a list of ResourceQuota"):
        quotas.list_page(body)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"metadata": 5}', b'{"metadata": {"name": "\xff"}}'])
def test_what_is_no_object_is_a_server_error(quotas: Decoder[ResourceQuota], body: bytes) -> None:
    with pytest.raises(ServerError, match="not a ResourceQuota"):
        quotas.object(body)


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", "DELETED"])
def test_a_change_carries_its_object_whatever_comes_first_in_it(quotas: Decoder[ResourceQuota], kind: str) -> None:
    for line in (event(kind, GOOD_QUOTA), encoded({"object": GOOD_QUOTA, "type": kind})):
        got = quotas.watch_event(line)
        assert (got.type, got.resource_version) == (kind, "4")
        assert got.object is not None
        assert got.object.spec.hard == {"limits.cpu": "3"}


@pytest.mark.parametrize(
    ("kind", "content", "identity"),
    [
        ("ADDED", BAD_QUOTA, ("ns/bad", "uid-bad", "3")),
        ("MODIFIED", BAD_QUOTA, ("ns/bad", "uid-bad", "3")),
        ("DELETED", {"metadata": {"name": 5}}, ("", "", "")),
        ("DELETED", {"metadata": {"name": "a", "labels": {"x": 5}}}, ("a", "", "")),
        ("DELETED", 5, ("", "", "")),
    ],
)
def test_a_change_that_does_not_decode_is_told_and_logged(
    quotas: Decoder[ResourceQuota], caplog: pytest.LogCaptureFixture, kind: str, content: Any, identity: tuple[str, ...]
) -> None:
    got = quotas.watch_event(event(kind, content))
    assert got.undecodable is not None
    key = Namespace(metadata=got.undecodable).key
    assert (got.type, got.object, (key, got.undecodable.uid, got.resource_version)) == (kind, None, identity)
    assert f"ResourceQuota {key or '?'} cannot be decoded" in caplog.text


@pytest.mark.parametrize(
    ("annotations", "initial_events_end"),
    [(None, False), ({"k8s.io/initial-events-end": "true"}, True), ({"k8s.io/initial-events-end": "no"}, False)],
)
def test_a_bookmark_carries_its_version(
    quotas: Decoder[ResourceQuota], annotations: dict[str, str] | None, initial_events_end: bool
) -> None:
    meta = {"resourceVersion": "12", "creationTimestamp": None, "annotations": annotations}
    got = quotas.watch_event(event("BOOKMARK", {"kind": "ResourceQuota", "metadata": meta, "spec": {}}))
    assert got == WatchEvent("BOOKMARK", resource_version="12", initial_events_end=initial_events_end)


@pytest.mark.parametrize(
    ("status", "error"), [({"code": 410, "reason": "Expired", "message": "old"}, Gone), ({}, ApiError)]
)
def test_an_error_is_raised(quotas: Decoder[ResourceQuota], status: dict[str, Any], error: type[ApiError]) -> None:
    with pytest.raises(error, match="old" if status else "the server answered 0"):
        quotas.watch_event(event("ERROR", {"kind": "Status", **status}))


@pytest.mark.parametrize("line", [b"{", b"[]", b'"x"', b'{"type": 5}', b'{"type":"BOOKMARK","object":5}'])
def test_a_line_that_is_no_event_is_a_server_error(quotas: Decoder[ResourceQuota], line: bytes) -> None:
    with pytest.raises(ServerError, match="not an event"):
        quotas.watch_event(line)


def nested(levels: int, opening: bytes = b'{"a":', closing: bytes = b"}") -> bytes:
    return opening * levels + b"1" + closing * levels


SHAPES = {"maps": (b'{"a":', b"}"), "lists": (b"[", b"]"), "brackets within strings": (b'{"]}\\"[{":', b"}")}


def deep_quota(name: str, levels: int, shape: tuple[bytes, bytes] = SHAPES["maps"]) -> bytes:
    """A quota with that much in a field that is not read, in front of one that is."""
    return (
        b'{"metadata":{"name":"%s","namespace":"ns","uid":"u","resourceVersion":"8"},"other":%s,'
        b'"spec":{"hard":{"limits.cpu":"5"}}}' % (name.encode(), nested(levels, *shape))
    )


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("levels", [900, 1_000, 1_200, 10_000])
def test_an_object_of_a_thousand_levels_does_not_stop_its_kind(
    quotas: Decoder[ResourceQuota], levels: int, shape: tuple[bytes, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    deep = deep_quota("deep", levels, shape)
    listed = quotas.list_page(page(GOOD_QUOTA)[:-2] + b"," + deep + b"]}")
    event = quotas.watch_event(b'{"type":"MODIFIED","object":%s}' % deep)
    single = quotas.object(deep)
    assert [quota.key for quota in listed.items] == ["ns/good", "ns/deep"]
    assert (listed.metadata.resource_version, listed.undecodable) == ("7", [])
    assert (event.type, event.resource_version) == ("MODIFIED", "8")
    for quota in (listed.items[1], event.object, single):
        assert quota is not None
        assert quota.spec.hard == {"limits.cpu": "5"}, "what stands behind the deep part is read"
    if levels >= 10_000 or (levels >= 1_000 and sys.version_info < (3, 12)):
        # Later Pythons skip ten times as much.
        warnings = [line for line in caplog.messages if "nested deeper than 100 levels" in line]
        assert warnings == ["ResourceQuota ns/deep is nested deeper than 100 levels, the rest is cut off"]


class UntypedPart(Struct):
    name: str = ""
    more: Any = None


class Untyped(Object):
    """A struct with `spec`, which has no schema, and a part of the items of a list."""

    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    parts: list[UntypedPart] | None = None


def levels_of(value: Any) -> int:
    level, depth = [value], 0
    while level := [
        item
        for value in level
        for item in (value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
    ]:
        depth += 1
    return depth


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(("levels", "is_cut"), [(90, False), (450, False), (510, True), (2_000, True), (9_990, True)])
@pytest.mark.parametrize("template", [b'"spec":{"deep":%s}', b'"parts":[{"name":"a"},{"more":%s}]'])
def test_what_is_kept_without_a_schema_is_never_deep(
    template: bytes, levels: int, is_cut: bool, shape: tuple[bytes, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    decoder: Decoder[Untyped] = Decoder(Untyped)
    deep = b'{"metadata":{"name":"deep","namespace":"ns","resourceVersion":"8"},%s}' % (
        template % nested(levels, *shape)
    )
    good = b'{"metadata":{"name":"good","namespace":"ns"},"spec":{"a":{"b":[1]}}}'
    listed = decoder.list_page(b'{"metadata":{"resourceVersion":"7"},"items":[%s,%s]}' % (good, deep))
    event = decoder.watch_event(b'{"type":"MODIFIED","object":%s}' % deep)
    assert [untyped.key for untyped in listed.items] == ["ns/good", "ns/deep"]
    assert listed.items[0].spec == {"a": {"b": [1]}}
    for untyped in (listed.items[1], event.object, decoder.object(deep)):
        assert untyped is not None
        kept_levels = levels_of(untyped.spec) + max((levels_of(part.more) for part in untyped.parts or ()), default=0)
        assert (kept_levels < 110) if is_cut else (levels <= kept_levels <= levels + 1)
    assert ("ns/deep is nested deeper than 100 levels" in caplog.text) is is_cut


def test_an_object_that_is_nested_too_deep_is_counted(quotas: Decoder[ResourceQuota]) -> None:
    def count() -> float:
        labels = {"kind": "ResourceQuota", "reason": "too_deep"}
        return REGISTRY.get_sample_value("rest_client_undecodable_objects_total", labels) or 0.0

    count_before = count()
    quotas.list_page(page()[:-2] + deep_quota("deep", 20_000) + b"]}")
    assert count() == count_before + 1


def test_a_deep_object_in_a_read_field_costs_that_object_alone(quotas: Decoder[ResourceQuota]) -> None:
    bad = b'{"metadata":{"name":"bad","namespace":"ns"},"spec":{"hard":{"limits.cpu":%s}}}' % nested(2000)
    got = quotas.list_page(page(GOOD_QUOTA)[:-2] + b"," + bad + b"]}")
    assert [quota.key for quota in got.items] == ["ns/good"]
    assert [meta.name for meta in got.undecodable] == ["bad"]


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.integers() | st.text('ab"\\[]{}é', max_size=6),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('a"[}\\', max_size=3), inner, max_size=3),
    ),
    st.integers(0, 150),
)
def test_what_is_not_too_deep_is_left_as_it_is(content: Any, levels: int) -> None:
    inner = json.dumps(content).encode()
    whole = b"[" * levels + inner + b"]" * levels
    cut = shallow(whole)
    json.loads(cut)
    if CUT not in cut:
        assert cut == whole
    else:
        assert levels > 0


def big_vmi(number: int) -> dict[str, Any]:
    """A VMI of about 4 kB, most of it fields that are not decoded here."""
    spec = {"domain": {"cpu": {"cores": 2}, "resources": {"limits": {"cpu": "2", "memory": "4Gi"}}}}
    managed = [{"manager": "virt-controller", "fieldsV1": {f"f:field-{i}": {} for i in range(210)}}]
    vmi = obj(f"vm-{number}", str(number), "ns", metadata={"managedFields": managed}, spec=spec)
    return vmi | {"status": {"phase": "Running", "nodeName": "node-1"}}


def cpu_seconds(*works: Callable[[], object]) -> list[float]:
    """The least CPU time that each took in five rounds: of two, the ratio is the same however busy the machine is."""
    least = [math.inf] * len(works)
    for _ in range(5):
        for number, work in enumerate(works):
            began = time.thread_time()
            work()
            least[number] = min(least[number], time.thread_time() - began)
    return least


def test_few_fields_of_4_kb_decode_in_a_quarter_of_the_time() -> None:
    content = page(*map(big_vmi, range(1000)))
    assert len(content) > 1000 * 3500
    decoder = decoder_for(VirtualMachineInstance)
    assert len(decoder.list_page(content).items) == 1000
    took, whole = cpu_seconds(lambda: decoder.list_page(content), lambda: msgspec.json.decode(content))
    assert 4 * took < whole  # a twelfth


async def chunked(chunks: list[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


async def split(chunks: list[bytes]) -> list[bytes]:
    return [line async for line in split_lines(chunked(chunks), source="here")]


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([], []),
        ([b"a\n"], [b"a"]),
        ([b"a\nb\n"], [b"a", b"b"]),
        ([b"a", b"b\n"], [b"ab"]),
        ([b"a", b"\n"], [b"a"]),
        ([b"a\n", b"\n", b"b\n"], [b"a", b"b"]),
        ([b"a\nb", b"c", b"d\ne\n"], [b"a", b"bcd", b"e"]),
        ([b"", b"a\n", b""], [b"a"]),
        ([b"a\r\n"], [b"a\r"]),
    ],
)
async def test_lines_come_out_whole(chunks: list[bytes], lines: list[bytes]) -> None:
    assert await split(chunks) == lines


@given(st.lists(st.binary(min_size=1).filter(lambda b: b"\n" not in b)), st.data())
async def test_any_cutting_gives_the_same_lines(lines: list[bytes], data: st.DataObject) -> None:
    content = b"".join(line + b"\n" for line in lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=20)))
    edges = [0, *cuts, len(content)]
    assert await split([content[a:b] for a, b in itertools.pairwise(edges)]) == lines


@pytest.mark.parametrize("chunks", [[b"a"], [b"a\nb"], [b"a\n", b"b", b"c"]])
async def test_half_a_last_line_is_a_break(chunks: list[bytes]) -> None:
    with pytest.raises(Unreachable, match="here closed the connection in the middle of a line"):
        await split(chunks)


async def test_a_line_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "MAX_LINE", 1000)
    with pytest.raises(Unreachable, match="longer than 1000 bytes"):
        await split([b"x" * 100] * 11)
    assert await split([b"x" * 100] * 9 + [b"\n"]) == [b"x" * 900]


def test_a_line_of_many_chunks_takes_linear_time() -> None:
    def line_of(chunks: int) -> Callable[[], object]:
        return lambda: asyncio.run(split([b"x" * 100] * chunks + [b"\n"]))

    assert line_of(50_000)() == [b"x" * 5_000_000]
    short_seconds, long_seconds = cpu_seconds(line_of(5_000), line_of(50_000))
    assert long_seconds < 30 * short_seconds  # 10 times; 100 where each chunk costs what came before it
