"""`headroom.harvesterhci.io/managed: "false"`: a person switches a quota or a namespace off; it is given back as
`headroom release` gives it back, and then left alone."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import msgspec
import pytest

from kubeloop.api.core import Namespace, ResourceQuota
from pkg.util.constants import LABEL_DEFAULT_RESOURCE_QUOTA, LABEL_MANAGED
from pkg.util.resourcequota.give_back import give_back
from pkg.util.resourcequota.managed import is_managed, switched_off
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy
from tests.decisions import applied, by_value, observed, sentences
from tests.objects import DEFAULT_LABELS, ENTRY, HARD, MARKS, RAISED, by_name, quota, vmim

OFF = {LABEL_MANAGED: "false"}
ON = {LABEL_MANAGED: "true"}
RECORD = {"headroom.harvesterhci.io/base": '{"limits.cpu":"3","limits.memory":"5000Mi"}'}
APPLIED = {"headroom.harvesterhci.io/applied": '{"limits.cpu":"5","limits.memory":"9980344313"}'}

TOUCHED = {"headroom.harvesterhci.io/touched": '{"at":"2026-01-01T00:00:00Z","next":"2026-01-01T00:00:01Z"}'}


class Case(NamedTuple):
    quota: ResourceQuota
    namespace_off: bool


def of_rancher(
    labels: dict[str, str] | None = None, annotations: dict[str, str] | None = None
) -> ResourceQuota:
    """Raised for a migration, ours."""
    return quota(
        dict(RAISED),
        {**MARKS, by_name(): ENTRY, **(annotations or {})},
        labels={**DEFAULT_LABELS, **(labels or {})},
    )


def by_label(annotations: dict[str, str] | None = None, *, record: bool = True) -> ResourceQuota:
    marks = {**(RECORD if record else {}), **APPLIED, by_name(): ENTRY, **(annotations or {})}
    return quota(dict(RAISED), marks, labels=dict(ON))


CASES = {
    "a label on the quota": Case(of_rancher(OFF), False),
    "an annotation on the quota": Case(of_rancher(annotations=OFF), False),
    "the namespace": Case(of_rancher(), True),
    "false as an annotation beside true as a label": Case(of_rancher(ON, OFF), False),
    "false on the namespace, true on the quota": Case(of_rancher(ON), True),
    "a quota that is managed by label": Case(by_label(OFF), False),
    "a quota that was touched": Case(of_rancher(OFF, TOUCHED), False),
    "a quota that is managed by label, and was touched": Case(by_label({**OFF, **TOUCHED}), False),
    "a quota that is managed by label, and whose record goes with the same edit": Case(
        by_label(OFF, record=False), False
    ),
    "a quota that is managed by label, in a namespace that is off": Case(by_label(), True),
}


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("estimate", list(EstimateKind))
@sentences(CASES)
def test_it_is_given_back_at_once_as_release_does_and_then_left_alone(
    case: Case, mode: Mode, estimate: EstimateKind
) -> None:
    given = replace(observed(case.quota, [vmim("Running")]), namespace_off=case.namespace_off)
    expected = give_back(given, to_harvester=True)
    assert expected
    made = plan(given, Policy(mode, estimate))
    assert made.patch(case.quota) == expected.patch(case.quota)
    after = replace(given, quota=applied(case.quota, made))
    assert not plan(after, Policy(mode, estimate))


@pytest.mark.parametrize("record", [True, False])
def test_a_quota_by_label_is_at_its_base_whatever_migrates(record: bool) -> None:
    given = observed(by_label({**OFF, **TOUCHED}, record=record), [vmim("Running")])
    after = applied(given.quota, give_back(given, to_harvester=True))
    assert (by_value(after.hard), after.annotations) == (by_value(HARD), OFF)


@pytest.mark.parametrize("mode", list(Mode))
def test_one_that_never_was_ours_is_never_written(mode: Mode) -> None:
    untouched = quota(dict(HARD), labels={**DEFAULT_LABELS, **OFF})
    assert not plan(observed(untouched, [vmim("Pending", refused=True)]), Policy(mode))


def test_one_that_is_on_its_way_out_is_not_written() -> None:
    given = quota(dict(RAISED), {**MARKS, **OFF}, deleting=True)
    assert not plan(observed(given), Policy(Mode.TAKEOVER))


@pytest.mark.parametrize("value", ["true", "False", "no", ""])
def test_only_false_switches_off(value: str) -> None:
    marked = quota(dict(HARD), labels={LABEL_DEFAULT_RESOURCE_QUOTA: "true", LABEL_MANAGED: value})
    assert is_managed(marked)
    assert not switched_off(marked)


def test_a_namespace_says_so_by_label_or_annotation() -> None:
    for marks in ({"labels": OFF}, {"annotations": OFF}, {"labels": ON, "annotations": OFF}):
        assert switched_off(msgspec.convert({"metadata": {"name": "ns1", **marks}}, Namespace))
    assert not switched_off(msgspec.convert({"metadata": {"name": "ns1", "labels": ON}}, Namespace))
