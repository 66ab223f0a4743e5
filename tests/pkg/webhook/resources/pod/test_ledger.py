"""Pods between our answer and everybody's lists."""

from __future__ import annotations

from pkg.util.quantity import Quantity
from pkg.webhook.resources.pod.ledger import EXPIRY, Ledger

USAGE = {"limits.cpu": Quantity.parse("1")}


def test_a_pod_is_pending_until_it_is_seen() -> None:
    ledger = Ledger()
    ledger.admit("ns1", "a", {"q1": USAGE}, 0.0)
    ledger.admit("ns1", "b", {"q1": USAGE, "q2": USAGE}, 0.0)
    assert len(list(ledger.pending("ns1", "q1"))) == 2
    assert len(list(ledger.pending("ns1", "q2"))) == 1
    ledger.settle("ns1", {"a": "1"}, 1.0, 1.0)
    assert len(list(ledger.pending("ns1", "q1"))) == 1
    ledger.settle("ns1", {"a": "1", "b": "1"}, 1.0, 1.0)
    assert not list(ledger.pending("ns1", "q1"))


def test_one_that_never_turns_up_is_given_up() -> None:
    ledger = Ledger()
    ledger.admit("ns1", "a", {"q1": USAGE}, 0.0)
    ledger.settle("ns1", {}, EXPIRY - 0.1, EXPIRY - 0.1)
    assert list(ledger.pending("ns1", "q1"))
    ledger.settle("ns1", {}, EXPIRY, EXPIRY)
    assert not list(ledger.pending("ns1", "q1"))


def test_none_is_given_up_until_the_api_server_has_answered_a_question_of_later() -> None:
    ledger = Ledger()
    ledger.admit("ns1", "a", {"q1": USAGE}, 0.0)
    ledger.settle("ns1", {}, EXPIRY - 0.1, EXPIRY + 1.0)
    assert list(ledger.pending("ns1", "q1")), "it may have been stored after that was read"
    ledger.keep()
    ledger.admit("ns2", "b", {"q1": USAGE}, 10 * EXPIRY)
    ledger.settle("ns1", {}, 20 * EXPIRY, 20 * EXPIRY + 1.0)
    ledger.settle("ns1", {}, 21 * EXPIRY, 21 * EXPIRY)
    assert list(ledger.pending("ns1", "q1")), "requests of the silence are stored when it is over"
    ledger.settle("ns1", {}, 22 * EXPIRY, 22 * EXPIRY)
    assert not list(ledger.pending("ns1", "q1"))
    assert list(ledger.pending("ns2", "q1"))


def test_namespaces_do_not_know_of_each_other() -> None:
    ledger = Ledger()
    ledger.admit("ns1", "a", {"q1": USAGE}, 0.0)
    ledger.settle("ns2", {"a": "1"}, 0.0, 0.0)
    assert list(ledger.pending("ns1", "q1"))
    assert not list(ledger.pending("ns2", "q1"))


def test_a_growth_is_pending_until_the_pod_has_a_newer_version() -> None:
    ledger = Ledger()
    ledger.admit("ns1", "a", {"quota": {}}, 0.0, replaced="7")
    ledger.settle("ns1", {"a": "7"}, 1.0, 1.0)
    assert len(list(ledger.pending("ns1", "quota"))) == 1
    ledger.settle("ns1", {"a": "8"}, 1.0, 1.0)
    assert not list(ledger.pending("ns1", "quota"))


def test_namespaces_that_never_ask_again_are_forgotten() -> None:
    ledger = Ledger()
    for number in range(1000):
        ledger.admit(f"ns{number}", "a", {"quota": {}}, number * EXPIRY)
    assert len(ledger._pending) <= 3
