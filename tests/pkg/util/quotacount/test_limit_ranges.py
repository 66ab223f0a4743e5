"""Defaults that the API server and LimitRanges give a pod before quota looks at it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kubeloop.api.core import LimitRange, Pod
from pkg.util.quotacount.limit_ranges import apply_limit_ranges


def pod(resources: dict[str, Any], **spec: Any) -> Pod:
    return msgspec.convert({"spec": {"containers": [{"name": "c", "resources": resources}], **spec}}, Pod)


def ranges(*items: dict[str, Any]) -> list[LimitRange]:
    return [msgspec.convert({"spec": {"limits": [{"type": "Container"} | item]}}, LimitRange) for item in items]


NOTHING: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("resources", "items", "limits", "requests"),
    [
        pytest.param(NOTHING, [], None, None, id="nothing asked for and no defaults"),
        pytest.param({"limits": {"cpu": "2"}}, [], {"cpu": "2"}, {"cpu": "2"}, id="a request becomes the limit"),
        pytest.param(
            {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}, [], {"cpu": "2"}, {"cpu": "1"}, id="unless it is given"
        ),
        pytest.param(
            NOTHING,
            [{"default": {"cpu": "1"}, "defaultRequest": {"cpu": "100m"}}],
            {"cpu": "1"},
            {"cpu": "100m"},
            id="default is the limit, defaultRequest the request",
        ),
        pytest.param(
            {"limits": {"cpu": "2"}},
            [{"default": {"cpu": "1"}, "defaultRequest": {"cpu": "100m"}}],
            {"cpu": "2"},
            {"cpu": "2"},
            id="what the limit made the request comes before defaultRequest",
        ),
        pytest.param(
            {"requests": {"cpu": "500m"}},
            [{"default": {"cpu": "1", "memory": "1Gi"}}],
            {"cpu": "1", "memory": "1Gi"},
            {"cpu": "500m", "memory": "1Gi"},
            id="only what is missing is filled",
        ),
        pytest.param(NOTHING, [{"max": {"cpu": "4"}}], {"cpu": "4"}, {"cpu": "4"}, id="max is the default's default"),
        pytest.param(
            NOTHING, [{"min": {"cpu": "50m"}}], None, {"cpu": "50m"}, id="min is defaultRequest's last default"
        ),
        pytest.param(
            NOTHING,
            [{"max": {"cpu": "4"}, "default": {"cpu": "2"}, "min": {"cpu": "1"}}],
            {"cpu": "2"},
            {"cpu": "2"},
            id="default stands before max and min",
        ),
        pytest.param(
            NOTHING,
            [{"default": {"cpu": "1"}}, {"default": {"cpu": "9", "memory": "1Gi"}}],
            {"cpu": "1", "memory": "1Gi"},
            {"cpu": "1", "memory": "1Gi"},
            id="of several the first that has one",
        ),
        pytest.param(NOTHING, [{"type": "Pod", "max": {"cpu": "9"}}], None, None, id="limits of pods give no default"),
    ],
)
def test_containers_are_completed(
    resources: dict[str, Any],
    items: list[dict[str, Any]],
    limits: dict[str, str] | None,
    requests: dict[str, str] | None,
) -> None:
    completed = apply_limit_ranges(pod(resources), ranges(*items)).spec.containers[0].resources
    assert (completed.limits, completed.requests) == (limits, requests)


def test_init_containers_are_completed_too() -> None:
    made = pod(NOTHING, initContainers=[{"name": "i", "resources": {}}])
    completed = apply_limit_ranges(made, ranges({"default": {"cpu": "1"}}))
    assert completed.spec.init_containers is not None
    assert completed.spec.init_containers[0].resources.limits == {"cpu": "1"}


def test_the_last_item_of_one_limit_range_wins() -> None:
    limit_range = msgspec.convert(
        {"spec": {"limits": [{"type": "Container", "default": {"cpu": n}} for n in ("1", "2")]}}, LimitRange
    )
    assert apply_limit_ranges(pod(NOTHING), [limit_range]).spec.containers[0].resources.limits == {"cpu": "2"}


def test_the_pod_given_stays_as_it_is() -> None:
    made = pod({"limits": {"cpu": "2"}})
    apply_limit_ranges(made, ranges({"default": {"memory": "1Gi"}}))
    assert made == pod({"limits": {"cpu": "2"}})
