"""Events: what is written, how often, and that nothing ever comes back."""

import asyncio
import time
from typing import Any, cast

import pytest

from kubeloop.api.core import EventType, Namespace, ResourceQuota
from kubeloop.api.meta import Object, ObjectMeta
from kubeloop.api.registry import EVENTS, EVENTS_V1
from kubeloop.client.errors import AlreadyExists, Forbidden, ServerError, TooManyRequests, Unreachable
from kubeloop.controllers import events
from kubeloop.controllers.events import QUEUE_LIMIT, EventRecorder, reference_to
from kubeloop.testing.virtual_time import settle
from kubeloop.workqueue.queue import loop_time
from pkg.api.kubevirt import VirtualMachine
from tests.kinds import Kind

pytestmark = pytest.mark.virtual_time

EPOCH = 1_750_000_000.0


@pytest.fixture(autouse=True)
def wall_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes with the loop's."""
    monkeypatch.setattr(time, "time", lambda: EPOCH + loop_time())


class Recording:
    """A recorder on a fake server."""

    def __init__(self) -> None:
        self.events = Kind(EVENTS)
        self.recorder = EventRecorder(self.events.server.client(), "headroom")
        self._dropped_before = 0.0
        self._dropped_before = self.dropped()

    def written(self) -> list[dict[str, Any]]:
        return list(self.events.objects.values())

    def dropped(self) -> float:
        (family,) = events.DROPPED.collect()
        total = sum(sample.value for sample in family.samples if sample.name.endswith("_total"))
        return total - self._dropped_before

    def event(self) -> None:
        self.recorder.event(quota(), "Normal", "A", "m")

    def counts(self) -> list[int]:
        return [event["count"] for event in self.written()]


@pytest.fixture
def recording() -> Recording:
    return Recording()


def quota(name: str = "default-abcde", uid: str = "uid-1") -> ResourceQuota:
    return ResourceQuota(metadata=ObjectMeta(name=name, namespace="ns", uid=uid, resource_version="42"))


async def test_an_event_carries_who_what_and_when(recording: Recording) -> None:
    recording.recorder.event(quota(), "Warning", "BadBase", "the annotation is not JSON")
    await settle()
    (event,) = recording.written()
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "name": "default-abcde",
        "namespace": "ns",
        "uid": "uid-1",
        "resourceVersion": "42",
    }
    assert (event["type"], event["reason"]) == ("Warning", "BadBase")
    assert event["message"] == "the annotation is not JSON"
    assert event["source"] == {"component": "headroom"}
    assert event["firstTimestamp"] == event["lastTimestamp"] == "2025-06-15T15:06:40Z"
    assert event["count"] == 1
    assert event["metadata"]["namespace"] == "ns"
    assert event["metadata"]["name"].startswith("default-abcde.")


REFERENCES: dict[str, tuple[Object, str, str]] = {
    "an item of a typed list has no kind: the registry knows it": (quota(), "v1", "ResourceQuota"),
    "the same for a kind with a group": (VirtualMachine(), "kubevirt.io/v1", "VirtualMachine"),
    "an object that knows its kind is believed": (
        VirtualMachine(api_version="kubevirt.io/v1alpha3", kind="VirtualMachine"),
        "kubevirt.io/v1alpha3",
        "VirtualMachine",
    ),
    "half of it is not enough": (VirtualMachine(kind="Other"), "kubevirt.io/v1", "VirtualMachine"),
}


@pytest.mark.parametrize("case", REFERENCES)
def test_reference(case: str) -> None:
    obj, api_version, kind = REFERENCES[case]
    reference = reference_to(obj)
    assert (reference["apiVersion"], reference["kind"]) == (api_version, kind)


async def test_an_event_with_an_action_is_one_of_events_k8s_io(recording: Recording) -> None:
    server = recording.events.server
    related = Namespace(metadata=ObjectMeta(name="tenant", uid="u"))
    for _ in range(3):
        recording.recorder.event(quota(), "Normal", "Moved", "to another " + "n" * 2000, action="Move", related=related)
        await settle()
        await asyncio.sleep(10)
    recording.recorder.event(quota(), "Normal", "Moved", "alone", related=related)
    await settle()
    long_event, short_event = server.raw(EVENTS_V1).values()
    assert recording.written() == []
    assert {name: long_event[name] for name in ("type", "reason", "action", "reportingController")} == {
        "type": "Normal",
        "reason": "Moved",
        "action": "Move",
        "reportingController": "headroom",
    }
    assert (long_event["regarding"]["name"], long_event["related"]["name"]) == ("default-abcde", "tenant")
    assert (len(long_event["note"]), long_event["eventTime"]) == (1024, "2025-06-15T15:06:40.000000Z")
    assert long_event["series"] == {"count": 3, "lastObservedTime": "2025-06-15T15:07:00.000000Z"}
    assert long_event["reportingInstance"].startswith("headroom-")
    assert (short_event["action"], "series" in short_event) == ("Moved", False)


async def test_events_about_cluster_scoped_objects_live_in_default(recording: Recording) -> None:
    namespace = Namespace(metadata=ObjectMeta(name="tenant", uid="u"))
    for _ in range(2):
        recording.recorder.event(namespace, "Normal", "Seen", "hello")
        await settle()
    (event,) = recording.written()
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["involvedObject"]
    assert event["count"] == 2


REPEATS: dict[str, tuple[list[tuple[float, str, EventType, str, str]], list[int]]] = {
    # (seconds later, uid, type, reason, message) -> the counts of the events on the server
    "repeats are counted on the first": (
        [(0, "1", "Normal", "A", "m"), (5, "1", "Normal", "A", "m"), (5, "1", "Normal", "A", "m")],
        [3],
    ),
    "repeats before the first was written are counted with it": ([(0, "1", "Normal", "A", "m")] * 4, [4]),
    "another message is another event": ([(0, "1", "Normal", "A", "m"), (1, "1", "Normal", "A", "n")], [1, 1]),
    "another reason is another event": ([(0, "1", "Normal", "A", "m"), (1, "1", "Normal", "B", "m")], [1, 1]),
    "another type is another event": ([(0, "1", "Normal", "A", "m"), (1, "1", "Warning", "A", "m")], [1, 1]),
    "another object is another event": ([(0, "1", "Normal", "A", "m"), (1, "2", "Normal", "A", "m")], [1, 1]),
    "after ten minutes it is a new event": ([(0, "1", "Normal", "A", "m"), (601, "1", "Normal", "A", "m")], [1, 1]),
    "every repeat begins the ten minutes anew": (
        [(0, "1", "Normal", "A", "m"), (400, "1", "Normal", "A", "m"), (400, "1", "Normal", "A", "m")],
        [3],
    ),
}


@pytest.mark.parametrize("case", REPEATS)
async def test_repeats(case: str, recording: Recording) -> None:
    steps, counts = REPEATS[case]
    for later, uid, type_, reason, message in steps:
        if later:
            await asyncio.sleep(later)
        recording.recorder.event(quota(uid=uid), type_, reason, message)
    await settle(50)
    assert recording.counts() == counts
    assert recording.dropped() == 0


async def test_a_repeat_patches_the_count_and_the_time_alone(recording: Recording) -> None:
    for _ in range(2):
        recording.event()
        await asyncio.sleep(60)
    assert recording.events.asked("patch") == [{"count": 2, "lastTimestamp": "2025-06-15T15:07:40Z"}]
    (event,) = recording.written()
    assert event["firstTimestamp"] == "2025-06-15T15:06:40Z"


async def test_a_repeat_of_an_event_that_was_deleted_is_a_new_one(recording: Recording) -> None:
    recording.event()
    await settle()
    recording.events.server.raw(EVENTS).clear()
    recording.event()
    await settle()
    recording.event()
    await settle()
    assert recording.counts() == [2]


async def test_names_fit_and_are_never_the_same(recording: Recording) -> None:
    long = quota(name="a" * 230 + "." + "b" * 22)
    for number in range(3):
        recording.recorder.event(long, "Normal", "A", f"message {number}")
    await settle(50)
    names = [event["metadata"]["name"] for event in recording.written()]
    assert len(set(names)) == 3
    assert max(map(len, names)) <= 253
    assert all(".." not in name for name in names)


@pytest.mark.parametrize("wrong", ["Oops", "warning", "", None])
async def test_a_type_that_the_api_server_would_refuse_is_not_recorded(
    recording: Recording, wrong: Any, caplog: pytest.LogCaptureFixture
) -> None:
    recording.recorder.event(quota(), wrong, "Reason", "message")
    await settle()
    assert (recording.written(), recording.dropped()) == ([], 1)
    assert f"its type is Normal or Warning, not {wrong!r}" in caplog.text


@pytest.mark.parametrize("error", [Forbidden("no"), RuntimeError("odd")])
async def test_a_refused_event_is_dropped_and_the_next_is_written(
    error: Any, caplog: pytest.LogCaptureFixture, recording: Recording
) -> None:
    recording.events.errors["create"] = [error]
    recording.recorder.event(quota(), "Normal", "Refused", "m")
    recording.recorder.event(quota(), "Normal", "Written", "m")
    await settle(50)
    assert [event["reason"] for event in recording.written()] == ["Written"]
    assert recording.dropped() == 1
    assert "Refused on ns/default-abcde not written" in caplog.text


PASSING = [Unreachable("connection refused"), ServerError("etcd is away"), TooManyRequests("slow down")]


async def test_an_event_outlives_a_restart_of_the_server(recording: Recording) -> None:
    recording.events.errors["create"] = list(PASSING)
    recording.recorder.event(quota(), "Warning", "A", "m")
    await asyncio.sleep(60)
    assert recording.counts() == [1]
    assert recording.dropped() == 0
    recording.events.errors["patch"] = list(PASSING)
    recording.recorder.event(quota(), "Warning", "A", "m")
    await asyncio.sleep(60)
    assert recording.counts() == [2]


async def test_an_event_whose_answer_was_lost_is_not_written_twice(recording: Recording) -> None:
    recording.events.errors["create"] = [Unreachable("connection reset"), AlreadyExists("exists")]
    recording.recorder.event(quota(), "Warning", "A", "m")
    await asyncio.sleep(60)
    lost_event, repeated_event = recording.events.asked("create")
    assert lost_event == repeated_event
    assert recording.dropped() == 0


async def test_a_namespace_with_failing_events_does_not_hold_another(recording: Recording) -> None:
    hung, create = asyncio.Event(), recording.recorder._core.create

    async def by_namespace(body: dict[str, Any]) -> object:
        if body["metadata"]["namespace"] != "other":
            await hung.wait()
        return await create(body)

    recording.recorder._core.create = by_namespace  # type: ignore[assignment,method-assign]
    for number in range(QUEUE_LIMIT + 20):
        recording.recorder.event(quota(f"q{number}", f"uid-{number}"), "Normal", "Here", "m")
    elsewhere = ResourceQuota(metadata=ObjectMeta(name="q", namespace="other", uid="uid-q"))
    recording.recorder.event(elsewhere, "Normal", "Elsewhere", "m")
    await settle()
    assert [event["reason"] for event in recording.written()] == ["Elsewhere"]
    await recording.recorder.stop(timeout=1.0)
    assert recording.dropped() == QUEUE_LIMIT + 20


async def test_a_server_that_stays_away_is_given_up(caplog: pytest.LogCaptureFixture, recording: Recording) -> None:
    recording.events.errors["create"] = [Unreachable("connection refused")] * 6
    recording.recorder.event(quota(), "Warning", "Lost", "m")
    recording.recorder.event(quota(), "Warning", "Next", "m")
    await asyncio.sleep(1 + 2 + 4 + 8 + 10 - 0.5)
    assert recording.written() == []
    await asyncio.sleep(60)
    assert [event["reason"] for event in recording.written()] == ["Next"]
    assert recording.dropped() == 1
    assert caplog.messages == ["event Lost on ns/default-abcde not written: Unreachable: connection refused"]


async def test_a_server_that_hangs_fills_the_queue_and_no_more(recording: Recording) -> None:
    recording.events.answering.clear()
    recording.recorder.event(quota(), "Normal", "First", "being written")
    await settle()
    for number in range(QUEUE_LIMIT + 20):
        recording.recorder.event(quota(f"q{number}", f"uid-{number}"), "Normal", "Many", "m")
    for _ in range(100):
        recording.recorder.event(quota("q0", "uid-0"), "Normal", "Many", "m")  # waits already
    assert recording.dropped() == 20
    recording.events.answering.set()
    await recording.recorder.stop()
    assert len(recording.written()) == QUEUE_LIMIT + 1
    assert recording.counts()[1] == 101


async def test_what_cannot_be_recorded_is_dropped_without_an_error(recording: Recording) -> None:
    class Unknown(Object):
        pass

    recording.recorder.event(Unknown(), "Normal", "A", "m")
    recording.recorder.event(cast(Object, None), "Normal", "A", "m")
    await settle()
    assert recording.written() == []
    assert recording.dropped() == 2


def test_outside_a_loop_an_event_is_dropped_without_an_error(recording: Recording) -> None:
    recording.event()
    assert recording.dropped() == 1


async def test_a_stop_writes_what_waits(recording: Recording) -> None:
    for number in range(5):
        recording.recorder.event(quota(), "Normal", "A", str(number))
    await recording.recorder.stop()
    assert len(recording.written()) == 5
    recording.recorder.event(quota(), "Normal", "A", "too late")
    await settle()
    assert len(recording.written()) == 5
    assert recording.dropped() == 1


async def test_similar_events_are_aggregated_into_one(recording: Recording) -> None:
    for number in range(30):
        recording.recorder.event(quota(), "Warning", "Failed", f"try {number} failed")
        await asyncio.sleep(1)
    messages = [event["message"] for event in recording.written()]
    assert messages[:9] == [f"try {number} failed" for number in range(9)]
    assert messages[9:] == [events.SIMILAR_PREFIX + "try 24 failed"]
    recording.recorder.event(quota(), "Warning", "Another", "reason")
    recording.recorder.event(quota("other", "uid-2"), "Warning", "Failed", "on another object")
    await asyncio.sleep(events.AGGREGATION_SECONDS)
    recording.recorder.event(quota(), "Warning", "Failed", "much later")
    await settle()
    assert [event["message"] for event in recording.written()][10:] == ["on another object", "much later"]


async def test_a_flood_about_one_object_is_limited_as_by_client_go(recording: Recording) -> None:
    for number in range(100):
        recording.recorder.event(quota(), "Normal", f"Reason{number}", "m")
        recording.recorder.event(quota(f"q{number}", f"uid-{number}"), "Normal", "Other", "m")
    await settle(1000)
    reasons = [event["reason"] for event in recording.written()]
    assert reasons.count("Other") == 100
    assert len(reasons) - 100 == events.SPAM_BURST
    assert recording.dropped() == 100 - events.SPAM_BURST
    await asyncio.sleep(events.SPAM_SECONDS + 1)
    for number in range(5):
        recording.recorder.event(quota(), "Normal", f"Later{number}", "m")
    await settle(100)
    assert len(recording.written()) == 100 + events.SPAM_BURST + 1


async def test_repeats_in_the_spam_filter_count_in_the_next_write(recording: Recording) -> None:
    for _ in range(events.SPAM_BURST + 10):
        recording.event()
        await settle()
    assert recording.counts() == [events.SPAM_BURST]
    await asyncio.sleep(events.SPAM_SECONDS + 1)
    recording.event()
    await settle()
    assert recording.counts() == [events.SPAM_BURST + 11]


async def test_an_event_whose_entry_expires_meanwhile_is_not_lost(recording: Recording) -> None:
    recording.event()
    await settle()
    recording.events.server.raw(EVENTS).clear()
    recording.events.answering.clear()
    recording.event()
    await asyncio.sleep(events.AGGREGATION_SECONDS + 1)
    recording.events.answering.set()
    await settle()
    assert (recording.counts(), recording.dropped()) == ([1], 0)
