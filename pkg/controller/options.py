"""What an operator chooses for the controllers."""

from __future__ import annotations

from dataclasses import dataclass

from pkg.util.resourcequota.planner import Mode


@dataclass(frozen=True, slots=True)
class Options:
    """The choices behind `headroom controller`'s flags; durations in seconds."""

    mode: Mode = Mode.TAKEOVER
    render_default_quota: bool = False
    """Create and update the default ResourceQuota where no Rancher does."""
