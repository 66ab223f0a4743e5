from collections.abc import Callable
from operator import attrgetter

import pytest

from lab import questions
from lab.questions import Quota
from lab.record import Amounts
from tests.lab.builder import BASE, ENTRY, HELD, ONE, RAISED, REFUSAL, TWO, RecordBuilder, sample

hard, used = attrgetter("hard"), attrgetter("used")


@pytest.mark.parametrize(
    ("start", "expected", "answer"),
    [
        pytest.param(0, RAISED, RAISED, id="raised, and lowered since"),
        pytest.param(9, RAISED, RAISED, id="raised again after the revert"),
        pytest.param(10, RAISED, BASE, id="no longer raised: what it is now"),
        pytest.param(0, ("9", "9"), BASE, id="never: what it is now"),
    ],
)
def test_hard_since(start: float, expected: tuple[str, str], answer: tuple[str, str]) -> None:
    assert questions.value_since(sample().record, start, Amounts.of(*expected), hard) == Amounts.of(*answer)


def test_what_was_used_and_what_both_were_in_one_version() -> None:
    record = sample().record
    assert questions.value_since(record, 5, Amounts.of(*TWO), used) == Amounts.of(*TWO)
    assert questions.value_since(record, 18, Amounts.of(*TWO), used) == Amounts.of(*ONE)
    both = Quota(Amounts.of(*RAISED), Amounts.of(*TWO))
    never = Quota(Amounts.of(*HELD), Amounts.of("0", "0"))
    assert questions.value_since(record, 0, both, Quota.of) == both
    assert questions.value_since(record, 0, never, Quota.of) == Quota(Amounts.of(*BASE), Amounts.of(*ONE))


def test_the_most_that_was_allowed() -> None:
    assert questions.highest_since(sample().record, 0) == Amounts.of(*HELD)
    assert questions.highest_since(sample().record, 19) == Amounts()


def test_highest_and_lowest_are_of_each_resource_by_itself() -> None:
    builder = RecordBuilder()
    builder.quota(1, ("5", "1"), ONE, ENTRY)
    builder.quota(2, ("3", "9"), ONE, ENTRY)
    assert questions.highest_since(builder.record, 0) == Amounts.of("5", "9")
    assert questions.lowest_under_entries(builder.record, 0) == Amounts.of("3", "1")


@pytest.mark.parametrize(
    ("start", "least"),
    [
        pytest.param(0, BASE, id="a revert of a hundredth of a second is seen"),
        pytest.param(9.505, BASE, id="the version that stands at the beginning counts"),
        pytest.param(9.51, BASE, id="also where the next one comes at that moment"),
        pytest.param(9.6, RAISED, id="repaired, and held since"),
        pytest.param(12, RAISED, id="what was allowed up to the first version counts"),
        pytest.param(13, HELD, id="the base without an entry is no revert"),
    ],
)
def test_the_least_that_was_allowed_under_an_entry(start: float, least: tuple[str, str]) -> None:
    assert questions.lowest_under_entries(sample().record, start) == Amounts.of(*least)


@pytest.mark.parametrize(
    "ask",
    [
        lambda c: questions.value_since(c, 0, Amounts(), hard),
        lambda c: questions.quota_after(c, "m1"),
        lambda c: questions.lowest_under_entries(c, 0),
        lambda c: questions.lowest_under_entries(sample().record, 19),
        lambda c: questions.target_of(c, "m1"),
        lambda c: questions.source_of(c, "m1"),
    ],
)
def test_before_anything_was_seen_there_is_no_answer(ask: Callable[..., object]) -> None:
    assert ask(RecordBuilder().record) is None


def test_what_happened_to_a_migration() -> None:
    builder = sample()
    for ask, answer, answer_if_absent in (
        (questions.state_of, "Succeeded, refused", "not there"),
        (questions.phases_of, "Pending Scheduling Running Succeeded", ""),
        (questions.refusal_of, REFUSAL, ""),
        (questions.held_until_the_end, "held", "not over"),
    ):
        assert (ask(builder.record, "m1"), ask(builder.record, "m9")) == (answer, answer_if_absent)
    builder.migration(21, "", name="m2")
    assert questions.state_of(builder.record, "m2") == "new, never refused"
    builder.pod(22, "next", "Pending", job="m2")
    builder.pod(22, "of another VM", "Running", vm="vm2")
    pairs = [(questions.source_of(builder.record, m), questions.target_of(builder.record, m)) for m in ("m1", "m2")]
    names = [(source and source.name, target and target.name) for source, target in pairs]
    assert names == [("source", "target"), ("target", "next")]


def test_a_migration_is_over_when_its_old_pod_is_gone() -> None:
    builder = RecordBuilder()
    builder.pod(1, "source", "Running")
    builder.migration(2, "Pending")
    builder.pod(3, "target", "Running", job="m1")
    builder.migration(4, "Succeeded")
    builder.quota(5, BASE, TWO)
    answers = questions.quota_after(builder.record, "m1"), questions.held_until_the_end(builder.record, "m1")
    assert answers == (None, "not over")
    builder.pod(6, "source", "Succeeded")
    assert questions.quota_after(builder.record, "m1") == Quota(Amounts.of(*BASE), Amounts.of(*TWO))
    answer = questions.held_until_the_end(builder.record, "m1")
    assert answer == f"lowered to {Amounts.of(*BASE)} while pods took {Amounts.of(*TWO)}"


def test_a_limit_that_follows_the_pod_is_not_lowered_too_early() -> None:
    """status.used says later than the pod that it has ended."""
    builder = sample()
    builder.quota(19, BASE, TWO)
    assert questions.held_until_the_end(builder.record, "m1") == "held"


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
    builder = RecordBuilder()
    builder.pod(1, "source", "Running")
    builder.migration(2, "Succeeded")
    builder.pod(3, "target", "Running", job="m1")
    builder.migration(4, "Pending", name="m2", vm="vm2")
    for moment in (5, 9):
        if moment == source_ends_at:
            builder.pod(moment, "source", "Succeeded")
        if moment == target_comes_at:
            builder.pod(moment, "other", "Pending", vm="vm2", job="m2")
    assert questions.admission_of(builder.record, "m2", "m1") == answer


def refusal(limited: str) -> str:
    request = "requested: limits.cpu=2015m,limits.memory=4797464313"
    used = "used: limits.cpu=4030m,limits.memory=9594928626"
    return f"Error creating pod: pods is forbidden: exceeded quota: default-abc, {request}, {used}, limited: {limited}"


@pytest.mark.parametrize(
    ("limited", "count"),
    [
        pytest.param("limits.cpu=3,limits.memory=5000Mi", 0, id="by the base, however late the event comes"),
        pytest.param("limits.cpu=3", 0, id="by the base, one resource"),
        pytest.param("limits.cpu=4,limits.memory=9980344313", 0, id="by limits that were never these together"),
        pytest.param("limits.cpu=5,limits.memory=9980344313", 2, id="by the raised limit"),
        pytest.param("limits.memory=9980344313", 2, id="by the raised limit, one resource"),
    ],
)
def test_a_refusal_after_the_raise_is_told_by_quotas_own_words(limited: str, count: int) -> None:
    builder = sample()
    assert questions.refused_after_raise(builder.record) == 0
    builder.event(20, refusal(limited), count=2)
    builder.event(20, refusal(limited), vmi="a-pod-of-somebody-else")
    assert questions.refused_after_raise(builder.record) == count


@pytest.mark.parametrize(
    ("key", "limited", "count"),
    [
        pytest.param("harvesterhci.io/migrating-vm2", "limits.cpu=5", 0, id="raised for another VM"),
        pytest.param("harvesterhci.io/migratingUID-uid-vm1", "limits.cpu=5", 1, id="an entry by the VMI's uid"),
        pytest.param("", "limits.cpu=5", 1, id="raised without entries"),
        pytest.param("", "limits.cpu=3", 0, id="raised without entries, not yet enforced"),
    ],
)
def test_whose_headroom_the_limit_held(key: str, limited: str, count: int) -> None:
    builder = RecordBuilder()
    builder.instance("vm1")
    builder.quota(1, BASE)
    builder.migration(2, "Pending", refused=True)
    builder.quota(3, RAISED, ONE, *filter(None, [key]))
    builder.event(4, refusal(limited))
    assert questions.refused_after_raise(builder.record) == count


def test_without_a_raise_nothing_is_refused_after_it() -> None:
    builder = RecordBuilder()
    builder.quota(1, BASE, ONE)
    builder.migration(2, "Pending", refused=True)
    builder.event(2, refusal("limits.cpu=3"))
    assert questions.refused_after_raise(builder.record) == 0


GIB = 1024.0**3


def full() -> RecordBuilder:
    """Two pods of a core and a GiB that fill the quota."""
    builder = RecordBuilder()
    for name in ("a", "b"):
        builder.pod(0, name, "Running", takes=("1", "1Gi"))
    builder.quota(0, ("2", "2Gi"))
    return builder


def test_overshoot_is_what_was_allowed_beyond_what_pods_took() -> None:
    """Raised at 10, taken at 12, left at 20, restored at 23: two and three seconds of one core and 1 GiB."""
    builder = full()
    builder.quota(10, ("3", "3Gi"))
    builder.pod(12, "target", "Pending", job="m1", takes=("1", "1Gi"))
    builder.pod(20, "a", "Succeeded", takes=("1", "1Gi"))
    builder.quota(23, ("2", "2Gi"))
    base = Amounts.of("2", "2Gi")
    assert questions.overshoot(builder.record, base, 1, 30) == (5.0, 5 * GIB)
    assert questions.overshoot(builder.record, base, 11, 22) == (3.0, 3 * GIB)


def test_pods_below_the_base_are_no_overshoot() -> None:
    builder = full()
    builder.pod_deleted(1, "a")
    assert questions.overshoot(builder.record, Amounts.of("2", "2Gi"), 0, 10) == (0.0, 0.0)


# ---- what quota promised to a migration, and what it got

ROOM = '{"limits.cpu":"2015m","limits.memory":"4797464313"}'
GRANTED = ("5015m", "10040344313")


def granted_record(moment: float = 2.0) -> RecordBuilder:
    """A migration with an entry since second 2, whose room quota admission knows of since `moment`."""
    builder = RecordBuilder()
    builder.quota(0, BASE)
    builder.pod(0, "source", "Running")
    builder.migration(1, "Pending", refused=True)
    if moment > 2:
        builder.quota(2, BASE, ONE, ENTRY, text=ROOM)
    builder.quota(moment, GRANTED, ONE, ENTRY, text=ROOM)
    return builder


@pytest.mark.parametrize(
    ("since", "event_time", "limit", "also", "ends", "expected"),
    [
        pytest.param(2, 2.5, "5015m", "2", 20, [], id="told within a second"),
        pytest.param(2, 9, "3", "2", 20, [], id="told late, by the limit of before"),
        pytest.param(8.5, 9, "5015m", "2", 20, [], id="told within a second of the raise"),
        pytest.param(2, 9, "5015m", "2", 20, [True], id="by the raised limit, which another pod has filled"),
        pytest.param(2, 9, "5015m", "2", 8.9, [False], id="by the raised limit, which another pod had filled"),
        pytest.param(2, 9, "5015m", "1m", 20, [False], id="by the raised limit, which has room"),
        pytest.param(2, 9, "what", "2", 20, [True], id="by words that cannot be read"),
        pytest.param(2, 21, "5015m", "2", 22, [], id="told after the migration's end"),
    ],
)
def test_a_target_that_was_refused_although_it_had_room(
    since: float, event_time: float, limit: str, also: str, ends: float, expected: list[bool]
) -> None:
    words = f"exceeded quota: q, requested: limits.cpu=2015m, used: limits.cpu=1, limited: limits.cpu={limit}"
    builder = granted_record(since)
    happens: dict[float, Callable[[], None]] = {
        3: lambda: builder.pod(3, "other", "Running", vm="vm2", takes=(also, "1")),
        event_time: lambda: builder.event(event_time, words),
        ends: lambda: builder.pod(ends, "other", "Succeeded", vm="vm2", takes=(also, "1")),
        20.5: lambda: builder.migration(20.5, "Failed"),
        30: lambda: builder.quota(30, BASE, ONE),
    }
    for moment in sorted(happens):
        happens[moment]()
    assert [refusal.full for refusal in questions.late_refusals(builder.record, Amounts.of(*BASE))] == expected


def test_a_version_below_base_and_entries_is_a_revert() -> None:
    builder, base = granted_record(), Amounts.of(*BASE)
    builder.quota(3, BASE, ONE, ENTRY, text=ROOM)
    builder.quota(4, ONE, ONE)
    assert [version.at for version in questions.reverts(builder.record, base)] == [3]


def test_the_most_that_some_pods_took_together() -> None:
    builder = full()
    builder.pod(2, "a", "Succeeded", takes=("1", "1Gi"))
    builder.pod(3, "c", "Running", takes=("3", "1"))
    assert questions.most_taken(builder.record, lambda pod: True) == Amounts.of("4", "2Gi")
    assert questions.most_taken(builder.record, lambda pod: pod.name == "a") == Amounts.of("1", "1Gi")
