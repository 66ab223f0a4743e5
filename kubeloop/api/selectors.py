"""Label selectors: apimachinery's `pkg/labels` and `LabelSelectorAsSelector`."""

import re
from collections.abc import Callable, Mapping

from kubeloop.api.meta import LabelSelector

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
        tests = [_selector_of(*_parse(part)) for part in _COMMA.split(requirements) if part.strip()]
    elif isinstance(requirements, LabelSelector):
        expressions = requirements.match_expressions or ()
        tests = [_selector_of(one.key, one.operator, set(one.values or ())) for one in expressions]
        tests.append(selector(requirements.match_labels or {}))
    else:
        pairs = requirements.items()
        return lambda labels: all(labels.get(key) == value for key, value in pairs)
    return lambda labels: all(test(labels) for test in tests)


def _parse(part: str) -> tuple[str, str, set[str]]:
    """Returns key, operator and values, as a LabelSelectorRequirement has them."""
    if match := _SET.match(part):
        values = {value.strip() for value in match["values"].split(",")}
        return match["key"], "In" if match["how"] == "in" else "NotIn", values
    if match := _EQUAL.match(part):
        return match["key"], "NotIn" if match["how"] == "!=" else "In", {match["value"]}
    if match := _EXISTS.match(part):
        return match["key"], "DoesNotExist" if match["not"] else "Exists", set()
    raise ValueError(f"{part!r} is not a requirement of a label selector")


def _selector_of(key: str, operator: str, values: set[str]) -> Selects:
    match operator:
        case "In" | "NotIn" if values:
            return lambda labels: (labels.get(key) in values) is (operator == "In")
        case "Exists" | "DoesNotExist" if not values:
            return lambda labels: (key in labels) is (operator == "Exists")
    raise ValueError(f"{key} {operator} {sorted(values)} is not a requirement of a label selector")
