"""on_remove: the finalizer, and what happens to it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kubeloop.api.core import ResourceQuota
from kubeloop.client.errors import Forbidden
from kubeloop.testing.virtual_time import settle
from tests.kubeloop.controllers.controllers import Calls, ControlledQuotas

pytestmark = pytest.mark.virtual_time

FINALIZER = "wrangler.cattle.io/cleanup"
DELETED = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}


async def started(*script: BaseException) -> tuple[ControlledQuotas, Calls]:
    kind, calls = ControlledQuotas(), Calls(*script)
    kind.controller.on_remove("cleanup", calls)
    await kind.start()
    return kind, calls


def finalizers(kind: ControlledQuotas, key: str = "ns/a") -> Any:
    return kind.objects[key]["metadata"].get("finalizers")


@pytest.mark.parametrize(
    ("finalizers_before", "expected"),
    [
        (None, [FINALIZER]),
        ([], [FINALIZER]),
        (["other"], ["other", FINALIZER]),
        ([FINALIZER, "other"], [FINALIZER, "other"]),
    ],
)
async def test_an_object_gets_the_finalizer_beside_those_of_others(finalizers_before: Any, expected: list[str]) -> None:
    kind, calls = await started()
    kind.put("a", "ns", metadata={"finalizers": finalizers_before} if finalizers_before is not None else {})
    await settle()
    assert finalizers(kind) == expected
    assert calls.keys == []


async def test_finalizers_of_others_stay() -> None:
    kind, calls = await started()
    kind.put("a", "ns", metadata={"finalizers": ["first", FINALIZER, "last"]})
    await settle()
    kind.edited("ns/a", DELETED)
    await asyncio.sleep(10)
    assert finalizers(kind) == ["first", "last"]
    assert calls.keys == ["ns/a"]


async def test_while_the_handler_fails_the_object_stays() -> None:
    kind, calls = await started(ValueError("x"), ValueError("x"))
    kind.put("a", "ns")
    await settle()
    kind.edited("ns/a", DELETED)
    await asyncio.sleep(2)
    assert finalizers(kind) == [FINALIZER]
    await asyncio.sleep(5)
    assert "ns/a" not in kind.objects
    assert calls.times == pytest.approx([0, 1, 3])


async def test_an_object_that_is_being_deleted_gets_no_finalizer() -> None:
    kind, calls = await started()
    kind.put("a", "ns", metadata={"finalizers": ["other"], **DELETED["metadata"]})
    await settle()
    assert finalizers(kind) == ["other"]
    assert calls.keys == []
    assert kind.asked("patch") == []


async def test_a_foreign_write_in_between_is_not_overwritten() -> None:
    """Two finalizers set at the same time: the second writer must not replace the first one's list."""
    kind, _ = await started()
    kind.answering.clear()
    kind.put("a", "ns")
    await settle()  # the patch is under way, for an object without finalizers
    kind.put("a", "ns", metadata={"finalizers": ["theirs"]})
    kind.answering.set()
    await asyncio.sleep(5)
    assert finalizers(kind) == ["theirs", FINALIZER]


async def test_an_object_that_vanishes_before_the_patch_is_no_failure() -> None:
    kind, _ = await started()
    kind.answering.clear()
    kind.put("a", "ns")
    await settle()
    kind.gone("ns/a")
    kind.answering.set()
    await asyncio.sleep(5)
    assert kind.controller.queue.num_requeues("ns/a") == 0
    assert len(kind.asked("patch")) == 1


async def test_a_refused_patch_is_retried() -> None:
    kind, _ = await started()
    kind.errors["patch"] = [Forbidden("no")]
    kind.put("a", "ns")
    await settle()
    assert finalizers(kind) is None
    await asyncio.sleep(2)
    assert finalizers(kind) == [FINALIZER]


async def removed(
    kind: ControlledQuotas, handler: Callable[[str, ResourceQuota], Awaitable[ResourceQuota | None]]
) -> None:
    """An object with the finalizer is deleted, with this handler."""
    kind.controller.on_remove("cleanup", handler)
    kind.put("a", "ns", metadata={"finalizers": [FINALIZER]})
    kind.edited("ns/a", DELETED)
    await kind.start()
    await asyncio.sleep(100)


async def test_the_finalizer_goes_after_a_handlers_own_change() -> None:
    kind = ControlledQuotas()
    runs = 0

    async def stamps(key: str, obj: ResourceQuota) -> None:
        nonlocal runs
        runs += 1
        stamp = {"metadata": {"annotations": {"cleaned": str(runs)}}}
        await kind.controller.client.merge_patch(stamp, name=obj.name, namespace=obj.namespace)

    await removed(kind, stamps)
    assert "ns/a" not in kind.objects
    assert runs == 1


async def test_a_new_object_of_the_name_keeps_its_finalizer() -> None:
    kind = ControlledQuotas()

    async def replaced(key: str, obj: ResourceQuota) -> None:
        kind.put("a", "ns", metadata={"uid": "another", "finalizers": [FINALIZER]})

    await removed(kind, replaced)
    assert finalizers(kind) == [FINALIZER]


async def test_another_object_that_is_returned_keeps_its_finalizer() -> None:
    kind = ControlledQuotas()
    parent = kind.put("parent", "ns", metadata={"finalizers": [FINALIZER]})

    async def cleans_the_parent(key: str, obj: ResourceQuota) -> ResourceQuota:
        return parent

    await removed(kind, cleans_the_parent)
    assert "ns/a" not in kind.objects
    assert finalizers(kind, "ns/parent") == [FINALIZER]
