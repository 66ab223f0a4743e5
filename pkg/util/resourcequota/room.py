"""The room in the base of a ResourceQuota with headroom: whether a pod fits, and whether a VM can start. Pure.

The migrations' pods, the target beside the source and leftover sides, may take the headroom that was added for them,
and no more of it is taken off than was added; all other pods together may take the base:

    used − what the migrations take + the pod ≤ base        for each resource that is scaled

`used` is known in two ways. The pods that a cache shows, with those that were admitted since (the ledger): exact, but
blind to what other replicas admit. And status.used: it knows of all pods, but not yet of the pods that are on their way
to quota admission, still of those that have just ended, and its controller sets it by caches of its own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple

from kubeloop.api.core import Namespace, Pod, ResourceQuota
from kubeloop.api.quantity import ZERO, Quantity, QuantityError
from kubeloop.api.resource_list import ResourceList, maximum, minimum, parse_resource_list, positive, subtract, total
from pkg.api.kubevirt import VirtualMachine
from pkg.util import constants
from pkg.util.amounts import format_distinctly
from pkg.util.kubevirt.evidence import vm_of
from pkg.util.kubevirt.expansion import vmi_of
from pkg.util.kubevirt.migration import is_finished
from pkg.util.kubevirt.target import launcher_usage
from pkg.util.problems import ResourceQuotaError, insufficient
from pkg.util.quotacount.releases import Releases
from pkg.util.quotacount.usage import is_charged, is_live, pod_usage, unnamed_resources
from pkg.util.resourcequota.base import Base, base_of, counts_of_pods, parse_base, parse_limits, quantity_of
from pkg.util.resourcequota.entries import has_migrating_vm, names_by_key, present_entry, read
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.managed import is_served
from pkg.util.resourcequota.policy import EXACT, Policy
from pkg.util.resourcequota.rancher import annotation_of, granted_to
from pkg.util.resourcequota.vm import VmUsage, vms_of

Amounts = Mapping[str, Quantity]
Usages = Mapping[str, Amounts]
"""One pod's usage, by the names of the quotas that count it."""


def lacking_resources(need: Amounts, limits: Amounts, used: Amounts, promised: Amounts | None = None) -> ResourceList:
    """Returns the resources in which a pod of `need` does not fit, and what is left of each, maybe less than nothing:
    the limit, less what is `used` but not `promised`: that is the migrations', and goes when they are over.

    Source: kubernetes apiserver plugin/resourcequota CheckRequest, 1.34."""
    promised, names = promised or {}, [name for name in need if name in limits]
    left = {name: limits[name] - used.get(name, ZERO) + promised.get(name, ZERO) for name in names}
    return {name: remainder for name, remainder in left.items() if need[name] > ZERO and need[name] > remainder}


@dataclass(frozen=True, slots=True)
class Pods:
    """The pods of a namespace at one moment."""

    present: Sequence[Pod] = ()
    ended: Mapping[str, Pod] = field(default_factory=dict)
    """The pods that ended or were deleted a moment ago, by uid, as they were before; `present` may lack them."""

    def versions(self) -> dict[str, str | None]:
        """Returns uid to resourceVersion, "" for a pod that is gone again."""
        return {**dict.fromkeys(self.ended, ""), **{pod.uid: pod.metadata.resource_version for pod in self.present}}


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pod, or the growth of one, that asks for room: the releases by which it counts, the usage that is new, its uid,
    and the resourceVersion that a resize replaces."""

    namespace: str
    pod: Pod
    releases: Releases
    need: ResourceList
    uid: str
    replaced: str | None = None
    migration: str = ""
    """The uid of the migration that KubeVirt made it for."""

    def is_counted_by(self, quota: ResourceQuota) -> bool:
        return is_charged(self.pod, quota.spec, releases=self.releases)


@dataclass(frozen=True, slots=True)
class QuotaRoom:
    """The room under one quota at one moment. `base` is by the names that are scaled; `counted` is the sum of the pods
    that the cache shows, `used` is status.used, of which `ended` may be pods that are gone; `vms` are those that may
    have something beyond the base, `used_headroom` is what their pods use of that, `facts` what all is made of."""

    facts: Facts
    base: ResourceList
    hard: ResourceList
    used: ResourceList
    counted: ResourceList
    used_headroom: ResourceList
    ended: ResourceList = field(default_factory=dict)
    vms: Sequence[VmUsage] = ()

    @classmethod
    def from_facts(cls, facts: Facts, policy: Policy, pods: Pods | None) -> "QuotaRoom | None":
        """Returns the room under `facts.quota`, or None where its base is unknown. `pods` are all of the namespace;
        None: status.used is all that is known of them, and `facts.pods` of the migrations."""
        quota = facts.quota
        base = base_of(quota, facts.limits, policy, facts.rancher.granted)
        if base.limits is None:
            return None
        used = parse_resource_list(quota.used)
        charged, ended_usage = used, ResourceList()
        if pods is not None:
            facts = replace(facts, pods=pods.present)
            charged = _charged(facts, pods.present, facts.now)
            # The quota controller notices that a grace period is over only when it counts anew: after minutes.
            stuck = [pod for pod in pods.present if pod.deleting and not (pod.terminal or is_live(pod, facts.now))]
            ended_usage = _charged(facts, ({pod.uid: pod for pod in stuck} | dict(pods.ended)).values(), None)
        vms, _ = vms_of(facts, policy, base)
        return cls(
            facts=facts,
            base={name: limit for name, limit in base.limits.items() if counts_of_pods(name)},
            hard=parse_resource_list(quota.hard),
            used=used,
            counted=charged,
            used_headroom=total(vm.used_headroom for vm in vms),
            ended=ended_usage,
            vms=vms,
        )

    @property
    def counts_differ(self) -> bool:
        """Reports whether a cache or status.used is behind: the pods do not add up to it, or no base is known."""
        return not self.base or any(self.counted.get(name, ZERO) != self.used.get(name, ZERO) for name in self.base)

    def lacking(self, need: Amounts, pending: Iterable[Amounts] | None) -> ResourceList:
        """Returns the resources in which a pod of `need` does not fit into the base, and what is left of each.

        `pending` None: by the pods that exist. All that migrations use is theirs: a read may meet the quota before it
        is raised for a target, or after it was lowered again, and the target's pod not. Else in the worst case: by the
        existing pods or status.used, whichever is more, and by the ledger's pods, which status.used may count too."""
        if pending is None:
            return lacking_resources(need, self.base, self.counted, self.used_headroom)
        usage = maximum(self.counted, positive(subtract(self.used, self.ended)))
        headroom = positive(subtract(self.hard, self.base))
        return lacking_resources(need, self.base, total([usage, *pending]), minimum(self.used_headroom, headroom))

    def need_of(self, candidate: Candidate) -> ResourceList:
        """Returns the usage of a pod that the base has to hold. A target may take its own VM's entry, with the
        compensation, beyond the base; before the entry is written, the future one: until then quota decides. A VM that
        has no source pod gets nothing, and what Harvester's number has beyond the source no one."""
        name = migrating_vm(self.facts, candidate.migration, candidate.pod) if candidate.migration else ""
        vm = next((vm for vm in self.vms if vm.name == name), None)
        if vm is None or not vm.target_limit:
            return candidate.need
        entries = read(self.facts.quota.annotations)
        entry = present_entry(entries.by_key, vm.keys)
        granted = vm.target_limit if entry is None else minimum(vm.target_limit, entry)
        headroom = positive(subtract(total([granted, entries.compensation]), vm.target))
        return positive(subtract(candidate.need, headroom))

    def shortage(self, candidate: Candidate, pending: Sequence[Usages] | None) -> Callable[[], str] | None:
        """Returns why a pod does not fit into the base, or None. `pending`: see `lacking`."""
        name, need = self.facts.quota.name, self.need_of(candidate)
        usages = None if pending is None else [usage[name] for usage in pending if name in usage]
        lacking = self.lacking(need, usages)
        return partial(self._shortage_text, need, lacking) if lacking else None

    def _shortage_text(self, need: Amounts, remainders: Amounts) -> str:
        facts, annotations = self.facts, self.facts.quota.annotations
        names = sorted({*names_by_key(annotations, facts.migrations, facts.instances.values()).values()})
        owners = f" ({', '.join(names[:10])})" if names else ""
        reserved = f"what headroom added to it is reserved for migrating VMs{owners}"
        return f"{exceeded_message(facts.quota, need, remainders)}; {reserved}"


class Look(NamedTuple):
    """The rooms at one moment, whether a pod fits beside the pods that are there, and why it does not fit beside all
    that is known of: a review may look often, and makes the text of the last look."""

    rooms: "NamespaceRooms"
    fits: bool
    shortage: Callable[[], str] | None


class NamespaceRooms(NamedTuple):
    """The rooms of a namespace at one moment."""

    rooms: Sequence[QuotaRoom] = ()
    pod_versions: Mapping[str, str | None] = MappingProxyType({})
    counts_differ: bool = False
    """A raised quota's base or pods are unknown, or the pods' sum differs from status.used."""

    @classmethod
    def from_facts(cls, observed: Iterable[Facts], policy: Policy, pods: Pods | None) -> "NamespaceRooms":
        """Returns the rooms under the observed quotas of one namespace; `pods` None: status.used is all there is."""
        # Also without one that was switched off since the cache was filled.
        served = [facts for facts in observed if is_served(facts.quota, namespace_off=facts.namespace_off)]
        rooms = [QuotaRoom.from_facts(facts, policy, pods) for facts in served]
        raised = [room for facts, room in zip(served, rooms, strict=True) if is_raised(facts.quota)]
        counts_differ = any(pods is None or room is None or room.counts_differ for room in raised)
        return cls([room for room in rooms if room is not None], pods.versions() if pods else {}, counts_differ)

    def counting(self, candidate: Candidate) -> Iterable[QuotaRoom]:
        """Returns the rooms of the quotas that will count a pod."""
        return (room for room in self.rooms if candidate.is_counted_by(room.facts.quota))

    def usages(self, candidate: Candidate) -> Usages:
        """Returns the pod's need by each quota that will count it."""
        return {room.facts.quota.name: room.need_of(candidate) for room in self.counting(candidate)}

    def needs_base(self, candidate: Candidate) -> bool:
        """Reports whether a pod needs anything but what was added for its own VM."""
        return any(not room.base.keys().isdisjoint(room.need_of(candidate)) for room in self.counting(candidate))

    def look(self, candidate: Candidate, unseen: Sequence[Usages]) -> Look:
        """Judges a pod beside the pods that are there, and beside those that this replica admitted and that are not
        seen yet (the ledger)."""

        def shortage(pending: Sequence[Usages] | None) -> Callable[[], str] | None:
            return next(filter(None, (room.shortage(candidate, pending) for room in self.counting(candidate))), None)

        by_pods = shortage(None)
        # Twice: another replica may have admitted as much at the same moment, which nothing shows yet.
        return Look(self, not by_pods, by_pods or shortage([*unseen, *unseen]))


def is_raised(quota: ResourceQuota) -> bool:
    """Reports whether the quota has headroom, also by what quota admission goes by: status.hard. If not, quota itself
    keeps every pod to the base."""
    return has_migrating_vm(quota.annotations) or quota.spec.hard != quota.status.hard


def _charged(facts: Facts, pods: Iterable[Pod], now: float | None) -> ResourceList:
    usages = (facts.charge(pod, now) for pod in pods)
    return total({name: usage[name] for name in facts.quota.hard if name in usage} for usage in usages)


def refused_by_quota(quota: ResourceQuota, candidate: Candidate, namespace: Namespace | None, policy: Policy) -> str:
    """Returns why quota admission itself refuses a pod, by a quota's status, for resources that have no base, or ""."""
    if missing := unnamed_resources(candidate.pod, quota.status.hard or {}):
        return f"failed quota: resource quota {quota.key}: must specify {', '.join(missing)} in every container"
    try:
        limits, used = parse_resource_list(quota.status.hard or {}), parse_resource_list(quota.used)
    except QuantityError:
        return ""
    lacking = lacking_resources(candidate.need, limits, used)
    if lacking and is_served(quota):
        base = base_of(quota, annotation_of(namespace), policy, granted_to(quota, namespace))
        lacking = {name: remainder for name, remainder in lacking.items() if name not in (base.limits or {})}
    return exceeded_message(quota, candidate.need, lacking) if lacking else ""


def migrating_vm(facts: Facts, uid: str, pod: Pod) -> str:
    """Returns the VM whose migration has this uid and is under way, "" if there is none. A launcher has to be that VM's
    own: KubeVirt copies the labels of a VMI to it."""
    active = (vmim.spec.vmi_name for vmim in facts.migrations if vmim.uid == uid and not is_finished(vmim))
    name = next(active, "")
    return name if vm_of(pod) in ("", name) else ""


def is_within_window(facts: Facts, pod: Pod, job: str, releases: Releases) -> bool:
    """Reports whether a target's pod takes no more of a quota than a window adds for its VM: min(source, target). A
    VM's launcher with the label of a migration (`job`) that the API server does not know is none. For any other pod of
    an unknown migration KubeVirt's word is enough, as upstream has it."""
    if vm_of(pod) not in facts.instances and all(vmim.uid != job for vmim in facts.migrations):
        return True
    name = migrating_vm(facts, job, pod)
    vm = next((vm for vm in vms_of(facts, EXACT, Base(None))[0] if vm.name == name), None)
    if vm is None:
        return False
    unused = subtract(vm.target_limit, vm.target)
    usage = pod_usage(pod, releases=releases)
    return all(amount <= unused.get(name, ZERO) for name, amount in usage.items() if name in facts.quota.hard)


def exceeded_message(quota: ResourceQuota, need: Amounts, remainders: Amounts) -> str:
    """Returns which quota is short, and how much it has left. The text begins with quota admission's own words:
    KubeVirt looks for them, and tries again when the quota changes."""
    wants = []
    for name, remainder in sorted(remainders.items()):
        request, left = format_distinctly(name, need[name], max(remainder, ZERO))
        wants.append(f"{name} {request} is requested and {left} is left")
    return f"exceeded quota: resource quota {quota.key} is used up: {', '.join(wants)}"


# Whether a VM can start: Harvester pkg/util/resourcequota/calculator.go, CheckIfVMCanStartByResourceQuota. It measures
# a VM by its limits, and finds out from quota admission what else its pod has; here the need is what quota will count
# of the launcher pod, rendered from the VM's whole template.

_CHECKED: Final = (constants.LIMITS_CPU, "requests.cpu", constants.LIMITS_MEMORY, "requests.memory")
"""The first that is short is named, by its second part."""


def run_strategy(vm: VirtualMachine) -> str:
    """Returns KubeVirt's VirtualMachine.RunStrategy()."""
    if vm.spec.running is not None:
        return "Always" if vm.spec.running else constants.RUN_STRATEGY_HALTED
    return vm.spec.run_strategy or constants.RUN_STRATEGY_HALTED


def wants_to_run(vm: VirtualMachine) -> bool:
    """Reports whether the VM shall run; of one without a status, which KubeVirt has not processed, it is unknown."""
    return bool(vm.status.printable_status) and run_strategy(vm) != constants.RUN_STRATEGY_HALTED


def shortage_of(vm: VirtualMachine, observed: Facts) -> str | None:
    """Returns what the VM lacks to start under `observed.quota`, its namespace's default quota; None when it can, or
    when nothing readable limits it."""
    quota, granted = observed.quota, observed.rancher.granted
    try:
        limiting = (constants.LIMITS_CPU, constants.LIMITS_MEMORY, constants.REQUESTS_STORAGE)  # by upstream
        if parse_limits(observed.limits).keys().isdisjoint(limiting):
            return None
        base = parse_base(observed.limits) if granted is None else minimum(parse_base(observed.limits), granted)
        need = launcher_usage(vmi_of(vm), None, observed.rendering, quota.spec)
    except (ResourceQuotaError, QuantityError):  # the quota's own controller reports it
        return None
    limits = {name: base[name] for name in _CHECKED if base.get(name)}
    used = {name: quantity_of(quota.used, name) for name in limits}
    # What goes when the migrations are over: their entries, or their pods' usage where that is more.
    vms, _ = vms_of(observed, EXACT, base_of(quota, observed.limits, EXACT, granted))
    entries = total(read(quota.annotations).by_key.values())
    promised = maximum(entries, total(vm.used_headroom for vm in vms))
    lacking = lacking_resources(need, limits, used, promised)
    return next((insufficient(name.partition(".")[2]) for name in _CHECKED if name in lacking), None)
