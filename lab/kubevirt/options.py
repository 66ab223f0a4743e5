"""Options of the stand-in: on the command line for all migrations, by annotations of a VMIM for that one.

Annotations (prefix `testcluster.headroom.harvesterhci.io/`):
`source-linger-seconds`   how long the source pod keeps counting after Succeeded
`phase-seconds`           how long a phase lasts: `2`, or by phase `Running=10,Scheduling=0.5`
`fail-at-phase`           the phase in which the migration fails
"""

import contextlib
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from kubeloop.api.meta import Object
from kubeloop.workqueue.queue import loop_time
from pkg.api.kubevirt import MigrationConfiguration
from pkg.util import constants
from pkg.util.kubevirt.profiles import NEWEST, PROFILES

logger = logging.getLogger(__name__)

PREFIX: Final = "testcluster.headroom.harvesterhci.io/"
SCALE_NAMESPACES: Final = "headroom-scale-"
"""The namespaces of `headroom scale`, which has a stand-in of its own: two would create each target pod twice."""

PACED_PHASES: Final = (
    constants.PHASE_SCHEDULING,
    constants.PHASE_SCHEDULED,
    "PreparingTarget",
    "TargetReady",
    constants.PHASE_RUNNING,
)
"""The phases that last `phase_delay`, in their order; Pending takes as long as quota and the limits make it."""


@dataclass(frozen=True, slots=True)
class StandInOptions:
    """The command line. Durations are seconds; a limit of None is KubeVirt's default.

    `finished_linger`: how long a launcher that has ended stays (and counts for `count/pods`); inf: as long as its VMI.
    `drained_bucket`: the queue's rate limit is used up, as in a busy cluster; what quota has refused is tried again at
    the quota's events, and by time only after `max_retry`.
    """

    source_linger: float = 31.0
    phase_delay: float = 0.2
    overhead_profile: str = "1.8"
    parallel_migrations: int = MigrationConfiguration().parallel_migrations_per_cluster
    parallel_outbound: int = MigrationConfiguration().parallel_outbound_migrations_per_node
    first_retry: float = 5.0
    max_retry: float = 300.0
    finished_linger: float = math.inf
    drained_bucket: bool = False
    workload_update_delay: float = 5.0
    namespace_prefix: str = ""
    """The prefix of the namespaces that are served, beside another KubeVirt. "": all but those of `headroom scale`."""

    @property
    def has_priority_queue(self) -> bool:
        """Reports whether migrations have priorities, and wait as objects: GA since KubeVirt 1.9."""
        names = list(PROFILES)
        return names.index(self.overhead_profile) >= names.index("1.9")

    def selects(self, key: str) -> bool:
        """Reports whether the stand-in serves the namespace of an object's key."""
        return key.startswith(self.namespace_prefix) if self.namespace_prefix else not key.startswith(SCALE_NAMESPACES)


@dataclass(frozen=True, slots=True)
class MigrationOptions:
    """The options that hold for one migration."""

    source_linger: float
    phase_delay: float
    by_phase: Mapping[str, float]
    fail_at_phase: str

    @classmethod
    def of(cls, options: StandInOptions, migration: Object | None) -> Self:
        """Returns the migration's own options, with the command line's for the rest."""
        marks = migration.annotations if migration else {}

        def mark(name: str) -> str:
            return marks.get(PREFIX + name, "")

        def seconds(text: str, default: float) -> float:
            with contextlib.suppress(ValueError):
                if 0 <= (number := float(text)) < math.inf:
                    return number
            if text:
                logger.warning("%r is not a number of seconds, using %s", text, default)
            return default

        pace, delay = mark("phase-seconds"), options.phase_delay
        pairs = [pair.partition("=") for pair in pace.split(",") if "=" in pair]
        return cls(
            seconds(mark("source-linger-seconds"), options.source_linger),
            delay if pairs else seconds(pace, delay),
            {phase.strip(): seconds(text.strip(), delay) for phase, _, text in pairs},
            mark("fail-at-phase"),
        )

    def hold(self, phase: str) -> float:
        """Returns the seconds that the phase lasts."""
        return self.by_phase.get(phase, self.phase_delay if phase in PACED_PHASES else 0.0)


def reported_version(profile: str) -> str:
    """The version that a KubeVirt of that profile says it is."""
    if profile == NEWEST:
        return "v1.10.0"
    return f"v{profile}" if profile.count(".") == 2 else f"v{profile}.0"


class Ages:
    """Ages of states, by the loop's clock. Forgotten at a restart: only the pace depends on them."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[object, float]] = {}

    def of(self, key: str, state: object = None, *, elapsed: float = 0.0) -> float:
        """Returns the seconds since the first call for the key in this state, plus `elapsed`."""
        now = loop_time()
        if key not in self._since or self._since[key][0] != state:
            self._since[key] = (state, now - elapsed)
        return now - self._since[key][1]

    def forget(self, key: str) -> None:
        self._since.pop(key, None)
