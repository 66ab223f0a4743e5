"""Computes how large a namespace's quotas must be: to run its VMs, for the largest to migrate or several at once. Pure.

    all run = what others use + one side of each VM       several at once = all run + the largest second sides

A VM that runs counts what it does now or as KubeVirt would render it, the larger: a restart renders it anew."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from msgspec import field, structs

from kubeloop.api.core import ResourceQuota
from kubeloop.api.objects import edit
from kubeloop.api.quantity import ZERO, Quantity, QuantityError
from kubeloop.api.resource_list import ResourceList, add, maximum, parse_resource_list, positive, subtract, total
from kubeloop.errors import ReportedError
from pkg.api.kubevirt import VirtualMachine, VirtualMachineInstance
from pkg.report.snapshot import Document, Snapshot
from pkg.util import constants
from pkg.util.amounts import format_amounts
from pkg.util.kubevirt.claims import target_claim_usage
from pkg.util.kubevirt.expansion import missing_instancetype, vmi_of, with_defaults
from pkg.util.kubevirt.target import target_usage, usage_of
from pkg.util.managedtenantquota.model import readable
from pkg.util.problems import InvalidEntry
from pkg.util.resourcequota.base import counts_of_claims, is_scaled
from pkg.util.resourcequota.entries import parse_resources
from pkg.util.resourcequota.managed import is_served

_RATIOS: Final = ("1.0", "1.5", "2.0", "3.0", "4.5")
"""From KubeVirt's default to the largest that Harvester advises."""
_MEMORY: Final = "limits.memory"


class NotSized(ReportedError):
    exit_code = 2


class MemorySize(Document, frozen=True):
    ratio: str = field(name="overheadRatio")
    run: Quantity = field(name="allRun")
    largest: Quantity = field(name="largestMigrates")
    at_once: Quantity


class ResourceSize(Document, frozen=True):
    """The size of one resource: `limited` is the base, `others` used by no VM; the last three are what it must be."""

    limited: Quantity
    used: Quantity
    others: Quantity
    run: Quantity = field(name="allRun")
    largest: Quantity = field(name="largestMigrates")
    at_once: Quantity


class QuotaSize(Document, frozen=True):
    """The size of one quota, by resource; `verdicts` say for what its base, and what headroom may add, is enough, and
    which VMs would not start again or are not counted; `ratios` is the size of `limits.memory` at other ratios."""

    name: str
    needs: Mapping[str, ResourceSize] = field(name="resources")
    verdicts: Sequence[str] = ()
    ratios: Sequence[MemorySize] = ()


class Sizes(Document, frozen=True):
    namespace: str
    ratio: str | None = field(name="overheadRatio")
    at_once: int
    vms: Sequence[str]
    quotas: Sequence[QuotaSize]


def sizes(
    snapshot: Snapshot, namespace: str, vms: Sequence[VirtualMachine], at_once: int, grown: Mapping[str, ResourceList]
) -> Sizes:
    """Returns the size of every quota of the namespace. `vms`: all its VMs, those that do not run too; `grown`: the
    other limits, of cpu or memory, that a VM shall have. Raises NotSized for a VM that does not exist or whose size is
    not known, and for invalid quantities."""
    rendering = snapshot.source.rendering(namespace)
    vmis = {vmi.name: vmi for vmi in snapshot.source.instances.list(namespace)}
    halted = [vm for vm in vms if vm.name not in vmis]
    unread = {vm.name: missing for vm in halted if (missing := missing_instancetype(vm))}
    try:
        vmis |= {vm.name: with_defaults(vmi_of(vm), rendering) for vm in halted if vm.name not in unread}
        for vm, limits in grown.items():
            if vm in unread:
                raise NotSized(f"the {unread[vm]} of VM {vm} cannot be read: start the VM first")
            if vm not in vmis:
                raise NotSized(f"there is no VM {vm} in namespace {namespace}")
            vmis[vm] = _with_limits(vmis[vm], limits)
        sizings = (_Sizing(snapshot, quota, vmis, grown.keys(), at_once) for quota in snapshot.quotas_of(namespace))
        by_quota = [sizing.answer() for sizing in sizings]
    except QuantityError as exc:
        raise NotSized(f"a VM of namespace {namespace} has a quantity that is none: {exc}") from exc
    remarks = [
        f"VM {name} is not counted: it does not run, and its {missing} cannot be read: ask again once it runs"
        for name, missing in unread.items()
    ]
    verdict = f"large enough: all VMs run, and {at_once} can migrate at once"
    quotas = [structs.replace(q, verdicts=[*q.verdicts, *remarks] or [verdict]) for q in by_quota if q.needs]
    return Sizes(namespace, snapshot.ratio_in_use, at_once, sorted(vmis), quotas)


class _VmUsage(NamedTuple):
    """The usage of a VM by a quota: as it runs now, restarted, the larger of both, and of its second side."""

    name: str
    running: ResourceList
    restarted: ResourceList
    side: ResourceList
    second: ResourceList


@dataclass(frozen=True)
class _Sizing:
    """The question about one quota: of these VMs, of which one may have grown, several migrate at once."""

    snapshot: Snapshot
    quota: ResourceQuota
    vmis: Mapping[str, VirtualMachineInstance]
    grown: Collection[str]
    at_once: int

    def answer(self) -> QuotaSize:
        vms, needs = self._needs()
        verdicts = [*_run_verdicts(vms, needs), *self._migration_verdicts(needs)]
        ratios = []
        for ratio in _RATIOS if _MEMORY in needs else ():
            size = replace(self, snapshot=replace(self.snapshot, ratio=ratio))._needs()[1][_MEMORY]
            ratios.append(MemorySize(ratio, size.run, size.largest, size.at_once))
        return QuotaSize(self.quota.name, needs, verdicts, ratios)

    def _usages(self) -> Iterator[_VmUsage]:
        namespace, spec = self.quota.namespace, self.quota.spec
        rendering = self.snapshot.source.rendering(namespace)
        claims = {claim.name: claim for claim in self.snapshot.source.claims.list(namespace)}
        for name, vmi in self.vmis.items():
            source = self.snapshot.source_side(vmi)
            running = usage_of(source.pods, spec, rendering.kubernetes) if source else {}
            restarted = target_usage(vmi, None if name in self.grown else source, rendering, spec)
            side = restarted if name in self.grown else maximum(running, restarted)
            yield _VmUsage(name, running, restarted, side, add(side, target_claim_usage(vmi, claims, rendering)))

    def _needs(self) -> tuple[Sequence[_VmUsage], Mapping[str, ResourceSize]]:
        vms, quota, base, needs = list(self._usages()), self.quota, self.snapshot.base(self.quota), {}
        used, all_run = parse_resource_list(quota.used), total(vm.side for vm in vms)
        pods = self.snapshot.source.pods.list(quota.namespace)
        of_vms = usage_of(pods, quota.spec, self.snapshot.basis.releases())
        for name in sorted(filter(is_scaled, base)):
            in_use = used.get(name, ZERO)
            others = max(ZERO, in_use - of_vms.get(name, ZERO))
            run = others if counts_of_claims(name) else others + all_run.get(name, ZERO)
            largest = sorted((vm.second.get(name, ZERO) for vm in vms), reverse=True)[: self.at_once]
            needs[name] = ResourceSize(base[name], in_use, others, run, sum(largest[:1], run), sum(largest, run))
        return vms, needs

    def _migration_verdicts(self, needs: Mapping[str, ResourceSize]) -> Iterator[str]:
        """Yields which migrations cannot be: headroom adds nothing, or less than they ask for."""
        observed, reason = self.snapshot.observe(self.quota), "less may be added"
        is_raised = is_served(self.quota, namespace_off=observed.namespace_off) and not observed.mtq
        if observed.mtq:
            budgets = self.snapshot.source.budgets.list(self.quota.namespace)
            caps = [parse_resource_list(readable(budget.additional)) for budget in budgets]
        elif is_raised:
            texts = filter(None, (self.quota.annotations.get(constants.ANNOTATION_MAX_EXTRA), observed.max_extra))
            try:
                caps = [parse_resources(constants.ANNOTATION_MAX_EXTRA, text) for text in texts]
            except InvalidEntry as exc:
                yield f"{exc}: nothing is added"
                return
        else:
            caps, reason = [dict.fromkeys(needs, ZERO)], "headroom does not scale this quota"
        sizes_by_vms = {
            "the largest VM": {name: need.largest for name, need in needs.items()},
            f"the {self.at_once} largest VMs at once": {name: need.at_once for name, need in needs.items()},
        }
        for vms, asked in sizes_by_vms.items():
            added = {name: asked[name] - need.run for name, need in needs.items()}
            added = added if is_raised else _above_base(asked, needs)
            if beyond := {name: added[name] for cap in caps for name in cap if added.get(name, ZERO) > cap[name]}:
                yield f"too small for {vms} to migrate: {format_amounts(beyond)} more are needed, and {reason}"
                return


def _run_verdicts(vms: Sequence[_VmUsage], needs: Mapping[str, ResourceSize]) -> Iterator[str]:
    """Yields what all VMs lack to run; and those that run and would not start again if they were stopped: the quota, or
    the overhead ratio, has changed. What migrations have left behind goes by itself."""
    if missing := _above_base({name: need.run for name, need in needs.items()}, needs):
        yield f"the base is too small for all VMs to run: it lacks {format_amounts(missing)}"
    now = add({name: need.others for name, need in needs.items()}, total(vm.running for vm in vms))
    for vm in vms:
        missing = _above_base(add(subtract(now, vm.running), vm.restarted), needs) if vm.running else {}
        if missing := {name: amount for name, amount in missing.items() if vm.restarted.get(name)}:
            yield f"VM {vm.name} would not start again: {format_amounts(missing)} are missing"


def _above_base(limits: Mapping[str, Quantity], needs: Mapping[str, ResourceSize]) -> ResourceList:
    return positive({name: limits[name] - need.limited for name, need in needs.items() if name in limits})


def _with_limits(vmi: VirtualMachineInstance, new_limits: ResourceList) -> VirtualMachineInstance:
    """Returns the VMI with these limits: requests grow in proportion, the guest's memory by the difference."""
    domain, changes = vmi.spec.domain, dict[str, Any]()
    limits, requests = dict(domain.resources.limits or {}), dict(domain.resources.requests or {})
    for name, size in new_limits.items():
        old_limit, old_request = (parse_resource_list(raw).get(name) for raw in (limits, requests))
        limits[name] = str(size)
        if old_limit and old_request is not None:
            request = -(-old_request.nanos * size.nanos // old_limit.nanos)
            requests[name] = str(Quantity(request, old_request.format))
        if name == constants.MEMORY and domain.memory.guest is not None and old_limit:
            changes["memory"] = {"guest": str(Quantity.parse(domain.memory.guest) + size - old_limit)}
        if name == constants.CPU:
            changes["cpu"] = {"cores": size.value(), "sockets": 1, "threads": 1}
    return edit(vmi, spec={"domain": {**changes, "resources": {"limits": limits, "requests": requests}}})
