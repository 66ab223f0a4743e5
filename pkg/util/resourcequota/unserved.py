"""What mode assist tells of a refused migration that Harvester's rules do not serve. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pkg.util.amounts import listed
from pkg.util.constants import LIMITS_MEMORY
from pkg.util.kubevirt.migration import Stage
from pkg.util.quantity import ZERO
from pkg.util.resource_list import ResourceList
from pkg.util.resourcequota import takeover
from pkg.util.resourcequota.assist import estimated
from pkg.util.resourcequota.base import base_of, quantity_of, shortage
from pkg.util.resourcequota.claims import claims
from pkg.util.resourcequota.errors import NotServed
from pkg.util.resourcequota.facts import Claim, Facts, Plan
from pkg.util.resourcequota.policy import EstimateKind, Mode, Policy

SERVES = Policy(Mode.TAKEOVER, EstimateKind.EXACT, settle=0.0)


def with_unserved(facts: Facts, policy: Policy, made: Plan) -> Plan:
    """`made`, and with its problems what it leaves missing. limits.timers is compensated in time where the base grants
    any and the VM's entry has some."""
    unserved = tuple(_unserved(facts, policy, made))
    return replace(made, problems=(*made.problems, *unserved)) if unserved else made


def _unserved(facts: Facts, policy: Policy, made: Plan) -> Iterator[NotServed]:
    refused = [c for c in claims(facts, policy).by_vm.values() if c.stage is Stage.REFUSED]
    lacking = [(claim, lacks) for claim in refused if (lacks := _lacks(facts, claim, made))]
    base = base_of(facts, SERVES).limits if lacking else None
    if base is None:
        return
    served = takeover.plan(facts, SERVES)
    for claim, lacks in lacking:
        estimate = estimated(claim, policy, facts.quota) or {}
        if LIMITS_MEMORY in base and LIMITS_MEMORY in estimate:
            lacks.pop(LIMITS_MEMORY, None)
        if lacks:
            said = (
                f"VM {claim.vm_name}: mode assist does not add what its migration lacks ({listed(lacks)}); "
            )
            left = lacks.keys() & _lacks(facts, claim, served).keys()
            what = "--mode takeover does not add enough either" if left else "--mode takeover does"
            yield NotServed(said + what, vm=claim.vm_name)


def _lacks(facts: Facts, claim: Claim, made: Plan) -> ResourceList:
    """What the quota lacks for the VM's pods to come once the plan is applied."""
    quota = facts.quota
    hard: dict[str, Any] = {**quota.hard, **{n: limit for n, limit in made.hard.items() if limit is not None}}
    short = {
        name: shortage(quantity_of(quota.used, name), need, quantity_of(hard, name))
        for name, need in claim.to_come.items()
        if name in hard
    }
    return {name: missing for name, missing in short.items() if missing > ZERO}
