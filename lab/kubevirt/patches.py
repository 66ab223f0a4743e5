"""Pieces of merge patches. A list in a merge patch replaces the whole list, so each is built from all that stands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from kubeloop.api.meta import Condition
from pkg.api.kubevirt import PhaseTransition

Patch = dict[str, Any]


def conditions(before: Sequence[Condition] | None, after: Sequence[Condition]) -> Patch:
    """Of a status; empty where they stand so already."""
    return {} if list(before or ()) == list(after) else {"conditions": msgspec.to_builtins(after) or None}


def without(before: Sequence[Condition] | None, kind: str) -> list[Condition]:
    """The conditions but those of a type."""
    return [condition for condition in before or () if condition.type != kind]


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
