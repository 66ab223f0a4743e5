"""Whose pods are KubeVirt's: exact names only."""

from __future__ import annotations

import msgspec
import pytest

from pkg.api.kubevirt import KubeVirt
from pkg.cmd.webhook import exact
from pkg.util.kubevirt.installed import virt_controllers

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
