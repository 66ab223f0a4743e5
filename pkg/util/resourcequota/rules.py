"""Whose rules a quota is raised by: ours, or Harvester's beside its own controllers. Data.

Source of Harvester's: vmim_controller.go (scale, restore, compensate) and resourcequota_controller.go.
"""

from __future__ import annotations

from dataclasses import dataclass

from kubeloop.api.core import ResourceQuota
from pkg.util.names import migrating_key, migrating_uid_key
from pkg.util.resourcequota.managed import is_default
from pkg.util.resourcequota.policy import Mode, Policy


@dataclass(frozen=True, slots=True)
class Rules:
    follow: bool
    """An entry follows the migration and the pods that quota counts; else it is written once, under the VMI's uid, and
    stays as it is until all migrations of its VM are over, with limits.cpu and limits.memory alone."""
    mark: bool
    """The quota is marked as ours, so that Harvester leaves it alone; one that follows without that has its base
    recorded on it."""
    margin: bool
    """A refused target gets what is missing of limits.memory, and 128Mi; else the growth of the overhead."""

    def key(self, vm_name: str, vmi_uid: str) -> str:
        """The annotation of a VM's entry."""
        return migrating_key(vm_name) if self.follow else migrating_uid_key(vmi_uid)


TAKEN_OVER = Rules(follow=True, mark=True, margin=False)
WITHOUT_RANCHER = Rules(follow=True, mark=False, margin=False)
HARVESTERS = Rules(follow=False, mark=False, margin=True)


def rules_of(quota: ResourceQuota, policy: Policy, *, off: bool = False) -> Rules:
    """Harvester's controllers know default quotas only: beside them there is nothing to agree with on another. `off`:
    a person has switched auto-scaling off there, and only what is over goes."""
    if not is_default(quota):
        return WITHOUT_RANCHER
    return HARVESTERS if off or policy.mode is Mode.ASSIST else TAKEN_OVER
