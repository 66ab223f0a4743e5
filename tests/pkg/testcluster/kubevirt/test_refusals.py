"""When a refused pod is asked for again."""

from __future__ import annotations

import pytest

from pkg.client.errors import ApiError, Conflict, Forbidden, Invalid
from pkg.testcluster.kubevirt.creation import Refusals, is_quota_refusal

QUOTA = Forbidden('pods "p" is forbidden: exceeded quota: default, requested: limits.cpu=2', status=403)
OTHER = Forbidden(
    'error looking up service account ns/default: serviceaccount "default" not found', status=403
)

KINDS: dict[str, tuple[ApiError, bool]] = {
    "quota": (QUOTA, True),
    "another admission plugin": (OTHER, False),
    "validation that quotes quota's words": (Invalid("exceeded quota", status=422), False),
    "a busy quota": (Conflict("exceeded quota", status=409), False),
}


@pytest.mark.parametrize(("error", "expected"), KINDS.values(), ids=KINDS.keys())
def test_is_quota_refusal(error: ApiError, expected: bool) -> None:
    assert is_quota_refusal(error) is expected


def refuse(refusals: Refusals, error: ApiError = QUOTA, now: float = 0.0) -> float:
    return refusals.refused("ns/a", error, generation=refusals.generation("ns"), now=now)


def test_quota_s_refusals_back_off_from_five_seconds_to_five_minutes() -> None:
    refusals = Refusals()
    assert [refuse(refusals) for _ in range(9)] == [5, 10, 20, 40, 80, 160, 300, 300, 300]


def test_other_refusals_back_off_from_a_tenth_of_a_second() -> None:
    refusals = Refusals()
    assert [refuse(refusals, OTHER) for _ in range(10)][:3] == [0.1, 0.2, 0.4]
    assert refuse(refusals, OTHER) == 30


def test_a_refused_key_waits_its_time() -> None:
    refusals = Refusals()
    refuse(refusals, now=100.0)
    assert refusals.wait("ns/a", 101.0) == 4.0
    assert refusals.wait("ns/a", 106.0) == 0.0


def test_a_key_that_was_never_refused_does_not_wait() -> None:
    assert Refusals().wait("ns/a", 0.0) == 0.0


def test_a_change_of_quota_makes_the_namespace_s_keys_due() -> None:
    refusals = Refusals()
    refuse(refusals)
    refusals.refused("other/b", QUOTA, generation=0, now=0.0)
    assert refusals.quota_changed("ns") == ["ns/a"]
    assert refusals.wait("ns/a", 0.0) == 0.0
    assert refusals.wait("other/b", 0.0) == 5.0


def test_a_change_of_quota_does_not_hurry_what_quota_did_not_refuse() -> None:
    refusals = Refusals()
    refuse(refusals, OTHER)
    refusals.quota_changed("ns")
    assert refusals.wait("ns/a", 0.0) == 0.1


def test_after_a_change_of_quota_the_next_tries_follow_quickly_once() -> None:
    """Admission may see the change a moment after this side has."""
    refusals = Refusals()
    assert refuse(refusals) == 5
    refusals.quota_changed("ns")
    assert [refuse(refusals) for _ in range(5)] == [0.05, 0.2, 0.8, 10, 20]
    refusals.quota_changed("ns")
    assert refuse(refusals) == 0.05


def test_a_change_that_comes_while_the_request_is_under_way_counts() -> None:
    refusals = Refusals()
    before = refusals.generation("ns")
    refusals.quota_changed("ns")
    refusals.refused("ns/a", QUOTA, generation=before, now=0.0)
    assert refusals.wait("ns/a", 0.0) == 0.0


def test_a_forgotten_key_starts_anew() -> None:
    refusals = Refusals()
    refuse(refusals)
    refusals.forget("ns/a")
    assert refusals.last("ns/a") is None
    assert refuse(refusals) == 5


def test_a_refusal_keeps_quota_s_own_words() -> None:
    refusals = Refusals()
    refuse(refusals)
    last = refusals.last("ns/a")
    assert last is not None
    assert (last.message, last.by_quota) == (QUOTA.message, True)


def test_from_a_drained_bucket_nothing_is_quick_after_a_change_of_quota() -> None:
    refusals = Refusals(300.0, 300.0, quick=())
    assert refuse(refusals) == 300
    refusals.quota_changed("ns")
    assert refusals.wait("ns/a", 0.0) == 0.0
    assert [refuse(refusals) for _ in range(2)] == [300, 300]
