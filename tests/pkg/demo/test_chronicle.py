from __future__ import annotations

from pkg.demo.amounts import Amounts
from pkg.demo.chronicle import Chronicle, Happening, QuotaVersion

from .story import BASE, ENTRY, ONE, Story, told


def test_a_version_that_shows_nothing_new_is_left_out() -> None:
    story = Story()
    story.quota(1, BASE, ONE)
    story.quota(2, ("3000m", "5242880000"), ONE)
    assert [version.at for version in story.chronicle.quotas] == [1]


def test_a_version_that_is_left_out_was_seen_all_the_same() -> None:
    story = Story()
    story.quota(1, BASE, ONE)
    first = story.chronicle.quota_seen
    story.quota(2, BASE, ONE)
    assert (first, story.chronicle.quota_seen) == (story.chronicle.quotas[-1].version, first + 1)


def test_an_entry_alone_is_news() -> None:
    story = Story()
    story.quota(1, BASE, ONE)
    story.quota(2, BASE, ONE, ENTRY)
    assert [version.entries for version in story.chronicle.quotas] == [(), (ENTRY,)]


def test_phases_are_noted_once_each_with_their_versions() -> None:
    track = told().chronicle.migrations["m1"]
    assert [change.phase for change in track.phases] == ["", "Pending", "Scheduling", "Running", "Succeeded"]
    assert [change.version for change in track.phases] == sorted(change.version for change in track.phases)


def test_a_refusal_is_remembered_after_it_has_passed() -> None:
    assert told().chronicle.migrations["m1"].refused == 3


def test_a_pod_knows_what_it_takes_and_for_which_migration_it_is() -> None:
    target = told().chronicle.pods["target"]
    assert (target.usage, target.job, target.vm) == (Amounts.of(*ONE), "uid-m1", "vm1")


def test_a_pod_stops_counting_when_it_has_ended() -> None:
    pods = told().chronicle.pods
    ended = pods["source"].ended
    assert ended is not None
    assert ended.at == 18
    assert pods["target"].ended is None


def test_a_deleted_pod_stops_counting_too() -> None:
    story = Story()
    story.pod(1, "p", "Running")
    story.pod_deleted(2, "p")
    ended = story.chronicle.pods["p"].ended
    assert ended is not None
    assert (ended.at, ended.phase) == (2, "gone")


def test_a_deleted_pod_that_had_ended_before_ended_then() -> None:
    story = Story()
    story.pod(1, "p", "Succeeded")
    story.pod_deleted(2, "p")
    ended = story.chronicle.pods["p"].ended
    assert ended is not None
    assert ended.at == 1


def test_an_event_that_is_repeated_is_told_once() -> None:
    story = Story()
    story.event(1, "no")
    story.event(2, "no")
    story.event(3, "no", about="m2")
    assert [told.about for told in story.chronicle.told] == ["m1", "m2"]


def test_the_listener_hears_everything_in_order() -> None:
    heard: list[Happening] = []
    story = Story()
    story.chronicle = Chronicle(story.clock, heard.append)
    story.quota(1, BASE, ONE)
    story.migration(2, "Pending")
    story.event(3, "no")
    story.mark(4, "note", "now")
    assert [happening.at for happening in heard] == [1, 2, 3, 4]
    assert isinstance(heard[0], QuotaVersion)
