"""Which events enqueue, and with what priority."""

from __future__ import annotations

import pytest

from kubeloop.api.core import Pod
from kubeloop.api.meta import ObjectMeta
from kubeloop.controllers.controller import EnqueueHandler, Reads
from kubeloop.workqueue.queue import DEFAULT_PRIORITY, LOW_PRIORITY


def pod(version: str = "1", uid: str = "u", **labels: str) -> Pod:
    return Pod(metadata=ObjectMeta(name="a", namespace="ns", resource_version=version, uid=uid, labels=labels))


def named(obj: Pod) -> list[str]:
    """What the label `to` says."""
    keys = obj.labels.get("to", obj.key).split()
    if "boom" in keys:
        raise ValueError("boom")
    return keys


class Enqueued:
    """What an EnqueueHandler that names the label `to` enqueued."""

    def __init__(self, reads: Reads[Pod] | None = None) -> None:
        self.keys: list[tuple[str, int]] = []
        self.handler: EnqueueHandler[Pod] = EnqueueHandler(named, self.enqueue, reads)

    def enqueue(self, key: str, priority: int) -> None:
        self.keys.append((key, priority))


SAME = pod("7")
UPDATES: dict[str, tuple[Pod, Pod, list[tuple[str, int]]]] = {
    "a new resourceVersion enqueues": (pod("1"), pod("2"), [("ns/a", DEFAULT_PRIORITY)]),
    "a resync does, with low priority": (SAME, SAME, [("ns/a", LOW_PRIORITY)]),
    "the new object's keys come first, none twice": (
        pod("1", to="x y"),
        pod("2", to="y z y"),
        [("y", DEFAULT_PRIORITY), ("z", DEFAULT_PRIORITY), ("x", DEFAULT_PRIORITY)],
    ),
    "an object that names nothing enqueues nothing": (pod("1", to=""), pod("2", to=""), []),
    "a resolver that fails on the old object still tells of the new one": (
        pod("1", to="boom"),
        pod("2", to="a"),
        [("a", DEFAULT_PRIORITY)],
    ),
    "a resolver that fails on the new object still tells of the old one": (
        pod("1", to="a"),
        pod("2", to="boom"),
        [("a", DEFAULT_PRIORITY)],
    ),
}


@pytest.mark.parametrize("case", UPDATES)
def test_update(case: str) -> None:
    old, new, expected = UPDATES[case]
    enqueued = Enqueued()
    enqueued.handler.on_update(old, new)
    assert enqueued.keys == expected


@pytest.mark.parametrize(
    ("new", "expected"), [(pod("2", color="red"), []), (pod("2", color="blue"), [("ns/a", DEFAULT_PRIORITY)])]
)
def test_what_is_not_read_enqueues_nothing(new: Pod, expected: list[tuple[str, int]]) -> None:
    enqueued = Enqueued(reads=lambda obj: obj.labels["color"])
    enqueued.handler.on_update(pod("1", color="red"), new)
    assert enqueued.keys == expected


def test_a_resync_enqueues_whatever_is_read() -> None:
    enqueued = Enqueued(reads=lambda obj: obj.labels)
    enqueued.handler.on_update(SAME, SAME)
    assert enqueued.keys == [("ns/a", LOW_PRIORITY)]


@pytest.mark.parametrize(("in_initial_list", "priority"), [(True, LOW_PRIORITY), (False, DEFAULT_PRIORITY)])
def test_what_was_there_before_has_low_priority(in_initial_list: bool, priority: int) -> None:
    enqueued = Enqueued()
    enqueued.handler.on_add(pod(), in_initial_list)
    assert enqueued.keys == [("ns/a", priority)]


@pytest.mark.parametrize("final_state_unknown", [True, False])
def test_a_deletion_enqueues_however_it_was_learnt_of(final_state_unknown: bool) -> None:
    enqueued = Enqueued()
    enqueued.handler.on_delete(pod(), final_state_unknown)
    assert enqueued.keys == [("ns/a", DEFAULT_PRIORITY)]


def test_a_resolver_that_returns_a_text_enqueues_nothing_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    keys: list[str] = []
    handler: EnqueueHandler[Pod] = EnqueueHandler(lambda obj: obj.key, lambda key, _: keys.append(key))
    handler.on_add(pod(), False)
    assert keys == []
    assert "a list of keys is expected, not the text 'ns/a'" in caplog.text
