"""The decision about one ResourceQuota: from what is observed to one patch. Pure; `plan` is the only way to one.

    facts → base → VMs → entries → spec.hard → plan

Level-triggered: the truth is the migrations and the pods, the annotations say what was added. The same facts always
give the same plan, and a plan applied gives facts whose plan is empty. Whatever happens to the annotations or to
spec.hard, the next patch repairs it.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from pkg.util.kubevirt.migration import is_finished
from pkg.util.resourcequota.base import Base, base_of
from pkg.util.resourcequota.entries import has_migrating_vm
from pkg.util.resourcequota.facts import NO_RANCHER, Facts, Plan
from pkg.util.resourcequota.give_back import give_back
from pkg.util.resourcequota.managed import QuotaManagement, is_default, is_ours, management_of
from pkg.util.resourcequota.policy import Mode, Policy
from pkg.util.resourcequota.rancher_request import as_request, with_answer, with_grant, without_request
from pkg.util.resourcequota.rules import HarvesterRules, OwnRules
from pkg.util.resourcequota.touch import has_entry, with_touch, without_touch


def plan(facts: Facts, policy: Policy) -> Plan:
    """Returns the one patch that makes a ResourceQuota fit its namespace's migrations, or the request by which Rancher
    does."""
    rancher = facts.rancher
    if facts.quota.deleting:
        return Plan()
    if rancher is NO_RANCHER:
        return _decide(facts, policy)
    facts = with_answer(facts)
    decided = _decide(facts, policy)
    return with_grant(facts, as_request(facts, decided) if rancher.asks else without_request(facts, decided))


def _decide(facts: Facts, policy: Policy) -> Plan:
    quota = facts.quota
    management = management_of(quota)
    if policy.released:  # without Rancher's leave Harvester could not go on either
        decided = give_back(facts, to_harvester=not facts.rancher.asks)
    elif facts.namespace_off or management is QuotaManagement.OFF:
        decided = give_back(facts, to_harvester=True)
    elif facts.mtq:
        decided = _left_to_mtq(facts, policy)
    elif management is QuotaManagement.NONE:  # it has lost the label
        decided = give_back(facts)
    elif management is QuotaManagement.SKIPPED:
        decided = _run_out(facts, policy) if is_default(quota) else Plan()
    else:
        default = management is QuotaManagement.DEFAULT
        beside_harvester = default and policy.mode is Mode.ASSIST
        decided = _as_harvester(facts, policy) if beside_harvester else OwnRules(facts, policy, default=default).plan()
        if not facts.rancher.asks:  # a touch is a write of the quota
            return with_touch(facts, decided)
    return without_touch(quota, decided)


def _left_to_mtq(facts: Facts, policy: Policy) -> Plan:
    """Returns the plan for a quota of managed tenant quota: never two strategies on one quota. Entries that are not
    headroom's run out, nothing is added: Harvester may stay, or have left them. A quota without entries is left alone:
    its limits are the other strategy's."""
    quota = facts.quota
    if is_ours(quota) or not (has_migrating_vm(quota.annotations) and is_default(quota)):
        return give_back(facts)
    migrations = [vmim for vmim in facts.migrations if is_finished(vmim) or has_entry(facts, vmim)]
    return _as_harvester(replace(facts, migrations=migrations), replace(policy, mode=Mode.ASSIST))


def _as_harvester(facts: Facts, policy: Policy) -> Plan:
    base = base_of(facts.quota, facts.limits, policy, facts.rancher.granted)
    return HarvesterRules(facts, policy, base).plan()


def _run_out(facts: Facts, policy: Policy) -> Plan:
    """Returns the plan that adds nothing; an entry goes once its migrations are over, one that is not explained
    stays."""
    return HarvesterRules(facts, replace(policy, foreign_grace=inf), Base(None)).plan()
