"""The kinds' definitions, as Kubernetes serves them."""

from __future__ import annotations

from typing import Any

from kubeloop.api import registry
from kubeloop.api.registry import Resource

KINDS: list[Resource[Any]] = [each for each in vars(registry).values() if isinstance(each, Resource)]
WITHOUT_STATUS = """limitranges configmaps secrets events storageclasses leases validatingwebhookconfigurations
mutatingwebhookconfigurations"""
CLUSTER_WIDE = """namespaces nodes storageclasses customresourcedefinitions validatingwebhookconfigurations
mutatingwebhookconfigurations validatingadmissionpolicies validatingadmissionpolicybindings"""


def test_which_have_no_status_and_which_no_namespace() -> None:
    assert {each.plural for each in KINDS if each.status_subresource is False} == set(WITHOUT_STATUS.split())
    assert {each.plural for each in KINDS if not each.namespaced} == set(CLUSTER_WIDE.split())
