"""The decision about one ResourceQuota: from what is observed to one patch. Pure; `plan` is the only way to one.

Level-triggered: the truth is the migrations and the pods, the annotations are the journal. The same
observation always gives the same plan, and a plan applied gives an observation whose plan is empty.
"""

from __future__ import annotations

from dataclasses import replace

from pkg.util.resourcequota import assist, takeover
from pkg.util.resourcequota.journal import has_migrating_vm
from pkg.util.resourcequota.managed import is_default, is_managed, is_off, switched_off
from pkg.util.resourcequota.model import Observed, Plan
from pkg.util.resourcequota.policy import Mode, Policy
from pkg.util.resourcequota.release import give_up, is_ours, release, retire, with_entries
from pkg.util.resourcequota.touch import with_touch
from pkg.util.resourcequota.unserved import with_unserved


def plan(observed: Observed, policy: Policy) -> Plan:
    """The one patch that makes a ResourceQuota fit its namespace's migrations."""
    return with_touch(observed, _decided(observed, policy))


def _decided(observed: Observed, policy: Policy) -> Plan:
    if observed.mtq:
        return _left_to_mtq(observed, policy)
    if observed.namespace_off or switched_off(observed.quota):
        return Plan() if observed.quota.deleting else release(observed)
    if not is_managed(observed.quota):
        left = is_ours(observed.quota) and not observed.quota.deleting  # it has lost the label
        return retire(observed.quota) if left else Plan()
    # Harvester's controllers know default quotas only: beside them there is nothing to agree with on another.
    off = is_off(observed.quota.annotations, policy.mode)
    if off or (policy.mode is Mode.ASSIST and is_default(observed.quota)):
        made = assist.plan(observed, policy) if is_default(observed.quota) else Plan()
    else:
        made = takeover.plan(observed, policy)
    return made if off or policy.mode is Mode.TAKEOVER else with_unserved(observed, policy, made)


def _left_to_mtq(observed: Observed, policy: Policy) -> Plan:
    """Never two strategies on one quota. In assist mode Harvester stays: existing entries run out, nothing is added. A
    quota without entries is left alone: its limits are the other strategy's."""
    given_up, quota = give_up(observed), observed.quota
    stands = has_migrating_vm(quota.annotations) and is_default(quota) and not quota.deleting
    if given_up or policy.mode is Mode.TAKEOVER or not stands:
        return given_up
    return assist.plan(replace(observed, migrations=with_entries(observed)), policy)
