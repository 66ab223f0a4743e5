"""Conditions of a namespace, which Rancher keeps in the annotation `cattle.io/status`. Pure.

Source: rancher pkg/namespace/namespace_utils.go.
"""

from typing import Final

import msgspec

from kubeloop.api.core import Namespace
from kubeloop.api.meta import rfc3339

ANNOTATION: Final = "cattle.io/status"
VALIDATED: Final = "ResourceQuotaValidated"
INIT: Final = "ResourceQuotaInit"
_AHEAD: Final = 1.0
"""Seconds that Rancher adds to the time of an update."""


class _Condition(msgspec.Struct, rename="pascal"):
    type: str = ""
    status: str = ""
    message: str = ""
    last_update_time: str = ""


class _Status(msgspec.Struct, rename="pascal"):
    conditions: list[_Condition] | None = None


def with_condition(text: str, kind: str, is_true: bool, message: str, now: float) -> str:
    """Returns the annotation with a condition replaced or appended; only one that is False has a message. Raises
    msgspec.DecodeError for an annotation that is not Rancher's."""
    condition = _Condition(kind, str(is_true), "" if is_true else message, rfc3339(now + _AHEAD))
    conditions = _decode(text)
    if not any(item.type == kind for item in conditions):
        return _encode([*conditions, condition])
    index = next(number for number, item in enumerate(conditions) if item.type == kind)
    return _encode([*conditions[:index], condition, *conditions[index + 1 :]])


def is_set(namespace: Namespace, kind: str) -> bool:
    """Reports whether a namespace has a condition and it is True. Raises msgspec.DecodeError."""
    conditions = _decode(namespace.annotations.get(ANNOTATION, ""))
    return any(condition.type == kind and condition.status == "True" for condition in conditions)


def _decode(text: str) -> list[_Condition]:
    return (msgspec.json.decode(text, type=_Status).conditions or []) if text else []


def _encode(conditions: list[_Condition]) -> str:
    return msgspec.json.encode(_Status(conditions)).decode()
