from __future__ import annotations

import pytest

from lab.demo.history import Amounts, Happening, History, Quota, QuotaVersion
from pkg.util.quantity import QuantityError

from .builder import BASE, ENTRY, ONE, HistoryBuilder, sample


def test_a_version_that_shows_nothing_new_is_left_out() -> None:
    builder = HistoryBuilder()
    builder.quota(1, BASE, ONE)
    builder.quota(2, ("3000m", "5242880000"), ONE)
    assert [version.at for version in builder.history.quotas] == [1]


def test_a_version_that_is_left_out_was_seen_all_the_same() -> None:
    builder = HistoryBuilder()
    builder.quota(1, BASE, ONE)
    first = builder.history.quota_seen
    builder.quota(2, BASE, ONE)
    assert (first, builder.history.quota_seen) == (builder.history.quotas[-1].version, first + 1)


def test_an_entry_alone_is_news() -> None:
    builder = HistoryBuilder()
    builder.quota(1, BASE, ONE)
    builder.quota(2, BASE, ONE, ENTRY)
    assert [version.entries for version in builder.history.quotas] == [(), (ENTRY,)]


def test_phases_are_noted_once_each_with_their_versions() -> None:
    track = sample().history.migrations["m1"]
    assert [change.phase for change in track.phases] == ["", "Pending", "Scheduling", "Running", "Succeeded"]
    assert [change.version for change in track.phases] == sorted(change.version for change in track.phases)


def test_a_refusal_is_remembered_after_it_has_passed() -> None:
    assert sample().history.migrations["m1"].refused == 3


def test_a_pod_knows_what_it_takes_and_for_which_migration_it_is() -> None:
    target = sample().history.pods["target"]
    assert (target.usage, target.job, target.vm) == (Amounts.of(*ONE), "uid-m1", "vm1")


def test_a_pod_stops_counting_when_it_has_ended() -> None:
    pods = sample().history.pods
    ended = pods["source"].ended
    assert ended is not None
    assert ended.at == 18
    assert pods["target"].ended is None


def test_a_deleted_pod_stops_counting_too() -> None:
    builder = HistoryBuilder()
    builder.pod(1, "p", "Running")
    builder.pod_deleted(2, "p")
    ended = builder.history.pods["p"].ended
    assert ended is not None
    assert (ended.at, ended.phase) == (2, "gone")


def test_a_deleted_pod_that_had_ended_before_ended_then() -> None:
    builder = HistoryBuilder()
    builder.pod(1, "p", "Succeeded")
    builder.pod_deleted(2, "p")
    ended = builder.history.pods["p"].ended
    assert ended is not None
    assert ended.at == 1


def test_an_event_that_is_repeated_is_told_once_of_the_vms_last_migration() -> None:
    builder = HistoryBuilder()
    builder.event(0, "no room for the VM itself")
    builder.migration(1, "Pending")
    builder.event(1, "no")
    builder.event(2, "no")
    builder.migration(3, "Pending", name="m2")
    builder.migration(3, "Pending", name="m3", vm="vm2")
    builder.event(3, "no")
    assert [event.about for event in builder.history.events] == ["m1", "m2"]


def test_the_listener_hears_everything_in_order() -> None:
    heard: list[Happening] = []
    builder = HistoryBuilder()
    builder.history = History(builder.clock, heard.append)
    builder.quota(1, BASE, ONE)
    builder.migration(2, "Pending")
    builder.event(3, "no")
    builder.mark(4, "note", "now")
    assert [happening.at for happening in heard] == [1, 2, 3, 4]
    assert isinstance(heard[0], QuotaVersion)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        pytest.param(("3", "5000Mi"), ("3000m", "5242880k"), True, id="other ways to write the same"),
        pytest.param(("3", "5000Mi"), ("3", "5242880001"), False, id="a byte more"),
        pytest.param(("3", "5000Mi"), ("3001m", "5000Mi"), False, id="a thousandth more"),
    ],
)
def test_amounts_are_compared_by_value(one: tuple[str, str], other: tuple[str, str], equal: bool) -> None:
    assert (Amounts.of(*one) == Amounts.of(*other)) is equal


def test_they_are_printed_as_the_api_server_prints_them() -> None:
    assert str(Amounts.of("2015m", "5000Mi")) == "cpu 2015m, memory 5000Mi"
    assert str(Quota(Amounts.of("3", "1k"), Amounts())) == "hard cpu 3, memory 1k; used cpu 0, memory 0"


def test_a_resource_list_without_the_two_is_zero() -> None:
    assert Amounts.within({"pods": 3}) == Amounts()


def test_two_are_added_by_resource() -> None:
    assert Amounts.of("2015m", "1") + Amounts.of("985m", "2") == Amounts.of("3", "3")


def test_garbage_is_refused() -> None:
    with pytest.raises(QuantityError):
        Amounts.within({"limits.cpu": "much"})
