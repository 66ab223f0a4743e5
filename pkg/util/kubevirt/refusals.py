"""What a refusal by quota admission says, which KubeVirt quotes in its events. Pure.

Source: kubernetes apiserver pkg/admission/plugin/resourcequota (checkRequest).
"""

from __future__ import annotations

from collections.abc import Collection

_EXCEEDED, _REQUESTED, _USED = "exceeded quota: ", "requested: ", ", used:"


def refusing_quota(message: str) -> str:
    """The name of the quota that a refusal names, "" for another refusal."""
    _before, found, rest = message.partition(_EXCEEDED)
    return rest.partition(",")[0].strip() if found else ""


def of_devices(message: str, expected: Collection[str]) -> str:
    """What a refused target asks for that its source does not count: a device of a network that was changed or plugged
    in, whose definition is a tenant's. `expected`: what quota counts of the source. "": nothing of that kind."""
    base = refusing_quota(message)
    _before, _found, rest = message.partition(_REQUESTED)
    asked = {each.partition("=")[0].strip() for each in rest.partition(_USED)[0].split(",")}
    other = sorted(name for name in asked.difference(expected) if "/" in name)
    if not base or not other:
        return ""
    devices = ", ".join(other)
    return f"its target asks for {devices}, which its source does not have: the base of {base} has to cover that"
