"""What can be asked of the stand-in: on the command line for all, by annotations of a VMIM for that one.

Annotations (prefix `testcluster.headroom.harvesterhci.io/`):
`source-linger-seconds`   how long the source pod keeps counting after Succeeded
`target-linger-seconds`   how long the target pod of a failed or aborted migration keeps counting (KubeVirt issue 5373)
`phase-seconds`           how long a phase lasts: `2`, or by phase `Running=10,Scheduling=0.5`
`fail-at-phase`           the phase in which the migration fails
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kubeloop.api.meta import Object
from pkg.util import constants
from pkg.util.kubevirt.installed import USUAL_LIMITS

logger = logging.getLogger(__name__)

PREFIX: Final = "testcluster.headroom.harvesterhci.io/"
SOURCE_LINGER: Final = PREFIX + "source-linger-seconds"
TARGET_LINGER: Final = PREFIX + "target-linger-seconds"
PHASE_SECONDS: Final = PREFIX + "phase-seconds"
FAIL_AT_PHASE: Final = PREFIX + "fail-at-phase"
SCALE_NAMESPACES: Final = "headroom-scale-"
"""`headroom scale` has a stand-in of its own for them: with two, each target pod would be tried twice."""

PACED_PHASES: Final = frozenset(
    {
        constants.PHASE_SCHEDULING,
        constants.PHASE_SCHEDULED,
        constants.PHASE_PREPARING_TARGET,
        constants.PHASE_TARGET_READY,
        constants.PHASE_RUNNING,
    }
)
"""The phases that last `phase_delay`; Pending takes as long as quota and the limits make it."""


@dataclass(frozen=True, slots=True)
class Options:
    """The command line. Durations are seconds; a limit of None is KubeVirt's default.

    `finished_linger`: how long a launcher that has ended stays (and counts for `count/pods`); inf: as long as its VMI.
    `drained_bucket`: the queue's rate limit is used up, as in a busy cluster; what quota has refused is tried again at
    the quota's events, and by time only after `max_retry`.
    """

    source_linger: float = 31.0
    target_linger: float = 0.0
    phase_delay: float = 0.2
    overhead_profile: str = "1.8"
    parallel_migrations: int = USUAL_LIMITS.per_cluster
    parallel_outbound: int = USUAL_LIMITS.per_node
    first_retry: float = 5.0
    max_retry: float = 300.0
    finished_linger: float = math.inf
    drained_bucket: bool = False
    namespace_prefix: str = ""
    """Only VMs of namespaces whose names begin so: beside another KubeVirt. "": all but those of `headroom scale`."""

    def selects(self, key: str) -> bool:
        """Whether an object is of a namespace that is meant."""
        return key.startswith(self.namespace_prefix) if self.namespace_prefix else not key.startswith(SCALE_NAMESPACES)


@dataclass(frozen=True, slots=True)
class MigrationOptions:
    """The options that hold for one migration."""

    source_linger: float
    target_linger: float
    phase_delay: float
    by_phase: Mapping[str, float]
    fail_at_phase: str

    def hold(self, phase: str) -> float:
        """Seconds that the phase lasts."""
        default = self.phase_delay if phase in PACED_PHASES else 0.0
        return self.by_phase.get(phase, default)


def migration_options(options: Options, migration: Object | None) -> MigrationOptions:
    """What the migration says, else the command line."""
    said = migration.annotations if migration else {}
    phase_delay, by_phase = _phase_seconds(said.get(PHASE_SECONDS, ""), options.phase_delay)
    return MigrationOptions(
        source_linger=_seconds(said.get(SOURCE_LINGER, ""), options.source_linger),
        target_linger=_seconds(said.get(TARGET_LINGER, ""), options.target_linger),
        phase_delay=phase_delay,
        by_phase=by_phase,
        fail_at_phase=said.get(FAIL_AT_PHASE, ""),
    )


def _seconds(text: str, default: float) -> float:
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        logger.warning("%r is not a number of seconds, using %s", text, default)
        return default
    return seconds


def _phase_seconds(text: str, default: float) -> tuple[float, dict[str, float]]:
    if "=" not in text:
        return _seconds(text, default), {}
    pairs = (pair.partition("=") for pair in text.split(",") if pair.strip())
    return default, {phase.strip(): _seconds(seconds.strip(), default) for phase, _, seconds in pairs}
