"""The decision about one ResourceQuota: from what is observed to one patch. Pure; `plan` is the only way to one.

    facts → base → VMs → entries → spec.hard → plan

Level-triggered: the truth is the migrations and the pods, the annotations say what was added. The same facts always
give the same plan, and a plan applied gives facts whose plan is empty. Whatever happens to the annotations or to
spec.hard, the next patch repairs it.
"""

from __future__ import annotations

from dataclasses import replace

from pkg.util.kubevirt.migration import is_finished
from pkg.util.resourcequota.entries import has_migrating_vm
from pkg.util.resourcequota.facts import NO_RANCHER, Facts, Plan
from pkg.util.resourcequota.give_back import give_back
from pkg.util.resourcequota.managed import is_default, is_labelled, is_off, is_ours, switched_off
from pkg.util.resourcequota.policy import Mode, Policy
from pkg.util.resourcequota.rancher_request import as_request, with_answer, with_grant, without_request
from pkg.util.resourcequota.scaling import Scaling
from pkg.util.resourcequota.touch import has_entry, with_touch, without_touch


def plan(facts: Facts, policy: Policy) -> Plan:
    """The one patch that makes a ResourceQuota fit its namespace's migrations, or the request by which Rancher does."""
    rancher = facts.rancher
    if facts.quota.deleting:
        return Plan()
    if rancher is NO_RANCHER:
        return _decide(facts, policy)
    facts = with_answer(facts)
    made = _decide(facts, policy)
    return with_grant(facts, as_request(facts, made) if rancher.asks else without_request(facts, made))


def _decide(facts: Facts, policy: Policy) -> Plan:
    quota = facts.quota
    if policy.released:  # without Rancher's leave Harvester could not go on either
        made = give_back(facts, to_harvester=not facts.rancher.asks)
    elif facts.namespace_off or switched_off(quota):
        made = give_back(facts, to_harvester=True)
    elif facts.mtq:
        made = _left_to_mtq(facts, policy)
    elif not (is_default(quota) or is_labelled(quota)):  # it has lost the label
        made = give_back(facts)
    elif is_off(quota.annotations):  # a person's skip, which also stops Harvester: only what is over goes
        made = Scaling(facts, policy, off=True).plan() if is_default(quota) else Plan()
    else:
        made = Scaling(facts, policy).plan()
        if not facts.rancher.asks:  # a touch is a write of the quota
            return with_touch(facts, made)
    return without_touch(quota, made)


def _left_to_mtq(facts: Facts, policy: Policy) -> Plan:
    """Never two strategies on one quota. Entries that are not ours run out, nothing is added: Harvester may stay, or
    have left them. A quota without entries is left alone: its limits are the other strategy's."""
    quota = facts.quota
    if is_ours(quota) or not (has_migrating_vm(quota.annotations) and is_default(quota)):
        return give_back(facts)
    kept = [each for each in facts.migrations if is_finished(each) or has_entry(facts, each)]
    return Scaling(replace(facts, migrations=kept), replace(policy, mode=Mode.ASSIST)).plan()
