"""Compensation: room for a target pod that quota refused although its entry is applied. Pure.

It happens when the namespace already uses more than its base, for example after the overhead ratio was raised
(Harvester issue 9435). Whether to believe in a shortage is one question for both modes; how much is upstream's answer
here (`limits.memory` only, what is missing plus 128Mi), for assist mode.
"""

from __future__ import annotations

from dataclasses import dataclass

from pkg.util.quantity import Quantity
from pkg.util.resourcequota.base import COMPENSATION_MARGIN, shortage
from pkg.util.resourcequota.model import Observed
from pkg.util.resourcequota.policy import Policy


@dataclass(frozen=True, slots=True)
class Settled:
    """Whether a shortage is believed, since when it is seen, and in how many seconds to ask again."""

    believed: bool = False
    since: float | None = None
    look_again: float | None = None


def settled(observed: Observed, policy: Policy, *, applied: bool) -> Settled:
    """Whether to believe in a shortage now; `applied`: spec.hard has the room already.

    One that is seen before the room was made is real. Afterwards KubeVirt may just have created the target
    pod: status.used counts it already while the condition still says refused. That passes by itself.
    """
    if not applied:
        return Settled(believed=True)
    since = observed.now if observed.memory.short_since is None else observed.memory.short_since
    left = since + policy.settle - observed.now
    return Settled(believed=left <= 0, since=since, look_again=left if left > 0 else None)


@dataclass(frozen=True, slots=True)
class MemoryState:
    """limits.memory of a quota: `used` by the pods, `without` compensation the limit it shall have, and the
    compensation that `stands`. `fixed`: the limit cannot be computed and stays whatever is compensated."""

    used: Quantity
    without: Quantity
    stands: Quantity
    fixed: bool = False

    def limit(self, compensation: Quantity) -> Quantity:
        return self.without if self.fixed else self.without + compensation


def compensation_for(state: MemoryState, need: Quantity) -> Quantity:
    """The compensation under which a pod of `need` bytes fits; the one that stands when it is enough.

    Upstream measures what is missing against a limit that already holds the old compensation and then
    replaces it, which can swing between two values for ever. Its value is kept where it settles (the old one
    is at most 128Mi); elsewhere the whole shortage is compensated, which settles at once.
    """
    missing = shortage(state.used, need, state.limit(state.stands))
    if missing.is_zero():
        return state.stands
    replaced = missing + COMPENSATION_MARGIN
    if state.fixed or shortage(state.used, need, state.limit(replaced)).is_zero():
        return replaced
    return shortage(state.used, need, state.without) + COMPENSATION_MARGIN
