"""Defaults that the API server and LimitRanges give a pod before quota looks at it."""

from __future__ import annotations

from typing import Any

import msgspec

from kubeloop.api.core import LimitRange, Pod
from pkg.util.quotacount.pod_resources import apply_limit_ranges
from tests.decisions import sentences


def pod(resources: dict[str, Any], **spec: Any) -> Pod:
    return msgspec.convert({"spec": {"containers": [{"name": "c", "resources": resources}], **spec}}, Pod)


def ranges(*items: dict[str, Any]) -> list[LimitRange]:
    return [msgspec.convert({"spec": {"limits": [{"type": "Container"} | item]}}, LimitRange) for item in items]


def cpu(amount: str) -> dict[str, str]:
    return {"cpu": amount}


NOTHING: dict[str, Any] = {}
TWO = {"limits": cpu("2")}
USUAL = {"default": cpu("1"), "defaultRequest": cpu("100m")}
BOTH = {"cpu": "1", "memory": "1Gi"}
COMPLETED: dict[str, tuple[dict[str, Any], list[dict[str, Any]], dict[str, str] | None, dict[str, str] | None]] = {
    "nothing asked for and no defaults": (NOTHING, [], None, None),
    "a request becomes the limit": (TWO, [], cpu("2"), cpu("2")),
    "unless it is given": (TWO | {"requests": cpu("1")}, [], cpu("2"), cpu("1")),
    "default is the limit, defaultRequest the request": (NOTHING, [USUAL], cpu("1"), cpu("100m")),
    "what the limit made the request comes before defaultRequest": (TWO, [USUAL], cpu("2"), cpu("2")),
    "only what is missing is filled": ({"requests": cpu("5m")}, [{"default": BOTH}], BOTH, BOTH | cpu("5m")),
    "max is the default's default": (NOTHING, [{"max": cpu("4")}], cpu("4"), cpu("4")),
    "min is defaultRequest's last default": (NOTHING, [{"min": cpu("50m")}], None, cpu("50m")),
    "default stands before max and min": (
        NOTHING,
        [{"max": cpu("4"), "default": cpu("2"), "min": cpu("1")}],
        cpu("2"),
        cpu("2"),
    ),
    "of several the first that has one": (NOTHING, [{"default": cpu("1")}, {"default": BOTH | cpu("9")}], BOTH, BOTH),
    "limits of pods give no default": (NOTHING, [{"type": "Pod", "max": cpu("9")}], None, None),
}


@sentences(COMPLETED)
def test_containers_are_completed(case: tuple[Any, ...]) -> None:
    resources, items, limits, requests = case
    made = pod(resources, initContainers=[{"name": "i", "resources": resources}])
    before = msgspec.json.encode(made)
    spec = apply_limit_ranges(made, ranges(*items)).spec
    for completed in (*spec.containers, *(spec.init_containers or ())):
        assert (completed.resources.limits, completed.resources.requests) == (limits, requests)
    assert len(spec.init_containers or ()) == 1
    assert msgspec.json.encode(made) == before


def test_the_last_item_of_one_limit_range_wins() -> None:
    items = [{"type": "Container", "default": cpu(amount)} for amount in ("1", "2")]
    limit_range = msgspec.convert({"spec": {"limits": items}}, LimitRange)
    assert apply_limit_ranges(pod(NOTHING), [limit_range]).spec.containers[0].resources.limits == cpu("2")
