"""Plans which VMs could migrate, at today's overhead ratio or another one, and what would be added for them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

from msgspec import field, structs

from kubeloop.api.core import Pod
from kubeloop.api.quantity import ZERO
from kubeloop.api.resource_list import ResourceList, parse_resource_list
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.report.causes import vm_notes
from pkg.report.fit import Fit, fits, with_migrations
from pkg.report.snapshot import Document, Snapshot
from pkg.util.amounts import format_amounts
from pkg.util.kubevirt.evidence import is_running, trusted_status, vm_of
from pkg.util.kubevirt.migration import is_finished, is_refused
from pkg.util.managedtenantquota.record import readable

_WINDOWS: Final = "one VM after another, under a lock each"


class VmPlan(Document, frozen=True):
    """The plan of one VM by itself: whether its target fits with today's ratio and the quotas as they are, at the ratio
    that was asked about, and there once headroom has done what it does; `fits` are at that ratio. A VM that migrates
    already is not planned. `notes`: what else is known of the VM, such as that KubeVirt does not migrate it."""

    namespace: str
    vm: str
    node: str | None
    migrates: bool
    fits_now: bool
    fits_at_ratio: bool
    fits_with_headroom: bool
    fits: Sequence[Fit] = field(name="quotas")
    notes: Sequence[str]


class Violation(Document, frozen=True):
    """A VM that would stay on its node, and the reason."""

    namespace: str
    vm: str
    why: str


class NamespaceFit(Fit, frozen=True):
    """The fit of several VMs of a namespace at once."""

    namespace: str


class MigrationPlan(Document, frozen=True):
    """The plan of several VMs. `together` has the namespaces' quotas when all the VMs of an evacuated node migrate at
    once, `violations` those that would not move."""

    ratio: str | None = field(name="overheadRatio")
    node: str | None = field(name="evacuate")
    vms: Sequence[VmPlan]
    together: Sequence[NamespaceFit] = ()
    violations: Sequence[Violation] = ()

    def document(self) -> dict[str, Any]:
        document = super().document()
        return document if self.node else {name: document[name] for name in ("overheadRatio", "evacuate", "vms")}


def plan_migrations(snapshot: Snapshot, ratio: str | None = None) -> MigrationPlan:
    """Plans every running VM of the snapshot. `ratio` None: the configured one."""
    vms = [vm for _, _, vm_plans in _by_namespace(snapshot, snapshot.instances, ratio) for vm in vm_plans]
    return MigrationPlan(_effective_ratio(snapshot, vms, ratio), None, vms)


def plan_evacuations(snapshot: Snapshot, nodes: Collection[str], ratio: str | None = None) -> list[MigrationPlan]:
    """Plans the VMs of each of these nodes, by themselves and all at once while the other nodes stay."""
    vms: dict[str, list[VmPlan]] = {node: [] for node in sorted(nodes)}
    together: dict[str, list[NamespaceFit]] = defaultdict(list)
    instances = [vmi for vmi in snapshot.instances if trusted_status(vmi).node_name in vms]
    for namespace, in_namespace, vm_plans in _by_namespace(snapshot, instances, ratio):
        for node in sorted({vm.node or "" for vm in vm_plans}):
            leaving = [vm for vm in vm_plans if vm.node == node]
            vms[node] += leaving
            together[node] += _together(in_namespace, namespace, leaving, ratio)
    return [
        MigrationPlan(_effective_ratio(snapshot, vm_plans, ratio), node, vm_plans, together[node])
        for node, vm_plans in vms.items()
    ]


def _effective_ratio(snapshot: Snapshot, vms: Sequence[VmPlan], ratio: str | None) -> str | None:
    """Returns the ratio by which the VMs are planned."""
    return (snapshot.rendering(vms[-1].namespace, ratio).ratio if vms else ratio) or None


def _by_namespace(
    snapshot: Snapshot, instances: Sequence[VirtualMachineInstance], ratio: str | None
) -> Iterator[tuple[str, Snapshot, list[VmPlan]]]:
    """Yields each namespace of these VMs with the plans of them, as far as they run."""
    source = snapshot.source
    instances = sorted((vmi for vmi in instances if is_running(vmi) and not vmi.deleting), key=lambda vmi: vmi.key)
    for namespace, vmis in groupby(instances, lambda vmi: vmi.namespace):
        in_namespace = replace(
            snapshot, **{name: getattr(source, name).list(namespace) for name in ("migrations", "instances", "pods")}
        )
        yield namespace, in_namespace, list(_vms(in_namespace, namespace, list(vmis), ratio))


def by_budget(snapshot: Snapshot, namespace: str, quota_fits: Sequence[Fit]) -> list[Fit]:
    """Returns the fits in a namespace that managed tenant quota looks after: what its budget may add to a quota under a
    lock. Two budgets in one namespace add nothing."""
    budgets = snapshot.source.budgets.list(namespace)
    if not budgets:
        return list(quota_fits)
    if len(budgets) > 1:
        names = ", ".join(sorted(budget.name for budget in budgets))
        action = f"nothing: the namespace has more than one VirtualMachineMigrationResourceQuota ({names})"
        return [fit if fit.fits_then else structs.replace(fit, action=action) for fit in quota_fits]
    budget_limits = parse_resource_list(readable(budgets[0].additional)[0])
    return [fit if fit.fits_then else _raised_by_budget(fit, budgets[0].name, budget_limits) for fit in quota_fits]


def _raised_by_budget(fit: Fit, budget: str, budget_limits: ResourceList) -> Fit:
    missing = {name: need.missing for name, need in fit.needs.items() if need.missing}
    beyond_budget = {name: amount for name, amount in missing.items() if amount > budget_limits.get(name, ZERO)}
    if beyond_budget:
        action = (
            f"nothing: {budget} may add {format_amounts(budget_limits) or 'nothing'}, "
            f"{format_amounts(missing)} are missing"
        )
        return structs.replace(fit, action=action)
    action = f"{budget} would add {format_amounts(missing)} under a lock"
    return structs.replace(fit, fits_then=True, raised=missing, action=action)


def _vms(
    snapshot: Snapshot, namespace: str, instances: Sequence[VirtualMachineInstance], ratio: str | None
) -> Iterator[VmPlan]:
    today_rendering = snapshot.rendering(namespace)
    at_ratio_rendering = snapshot.rendering(namespace, ratio)
    active = {m.spec.vmi_name: m for m in snapshot.migrations if not is_finished(m)}
    pods_by_vm: dict[str, list[Pod]] = defaultdict(list)
    for pod in snapshot.pods:
        pods_by_vm[vm_of(pod)].append(pod)
    with_leftovers = {name for name, pods in pods_by_vm.items() if sum(not pod.terminal for pod in pods) > 1}
    with_entries = {"", *active, *with_leftovers}
    for instance in instances:
        name, node = instance.name, trusted_status(instance).node_name or None
        if migration := active.get(name):
            note = "waits for quota" if is_refused(migration) else f"phase {migration.phase or 'unset'}"
            yield VmPlan(namespace, name, node, True, True, True, True, (), [note])
            continue
        # Of the other VMs only those that have an entry matter: each look costs what is looked at.
        names = sorted(with_entries | {name})
        hypothetical = replace(
            with_migrations(snapshot, [instance]),
            instances=[vmi for n in names if (vmi := snapshot.source.instances.get(namespace=namespace, name=n))],
            pods=[pod for n in names for pod in pods_by_vm.get(n, ())],
        )
        ratio_fits = by_budget(
            snapshot, namespace, fits(hypothetical, namespace, [name], at_ratio_rendering, would=True)
        )
        now_fits = ratio_fits if ratio is None else fits(hypothetical, namespace, [name], today_rendering, would=True)
        yield VmPlan(
            namespace,
            name,
            node,
            migrates=False,
            fits_now=all(fit.fits for fit in now_fits),
            fits_at_ratio=all(fit.fits for fit in ratio_fits),
            fits_with_headroom=all(fit.fits_then for fit in ratio_fits),
            fits=ratio_fits,
            notes=vm_notes(snapshot, instance),
        )


def _together(snapshot: Snapshot, namespace: str, vms: Sequence[VmPlan], ratio: str | None) -> list[NamespaceFit]:
    """Returns the fits of all these VMs at once, without those that migrate already."""
    idle = {vm.vm for vm in vms if not vm.migrates}
    hypothetical = with_migrations(snapshot, [vmi for vmi in snapshot.instances if vmi.name in idle])
    quota_fits = fits(hypothetical, namespace, idle, snapshot.rendering(namespace, ratio), would=True)
    if snapshot.source.budgets.list(namespace):
        all_fit = all(vm.fits_with_headroom for vm in vms)  # a window at a time: none has to fit beside another
        quota_fits = [structs.replace(fit, fits_then=all_fit, action=_WINDOWS) for fit in quota_fits]
    return [NamespaceFit(namespace=namespace, **structs.asdict(fit)) for fit in quota_fits]
