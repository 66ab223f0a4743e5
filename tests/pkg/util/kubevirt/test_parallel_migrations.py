"""Why a migration has to wait for others."""

from __future__ import annotations

import pytest

from pkg.util.kubevirt.installed import Limits, hindrance

HINDRANCES = {
    "nothing runs": ([], Limits(5, 2), ""),
    "one leaves the node": ([{"n1"}], Limits(5, 2), ""),
    "two leave the node": ([{"n1"}, {"n1"}], Limits(5, 2), "2 migrations leave n1, 2 may"),
    "two leave another node": ([{"n2"}, {"n2"}], Limits(5, 2), ""),
    "a VMI that has moved on counts where it came from": (
        [{"n1", "n3"}, {"n1"}],
        Limits(5, 2),
        "2 migrations leave n1, 2 may",
    ),
    "five run": ([{"n2"}] * 5, Limits(5, 9), "5 migrations run, 5 may"),
    "the cluster's limit comes first": ([{"n1"}] * 5, Limits(5, 2), "5 migrations run, 5 may"),
    "none may": ([], Limits(0, 2), "0 migrations run, 0 may"),
}


@pytest.mark.parametrize(("running_", "limits", "reason"), HINDRANCES.values(), ids=HINDRANCES.keys())
def test_hindrance(running_: list[set[str]], limits: Limits, reason: str) -> None:
    assert hindrance([frozenset(nodes) for nodes in running_], "n1", limits) == reason
