"""Label selectors: apimachinery's `pkg/labels` and `LabelSelectorAsSelector`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from kubeloop.api.meta import LabelSelector, LabelSelectorRequirement

Labels = Mapping[str, str]
Selects = Callable[[Labels], bool]
"""A selector: reports whether an object with these labels is selected."""

_SET = re.compile(r"^\s*(?P<key>[-\w./]+)\s+(?P<how>in|notin)\s+\((?P<values>[^()]*)\)\s*$")
_EQUAL = re.compile(r"^\s*(?P<key>[-\w./]+)\s*(?P<how>==|=|!=)\s*(?P<value>[^\s!=,()]*)\s*$")
_EXISTS = re.compile(r"^\s*(?P<not>!?)\s*(?P<key>[-\w./]+)\s*$")
_COMMA = re.compile(r",(?![^(]*\))")


def selector(requirements: str | Labels | LabelSelector) -> Selects:
    """Returns the selector of a text (`a=b,c!=d,e in (f,g),h notin (i),j,!k`), of labels or of a LabelSelector. An
    empty one selects everything. Raises ValueError for what is not a selector."""
    if isinstance(requirements, str):
        tests = [_parse(part) for part in _COMMA.split(requirements) if part.strip()]
    elif isinstance(requirements, LabelSelector):
        tests = [_requirement_selector(requirement) for requirement in requirements.match_expressions or ()]
        tests.append(selector(requirements.match_labels or {}))
    else:
        pairs = requirements.items()
        return lambda labels: all(labels.get(key) == value for key, value in pairs)
    return lambda labels: all(test(labels) for test in tests)


def _parse(part: str) -> Selects:
    if match := _SET.match(part):
        values = {value.strip() for value in match["values"].split(",")}
        return _value_is_among(match["key"], values, match["how"] == "in")
    if match := _EQUAL.match(part):
        return _value_is_among(match["key"], {match["value"]}, match["how"] != "!=")
    if match := _EXISTS.match(part):
        return _key_is_present(match["key"], not match["not"])
    raise ValueError(f"{part!r} is not a requirement of a label selector")


def _requirement_selector(requirement: LabelSelectorRequirement) -> Selects:
    key, values = requirement.key, set(requirement.values or ())
    match requirement.operator:
        case "In" | "NotIn" if values:
            return _value_is_among(key, values, requirement.operator == "In")
        case "Exists" | "DoesNotExist" if not values:
            return _key_is_present(key, requirement.operator == "Exists")
    raise ValueError(f"{key} {requirement.operator} {sorted(values)} is not a requirement of a label selector")


def _value_is_among(key: str, values: set[str], member: bool) -> Selects:
    return lambda labels: (labels.get(key) in values) is member


def _key_is_present(key: str, present: bool) -> Selects:
    return lambda labels: (key in labels) is present
