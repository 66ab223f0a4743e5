"""The choices of an operator for the decisions. Imports nothing heavy: the command line starts with it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

LOCK_LIMIT: Final = 120.0
"""Seconds that a namespace with a migration budget is locked at most, unless `--lock-limit` says otherwise."""


class Mode(StrEnum):
    """The part that headroom plays: it replaces Harvester's controllers, or runs beside them and agrees with them."""

    TAKEOVER = "takeover"
    ASSIST = "assist"


class EstimateKind(StrEnum):
    """The way to compute a migration's need: Harvester's formula, or what quota will count."""

    HARVESTER = "harvester"
    EXACT = "exact"


class RancherQuotas(StrEnum):
    """The way to raise quotas with Rancher's default label: by headroom's own writes, by requests in the namespace's
    annotation, which Rancher answers, or by writes as Rancher. `auto`: the first that Rancher permits."""

    AUTO = "auto"
    DIRECT = "direct"
    ANNOTATION = "annotation"
    IMPERSONATE = "impersonate"


@dataclass(frozen=True, slots=True)
class Policy:
    mode: Mode
    estimate: EstimateKind = EstimateKind.HARVESTER
    foreign_grace: float = 60.0
    """Seconds after which an entry goes that no migration explains and that is not ours."""
    hold_limit: float = 600.0
    """Seconds for which a source pod that never ends keeps its headroom after its migration."""
    compensate: bool = True
    """A migration that is refused although its entry is applied gets what is missing."""
    render: bool = False
    """Every limit of the namespace annotation is kept in spec.hard, not only what is scaled."""
    released: bool = False
    """Everything is switched off: what headroom added or marked is given back (`headroom release`)."""


EXACT = Policy(Mode.TAKEOVER, EstimateKind.EXACT)
"""What quota will count, whatever the operator chose."""
