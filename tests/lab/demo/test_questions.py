from __future__ import annotations

from collections.abc import Callable

import pytest

from lab.demo import questions
from lab.demo.history import Amounts, Quota

from .builder import BASE, ENTRY, HELD, ONE, RAISED, REFUSAL, TWO, HistoryBuilder, sample


@pytest.mark.parametrize(
    ("at", "wanted", "answer"),
    [
        pytest.param(0, RAISED, RAISED, id="raised, and lowered since"),
        pytest.param(9, RAISED, RAISED, id="raised again after the revert"),
        pytest.param(10, RAISED, BASE, id="no longer raised: what it is now"),
        pytest.param(0, ("9", "9"), BASE, id="never: what it is now"),
    ],
)
def test_hard_since(at: float, wanted: tuple[str, str], answer: tuple[str, str]) -> None:
    assert questions.hard_since(sample().history, at, Amounts.of(*wanted)) == Amounts.of(*answer)


def test_used_since() -> None:
    history = sample().history
    assert questions.used_since(history, 5, Amounts.of(*TWO)) == Amounts.of(*TWO)
    assert questions.used_since(history, 18, Amounts.of(*TWO)) == Amounts.of(*ONE)


def test_hard_and_used_are_looked_at_in_one_version() -> None:
    history = sample().history
    both = Quota(Amounts.of(*RAISED), Amounts.of(*TWO))
    never = Quota(Amounts.of(*HELD), Amounts.of("0", "0"))
    assert questions.quota_since(history, 0, both) == both
    assert questions.quota_since(history, 0, never) == Quota(Amounts.of(*BASE), Amounts.of(*ONE))


@pytest.mark.parametrize(
    ("at", "most"),
    [
        pytest.param(0, HELD, id="over all"),
        pytest.param(18, HELD, id="since the last step down began"),
        pytest.param(19, ("0", "0"), id="nothing seen since"),
    ],
)
def test_the_most_that_was_allowed(at: float, most: tuple[str, str]) -> None:
    assert questions.highest_since(sample().history, at) == Amounts.of(*most)


def test_the_most_is_found_for_each_resource_by_itself() -> None:
    builder = HistoryBuilder()
    builder.quota(1, ("5", "1"), ONE)
    builder.quota(2, ("3", "9"), ONE)
    assert questions.highest_since(builder.history, 0) == Amounts.of("5", "9")


@pytest.mark.parametrize(
    ("at", "least"),
    [
        pytest.param(0, BASE, id="a revert of a hundredth of a second is seen"),
        pytest.param(9.505, BASE, id="the version that stands at the beginning counts"),
        pytest.param(9.51, BASE, id="also where the next one comes at that moment"),
        pytest.param(9.6, RAISED, id="repaired, and held since"),
        pytest.param(12, RAISED, id="what was allowed up to the first version counts"),
        pytest.param(13, HELD, id="the base without an entry is no revert"),
    ],
)
def test_the_least_that_was_allowed_under_an_entry(at: float, least: tuple[str, str]) -> None:
    assert questions.lowest_under_entries(sample().history, at) == Amounts.of(*least)


def test_the_least_is_found_for_each_resource_by_itself() -> None:
    builder = HistoryBuilder()
    builder.quota(1, ("5", "1"), ONE, ENTRY)
    builder.quota(2, ("3", "9"), ONE, ENTRY)
    assert questions.lowest_under_entries(builder.history, 0) == Amounts.of("3", "1")


def test_where_no_entry_stood_there_is_no_least() -> None:
    assert questions.lowest_under_entries(sample().history, 19) is None


@pytest.mark.parametrize(
    "ask",
    [
        lambda c: questions.hard_since(c, 0, Amounts()),
        lambda c: questions.used_since(c, 0, Amounts()),
        lambda c: questions.quota_since(c, 0, Quota(Amounts(), Amounts())),
        lambda c: questions.quota_after(c, "m1"),
        lambda c: questions.lowest_under_entries(c, 0),
        lambda c: questions.target_of(c, "m1"),
        lambda c: questions.source_of(c, "m1"),
    ],
)
def test_before_anything_was_seen_there_is_no_answer(ask: Callable[..., object]) -> None:
    assert ask(HistoryBuilder().history) is None


def test_the_state_of_a_migration() -> None:
    builder = HistoryBuilder()
    assert questions.state_of(builder.history, "m1") == "not there"
    builder.migration(1, "")
    assert questions.state_of(builder.history, "m1") == "new, never refused"
    builder.migration(2, "Pending", refused=True)
    assert questions.state_of(builder.history, "m1") == "Pending, refused"


def test_the_phases_of_a_migration() -> None:
    assert questions.phases_of(sample().history, "m1") == "Pending Scheduling Running Succeeded"
    assert questions.phases_of(sample().history, "m9") == ""


def test_quotas_own_words_are_taken_out_of_the_event() -> None:
    history = sample().history
    assert questions.refusal_of(history, "m1") == REFUSAL
    assert questions.refusal_of(history, "m2") == ""


def test_source_and_target() -> None:
    history = sample().history
    source, target = questions.source_of(history, "m1"), questions.target_of(history, "m1")
    assert source is not None
    assert target is not None
    assert (source.name, target.name) == ("source", "target")


def test_the_source_is_the_pod_that_the_vm_lived_in_last() -> None:
    builder = sample()
    builder.migration(21, "Pending", name="m2")
    builder.pod(22, "next", "Pending", of="m2")
    builder.pod(22, "of another VM", "Running", vm="vm2")
    source = questions.source_of(builder.history, "m2")
    assert source is not None
    assert source.name == "target"


def test_the_quota_after_a_migration_is_not_looked_at_before_its_old_pod_is_gone() -> None:
    builder = HistoryBuilder()
    builder.quota(1, BASE, ONE)
    builder.pod(1, "source", "Running")
    builder.migration(2, "Pending")
    builder.pod(3, "target", "Running", of="m1")
    assert questions.quota_after(builder.history, "m1") is None
    builder.pod(4, "source", "Succeeded")
    assert questions.quota_after(builder.history, "m1") == Quota(Amounts.of(*BASE), Amounts.of(*ONE))


def test_room_that_was_held() -> None:
    assert questions.held_until_the_end(sample().history, "m1") == "held"


def test_room_that_was_taken_back_while_the_old_pod_counted() -> None:
    builder = HistoryBuilder()
    builder.pod(1, "source", "Running")
    builder.migration(2, "Pending")
    builder.pod(3, "target", "Running", of="m1")
    assert questions.held_until_the_end(builder.history, "m1") == "not over"
    builder.migration(4, "Succeeded")
    builder.quota(5, BASE, TWO)
    builder.pod(6, "source", "Succeeded")
    answer = questions.held_until_the_end(builder.history, "m1")
    assert answer == f"lowered to {Amounts.of(*BASE)} while pods took {Amounts.of(*TWO)}"


def test_a_limit_that_follows_the_pod_is_not_taken_back_too_early() -> None:
    """status.used says later than the pod that it has ended."""
    builder = sample()
    builder.quota(19, BASE, TWO)
    assert questions.held_until_the_end(builder.history, "m1") == "held"


@pytest.mark.parametrize(
    ("source_ends_at", "target_comes_at", "answer"),
    [
        pytest.param(9, 5, "admitted while m1's old pod counts", id="before the old pod's end"),
        pytest.param(5, 9, "admitted after m1's old pod counted", id="after it"),
        pytest.param(None, 5, "admitted while m1's old pod counts", id="the old pod has not ended"),
        pytest.param(None, None, "not there", id="no target pod"),
    ],
)
def test_whether_another_migration_was_admitted(
    source_ends_at: float | None, target_comes_at: float | None, answer: str
) -> None:
    builder = HistoryBuilder()
    builder.pod(1, "source", "Running")
    builder.migration(2, "Succeeded")
    builder.pod(3, "target", "Running", of="m1")
    builder.migration(4, "Pending", name="m2", vm="vm2")
    for at in (5, 9):
        if at == source_ends_at:
            builder.pod(at, "source", "Succeeded")
        if at == target_comes_at:
            builder.pod(at, "other", "Pending", vm="vm2", of="m2")
    assert questions.admission_of(builder.history, "m2", "m1") == answer


def refusal(limited: str) -> str:
    asked = "requested: limits.cpu=2015m,limits.memory=4797464313"
    used = "used: limits.cpu=4030m,limits.memory=9594928626"
    return f"Error creating pod: pods is forbidden: exceeded quota: default-abc, {asked}, {used}, limited: {limited}"


@pytest.mark.parametrize(
    ("limited", "count"),
    [
        pytest.param("limits.cpu=3,limits.memory=5000Mi", 0, id="by the base, however late the event comes"),
        pytest.param("limits.cpu=3", 0, id="by the base, one resource"),
        pytest.param("limits.cpu=4,limits.memory=9980344313", 0, id="by what was raised for another"),
        pytest.param("limits.cpu=5,limits.memory=9980344313", 1, id="by the raised limit"),
        pytest.param("limits.memory=9980344313", 1, id="by the raised limit, one resource"),
        pytest.param("limits.cpu=6,limits.memory=9980344314", 1, id="by a higher one"),
    ],
)
def test_a_refusal_after_the_raise_is_told_by_quotas_own_words(limited: str, count: int) -> None:
    builder = sample()
    assert questions.refused_after_the_raise(builder.history) == 0
    builder.event(20, refusal(limited))
    builder.event(20, refusal(limited), about="a-pod-of-somebody-else")
    assert questions.refused_after_the_raise(builder.history) == count


def test_without_a_raise_nothing_is_refused_after_it() -> None:
    builder = HistoryBuilder()
    builder.quota(1, BASE, ONE)
    builder.migration(2, "Pending", refused=True)
    builder.event(2, refusal("limits.cpu=3"))
    assert questions.refused_after_the_raise(builder.history) == 0
