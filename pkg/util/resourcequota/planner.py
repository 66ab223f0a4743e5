"""The decision about one ResourceQuota: from what is observed to one patch. Pure, and the only place that decides.

Level-triggered: the truth is the migrations and the pods, the annotations are the journal. The same
observation always gives the same plan, and a plan applied gives an observation whose plan is empty.
"""

from __future__ import annotations

from dataclasses import replace

from pkg.util.kubevirt.rendering import Rendering
from pkg.util.resourcequota import assist, takeover
from pkg.util.resourcequota.journal import has_migrating_vm
from pkg.util.resourcequota.model import Estimate, EstimateKind, Memory, Mode, Observed, Plan, Policy
from pkg.util.resourcequota.participation import is_default, is_off, switched_off, takes_part
from pkg.util.resourcequota.release import is_ours, release, retire, stand_back, with_entries
from pkg.util.resourcequota.touch import with_touch

__all__ = [
    "Estimate",
    "EstimateKind",
    "Memory",
    "Mode",
    "Observed",
    "Plan",
    "Policy",
    "Rendering",
    "is_off",
    "plan",
    "takes_part",
]


def plan(observed: Observed, policy: Policy) -> Plan:
    """The one patch that brings a ResourceQuota to where its namespace's migrations want it."""
    return with_touch(observed, _decided(observed, policy))


def _decided(observed: Observed, policy: Policy) -> Plan:
    if observed.mtq:
        return _stand_back(observed, policy)
    if observed.namespace_off or switched_off(observed.quota):
        return Plan() if observed.quota.deleting else release(observed)
    if not takes_part(observed.quota):
        left = is_ours(observed.quota) and not observed.quota.deleting  # it has lost the label
        return retire(observed.quota) if left else Plan()
    # Harvester's controllers know default quotas only: beside them there is nothing to agree with on another.
    ours = policy.mode is Mode.TAKEOVER or not is_default(observed.quota)
    if ours and not is_off(observed.quota.annotations, policy.mode):
        return takeover.plan(observed, policy)
    return assist.plan(observed, policy) if is_default(observed.quota) else Plan()


def _stand_back(observed: Observed, policy: Policy) -> Plan:
    """Never two strategies on one quota. In assist mode Harvester stays: what stands runs out, nothing is added, and a
    quota where nothing stands is not looked at: its limits are the other strategy's."""
    back, quota = stand_back(observed), observed.quota
    stands = has_migrating_vm(quota.annotations) and is_default(quota) and not quota.deleting
    if back or policy.mode is Mode.TAKEOVER or not stands:
        return back
    return assist.plan(replace(observed, migrations=with_entries(observed)), policy)
