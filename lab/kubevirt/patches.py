"""Pieces of merge patches, and JSON patches made of them.

A list in a merge patch replaces the whole list, so each is built from all that stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from kubeloop.api.meta import Condition
from pkg.api.kubevirt import PhaseTransition

Patch = dict[str, Any]


def conditions_with(conditions: Sequence[Condition] | None, *changes: Condition) -> list[Any] | None:
    """The list with each change in the place of the condition of its type; None when nothing changes.

    A condition whose status stays keeps its times.
    """
    before = list(conditions or ())
    after = list(before)
    for change in changes:
        index = next((i for i, c in enumerate(after) if c.type == change.type), None)
        if index is None:
            after.append(change)
        elif _differs(after[index], change):
            after[index] = change
    return None if after == before else msgspec.to_builtins(after)


def conditions_without(conditions: Sequence[Condition] | None, *types: str) -> list[Any] | None:
    """The list without conditions of these types; None when there are none."""
    before = conditions or ()
    after = [condition for condition in before if condition.type not in types]
    return None if len(after) == len(before) else msgspec.to_builtins(after)


def transitions(before: Iterable[PhaseTransition] | None, phases: Iterable[str], now: str) -> list[Any]:
    """phaseTransitionTimestamps with these phases reached `now`; a phase that is in it keeps its time."""
    entries = list(before or ())
    seen = {entry.phase for entry in entries}
    entries += [PhaseTransition(phase=p, phase_transition_timestamp=now) for p in phases if p not in seen]
    built: list[Any] = msgspec.to_builtins(entries)
    return built


def replacing(before: Mapping[str, Any], after: Mapping[str, Any]) -> Patch:
    """The merge patch that turns one object into the other: what is gone becomes null."""
    return {**dict.fromkeys(before.keys() - after.keys()), **after}


def as_json_patch(before: Mapping[str, Any], patch: Patch) -> list[Patch]:
    """The merge patch as a JSON patch (RFC 6902) that tests the uid and each value that it replaces.

    virt-controller patches VMIs so: a change of anything else is no conflict, one of `/status/conditions` is.
    """
    uid = {"op": "test", "path": "/metadata/uid", "value": before["metadata"]["uid"]}
    return [uid, *_operations("", before, patch)]


def _operations(prefix: str, before: Mapping[str, Any], patch: Patch) -> Iterator[Patch]:
    for key, value in patch.items():
        path = f"{prefix}/{key.replace('~', '~0').replace('/', '~1')}"
        old = before.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            yield from _operations(path, old, dict(value))
            continue
        yield {"op": "test", "path": path, "value": old}
        if value is not None:
            yield {"op": "add", "path": path, "value": _without_nulls(value)}
        elif key in before:
            yield {"op": "remove", "path": path}


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {key: _without_nulls(below) for key, below in value.items() if below is not None}


def _differs(one: Condition, other: Condition) -> bool:
    return (one.status, one.reason, one.message) != (other.status, other.reason, other.message)
