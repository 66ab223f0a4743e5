"""What quota admission's words say."""

from __future__ import annotations

from lab.record import Refusal
from tests.decisions import by_value

WORDS = "exceeded quota: q, requested: limits.cpu=2015m, used: limits.cpu=1, limited: limits.cpu=3,pods=1"


def test_what_was_asked_for_and_the_limits_are_read_from_admissions_own_words() -> None:
    found = Refusal.of(f'Error creating pod: pods "a" is forbidden: {WORDS}')
    assert found == Refusal(
        WORDS, by_value({"limits.cpu": "2015m"}), by_value({"limits.cpu": "3", "pods": "1"})
    )


def test_what_is_no_refusal_and_what_cannot_be_read() -> None:
    assert Refusal.of("forbidden: limited: pods=1") is None
    assert Refusal.of("exceeded quota: limited: x=y") == Refusal("exceeded quota: limited: x=y", {}, {})
