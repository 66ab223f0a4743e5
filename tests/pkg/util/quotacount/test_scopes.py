"""A quota's scopes: which pods each of them matches."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from kubeloop.api.core import Pod, ResourceQuotaSpec
from pkg.util.quotacount.scopes import matches_scopes


def pod(status: dict[str, Any] | None = None, **spec: Any) -> Pod:
    spec.setdefault("containers", [{"name": "c", "resources": {}}])
    return msgspec.convert({"spec": spec, "status": status or {}}, Pod)


def with_resources(*resources: dict[str, Any], **spec: Any) -> Pod:
    return pod(containers=[{"name": f"c{n}", "resources": r} for n, r in enumerate(resources)], **spec)


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


@pytest.mark.parametrize(
    ("deadline", "terminating"),
    [(None, False), (0, True), (60, True), (-1, False)],
)
def test_a_pod_is_terminating_when_it_has_a_deadline(deadline: int | None, terminating: bool) -> None:
    made = pod(activeDeadlineSeconds=deadline)
    assert matches_scopes(made, scoped("Terminating")) is terminating
    assert matches_scopes(made, scoped("NotTerminating")) is not terminating


@pytest.mark.parametrize(
    ("made", "best_effort"),
    [
        pytest.param(with_resources({}), True, id="nothing asked for"),
        pytest.param(with_resources({}, {"limits": {"cpu": "1"}}), False, id="a limit in one container"),
        pytest.param(with_resources({"requests": {"memory": "1Mi"}}), False, id="a request"),
        pytest.param(with_resources({"requests": {"cpu": "0"}}), True, id="a request of zero"),
        pytest.param(with_resources({"requests": {"example.com/gpu": "1"}}), True, id="only a device"),
        pytest.param(
            pod(initContainers=[{"name": "i", "resources": {"limits": {"cpu": "1"}}}]),
            False,
            id="an init container",
        ),
        pytest.param(with_resources({}, resources={"limits": {"cpu": "1"}}), False, id="pod-level resources"),
        pytest.param(
            with_resources({"limits": {"cpu": "1"}}, resources={"limits": {"hugepages-2Mi": "2Mi"}}),
            True,
            id="pod-level resources alone decide",
        ),
        pytest.param(pod({"qosClass": "Burstable"}), False, id="the reported class"),
        pytest.param(
            msgspec.structs.replace(
                with_resources({"limits": {"cpu": "1"}}), status=pod({"qosClass": "BestEffort"}).status
            ),
            True,
            id="the reported class wins",
        ),
    ],
)
def test_a_pod_is_best_effort_when_it_asks_for_no_cpu_or_memory(made: Pod, best_effort: bool) -> None:
    assert matches_scopes(made, scoped("BestEffort")) is best_effort
    assert matches_scopes(made, scoped("NotBestEffort")) is not best_effort


@pytest.mark.parametrize(
    ("name", "operator", "values", "matches"),
    [
        pytest.param("high", "Exists", None, True, id="exists, and does"),
        pytest.param(None, "Exists", None, False, id="exists, and does not"),
        pytest.param("high", "DoesNotExist", None, False, id="is absent, and is not"),
        pytest.param(None, "DoesNotExist", None, True, id="is absent, and is"),
        pytest.param("high", "In", ["low", "high"], True, id="is one of these"),
        pytest.param("high", "In", ["low"], False, id="is none of these"),
        pytest.param(None, "In", ["low"], False, id="none is none of these"),
        pytest.param("high", "NotIn", ["low"], True, id="is not one of these"),
        pytest.param("high", "NotIn", ["high"], False, id="is one of those it must not be"),
        pytest.param(None, "NotIn", ["high"], True, id="none is not one of these"),
        pytest.param("high", "In", None, False, id="a selector without values is none"),
        pytest.param("high", "NotIn", [], False, id="nor is one that excludes nothing"),
        pytest.param("high", "Like", ["h"], False, id="an unknown operator matches nothing"),
    ],
)
def test_priority_classes(name: str | None, operator: str, values: list[str] | None, matches: bool) -> None:
    made = pod(priorityClassName=name)
    assert matches_scopes(made, selected(("PriorityClass", operator, values))) is matches


def test_a_plain_priority_class_scope_asks_for_any() -> None:
    assert matches_scopes(pod(priorityClassName="high"), scoped("PriorityClass"))
    assert not matches_scopes(pod(), scoped("PriorityClass"))


@pytest.mark.parametrize(
    ("term", "crosses"),
    [
        pytest.param({"topologyKey": "zone"}, False, id="its own namespace"),
        pytest.param({"namespaces": []}, False, id="an empty list of namespaces"),
        pytest.param({"namespaces": ["other"]}, True, id="a namespace by name"),
        pytest.param({"namespaceSelector": {}}, True, id="all namespaces"),
        pytest.param({"namespaceSelector": {"matchLabels": {"a": "b"}}}, True, id="namespaces by label"),
    ],
)
@pytest.mark.parametrize("side", ["podAffinity", "podAntiAffinity"])
def test_cross_namespace_affinity(side: str, term: dict[str, Any], crosses: bool) -> None:
    required = {side: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    preferred = {
        side: {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}
    }
    for affinity in (required, preferred):
        assert matches_scopes(pod(affinity=affinity), scoped("CrossNamespacePodAffinity")) is crosses


def test_node_affinity_crosses_nothing() -> None:
    assert not matches_scopes(pod(affinity={"nodeAffinity": {}}), scoped("CrossNamespacePodAffinity"))


def test_all_scopes_must_match() -> None:
    made = pod(priorityClassName="high")
    assert matches_scopes(made, scoped("NotTerminating", "BestEffort"))
    assert not matches_scopes(made, scoped("NotTerminating", "NotBestEffort"))
    assert not matches_scopes(
        made, selected(("PriorityClass", "Exists", None), ("PriorityClass", "In", ["low"]))
    )


@pytest.mark.parametrize("scope", ["VolumeAttributesClass", "Invented", ""])
def test_a_scope_for_other_objects_matches_no_pod(scope: str) -> None:
    assert not matches_scopes(pod(), scoped(scope))
