"""Label selectors: apimachinery's `pkg/labels` and `LabelSelectorAsSelector`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from kubeloop.api.meta import LabelSelector, LabelSelectorRequirement

Labels = Mapping[str, str]
Selects = Callable[[Labels], bool]
"""Whether an object with these labels is selected."""

_SET = re.compile(r"^\s*(?P<key>[^\s!=,()]+)\s+(?P<how>in|notin)\s+\((?P<values>[^()]*)\)\s*$")
_EQUAL = re.compile(r"^\s*(?P<key>[^\s!=,()]+)\s*(?P<how>==|=|!=)\s*(?P<value>[^\s!=,()]*)\s*$")
_EXISTS = re.compile(r"^\s*(?P<not>!?)\s*(?P<key>[^\s!=,()]+)\s*$")
_COMMA = re.compile(r",(?![^(]*\))")


def selector(wanted: str | Labels | LabelSelector) -> Selects:
    """Returns the selector of a text (`a=b,c!=d,e in (f,g),h notin (i),j,!k`), of labels or of a LabelSelector. An
    empty one selects everything. Raises ValueError for what is not a selector."""
    if isinstance(wanted, str):
        tests = [_parsed(part) for part in _COMMA.split(wanted) if part.strip()]
    elif isinstance(wanted, LabelSelector):
        tests = [_required(requirement) for requirement in wanted.match_expressions or ()]
        tests.append(selector(wanted.match_labels or {}))
    else:
        pairs = wanted.items()
        return lambda labels: all(labels.get(key) == value for key, value in pairs)
    return lambda labels: all(test(labels) for test in tests)


def _parsed(part: str) -> Selects:
    if found := _SET.match(part):
        values = {value.strip() for value in found["values"].split(",")}
        return _among(found["key"], values, found["how"] == "in")
    if found := _EQUAL.match(part):
        return _among(found["key"], {found["value"]}, found["how"] != "!=")
    if found := _EXISTS.match(part):
        return _there(found["key"], not found["not"])
    raise ValueError(f"{part!r} is not a requirement of a label selector")


def _required(requirement: LabelSelectorRequirement) -> Selects:
    key, values = requirement.key, set(requirement.values or ())
    match requirement.operator:
        case "In" | "NotIn" if values:
            return _among(key, values, requirement.operator == "In")
        case "Exists" | "DoesNotExist" if not values:
            return _there(key, requirement.operator == "Exists")
    raise ValueError(f"{key} {requirement.operator} {sorted(values)} is not a requirement of a label selector")


def _among(key: str, values: set[str], wanted: bool) -> Selects:
    return lambda labels: (labels.get(key) in values) is wanted


def _there(key: str, wanted: bool) -> Selects:
    return lambda labels: (key in labels) is wanted
