"""What is beside the record of Kubernetes' own matching (test_recorded.py): no scopes, and what it does not know."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kubeloop.api.core import Pod, ResourceQuotaSpec
from pkg.util.quotacount.scopes import matches_scopes


def pod(status: dict[str, Any] | None = None, **spec: Any) -> Pod:
    spec.setdefault("containers", [{"name": "c", "resources": {}}])
    return msgspec.convert({"spec": spec, "status": status or {}}, Pod)


def scoped(*scopes: str) -> ResourceQuotaSpec:
    return ResourceQuotaSpec(scopes=list(scopes))


def selected(*expressions: tuple[str, str, list[str] | None]) -> ResourceQuotaSpec:
    found = [
        {"scopeName": name, "operator": operator, "values": values} for name, operator, values in expressions
    ]
    return msgspec.convert({"scopeSelector": {"matchExpressions": found}}, ResourceQuotaSpec)


@pytest.mark.parametrize(
    "spec", [ResourceQuotaSpec(), scoped(), selected()], ids=["nothing", "no scope", "no expression"]
)
def test_a_quota_without_scopes_matches_every_pod(spec: ResourceQuotaSpec) -> None:
    assert matches_scopes(pod(), spec)


@pytest.mark.parametrize("scope", ["VolumeAttributesClass", "Invented", ""])
def test_a_scope_for_other_objects_matches_no_pod(scope: str) -> None:
    assert not matches_scopes(pod(), scoped(scope))


def test_an_operator_that_kubernetes_does_not_know_matches_nothing() -> None:
    assert not matches_scopes(pod(priorityClassName="high"), selected(("PriorityClass", "Like", ["high"])))
