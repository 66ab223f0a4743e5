"""Quotas in numbers: what Rancher grants, what was added, what a watch has seen."""

from __future__ import annotations

from collections.abc import Iterator

from kubeloop.testing.polling import eventually
from pkg.util.quantity import ZERO, Quantity
from tests.e2e.api import Raw, Watch
from tests.e2e.tenant import DEFAULT, by_value

Amounts = dict[str, Quantity]

ONE = {"limits.cpu": "2015m", "limits.memory": "4797464313"}
TWO = {"limits.cpu": "4030m", "limits.memory": "9594928626"}
THREE = {"limits.cpu": "6045m", "limits.memory": "14392392939"}
FOUR = {"limits.cpu": "8060m", "limits.memory": "19189857252"}
"""What quota counts of so many of the seed's VMs: as a base ONE leaves no room for anything else."""


def plus(one: Amounts, other: Amounts) -> Amounts:
    """`one` with what `other` has of the same names added."""
    return {name: amount + other.get(name, ZERO) for name, amount in one.items()}


def minus(one: Amounts, other: Amounts) -> Amounts:
    """What `one` has more than `other`, names of `one`."""
    return {name: amount - other.get(name, ZERO) for name, amount in one.items()}


def hards(versions: Watch, name: str = "") -> list[Amounts]:
    """Each spec.hard that a quota had, in order; without a name, of Rancher's default."""
    return [hard for _, hard in versioned_hards(versions, name)]


def versioned_hards(versions: Watch, name: str = "") -> list[tuple[int, Amounts]]:
    """Likewise, with the resourceVersion that brought it: one count for all objects of an API server."""
    found: list[tuple[int, Amounts]] = []
    for quota in _versions(versions, name):
        hard = by_value(quota["spec"]["hard"])
        if not found or found[-1][1] != hard:
            found.append((int(quota["metadata"]["resourceVersion"]), hard))
    return found


def ended_in(pods: Watch, name: str) -> int:
    """The resourceVersion in which a pod ceased to count, once the watch has shown it."""
    found: int = eventually(lambda: next(_ends(pods, name), 0))
    return found


def _ends(pods: Watch, name: str) -> Iterator[int]:
    for event in list(pods.seen):
        pod = event.object
        over = event.type == "DELETED" or pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        if pod["metadata"]["name"] == name and over:
            yield int(pod["metadata"]["resourceVersion"])


def _versions(versions: Watch, name: str) -> Iterator[Raw]:
    for event in versions.caught_up():
        metadata = event.object["metadata"]
        default = (metadata.get("labels") or {}).get(DEFAULT) == "true"
        if event.type != "DELETED" and (metadata["name"] == name if name else default):
            yield event.object
