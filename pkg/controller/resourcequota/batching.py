"""How long a ResourceQuota's next patch waits for company. Pure.

One migration is served at once. With many under way in a namespace the next event is close by, and KubeVirt
starts only a few of them at a time: waiting costs nothing and saves a patch for each event.
"""

from __future__ import annotations

from collections.abc import Mapping

from pkg.util.resourcequota.journal import ENTRY_PREFIXES

STEP = 0.04
"""Seconds added for each entry beyond the first."""
LONGEST = 0.25
"""Seconds, however many migrations are under way."""


def next_write_after(annotations: Mapping[str, str], written_at: float) -> float:
    """The earliest time of the next patch, on the clock of `written_at` (seconds)."""
    entries = sum(key.startswith(ENTRY_PREFIXES) for key in annotations)
    return written_at + min(LONGEST, STEP * max(0, entries - 1))
