"""Whose pods are KubeVirt's: exact names only; and why a migration has to wait for others."""

from __future__ import annotations

import msgspec
import pytest

from pkg.api.kubevirt import KubeVirt
from pkg.cmd.webhook import exact
from pkg.util.kubevirt.migration import Limits, hindrance
from pkg.util.kubevirt.rendering import virt_controllers

IN_KUBEVIRT = "system:serviceaccount:kubevirt:kubevirt-controller"
IN_HARVESTER = "system:serviceaccount:harvester-system:kubevirt-controller"


def kubevirt(namespace: str, phase: str = "", day: int = 1) -> KubeVirt:
    created = f"2026-01-{day:02}T00:00:00Z"
    metadata = {"name": "kubevirt", "namespace": namespace, "creationTimestamp": created}
    return msgspec.convert({"metadata": metadata, "status": {"phase": phase}}, KubeVirt)


WHERE = {
    "the only one, which is being deployed": ([kubevirt("virt", "Deploying")], "virt"),
    "the deployed one beside a tenant's": ([kubevirt("tenant"), kubevirt("virt", "Deployed", 2)], "virt"),
    "the older one if a tenant says that its own is deployed": (
        [kubevirt("tenant", "Deployed", 2), kubevirt("virt", "Deployed")],
        "virt",
    ),
    "the older one as long as none is deployed": ([kubevirt("tenant", "", 2), kubevirt("virt")], "virt"),
}


@pytest.mark.parametrize(("kubevirts", "namespace"), WHERE.values(), ids=WHERE.keys())
def test_the_account_is_where_the_kubevirt_cr_that_counts_is_and_nowhere_else(
    kubevirts: list[KubeVirt], namespace: str
) -> None:
    for each in (kubevirts, kubevirts[::-1]):
        assert virt_controllers(each) == [f"system:serviceaccount:{namespace}:kubevirt-controller"]


def test_without_a_cr_it_is_where_kubevirt_is_usually_installed() -> None:
    assert virt_controllers([]) == [IN_HARVESTER, IN_KUBEVIRT]


def test_an_operator_s_choice_replaces_both() -> None:
    assert virt_controllers([kubevirt("virt")], ["me"]) == ["me"]


@pytest.mark.parametrize("user", ["", "system:serviceaccount:*:kubevirt-controller", "kub?virt", "[a-z]"])
def test_a_pattern_is_no_account(user: str) -> None:
    with pytest.raises(ValueError, match="not an exact user name"):
        exact(user)
    assert exact(IN_KUBEVIRT) == IN_KUBEVIRT


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
