"""Whose pods are KubeVirt's: exact names only."""

from __future__ import annotations

import msgspec
import pytest

from pkg.api.kubevirt import KubeVirt
from pkg.util.kubevirt.accounts import exact, virt_controllers

IN_KUBEVIRT = "system:serviceaccount:kubevirt:kubevirt-controller"
IN_HARVESTER = "system:serviceaccount:harvester-system:kubevirt-controller"


def kubevirt(namespace: str) -> KubeVirt:
    return msgspec.convert({"metadata": {"name": "kubevirt", "namespace": namespace}}, KubeVirt)


def test_the_account_is_where_the_kubevirt_cr_is_and_nowhere_else() -> None:
    assert virt_controllers([kubevirt("harvester-system")]) == [IN_HARVESTER]
    assert virt_controllers([kubevirt("virt")]) == ["system:serviceaccount:virt:kubevirt-controller"]


def test_without_a_cr_it_is_where_kubevirt_is_usually_installed() -> None:
    assert virt_controllers([]) == [IN_HARVESTER, IN_KUBEVIRT]


def test_an_operator_s_choice_replaces_both() -> None:
    assert virt_controllers([kubevirt("virt")], ["me"]) == ["me"]


@pytest.mark.parametrize("user", ["", "system:serviceaccount:*:kubevirt-controller", "kub?virt", "[a-z]"])
def test_a_pattern_is_no_account(user: str) -> None:
    with pytest.raises(ValueError, match="not an exact user name"):
        exact(user)
    assert exact(IN_KUBEVIRT) == IN_KUBEVIRT
