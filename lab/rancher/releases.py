"""Rancher's releases as the stand-in plays them: which of its webhooks there are, and by whom it writes quotas."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class Release:
    """`locks_quotas`: only Rancher may write the quotas that it manages; it passes its own webhook as a user of its
    own."""

    name: str
    locks_quotas: bool


RELEASES: Final = MappingProxyType(
    {release.name: release for release in (Release("2.13", locks_quotas=False), Release("2.15.2", locks_quotas=True))}
)
DEFAULT: Final = "2.13"
