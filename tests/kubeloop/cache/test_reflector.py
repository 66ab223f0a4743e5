"""The reflector under virtual time: which requests it makes and when, its health, and what is logged."""

import asyncio

import pytest
from prometheus_client import REGISTRY

from kubeloop.api.core import Pod
from kubeloop.api.registry import PODS
from kubeloop.cache.lister_watcher import Namespaces
from kubeloop.cache.processor import SharedProcessor
from kubeloop.cache.recovery import ReflectorOptions
from kubeloop.testing.scripted_server import GET, LIST, WATCH, Reply, listing, refuse, silent, status, watch
from kubeloop.testing.scripted_steps import added, bookmark, deleted, drop, error, hang, modified, obj
from tests.kubeloop.cache.informing import (
    DISCOVERY,
    FIRST,
    NO_KIND,
    NOT_SERVED,
    ONE,
    PATH,
    REFUSED,
    SERVED,
    running,
    sent,
)

pytestmark = pytest.mark.virtual_time

EXPIRED = error(410, "Expired")
STARTING = status(503, "ServiceUnavailable", "starting")
SILENT = watch(hang())


async def test_an_expired_continue_token_leads_to_a_list_in_one_page() -> None:
    gone = status(410, "Expired", "The provided continue parameter is too old")
    lists = [listing([sent("a")], "5", "t1"), gone, listing([sent("b")], "9")]
    async with running([REFUSED], lists) as run:
        await asyncio.sleep(1)
        assert run.requests_made() == ["WATCH initial", "GET", "GET t1", "GET", "WATCH 9"]
        assert "limit" not in run.server.seen(LIST, PATH)[2].query
        assert run.content() == "b@1"


async def test_watches_ask_for_five_to_ten_minutes_at_random() -> None:
    async with running([watch(*FIRST, 2.0)] + [watch(2.0)] * 20) as run:
        await asyncio.sleep(40)
        timeouts = [int(request.query["timeoutSeconds"]) for request in run.server.seen(WATCH, PATH)]
    assert all(300 <= timeout <= 600 for timeout in timeouts)
    assert len(set(timeouts)) > 10


async def test_silence_ends_a_watch_which_is_resumed_at_once() -> None:
    watches = [watch(*FIRST, hang()), watch(30.0, bookmark("8"), hang()), SILENT]
    async with running(watches, options=ReflectorOptions(silence_limit=100.0)) as run:
        await asyncio.sleep(250)
        assert run.requests_made() == ["WATCH initial", "WATCH 5", "WATCH 8"]
        assert run.times() == pytest.approx([0.0, 100.0, 230.0], abs=8)
        assert run.problems() == []


async def test_a_watch_whose_answer_does_not_begin_is_given_up() -> None:
    async with running([watch(*FIRST, drop()), silent(), SILENT]) as run:
        await asyncio.sleep(60)
        assert run.requests_made() == ["WATCH initial", "WATCH 5", "WATCH 5"]
        assert 30 <= run.times()[2] <= 34
        assert run.content() == "a@1"


async def test_a_quiet_kind_costs_two_short_requests_and_no_list() -> None:
    async with running([watch(*FIRST, hang()), *[SILENT] * 100]) as run:
        await asyncio.sleep(600)
        assert run.requests_made() == ["WATCH initial", *["WATCH 5"] * 14]
        probes = run.server.seen(WATCH, ONE)
        assert [(request.query["fieldSelector"], request.query["sendInitialEvents"]) for request in probes] == [
            ("metadata.name=a", "true")
        ] * 14
        assert run.problems() == []


HANGS = silent()
DEAF: dict[str, tuple[Reply, Reply]] = {
    "watches that open and stay silent": (SILENT, SILENT),
    "watches whose answer does not begin": (HANGS, HANGS),
    "a watch that ends before it has brought what there is": (SILENT, watch(1.0)),
}


@pytest.mark.parametrize(("watches", "probes"), DEAF.values(), ids=DEAF)
async def test_a_kind_with_silent_watches_is_listed_each_minute(watches: Reply, probes: Reply) -> None:
    async with running([watch(*FIRST, drop())], [listing([sent("a", "6"), sent("b", "7")], "9")]) as run:
        run.server.always(WATCH, PATH, watches)
        run.server.always(WATCH, ONE, probes)
        run.server.always(LIST, PATH, listing([sent("b", "7")], "10"))
        await asyncio.sleep(55)
        assert run.content() == "a@6 b@7"
        (problem,) = run.problems()
        assert problem.startswith("pods: watches bring nothing for ")
        assert silent_watches() == 1
        await asyncio.sleep(60)
        assert run.content() == "b@7"
        run.server.always(WATCH, ONE, watch(added(sent("b", "7"))))
        await asyncio.sleep(60)
        assert run.problems() == []
        assert silent_watches() == 0


async def test_a_server_with_silent_watches_is_reported_at_once() -> None:
    async with running([SILENT, SILENT], [listing([sent("a")], "5"), listing([sent("a", "6")], "7")]) as run:
        run.server.always(WATCH, ONE, SILENT)
        await asyncio.sleep(20)
        assert (run.content(), run.problems()) == ("a@1", [])
        await asyncio.sleep(10)
        assert run.problems() != []
        await asyncio.sleep(50)
        assert run.content() == "a@6"


async def test_a_refused_probe_leads_to_a_list_and_is_no_silence() -> None:
    async with running([watch(*FIRST, hang())], [listing([sent("a", "6")], "7")]) as run:
        run.server.always(WATCH, ONE, status(403, "Forbidden"))
        await asyncio.sleep(60)
        assert (run.content(), run.problems()) == ("a@6", [])


async def test_a_server_without_any_answer_is_not_one_with_lists() -> None:
    async with running([watch(*FIRST, hang())]) as run:
        for verb, path in ((WATCH, ONE), (WATCH, PATH), (LIST, PATH)):
            run.server.always(verb, path, silent())
        await asyncio.sleep(250)
        assert run.problems() == []
        await asyncio.sleep(60)
        (problem,) = run.problems()
        assert problem.startswith("pods: no data from the server for ")


async def test_an_event_ends_the_silence_before_the_next_probe() -> None:
    async with running([watch(*FIRST, hang())], [listing([sent("a", "6")], "9")]) as run:
        run.server.always(WATCH, PATH, watch(20.0, modified(sent("a", "10")), hang()))
        run.server.always(WATCH, ONE, SILENT)
        await asyncio.sleep(54)
        assert run.problems() != []
        await asyncio.sleep(20)
        assert (run.content(), run.problems()) == ("a@10", [])


async def test_an_empty_kind_is_silent_when_a_list_has_an_object() -> None:
    """A server without WatchList is asked by a list."""
    empty, full = listing([], "6"), listing([sent("a", "7")], "8")
    async with running([REFUSED, *[SILENT] * 9], [listing([], "5"), empty, full, full]) as run:
        await asyncio.sleep(75)
        assert (run.content(), run.problems()) == ("", [])
        await asyncio.sleep(10)
        assert run.content() == "a@7"
        assert run.problems() != []
    assert silent_watches() == 0, "it has ended"


async def test_an_empty_kind_is_silent_when_a_watch_list_is() -> None:
    first_watch = watch(bookmark("5", initial_events_end=True), hang())
    async with running([first_watch, first_watch, *[SILENT] * 9], [listing([sent("a", "7")], "8")]) as run:
        await asyncio.sleep(75)
        assert (run.content(), run.problems()) == ("", [])
        await asyncio.sleep(25)
        assert run.content() == "a@7"
        assert run.problems() != []
        assert run.requests_made() == ["WATCH initial", "WATCH initial", "WATCH 5", "WATCH initial", "GET", "WATCH 8"]


def silent_watches() -> float:
    return REGISTRY.get_sample_value("reflector_silent_watches", {"name": "pods"}) or 0.0


async def test_bookmarks_alone_keep_a_watch_alive() -> None:
    minutes = [step for minute in range(1, 9) for step in (60.0, bookmark(str(100 + minute)))]
    options = ReflectorOptions(min_watch_timeout=3600.0, silence_limit=90.0)
    async with running([watch(*FIRST, *minutes, hang())], options=options) as run:
        await asyncio.sleep(8.5 * 60)
        assert run.requests_made() == ["WATCH initial"]
        assert run.informer._reflector.last_sync_resource_version == "108"
        assert run.problems() == []


async def test_a_watch_that_the_server_forgets_to_end_is_ended_here() -> None:
    chatter = [step for i in range(100) for step in (10.0, bookmark(str(10 + i)))]
    async with running([watch(*FIRST, *chatter), SILENT]) as run:
        await asyncio.sleep(900)
        asked_for = int(run.server.requests[0].query["timeoutSeconds"])
        assert run.times()[1] == pytest.approx(asked_for + 30, abs=2)


async def test_quick_events_do_not_shorten_the_silence_limit() -> None:
    steps = [step for i in range(400) for step in (0.5, bookmark(str(10 + i)))]
    async with running([watch(*FIRST, *steps, hang()), SILENT], options=ReflectorOptions(silence_limit=32.0)) as run:
        await asyncio.sleep(260)
        # The last event is at 200 s; the limit counts from there, within a sixteenth.
        assert 200 + 30 <= run.times()[1] <= 200 + 32


async def test_a_watch_with_an_event_is_resumed_at_once() -> None:
    brings = watch(modified(sent("a", "6")), 2.0, drop())
    async with running([watch(*FIRST, drop()), *[STARTING] * 3, brings, SILENT]) as run:
        await asyncio.sleep(60)
        assert run.times()[5] - run.times()[4] == pytest.approx(2.0, abs=0.05)


# -- kinds that are not installed


async def test_a_missing_kind_is_polled_until_it_appears() -> None:
    async with running([NO_KIND, watch(*FIRST, hang())], served=NOT_SERVED) as run:
        await asyncio.sleep(144)
        assert not run.informer.installed
        assert run.requests_made() == ["WATCH initial"]
        assert run.discoveries() in (3, 4)
        assert run.problems() == []
        run.server.always(GET, DISCOVERY, SERVED)
        await asyncio.sleep(72)
        assert run.informer.installed
        assert run.content() == "a@1"


async def test_news_of_a_crd_starts_its_kind_at_once() -> None:
    async with running([NO_KIND, NO_KIND, watch(*FIRST, hang())], served=NOT_SERVED) as run:
        await asyncio.sleep(1)
        run.informer.retry_now()
        await asyncio.sleep(0.1)
        assert run.discoveries() == 2
        run.server.always(GET, DISCOVERY, SERVED)
        await asyncio.sleep(2)
        assert run.content() == "a@1"


@pytest.mark.parametrize("served", [SERVED, NO_KIND], ids=["discovery still lists the kind", "discovery is a 404 too"])
async def test_a_store_is_never_emptied_because_a_proxy_said_404(served: Reply) -> None:
    async with running([watch(*FIRST, 3.0)], served=served) as run:
        run.server.always(WATCH, PATH, NO_KIND)
        await asyncio.sleep(900)
        assert (run.content(), run.informer.installed) == ("a@1", True)
        assert run.problems() != []


async def test_an_unconfirmed_404_at_the_start_is_no_missing_kind() -> None:
    async with running([NO_KIND, NO_KIND, watch(*FIRST, hang())], served=refuse()) as run:
        await asyncio.sleep(0.5)
        assert run.informer.installed
        await asyncio.sleep(10)
        assert run.content() == "a@1"


# -- objects that do not decode

NAMELESS = {"metadata": {"name": 5}}
BAD = sent("a", "6", labels=17)


async def test_after_a_list_with_a_nameless_object_the_kind_is_listed_again() -> None:
    lists = [listing([sent("a")], "5"), listing([NAMELESS], "6"), listing([], "7")]
    async with running([REFUSED, watch(EXPIRED), watch(30.0)], lists) as run:
        await asyncio.sleep(20)
        assert run.content() == "a@1"
        await asyncio.sleep(20)
        assert run.content() == ""
        assert run.requests_made()[1:] == ["GET", "WATCH 5", "GET", "WATCH 6", "GET", "WATCH 7"]


async def test_after_a_watch_with_an_undecodable_object_the_kind_is_listed_again() -> None:
    """A proxy may have spoilt it: without another change its last state would stay for ever."""
    lists = [listing([sent("a")], "5"), listing([BAD], "7"), listing([sent("a", "6")], "8")]
    async with running([REFUSED, watch(modified(BAD), 30.0), watch(30.0)], lists) as run:
        await asyncio.sleep(20)
        assert run.content() == "a@1"
        await asyncio.sleep(60)
        assert run.content() == "a@6"
        assert run.requests_made()[1:] == ["GET", "WATCH 5", "GET", "WATCH 7", "GET", "WATCH 8"]
        assert run.informer.trouble is None


# -- WatchList


async def test_one_slow_watch_list_does_not_switch_watch_list_off() -> None:
    expired = watch(*FIRST, EXPIRED)
    async with running([SILENT, watch(EXPIRED), expired, SILENT, expired], [listing([sent("a")], "5")]) as run:
        await asyncio.sleep(200)
        assert run.requests_made()[:5] == ["WATCH initial", "GET", "WATCH 5", "WATCH initial", "WATCH initial"]


async def test_initial_events_that_never_end_switch_watch_list_off() -> None:
    slow = [SILENT, watch(EXPIRED)]
    async with running([*slow * 3, watch(EXPIRED), SILENT], [listing([], "5")] * 9) as run:
        await asyncio.sleep(200)
        assert run.requests_made().count("WATCH initial") == 3


# -- health and what is logged


async def test_a_server_that_stays_away_is_a_problem_until_it_is_back() -> None:
    async with running([watch(*FIRST, 10.0, drop())]) as run:
        run.server.always(WATCH, PATH, refuse())
        await asyncio.sleep(250)
        assert run.problems() == []
        await asyncio.sleep(50)
        (problem,) = run.problems()
        assert problem.startswith("pods: no data from the server for 300 s (")
        assert "connection lost" in problem
        run.server.always(WATCH, PATH, watch(bookmark("6"), hang()))
        await asyncio.sleep(60)
        assert run.problems() == []


async def test_a_silence_that_is_allowed_is_no_problem() -> None:
    options = ReflectorOptions(silence_limit=900.0, min_watch_timeout=3600.0)
    async with running([watch(*FIRST, hang())], options=options) as run:
        await asyncio.sleep(899)
        assert len(run.requests_made()) == 1
        assert run.problems() == []


NO_RIGHT = status(403, "Forbidden", "pods is forbidden")
NO_NAME = status(401, "Unauthorized", "Unauthorized")
BUSY = status(429, "TooManyRequests", "busy")
WELL = watch(*FIRST, added(sent("b", "6")), 2.0)
LOGGED: dict[str, tuple[list[Reply], list[str]]] = {
    "the same refusal is said once": ([NO_RIGHT] * 5, ["pods is forbidden"]),
    "another refusal is said too": ([NO_RIGHT, NO_RIGHT, NO_NAME, NO_NAME], ["pods is forbidden", "Unauthorized"]),
    "the same after it was well is said again": (
        [NO_RIGHT, NO_RIGHT, WELL, NO_RIGHT, NO_RIGHT],
        ["pods is forbidden", "pods is forbidden"],
    ),
    "503 and 429 are two things": ([STARTING, BUSY], ["starting", "busy"]),
    "a watch that a load balancer cuts after a while is none": ([watch(*FIRST, 20.0, drop())] * 3, []),
    "one that is cut at once is": ([watch(*FIRST, drop())], ["the answer was cut off"]),
    "an expired version is no warning": ([watch(*FIRST, EXPIRED), watch(*FIRST)], []),
    "a missing kind is none": ([NO_KIND], []),
}


@pytest.mark.parametrize(("watches", "warnings"), LOGGED.values(), ids=LOGGED)
async def test_what_is_logged_as_a_warning(
    watches: list[Reply], warnings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    lasting = ReflectorOptions(silence_limit=3600.0)
    watches = [*watches, watch(bookmark("1", initial_events_end=True), hang())]
    async with running(watches, served=NOT_SERVED, options=lasting):
        await asyncio.sleep(100)
    messages = [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert all(line.startswith("pods: list or watch failed: ") for line in messages)
    assert [line.rpartition(": ")[2] for line in messages] == warnings


async def test_a_bug_in_the_sink_is_logged_and_the_kind_listed_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: SharedProcessor[Pod], obj: Pod) -> None:
        raise ValueError("bug")

    monkeypatch.setattr(SharedProcessor, "changed", fail)
    async with running([watch(*FIRST, modified(sent("a", "6"))), watch(*FIRST, hang())]) as run:
        await asyncio.sleep(10)
        assert run.requests_made() == ["WATCH initial"] * 2
        assert "ValueError: bug" in caplog.text
        assert run.informer.healthy() == []


# -- a part of the kind


async def test_the_selector_goes_with_every_list_page_and_watch() -> None:
    lists = [listing([sent("a")], "5", "next"), listing([sent("b")], "5"), listing([sent("b")], "9")]
    watches = [REFUSED, watch(EXPIRED), SILENT]
    async with running(
        watches, lists, select=lambda pods: pods.select(label_selector="kubevirt.io=virt-launcher")
    ) as run:
        await asyncio.sleep(1)
        assert run.content() == "b@1"
        assert len(run.server.requests) == 6
        assert {request.query["labelSelector"] for request in run.server.requests} == {"kubevirt.io=virt-launcher"}


@pytest.mark.parametrize("sign", ["a silent watch", "an event", "a bookmark"])
async def test_a_restore_of_etcd_is_noticed_in_several_namespaces(sign: str) -> None:
    first_path, second_path = PODS.path("first"), PODS.path("second")
    first_pod, second_pod, third_pod = obj("a", "1", "first"), obj("b", "2", "second"), obj("c", "3", "first")
    end_of_list, restored = bookmark("901", initial_events_end=True), bookmark("400", initial_events_end=True)
    comes = {"a silent watch": (), "an event": (modified(obj("b", "400", "second")),), "a bookmark": (bookmark("400"),)}
    async with running(
        [], select=lambda pods: Namespaces([pods.select(namespace=n) for n in ("first", "second")])
    ) as run:
        second_watch = watch(added(second_pod), restored, hang())
        run.server.script(
            WATCH,
            first_path,
            watch(added(first_pod), end_of_list, hang()),
            watch(added(first_pod), added(third_pod), restored, hang()),
        )
        run.server.script(
            WATCH, second_path, watch(added(second_pod), end_of_list, *comes[sign], hang()), second_watch, second_watch
        )
        await asyncio.sleep(60 if sign == "a silent watch" else 5)
        assert sorted(run.informer.indexer.list_keys()) == ["first/a", "first/c", "second/b"]
        assert [request.query.get("sendInitialEvents") for request in run.server.seen(WATCH, first_path)] == [
            "true"
        ] * 2
        assert run.problems() == []


async def test_each_namespaces_watch_resumes_where_it_stopped() -> None:
    first_path, second_path = PODS.path("first"), PODS.path("second")
    first_pod, second_pod = obj("a", "1", "first"), obj("b", "2", "second")
    async with running(
        [], select=lambda pods: Namespaces([pods.select(namespace=n) for n in ("first", "second")])
    ) as run:
        run.server.script(LIST, first_path, listing([first_pod], "5"))
        run.server.script(LIST, second_path, listing([second_pod], "7"))
        # Whichever ends, the other is ended with it, and may have more to say.
        ends = watch(added(obj("c", "9", "first")))
        run.server.script(WATCH, first_path, REFUSED, ends, SILENT, SILENT)
        run.server.script(WATCH, second_path, SILENT, watch(deleted(obj("b", "8", "second"))), SILENT)
        await asyncio.sleep(5)
        assert run.informer.indexer.list_keys() == ["first/a", "first/c"]
        requests = [(request.path, request.query.get("resourceVersion")) for request in run.server.seen(WATCH)]
        assert [version for path, version in requests if path == first_path] == [None, "5", "9", "9"]
        assert [version for path, version in requests if path == second_path] == ["7", "7", "8"]
