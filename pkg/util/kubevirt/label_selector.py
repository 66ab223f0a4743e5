"""metav1.LabelSelector as apimachinery's LabelSelectorAsSelector reads it."""

from __future__ import annotations

from collections.abc import Mapping

from pkg.api.meta import LabelSelector, LabelSelectorRequirement


def matches(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Whether the labels match; an empty selector matches all, one that is not valid none."""
    return all(labels.get(key) == value for key, value in (selector.match_labels or {}).items()) and all(
        _meets(requirement, labels) for requirement in selector.match_expressions or ()
    )


def _meets(requirement: LabelSelectorRequirement, labels: Mapping[str, str]) -> bool:
    values = requirement.values or ()
    match requirement.operator:
        case "In":
            return bool(values) and labels.get(requirement.key) in values
        case "NotIn":
            return bool(values) and labels.get(requirement.key) not in values
        case "Exists":
            return not values and requirement.key in labels
        case "DoesNotExist":
            return not values and requirement.key not in labels
    return False
