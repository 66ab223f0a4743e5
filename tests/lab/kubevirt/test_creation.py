"""Creating pods: placed, refused, and never asked for twice."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from kubeloop.api.core import Node
from kubeloop.api.registry import NODES, PODS, RESOURCE_QUOTAS
from kubeloop.client.errors import (
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    Unreachable,
)
from lab.kubevirt.creation import (
    Clock,
    Creator,
    Placement,
    Refusals,
    is_quota_refusal,
    natural_order,
    pick_node,
)
from lab.kubevirt.lookup import Pods
from lab.kubevirt.quota_lag import QuotaLag
from tests.kinds import Events, Kind
from tests.lab.kubevirt.samples import launcher, node, vmi
from tests.objects import build

THREE = [node("node-10"), node("node-2"), node("node-1")]
DELETED = build(Node, "node-0", deleting=True)

PICKS: dict[str, tuple[list[Node], dict[str, Any], str | None]] = {
    "none where there is none": ([], {"load": {}}, None),
    "the first by number": (THREE, {"load": {}}, "node-1"),
    "the least loaded": (THREE, {"load": {"node-1": 2, "node-2": 1, "node-10": 1}}, "node-2"),
    "not the source": (THREE, {"load": {}, "avoid": {"node-1"}}, "node-2"),
    "none beside the only one": ([node("node-1")], {"load": {}, "avoid": {"node-1"}}, None),
    "not a cordoned one": ([node("node-1", unschedulable=True), node("node-2")], {"load": {}}, "node-2"),
    "not one that is not ready": ([node("node-1", ready="False"), node("node-2")], {"load": {}}, "node-2"),
    "one whose readiness is unknown": ([node("node-1", ready=None)], {"load": {}}, "node-1"),
    "not one that is being deleted": ([DELETED, node("node-2")], {"load": {}}, "node-2"),
    "the one that is named": (
        THREE,
        {"load": {}, "selector": {"kubernetes.io/hostname": "node-10"}},
        "node-10",
    ),
    "one with the labels": ([node("a"), node("b", zone="x")], {"load": {}, "selector": {"zone": "x"}}, "b"),
    "none without the labels": (THREE, {"load": {}, "selector": {"zone": "x"}}, None),
}


@pytest.mark.parametrize(("nodes", "how", "name"), PICKS.values(), ids=PICKS.keys())
def test_pick_node(nodes: list[Node], how: dict[str, Any], name: str | None) -> None:
    assert pick_node(nodes, **how) == name


def test_numbers_in_names_count_as_numbers() -> None:
    assert sorted(["node-10", "node-9", "a", "node-9-b2", "node-9-b10"], key=natural_order) == [
        "a",
        "node-9",
        "node-9-b2",
        "node-9-b10",
        "node-10",
    ]


BODY: dict[str, Any] = {"metadata": {"name": "p"}, "spec": {"containers": []}}
QUOTA = Forbidden('pods "p" is forbidden: exceeded quota: default', status=403)


@pytest.mark.parametrize(
    ("error", "found", "verbs"),
    [
        pytest.param(None, False, ["create"], id="one that the cache does not show yet"),
        pytest.param(
            Unreachable("reset"), False, ["create", "get", "create"], id="one whose answer was lost"
        ),
        pytest.param(Unreachable("reset"), True, ["create", "get"], id="one that is there all the same"),
    ],
)
async def test_a_pod_is_not_asked_for_twice(error: ApiError | None, found: bool, verbs: list[str]) -> None:
    """Quota would be charged once more, for a name that is taken."""
    pods, nodes = Kind(PODS), Kind(NODES)
    pods.lagging, pods.errors["create"] = not found, [error]
    clock = Clock(wall=lambda: 1_000.0, loop=lambda: 1_000.0)
    lag = QuotaLag(0.0, Kind(RESOURCE_QUOTAS).cache, clock.loop)
    placement = Placement(nodes.cache, Pods(pods.cache))
    creator = Creator(pods.client, placement, Refusals(), Events().recorder, clock, lag)
    with contextlib.suppress(Unreachable):
        await creator.create("t1/a", BODY, vmi(), "launcher pod")
    if found:
        pods.given(launcher("p"))
    assert await creator.create("t1/a", BODY, vmi(), "launcher pod") is None
    assert [
        (verb, body["metadata"]["name"] if verb == "create" else key) for verb, key, body in pods.calls
    ] == [(verb, "p" if verb == "create" else "t1/p") for verb in verbs]


# -- when a refused pod is asked for again

OTHER = Forbidden("no service account", status=403)
ONLY_THE_WORDS: dict[str, ApiError] = {
    "validation that quotes quota's words": Invalid("exceeded quota", status=422),
    "a busy quota": Conflict("exceeded quota", status=409),
}


@pytest.mark.parametrize("error", ONLY_THE_WORDS.values(), ids=ONLY_THE_WORDS.keys())
def test_what_is_no_refusal_by_quota(error: ApiError) -> None:
    assert not is_quota_refusal(error)


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
