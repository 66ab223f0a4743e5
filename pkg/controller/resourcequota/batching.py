"""How long a ResourceQuota's next patch waits for company. Pure.

With many migrations under way in a namespace the next event is close by: waiting saves a patch for each event. A
migration that is about to be tried, or that was refused, waits a moment only: KubeVirt tries it within milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.kubevirt.migration import is_refused
from pkg.util.resourcequota.journal import ENTRY_PREFIXES, Journal

STEP = 0.04
"""Seconds added for each entry beyond the first."""
LONGEST = 0.25
"""Seconds, however many migrations are under way."""


def next_write_after(annotations: Mapping[str, str], written_at: float, *, urgent: bool = False) -> float:
    """The earliest time of the next patch, on the clock of `written_at` (seconds)."""
    entries = sum(key.startswith(ENTRY_PREFIXES) for key in annotations)
    return written_at + min(STEP if urgent else LONGEST, STEP * max(0, entries - 1))


def is_urgent(
    annotations: Mapping[str, str],
    migrations: Iterable[VirtualMachineInstanceMigration],
    instances: Mapping[str, VirtualMachineInstance],
) -> bool:
    """Whether a migration was refused, or is about to be tried and has no entry yet. `instances` is by name."""
    journal = Journal(annotations)
    for migration in migrations:
        vmi = instances.get(migration.spec.vmi_name)
        tried_next = migration.phase in (constants.PHASE_UNSET, constants.PHASE_PENDING)
        new = tried_next and not journal.keys_of(migration.spec.vmi_name, vmi.uid if vmi else "")
        if new or is_refused(migration):
            return True
    return False
