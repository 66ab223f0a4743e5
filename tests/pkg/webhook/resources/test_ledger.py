"""Pods between our answer and everybody's lists."""

import asyncio

import pytest

from kubeloop.api.core import Pod
from kubeloop.api.quantity import Quantity
from kubeloop.testing.virtual_time import now
from pkg.util.quotacount.releases import NEWEST
from pkg.util.resourcequota.room import Candidate
from pkg.webhook.resources.pod import EXPIRY, Ledger

pytestmark = pytest.mark.virtual_time

USAGE = {"limits.cpu": Quantity.parse("1")}


def candidate(namespace: str, uid: str, replaced: str | None = None) -> Candidate:
    return Candidate(namespace, Pod(), NEWEST, {}, uid, replaced)


def held(ledger: Ledger, *keys: str, since: float | None = None, **seen: str) -> list[int]:
    """Returns how many pods take something, by `namespace/quota`; `seen` are versions of pods."""
    parts = [key.partition("/") for key in keys]
    if since is not None:
        ledger.answered(since)
    return [sum(quota in usages for usages in ledger.unseen(namespace, seen)) for namespace, _, quota in parts]


async def test_a_pod_is_pending_where_it_is_not_seen() -> None:
    """A read that began earlier may still miss what another one has shown."""
    ledger = Ledger()
    ledger.remember(candidate("ns1", "a"), {"q1": USAGE})
    ledger.remember(candidate("ns1", "b"), {"q1": USAGE, "q2": USAGE})
    assert held(ledger, "ns1/q1", "ns1/q2", "ns2/q1") == [2, 1, 0]
    for seen, count in (("a", 1), ("ab", 0), ("", 2)):
        assert held(ledger, "ns1/q1", since=now(), **dict.fromkeys(seen, "1")) == [count]


async def test_a_pod_that_never_turns_up_is_given_up() -> None:
    ledger = Ledger()
    ledger.remember(candidate("ns1", "a"), {"q1": USAGE})
    await asyncio.sleep(EXPIRY + 1.0)
    for parts, count in ((EXPIRY - 0.1, 1), (EXPIRY, 0)):
        assert held(ledger, "ns1/q1", since=parts) == [count], "it may have been stored after that was read"


async def test_requests_of_a_silence_are_stored_when_it_is_over() -> None:
    ledger = Ledger()
    ledger.remember(candidate("ns1", "a"), {"q1": USAGE})
    ledger.suspend()
    await asyncio.sleep(10 * EXPIRY)
    ledger.remember(candidate("ns2", "b"), {"q1": USAGE})
    await asyncio.sleep(EXPIRY)
    assert held(ledger, "ns1/q1", since=now() - 1.0) == [1]
    end = now()
    for parts, count in ((end + EXPIRY - 0.1, 1), (end + EXPIRY, 0)):
        assert held(ledger, "ns1/q1", "ns2/q1", since=parts) == [count, count]


async def test_a_growth_is_pending_until_the_pod_has_a_newer_version() -> None:
    ledger = Ledger()
    ledger.remember(candidate("ns1", "a", "7"), {"quota": {}})
    for version, count in (("7", 1), ("8", 0)):
        assert held(ledger, "ns1/quota", a=version) == [count]


async def test_namespaces_that_never_ask_again_are_forgotten() -> None:
    ledger = Ledger()
    for number in range(1000):
        ledger.remember(candidate(f"ns{number}", f"a{number}"), {"quota": {}})
        await asyncio.sleep(EXPIRY)
    assert len(ledger._entries) <= 3
