"""The events that enqueue, and their priorities."""

from __future__ import annotations

from typing import Any

import pytest

from kubeloop.api.core import Pod
from kubeloop.api.meta import ObjectMeta
from kubeloop.controllers.enqueue import EnqueueHandler, Reads
from kubeloop.workqueue.queue import DEFAULT_PRIORITY, LOW_PRIORITY


def pod(version: str = "1", uid: str = "u", **labels: str) -> Pod:
    return Pod(metadata=ObjectMeta(name="a", namespace="ns", resource_version=version, uid=uid, labels=labels))


def keys_of(obj: Pod) -> list[str]:
    """Returns the keys in the label `to`."""
    keys = obj.labels.get("to", obj.key).split()
    if "boom" in keys:
        raise ValueError("boom")
    return keys


class Enqueued:
    """The keys that an EnqueueHandler of the label `to` enqueued."""

    def __init__(self, reads: Reads[Pod] | None = None) -> None:
        self.keys: list[tuple[str, int]] = []
        self.handler: EnqueueHandler[Pod] = EnqueueHandler(keys_of, self.enqueue, reads and [reads])

    def enqueue(self, key: str, priority: int) -> None:
        self.keys.append((key, priority))


SAME, RED, BLUE = pod("7"), pod("1", color="red"), pod("2", color="blue")
LIVE, LATER = ("ns/a", DEFAULT_PRIORITY), ("ns/a", LOW_PRIORITY)
Event = tuple[Any, ...]
"""A method, and what it is called with."""
EVENTS: dict[str, tuple[Event, list[tuple[str, int]]]] = {
    "an addition enqueues": (("on_add", pod(), False), [LIVE]),
    "what was there before has low priority": (("on_add", pod(), True), [LATER]),
    "a deletion enqueues": (("on_delete", pod(), False), [LIVE]),
    "one that was missed too": (("on_delete", pod(), True), [LIVE]),
    "a new resourceVersion enqueues": (("on_update", pod("1"), pod("2")), [LIVE]),
    "a resync does, with low priority": (("on_update", SAME, SAME), [LATER]),
    "the new object's keys come first, none twice": (
        ("on_update", pod("1", to="x y"), pod("2", to="y z y")),
        [("y", DEFAULT_PRIORITY), ("z", DEFAULT_PRIORITY), ("x", DEFAULT_PRIORITY)],
    ),
    "an object that names nothing enqueues nothing": (("on_update", pod("1", to=""), pod("2", to="")), []),
    "a resolver that fails on the old object tells of the new": (
        ("on_update", pod("1", to="boom"), pod("2", to="a")),
        [("a", DEFAULT_PRIORITY)],
    ),
    "a resolver that fails on the new object tells of the old": (
        ("on_update", pod("1", to="a"), pod("2", to="boom")),
        [("a", DEFAULT_PRIORITY)],
    ),
}
READ: dict[str, tuple[Event, list[tuple[str, int]]]] = {
    "what is not read enqueues nothing": (("on_update", RED, pod("2", color="red")), []),
    "what is read does": (("on_update", RED, BLUE), [LIVE]),
    "a resync does, whatever is read": (("on_update", RED, RED), [LATER]),
}


@pytest.mark.parametrize("case", EVENTS | READ)
def test_event(case: str) -> None:
    (method, *args), expected = (EVENTS | READ)[case]
    enqueued = Enqueued(reads=(lambda obj: obj.labels["color"]) if case in READ else None)
    getattr(enqueued.handler, method)(*args)
    assert enqueued.keys == expected


def test_a_resolver_that_returns_a_text_enqueues_nothing(caplog: pytest.LogCaptureFixture) -> None:
    keys: list[str] = []
    by_text: Any = lambda obj: obj.key  # noqa: E731
    handler: EnqueueHandler[Pod] = EnqueueHandler(by_text, lambda key, _: keys.append(key))
    handler.on_add(pod(), False)
    assert keys == []
    assert "a list of keys is expected, not the text 'ns/a'" in caplog.text
