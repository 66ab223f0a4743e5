"""Harvester's own rules for a default ResourceQuota, for use beside its controllers, which know no other. Pure.

An entry is written once, under the VMI's uid, and stays as it is until all migrations of its VM are over, with
limits.cpu and limits.memory alone; a refused target gets what is missing of limits.memory, and 128Mi.
Source: Harvester vmim_controller.go (scale, restore, compensate) and resourcequota_controller.go.
"""

from __future__ import annotations

from collections.abc import Iterator

from kubeloop.api.resource_list import add
from pkg.util import constants
from pkg.util.kubevirt.migration import Stage
from pkg.util.resourcequota.base import HARVESTERS, Base
from pkg.util.resourcequota.compensation import compensate_as_harvester
from pkg.util.resourcequota.draft import QuotaDraft, WantedEntry
from pkg.util.resourcequota.entries import migrating_uid_key, read, remove
from pkg.util.resourcequota.facts import Facts, Plan
from pkg.util.resourcequota.give_back import hand_over
from pkg.util.resourcequota.managed import RECORDS, is_ours
from pkg.util.resourcequota.policy import Policy


class HarvesterRules:
    """One decision about one quota. One that mode takeover has left goes back to Harvester."""

    def __init__(self, facts: Facts, policy: Policy, base: Base) -> None:
        annotations = dict(facts.quota.annotations)
        handed = hand_over(facts, annotations) if is_ours(facts.quota) else {}
        self.draft = QuotaDraft(facts, policy, base, default=True, annotations=annotations)
        self.draft.hard |= {name: limit for name, limit in handed.items() if name not in self.draft.limits}

    def plan(self) -> Plan:
        """Returns entries, compensation and spec.hard together."""
        draft = self.draft
        before = {*draft.entries, *draft.invalid}
        is_unknown = any(vm.vmi is None and vm.stage > Stage.FINISHED for vm in draft.vms)
        added = draft.enter([*self._wanted()], lambda vm: vm.stage > Stage.FINISHED, {}, may_be_unknown=is_unknown)
        if before - draft.annotations.keys():  # as upstream
            remove(draft.annotations, constants.ANNOTATION_MIGRATING_COMPENSATION)
            if draft.base.limits is None:  # where spec.hard is not looked at here, its controller computes it again
                draft.annotations[constants.ANNOTATION_RESYNC_NEEDED] = constants.TRUE
        if not draft.limits:
            remove(draft.annotations, *(RECORDS if draft.base.limits is not None else ()))
            return draft.plan()
        compensate_as_harvester(draft.facts.quota, draft.limits, draft.vms, draft.annotations)
        entries = read(draft.annotations)  # with the compensation
        if entries.invalid:
            draft.problems += [error.problem for error in entries.invalid.values()][:1]
            return draft.plan()
        return draft.plan(add(added, entries.compensation))

    def _wanted(self) -> Iterator[WantedEntry]:
        """Yields of what the formula scales what the quota limits."""
        draft, quota = self.draft, self.draft.facts.quota
        for vm in draft.vms if draft.limits else ():
            is_new = draft.annotations.keys().isdisjoint(vm.keys)
            if is_new and vm.vmi is not None and vm.need is not None and vm.stage >= Stage.WANTED:
                value = {name: vm.need[name] for name in HARVESTERS if name in vm.need and name in quota.hard}
                yield WantedEntry(vm, migrating_uid_key(vm.vmi.uid), value)
