"""Whether a pod fits into the base of a ResourceQuota that holds added headroom. Pure.

Of what is used, the migrations' pods are taken off: the target beside the source, and what is left over of a source.
They may take what was added for them, and all other pods together the base:

    used − what the migrations take + the pod ≤ base        for each resource that is scaled

What the migrations take counts at most as far as headroom was added: so the headroom that is not taken yet stays free.

`used` is known in two ways. The pods that a cache shows, with those that were let through since (the ledger): exact,
but blind to what other replicas let through. And status.used: it knows of all pods, but not yet of the pods that are
on their way to quota admission, still of those that have just ended, and its controller sets it by caches of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kubeloop.api.core import Pod, ResourceQuota
from kubeloop.api.quantity import ZERO, Quantity, QuantityError
from kubeloop.api.resource_list import ResourceList, add, add_to, minimum, parse_resource_list, subtract, total
from pkg.util.amounts import compared
from pkg.util.quotacount.usage import is_live, unnamed
from pkg.util.resourcequota.balance import Balance
from pkg.util.resourcequota.base import base_of, counts_of_pods
from pkg.util.resourcequota.entries import has_migrating_vm, read, standing
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.policy import Policy
from pkg.util.resourcequota.vm import VmUsage
from pkg.util.resourcequota.vms import vms_of
from pkg.webhook.namespace_pods import Pods

Amounts = Mapping[str, Quantity]


@dataclass(frozen=True, slots=True)
class Room:
    """One quota at one moment. `base` is by the names that are scaled; `counted` is the sum of the pods that the
    cache shows, `used` what status says, of which `ended` may be pods that are gone; `migrations` is what their pods
    take, `vms` the VMs that may have something beyond the base, `facts` what all of this is made of."""

    base: ResourceList
    hard: ResourceList
    used: ResourceList
    counted: ResourceList
    migrations: ResourceList
    ended: ResourceList = field(default_factory=dict)
    vms: Sequence[VmUsage] = ()
    facts: Facts = field(default_factory=lambda: Facts(ResourceQuota()))

    @property
    def quota(self) -> ResourceQuota:
        return self.facts.quota

    @property
    def is_behind(self) -> bool:
        """Whether a cache is, or status.used: the pods do not add up to that, or nothing is said of a base."""
        differ = (self.counted.get(name, ZERO) != self.used.get(name, ZERO) for name in self.base)
        return not self.base or any(differ)

    def beside(self, _pending: Iterable[Amounts] = ()) -> Balance:
        """Beside the pods that are there, whatever is on its way. All that migrations take is theirs: a read may meet
        the quota before it is raised for a target, or after it was lowered again, and the target's pod not."""
        return Balance(self.base, self.counted, self.migrations)

    def beside_all(self, pending: Iterable[Amounts]) -> Balance:
        """Beside what is known of in either way, and `pending`, pods of the ledger; status.used may count them
        already."""
        known = {
            name: max(self.counted.get(name, ZERO), self.used.get(name, ZERO) - self.ended.get(name, ZERO))
            for name in self.base
        }
        return Balance(self.base, total([known, *pending]), self._in_added_room())

    def left_for_target(self, name: str) -> ResourceList:
        """What the pods of a VM's migration may still take beyond the base: what its entry on the quota holds for them,
        with the compensation. Before the entry is written, what it will be: until then quota decides. A VM that has no
        source pod gets nothing, and what Harvester's number says beyond the source no one."""
        vm = next((each for each in self.vms if each.name == name), None)
        if vm is None or not vm.allowed:
            return {}
        entries = read(self.quota.annotations)
        entry = standing(entries.said, vm.keys)
        granted = vm.allowed if entry is None else minimum(vm.allowed, entry)
        left = subtract(add(granted, entries.compensation), vm.target)
        return {name: amount for name, amount in left.items() if amount > ZERO}

    def _in_added_room(self) -> ResourceList:
        """What migrations take, as far as headroom was added for them."""
        return {
            name: min(self.migrations.get(name, ZERO), max(ZERO, self.hard.get(name, base) - base))
            for name, base in self.base.items()
        }


def is_raised(quota: ResourceQuota) -> bool:
    """Whether anything is added to it, also by what quota admission goes by: status.hard. If not, quota itself holds
    every pod to the base."""
    return has_migrating_vm(quota.annotations) or quota.spec.hard != quota.status.hard


def room(observed: Facts, policy: Policy, pods: Pods | None) -> Room | None:
    """The room of `observed.quota`; None where nothing says what its base is. `pods` are all of the namespace; None:
    status.used is all that is known of them, and `observed.pods` of the migrations."""
    quota = observed.quota
    base = base_of(quota, observed.limits, policy, observed.rancher.granted)
    if base.limits is None:
        return None
    used = parse_resource_list(quota.used)
    charged, ended = used, ResourceList()
    if pods is not None:
        observed = replace(observed, pods=pods.there)
        charged = _charged(observed, pods.there, observed.now)
        # The quota controller notices that a grace period is over only when it counts anew: after minutes.
        stuck = [pod for pod in pods.there if not is_live(pod, observed.now) and not pod.terminal]
        ended = _charged(observed, ({pod.uid: pod for pod in stuck} | dict(pods.ended)).values(), None)
    vms, _ = vms_of(observed, policy, base)
    return Room(
        base={name: limit for name, limit in base.limits.items() if counts_of_pods(name)},
        hard=parse_resource_list(quota.hard),
        used=used,
        counted=charged,
        migrations=total(vm.granted for vm in vms),
        ended=ended,
        vms=vms,
        facts=observed,
    )


def _charged(observed: Facts, pods: Iterable[Pod], now: float | None) -> ResourceList:
    """What the quota charges for these pods together, of what it limits."""
    sums = ResourceList()
    for usage in (observed.charge(pod, now) for pod in pods):
        add_to(sums, {name: usage[name] for name in observed.quota.hard if name in usage})
    return sums


def refused_by_quota(quota: ResourceQuota, pod: Pod, need: Amounts) -> str:
    """Why quota admission itself refuses a pod, or what it needs, by a quota's status; "": it does not."""
    if missing := unnamed(pod, quota.status.hard or {}):
        return f"failed quota: resource quota {quota.key}: must specify {', '.join(missing)} in every container"
    try:
        limits, used = parse_resource_list(quota.status.hard or {}), parse_resource_list(quota.used)
    except QuantityError:
        return ""
    short = Balance(limits, used).short(need)
    return exceeded(quota, need, short) if short else ""


def exceeded(quota: ResourceQuota, need: Amounts, short: Amounts) -> str:
    """Which quota is short, and what is left of it. It begins with quota admission's own words: KubeVirt looks for
    them, and tries again when the quota changes."""
    amounts = ((name, compared(name, need[name], max(left, ZERO))) for name, left in sorted(short.items()))
    wants = ", ".join(f"{name} {asked} is requested and {left} is left" for name, (asked, left) in amounts)
    return f"exceeded quota: resource quota {quota.key} is used up: {wants}"


def reserved(names: Sequence[str]) -> str:
    """Whose the rest of a quota is."""
    whose = f" ({', '.join(names[:10])})" if names else ""
    return f"; what headroom added to it is reserved for migrating VMs{whose}"
