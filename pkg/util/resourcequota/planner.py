"""The decision about one ResourceQuota: from what is facts to one patch. Pure; `plan` is the only way to one.

Level-triggered: the truth is the migrations and the pods, the annotations are the journal. The same
observation always gives the same plan, and a plan applied gives an observation whose plan is empty.
"""

from __future__ import annotations

from dataclasses import replace

from pkg.util.resourcequota import assist, takeover
from pkg.util.resourcequota.facts import Facts, Plan
from pkg.util.resourcequota.journal import has_migrating_vm
from pkg.util.resourcequota.managed import is_default, is_managed, is_off, switched_off
from pkg.util.resourcequota.policy import Mode, Policy
from pkg.util.resourcequota.release import give_up, is_ours, release, retire, with_entries
from pkg.util.resourcequota.touch import with_touch, without_touch
from pkg.util.resourcequota.unserved import with_unserved


def plan(facts: Facts, policy: Policy) -> Plan:
    """The one patch that makes a ResourceQuota fit its namespace's migrations."""
    quota = facts.quota
    if quota.deleting:
        return Plan()
    off = facts.namespace_off or is_off(quota.annotations)
    if facts.mtq or off or not is_managed(quota):
        return without_touch(quota, _given_back(facts, policy))
    return with_touch(facts, _served(facts, policy))


def _served(facts: Facts, policy: Policy) -> Plan:
    if policy.mode is Mode.TAKEOVER:
        return takeover.plan(facts, policy)
    # Harvester's controllers know default quotas only: beside them there is nothing to agree with on another.
    strategy = assist if is_default(facts.quota) else takeover
    return with_unserved(facts, policy, strategy.plan(facts, policy))


def _given_back(facts: Facts, policy: Policy) -> Plan:
    """Nothing is added here any longer, and migrations that are refused stay so."""
    quota = facts.quota
    if facts.mtq:
        return _left_to_mtq(facts, policy)
    if facts.namespace_off or switched_off(quota):
        return release(facts)
    if is_managed(quota):  # a person's skip, which also stops Harvester
        return assist.plan(facts, policy) if is_default(quota) else Plan()
    return retire(quota) if is_ours(quota) else Plan()  # it has lost the label


def _left_to_mtq(facts: Facts, policy: Policy) -> Plan:
    """Never two strategies on one quota. In assist mode Harvester stays: existing entries run out, nothing is added. A
    quota without entries is left alone: its limits are the other strategy's."""
    given_up, quota = give_up(facts), facts.quota
    stands = has_migrating_vm(quota.annotations) and is_default(quota)
    if given_up or policy.mode is Mode.TAKEOVER or not stands:
        return given_up
    return assist.plan(replace(facts, migrations=with_entries(facts)), policy)
