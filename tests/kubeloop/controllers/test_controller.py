"""Controllers: what handlers see, and what becomes of their keys."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY

from kubeloop.api.core import ResourceQuota
from kubeloop.api.registry import RESOURCE_QUOTAS
from kubeloop.cache.informer import SharedIndexInformer
from kubeloop.client.errors import (
    ApiError,
    Conflict,
    Forbidden,
    NotFound,
    ServerError,
    ServiceUnavailable,
    TooManyRequests,
)
from kubeloop.controllers.controller import Controller
from kubeloop.controllers.errors import RetryAfter, Skip, TerminalError
from kubeloop.testing.virtual_time import now, settle
from kubeloop.workqueue.queue import LOW_PRIORITY
from tests.kinds import Clock, Kind, edited
from tests.kubeloop.controllers.controllers import Calls, ControlledQuotas, took

pytestmark = pytest.mark.virtual_time


def conflict() -> Conflict:
    return Conflict("the object has been modified")


def retry_after(seconds: float) -> TooManyRequests:
    return TooManyRequests("slow down", status=429, retry_after=seconds)


def group(*errors: Exception) -> ExceptionGroup[Exception]:
    """Returns a group of errors as a TaskGroup raises it."""
    return ExceptionGroup("unhandled errors in a TaskGroup", errors)


async def test_a_handler_is_called_for_every_change_of_an_object() -> None:
    kind, calls = ControlledQuotas(), Calls()
    kind.put("old", "ns")
    await kind.start(watcher=calls)
    kind.put("new", "ns")
    await settle()
    kind.put("new", "ns", metadata={"labels": {"a": "b"}})
    await settle()
    kind.gone("ns/new")
    await settle()
    assert calls.keys == ["ns/old", "ns/new", "ns/new", "ns/new"]
    assert [obj and obj.labels for obj in calls.objects] == [{}, {}, {"a": "b"}, None]


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


SETTLED: dict[str, tuple[list[BaseException | None], list[float], int]] = {
    # script -> the moments of the calls, the failures counted in the end
    "success is called once": ([None], [0], 0),
    "Skip is called once": ([Skip("not mine")], [0], 0),
    "an error backs off until it succeeds": ([ValueError("x")] * 4, [0, 1, 3, 7, 15], 0),
    "a server's error backs off": ([ServerError("x")], [0, 1], 0),
    "RetryAfter is called again in time": ([RetryAfter(30), RetryAfter(5)], [0, 30, 35], 0),
    "RetryAfter without time is called again at once": ([RetryAfter(0)], [0, 0], 0),
    "RetryAfter is no failure and ends the count": ([ValueError("x"), RetryAfter(9)], [0, 1, 10], 0),
    "the first conflict is retried at once": ([conflict()], [0, 0], 0),
    "the second conflict in a row backs off": ([conflict(), conflict(), conflict()], [0, 0, 1, 3], 0),
    "a conflict after a success is a first one": ([conflict(), RetryAfter(1), conflict(), None], [0, 0, 1, 1], 0),
    "an error does not use up the conflict's retry": ([ValueError("x"), conflict(), None], [0, 1, 1], 0),
    "what a handler awaited was cancelled: an error": ([asyncio.CancelledError()], [0, 1], 0),
    "an error that cannot be printed is one": ([Unprintable()], [0, 1], 0),
    "TimeoutError is an error": ([TimeoutError()], [0, 1], 0),
    "a group of errors is an error": ([group(ValueError("x"))], [0, 1], 0),
    "a conflict in a group is retried at once": ([group(conflict())], [0, 0], 0),
    "RetryAfter in a group in a group": ([group(group(RetryAfter(30)))], [0, 30], 0),
    "Skip in a group is called once": ([group(Skip("not mine"), Skip("nor this"))], [0], 0),
    "of a group the most urgent counts, and the shortest time": (
        [group(Skip(), RetryAfter(9), RetryAfter(7)), group(RetryAfter(0.5), ValueError("x"))],
        [0, 7, 7.5],
        0,
    ),
    "Retry-After of the server in a group": ([group(ValueError("x"), retry_after(40))], [0, 40], 0),
    "what fails for ever is retried for ever": ([ValueError("x")] * 12, [0, 1, 3, 7, 15, 31, 63, 127], 12),
}


@pytest.mark.parametrize("case", SETTLED)
async def test_settled(case: str) -> None:
    script, times, failures = SETTLED[case]
    kind, calls = ControlledQuotas(), Calls(*script)
    await kind.start(handler=calls)
    kind.controller.enqueue("ns/a", immediately=True)
    await asyncio.sleep(400 if failures else 10_000)
    assert calls.times[: len(times)] == pytest.approx(times)
    assert failures or len(calls.times) == len(times)
    assert bool(kind.controller.queue.num_requeues("ns/a")) == bool(failures)
    assert kind.controller.healthy() == []


TOGETHER: dict[str, tuple[BaseException | None, BaseException | None, list[float]]] = {
    "both succeed": (None, None, [0]),
    "the first fails": (ValueError("x"), None, [0, 1]),
    "the second fails": (None, ValueError("x"), [0, 1]),
    "one is skipped, the other fails": (Skip(), ValueError("x"), [0, 1]),
    "one is skipped, the other wants to wait": (Skip(), RetryAfter(7), [0, 7]),
    "both want to wait: the shorter time counts": (RetryAfter(7), RetryAfter(3), [0, 3]),
    "one conflicts, the other wants to wait: both come true": (conflict(), RetryAfter(3), [0, 0, 3]),
    "one fails, the other wants to wait less": (ValueError("x"), RetryAfter(0.5), [0, 0.5]),
    "one fails, the other wants to wait longer": (RetryAfter(100), ValueError("x"), [0, 1]),
    "one fails, the other conflicts: backoff": (conflict(), ValueError("x"), [0, 1]),
}


@pytest.mark.parametrize("case", TOGETHER)
async def test_handlers_of_one_kind_do_not_stand_in_each_others_way(case: str) -> None:
    first_answer, second_answer, times = TOGETHER[case]
    kind, first_calls, second_calls = ControlledQuotas(), Calls(first_answer), Calls(second_answer)
    await kind.start(one=first_calls, two=second_calls)
    kind.controller.enqueue("ns/a", immediately=True)
    await asyncio.sleep(1000)
    assert first_calls.times == second_calls.times
    assert first_calls.times == pytest.approx(times)


async def test_an_event_during_a_backoff_is_handled_at_once() -> None:
    kind, calls = ControlledQuotas(), Calls(*[ValueError("x")] * 6)
    await kind.start(handler=calls)
    kind.put("a", "ns")
    await asyncio.sleep(40)
    assert calls.times == pytest.approx([0, 1, 3, 7, 15, 31])
    kind.put("a", "ns")
    await settle()
    assert calls.times[-1] == pytest.approx(40)


async def test_a_key_is_never_handled_twice_at_a_time() -> None:
    kind = ControlledQuotas(workers=5)
    at_work: set[str] = set()
    most = 0

    async def handler(key: str, obj: ResourceQuota | None) -> None:
        nonlocal most
        assert key not in at_work
        at_work.add(key)
        most = max(most, len(at_work))
        await asyncio.sleep(0.1)
        at_work.remove(key)

    await kind.start(handler=handler)
    for _ in range(50):
        for name in "abc":
            kind.controller.enqueue(f"ns/{name}", immediately=True)
        await asyncio.sleep(0.03)
    assert most == 3
    assert kind.controller.healthy() == []


LOGGED: dict[str, tuple[BaseException, list[tuple[str, bool]]]] = {
    # error, raised eight times -> (level, with traceback) of each line that is not for debugging
    "an unexpected exception says its traceback once": (ValueError("two\nlines"), [("ERROR", True)]),
    "an error of the server is one line, once": (ServerError("x"), [("ERROR", False)]),
    "waiting for a parent is no error": (NotFound("x"), [("INFO", False)]),
    "a group is one error": (
        ExceptionGroup("many", [ValueError("x"), KeyError("y"), RetryAfter(1)]),
        [("ERROR", True)],
    ),
    "what failed in a group is told without the rest": (
        ExceptionGroup("many", [ServerError("x"), RetryAfter(1)]),
        [("ERROR", False)],
    ),
}


@pytest.mark.parametrize("case", LOGGED)
async def test_a_failure_is_logged_once_for_each_key_and_error(case: str, caplog: pytest.LogCaptureFixture) -> None:
    error, expected = LOGGED[case]
    caplog.set_level(logging.INFO, "kubeloop.controllers")
    kind = ControlledQuotas()
    await kind.start(quotaHandler=Calls(*[error] * 8))
    kind.controller.enqueue("ns/a", immediately=True)
    await asyncio.sleep(300)
    assert [(record.levelname, bool(record.exc_info)) for record in caplog.records] == expected
    message = caplog.records[0].getMessage()
    failed = error.exceptions[0] if isinstance(error, ExceptionGroup) and not expected[0][1] else error
    assert all(part in message for part in ("quotaHandler", "ns/a", type(failed).__name__))
    assert "\n" not in message


async def test_a_failure_is_logged_again_when_it_changes_or_lasts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kubeloop.controllers")
    kind = ControlledQuotas()
    script = [ValueError("1"), ValueError("2"), ServerError("3"), None, ServerError("4")]
    calls = Calls(*script, *[ServerError("5")] * 12)
    await kind.start(quotaHandler=calls)
    for _ in range(2):
        kind.controller.enqueue("ns/a", immediately=True)
        await asyncio.sleep(20)
    await asyncio.sleep(400)
    words = [record.getMessage().rpartition(" ")[2] for record in caplog.records]
    assert words == ["1", "3", "4", "5"]


async def test_at_debug_repeats_and_conflicts_are_seen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "kubeloop.controllers")
    kind = ControlledQuotas()
    await kind.start(quotaHandler=Calls(conflict(), ValueError("x"), ValueError("x")))
    kind.controller.enqueue("ns/a", immediately=True)
    await asyncio.sleep(2)
    assert [record.levelname for record in caplog.records] == ["DEBUG", "ERROR", "DEBUG"]


OBEYED: dict[str, tuple[ApiError, float]] = {
    # what the server answered -> when the next call comes, whatever happens meanwhile
    "Retry-After is obeyed": (retry_after(40), 40),
    "it is obeyed whatever the status": (ServiceUnavailable("x", retry_after=20), 20),
    "of a conflict too": (Conflict("x", retry_after=30), 30),
}


@pytest.mark.parametrize("case", OBEYED)
async def test_retry_after_is_obeyed_per_key_without_a_worker(case: str) -> None:
    answer, expected = OBEYED[case]
    kind = ControlledQuotas(workers=1)
    times: dict[str, list[float]] = {"ns/a": [], "ns/b": []}

    async def handler(key: str, obj: ResourceQuota | None) -> None:
        times[key].append(now())
        if key == "ns/a" and len(times[key]) == 1:
            kind.put("a", "ns", metadata={"labels": {"while": "handled"}})
            raise answer

    await kind.start(handler=handler)
    kind.put("a", "ns")
    await settle()
    for number in range(5):
        kind.put("a", "ns", metadata={"labels": {"event": str(number)}})
        kind.controller.enqueue("ns/a", immediately=True)
        kind.controller.enqueue_after("ns/a", 1)
        kind.put("b", "ns", metadata={"labels": {"event": str(number)}})
        await asyncio.sleep(2)
    await asyncio.sleep(100)
    assert times["ns/a"] == pytest.approx([0, expected])
    assert times["ns/b"] == pytest.approx([0, 2, 4, 6, 8])


@pytest.mark.parametrize("handlers", [["first"], []], ids=["with a handler", "for its cache alone"])
async def test_a_handler_that_is_added_late_gets_every_object(handlers: list[str]) -> None:
    kind, late_calls = ControlledQuotas(), Calls()
    kind.put("a", "ns")
    kind.put("b", "ns")
    await kind.start(**{name: Calls() for name in handlers})
    kind.controller.on_change("late", late_calls)
    await settle()
    assert sorted(late_calls.keys) == ["ns/a", "ns/b"]


async def test_what_a_handler_returns_is_handed_to_the_next() -> None:
    kind = ControlledQuotas(workers=1)
    objects: list[Any] = []

    async def writer(key: str, obj: ResourceQuota | None) -> ResourceQuota | None:
        if obj is None or "mark" in obj.labels:
            return None
        return await kind.controller.client.merge_patch(
            {"metadata": {"labels": {"mark": "1"}, "resourceVersion": obj.metadata.resource_version}},
            name=obj.name,
            namespace=obj.namespace,
        )

    async def reader(key: str, obj: ResourceQuota | None) -> Any:
        objects.append(obj and obj.labels)
        return "not an object"

    kind.put("a", "ns")
    await kind.start(writer=writer, reader=reader, another_reader=reader)
    assert objects[:2] == [{"mark": "1"}, {"mark": "1"}]


async def test_what_a_handler_returned_hides_nothing_newer() -> None:
    kind = ControlledQuotas(workers=1)
    objects: list[Any] = []

    async def slow_writer(key: str, obj: ResourceQuota | None) -> ResourceQuota | None:
        if obj is None or obj.labels:
            return None
        kind.put("a", "ns", metadata={"labels": {"by": "another"}})
        await asyncio.sleep(1)
        return obj

    async def reader(key: str, obj: ResourceQuota | None) -> None:
        objects.append(obj and obj.labels)

    kind.put("a", "ns")
    await kind.start(writer=slow_writer, reader=reader)
    await asyncio.sleep(2)
    assert objects[0] == {"by": "another"}


async def test_a_handler_gets_its_own_write_until_the_cache_has_it() -> None:
    kind = ControlledQuotas(workers=1)
    keys: list[str] = []

    async def writer(key: str, obj: ResourceQuota | None) -> ResourceQuota | None:
        assert obj is not None
        kind.server.open.clear()
        keys.append(obj.labels.get("mark", "none"))
        if obj.labels:
            return None
        return await kind.controller.client.merge_patch(
            {"metadata": {"labels": {"mark": "ours"}}}, name=obj.name, namespace=obj.namespace
        )

    quota = kind.put("a", "ns")
    await kind.start(writer=writer)
    assert kind.informer.indexer.get_by_key("ns/a") == quota
    for cached in (None, edited(quota, metadata={"resourceVersion": "1", "labels": {"mark": "restored"}}), quota):
        if cached is not None:
            kind.informer.indexer.put("ns/a", cached)
        kind.controller.enqueue("ns/a", immediately=True)
        await settle()
    assert keys == ["none", "ours", "restored", "none"], "the last one: what was undone is not remembered"


@pytest.mark.parametrize("immediately", [False, True])
async def test_a_handler_that_enqueues_itself_leaves_others_the_loop(immediately: bool) -> None:
    client = Kind(RESOURCE_QUOTAS).client
    controller = Controller("quotas", client, SharedIndexInformer(client), workers=2)
    calls = 0

    async def handler(key: str, obj: ResourceQuota | None) -> None:
        nonlocal calls
        calls += 1
        if calls < 10_000:
            controller.enqueue(key, immediately=immediately)

    controller.on_change("handler", handler)
    controller.start_workers()
    controller.enqueue("ns/a", immediately=True)
    await settle(1000)
    assert 0 < calls <= 2 * 1000, "one of each worker, then it is the turn of the others"
    await controller.stop(0.1)
    assert immediately or calls <= 120  # a burst of 100, then 10 a second


async def test_a_worker_that_will_not_end_holds_the_stop_up_for_1_s() -> None:
    kind = ControlledQuotas(workers=1)
    release = asyncio.Event()

    async def stubborn(key: str, obj: ResourceQuota | None) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    await kind.start(stubborn=stubborn)
    kind.controller.enqueue("ns/a", immediately=True)
    await settle()
    assert await took(kind.controller.stop(timeout=3)) == pytest.approx(4)
    release.set()
    await kind.informer.stop()


async def test_a_stop_finishes_the_queued_and_drops_the_delayed() -> None:
    kind = ControlledQuotas(workers=1)
    handled = []

    async def slow(key: str, obj: ResourceQuota | None) -> None:
        await asyncio.sleep(1)
        handled.append(key)

    await kind.start(slow=slow)
    for name in "abc":
        kind.controller.enqueue(f"ns/{name}", immediately=True)
    kind.controller.enqueue_after("ns/late", 2)
    await asyncio.sleep(0.5)
    assert await took(kind.controller.stop()) == pytest.approx(2.5)
    kind.controller.enqueue("ns/too late", immediately=True)
    await asyncio.sleep(10)
    assert handled == ["ns/a", "ns/b", "ns/c"]
    await kind.informer.stop()


async def test_the_first_listing_does_not_hold_up_live_events() -> None:
    kind, calls = ControlledQuotas(workers=1), Calls()
    for number in range(50):
        kind.put(f"old-{number}", "ns")
    kind.controller.on_change("handler", calls)
    kind.informer.start()
    await kind.informer.wait_for_sync()
    kind.put("live", "ns")
    await settle()
    kind.controller.start_workers()
    await settle(100)
    assert calls.keys[0] == "ns/live"
    assert len(calls.keys) == 51


async def test_enqueue_takes_keys_and_a_delay() -> None:
    kind, calls = ControlledQuotas(workers=1), Calls()
    kind.controller.queue.add("ns/low", LOW_PRIORITY)
    kind.controller.enqueue("ns/namespaced", immediately=True)
    kind.controller.enqueue("ns/second", immediately=True)
    kind.controller.enqueue_after("ns/later", 3)
    await kind.start(handler=calls)
    await asyncio.sleep(2)
    assert calls.keys == ["ns/namespaced", "ns/second", "ns/low"]
    await asyncio.sleep(2)
    assert calls.keys[3:] == ["ns/later"]


async def test_a_change_and_a_removal_may_share_a_name() -> None:
    kind, changes, removals = ControlledQuotas(), Calls(), Calls()
    kind.controller.on_change("handler", changes)
    kind.controller.on_remove("handler", removals)
    kind.controller.on_remove("other", removals, finalizer="example.org/other")
    for add in (kind.controller.on_change, kind.controller.on_remove):
        with pytest.raises(ValueError, match="has a handler handler already"):
            add("handler", Calls())
    await kind.start()
    kind.put("a", "ns", metadata={"finalizers": ["wrangler.cattle.io/handler"], "deletionTimestamp": "now"})
    kind.put("b", "ns")
    await settle()
    assert (set(changes.keys), removals.keys) == ({"ns/a", "ns/b"}, ["ns/a"])
    assert kind.now("ns/b").metadata.finalizers == ["wrangler.cattle.io/handler", "example.org/other"]


# -- metrics ----------------------------------------------------------------------------------------------------------


async def test_the_reconcile_metrics_tell_how_calls_ended() -> None:
    kind = ControlledQuotas()
    calls = Calls(ValueError("x"), conflict(), RetryAfter(1), Skip(), None)
    await kind.start(measured=calls)
    kind.controller.enqueue("ns/a", immediately=True)
    await asyncio.sleep(60)
    kind.controller.enqueue("ns/b", immediately=True)
    await settle()

    def total(result: str) -> float | None:
        labels = {"controller": "measured", "result": result}
        return REGISTRY.get_sample_value("controller_runtime_reconcile_total", labels)

    assert [total(result) for result in ("success", "error", "requeue", "requeue_after")] == [2, 1, 1, 1]
    only = {"controller": "measured"}
    assert REGISTRY.get_sample_value("controller_runtime_reconcile_errors_total", only) == 1
    assert REGISTRY.get_sample_value("controller_runtime_reconcile_panics_total", only) == 1
    assert REGISTRY.get_sample_value("controller_runtime_terminal_reconcile_errors_total", only) == 0
    assert REGISTRY.get_sample_value("controller_runtime_reconcile_time_seconds_count", only) == 5
    assert REGISTRY.get_sample_value("controller_runtime_max_concurrent_reconciles", only) == 2


async def test_a_terminal_error_is_tried_again_only_after_a_change(caplog: pytest.LogCaptureFixture) -> None:
    kind, calls = ControlledQuotas(), Calls(Forbidden("no"), TerminalError("spec.size is no number"), None)
    await kind.start(terminal=calls)
    kind.put("a", "ns")
    await asyncio.sleep(3600)
    assert len(calls.keys) == 2
    only = {"controller": "terminal"}
    assert REGISTRY.get_sample_value("controller_runtime_terminal_reconcile_errors_total", only) == 1
    assert REGISTRY.get_sample_value("controller_runtime_reconcile_errors_total", only) == 2
    assert REGISTRY.get_sample_value("controller_runtime_reconcile_panics_total", only) == 0
    assert "ns/a failed, will not be retried: TerminalError: spec.size is no number" in caplog.text
    kind.edited("ns/a", {"metadata": {"labels": {"a": "b"}}})
    await asyncio.sleep(1)
    assert len(calls.keys) == 3


async def test_a_handler_that_blocks_the_loop_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kind, clock = ControlledQuotas(), Clock()
    monkeypatch.setattr("kubeloop.controllers.reconcile.time", SimpleNamespace(perf_counter=clock))

    async def waits(key: str, obj: ResourceQuota | None) -> None:
        clock.now += 0.9
        await asyncio.sleep(3)

    async def blocks(key: str, obj: ResourceQuota | None) -> None:
        await asyncio.sleep(0)
        clock.now += 2.0
        await asyncio.sleep(0)

    await kind.start(waits=waits, blocks=blocks)
    kind.controller.enqueue("ns/a", immediately=True)
    await kind.stop()
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert line.startswith("blocks: ns/a kept the event loop for 2.0 s")
    blocked = {
        name: REGISTRY.get_sample_value("event_loop_blocked_seconds_total", {"controller": name})
        for name in ("waits", "blocks")
    }
    assert blocked == {"waits": 0, "blocks": 2.0}


async def test_active_workers_count_while_handlers_run() -> None:
    kind = ControlledQuotas()

    async def slow(key: str, obj: ResourceQuota | None) -> None:
        await asyncio.sleep(10)

    await kind.start(busy=slow)
    kind.controller.enqueue("ns/a", immediately=True)
    kind.controller.enqueue("ns/b", immediately=True)
    for seconds, active in ((1, 2), (10, 0)):
        await asyncio.sleep(seconds)
        labels = {"controller": "busy"}
        assert REGISTRY.get_sample_value("controller_runtime_active_workers", labels) == active
