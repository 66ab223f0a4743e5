"""Rancher's releases as the stand-in plays them: which of its webhooks there are, and by whom it writes quotas."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Release:
    """A release of Rancher. Read in: "2.13" 2.13.0 to 2.13.8, and alike since 2.8; "2.15.2" main of August 2026,
    rancher/webhook 0.11.2; pull requests of rancher/rancher."""

    name: str
    locks_quotas: bool
    """Reports whether only Rancher may write the quotas that it manages, which it does as a user of its own."""
    separates_negative: bool
    """Reports whether limits below zero are told apart and count as zero for others (pull request 56498)."""
    tracks_moves: bool
    """Reports whether namespaces say in which project they are counted (pull request 53463, 2.14)."""


_ALL = (
    Release("2.13", locks_quotas=False, separates_negative=False, tracks_moves=False),
    Release("2.15.2", locks_quotas=True, separates_negative=True, tracks_moves=True),
)
RELEASES: Final = MappingProxyType({release.name: release for release in _ALL})
DEFAULT: Final = "2.13"
NEWEST: Final = "2.15.2"
