"""Decoding: typed objects out of bytes, and one bad object costs only itself."""

from __future__ import annotations

import json
import logging
import time
from typing import Any

import pytest

from pkg.api.core import Namespace, Pod, ResourceQuota
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.client.decode import Decoder, WatchEvent, decoder_for
from pkg.client.errors import ServerError
from tests.scripted_server import obj


def encoded(content: Any) -> bytes:
    return json.dumps(content).encode()


def page(*items: Any, **meta: Any) -> bytes:
    return encoded({"kind": "List", "metadata": {"resourceVersion": "7", **meta}, "items": list(items)})


def event(kind: str, content: Any) -> bytes:
    return encoded({"type": kind, "object": content})


BAD_QUOTA = obj("bad", "3", "ns", spec={"hard": ["not", "a", "map"]})
GOOD_QUOTA = obj("good", "4", "ns", spec={"hard": {"limits.cpu": "3"}})


@pytest.fixture
def quotas() -> Decoder[ResourceQuota]:
    return decoder_for(ResourceQuota)


def test_a_decoder_is_made_once() -> None:
    assert decoder_for(Pod) is decoder_for(Pod)
    assert decoder_for(Pod) is not decoder_for(Namespace)


def test_a_page_gives_items_and_metadata(quotas: Decoder[ResourceQuota]) -> None:
    got = quotas.list_page(page(GOOD_QUOTA, **{"continue": "next", "remainingItemCount": 2}))
    assert [quota.key for quota in got.items] == ["ns/good"]
    assert got.items[0].spec.hard == {"limits.cpu": "3"}
    assert (got.metadata.resource_version, got.metadata.continue_) == ("7", "next")
    assert got.metadata.remaining_item_count == 2
    assert got.skipped == 0


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
    assert got.skipped == 3
    assert got.metadata.resource_version == "7"
    assert "ResourceQuota ns/bad is left out, it does not decode" in caplog.messages[0]
    assert len(caplog.messages) == 3


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'{"items": 5}', b'{"items": [{]}', b'{"items": ["\xff"]']
)
def test_what_is_no_list_is_a_server_error(quotas: Decoder[ResourceQuota], body: bytes) -> None:
    with pytest.raises(ServerError, match="not a list of ResourceQuota"):
        quotas.list_page(body)


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'{"metadata": 5}', b'{"metadata": {"name": "\xff"}}']
)
def test_what_is_no_object_is_a_server_error(quotas: Decoder[ResourceQuota], body: bytes) -> None:
    with pytest.raises(ServerError, match="not a ResourceQuota"):
        quotas.object(body)


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", "DELETED"])
def test_a_change_carries_its_object(quotas: Decoder[ResourceQuota], kind: str) -> None:
    got = quotas.watch_event(event(kind, GOOD_QUOTA))
    assert got is not None
    assert (got.type, got.resource_version) == (kind, "4")
    assert got.object is not None
    assert got.object.spec.hard == {"limits.cpu": "3"}


def test_the_order_of_an_events_fields_does_not_matter(quotas: Decoder[ResourceQuota]) -> None:
    got = quotas.watch_event(encoded({"object": GOOD_QUOTA, "type": "ADDED"}))
    assert got is not None
    assert got.type == "ADDED"


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED"])
def test_a_change_that_does_not_decode_is_left_out_and_logged(
    quotas: Decoder[ResourceQuota], caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    assert quotas.watch_event(event(kind, BAD_QUOTA)) is None
    assert "ns/bad" in caplog.text


def test_a_deletion_is_told_even_if_the_object_does_not_decode(quotas: Decoder[ResourceQuota]) -> None:
    got = quotas.watch_event(event("DELETED", BAD_QUOTA))
    assert got is not None
    assert got.object is not None
    assert (got.type, got.object.key, got.object.uid, got.resource_version) == (
        "DELETED",
        "ns/bad",
        "uid-bad",
        "3",
    )


def test_a_deletion_of_nothing_known_is_left_out(quotas: Decoder[ResourceQuota]) -> None:
    assert quotas.watch_event(event("DELETED", {"metadata": {"name": 5}})) is None


@pytest.mark.parametrize(
    ("annotations", "ended"),
    [
        (None, False),
        ({"k8s.io/initial-events-end": "true"}, True),
        ({"k8s.io/initial-events-end": "no"}, False),
    ],
)
def test_a_bookmark_carries_its_version(
    quotas: Decoder[ResourceQuota], annotations: dict[str, str] | None, ended: bool
) -> None:
    meta = {"resourceVersion": "12", "creationTimestamp": None, "annotations": annotations}
    got = quotas.watch_event(event("BOOKMARK", {"kind": "ResourceQuota", "metadata": meta, "spec": {}}))
    assert got == WatchEvent("BOOKMARK", resource_version="12", initial_events_end=ended)


def test_an_error_carries_its_status(quotas: Decoder[ResourceQuota]) -> None:
    got = quotas.watch_event(
        event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "old"})
    )
    assert got is not None
    assert got.status is not None
    assert (got.type, got.object, got.status.code, got.status.reason) == ("ERROR", None, 410, "Expired")


@pytest.mark.parametrize("line", [b"{", b"[]", b'"x"', b'{"type": 5}', b'{"type":"BOOKMARK","object":5}'])
def test_a_line_that_is_no_event_is_a_server_error(quotas: Decoder[ResourceQuota], line: bytes) -> None:
    with pytest.raises(ServerError, match="not an event"):
        quotas.watch_event(line)


def big_vmi(number: int) -> dict[str, Any]:
    """A VMI of about 4 kB, most of it fields that nobody here reads."""
    spec = {"domain": {"cpu": {"cores": 2}, "resources": {"limits": {"cpu": "2", "memory": "4Gi"}}}}
    managed = [{"manager": "virt-controller", "fieldsV1": {f"f:field-{i}": {} for i in range(210)}}]
    vmi = obj(f"vm-{number}", str(number), "ns", metadata={"managedFields": managed}, spec=spec)
    return vmi | {"status": {"phase": "Running", "nodeName": "node-1"}}


def test_five_thousand_objects_of_4_kb_decode_in_a_third_of_a_second() -> None:
    content = page(*map(big_vmi, range(5000)))
    assert len(content) > 5000 * 3500
    decoder = decoder_for(VirtualMachineInstance)
    took = []
    for _ in range(5):
        started = time.process_time()
        assert len(decoder.list_page(content).items) == 5000
        took.append(time.process_time() - started)
    assert min(took) <= 0.3
