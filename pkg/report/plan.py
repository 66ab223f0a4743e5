"""Plans which VMs could migrate, at today's overhead ratio or another one, and what would be added for them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from msgspec import field, structs

from kubeloop.api.quantity import ZERO
from kubeloop.api.resource_list import ResourceList, parse_resource_list
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.report.causes import vm_notes
from pkg.report.fit import Fit, fits, with_migrations
from pkg.report.snapshot import Document, Snapshot
from pkg.util.amounts import format_amounts
from pkg.util.kubevirt.evidence import trusted_status, vm_of
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


class MigrationPlan(Document, frozen=True):
    """The plan of several VMs. `together` has the namespaces' quotas when all the VMs of an evacuated node migrate at
    once."""

    ratio: str | None = field(name="overheadRatio")
    node: str | None = field(name="evacuate")
    vms: Sequence[VmPlan]
    together: Sequence[tuple[str, Fit]]

    def document(self) -> dict[str, Any]:
        document = super().document()
        together = [{"namespace": name, **fit} for name, fit in document.pop("together")]
        return document | ({"together": together} if self.node else {})


def plan_migrations(snapshot: Snapshot, ratio: str | None = None, node: str = "") -> MigrationPlan:
    """Plans every running VM of the snapshot, or of one node. `ratio` None: the configured one."""
    instances = sorted(
        (vmi for vmi in snapshot.instances if not node or trusted_status(vmi).node_name == node),
        key=lambda vmi: vmi.key,
    )
    namespaces = sorted({vmi.namespace for vmi in instances})
    vms: list[VmPlan] = []
    together: list[tuple[str, Fit]] = []
    effective_ratio = ratio
    for namespace in namespaces:
        vmis = [vmi for vmi in instances if vmi.namespace == namespace]
        in_namespace = _in_namespace(snapshot, namespace)
        vm_plans = list(_vms(in_namespace, namespace, vmis, ratio))
        vms += vm_plans
        effective_ratio = snapshot.rendering(namespace, ratio).ratio
        if node:
            quota_fits = _together(in_namespace, namespace, vmis, ratio)
            if snapshot.source.budgets.list(namespace):  # a window at a time: none has to fit beside another
                all_fit = all(vm.fits_with_headroom for vm in vm_plans)
                quota_fits = [structs.replace(fit, fits_then=all_fit, action=_WINDOWS) for fit in quota_fits]
            together += [(namespace, fit) for fit in quota_fits]
    return MigrationPlan(effective_ratio or None, node or None, vms, together)


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


def _in_namespace(snapshot: Snapshot, namespace: str) -> Snapshot:
    return replace(
        snapshot,
        migrations=[m for m in snapshot.migrations if m.namespace == namespace],
        instances=[vmi for vmi in snapshot.instances if vmi.namespace == namespace],
        pods=[pod for pod in snapshot.pods if pod.namespace == namespace],
    )


def _vms(
    snapshot: Snapshot, namespace: str, instances: Sequence[VirtualMachineInstance], ratio: str | None
) -> Iterable[VmPlan]:
    today_rendering = snapshot.rendering(namespace)
    at_ratio_rendering = snapshot.rendering(namespace, ratio)
    is_refused_by_vm = {m.spec.vmi_name: is_refused(m) for m in snapshot.migrations if not is_finished(m)}
    launchers = Counter(vm_of(pod) for pod in snapshot.pods if not pod.terminal)
    with_leftovers = {name for name, count in launchers.items() if count > 1}
    for instance in instances:
        name, node = instance.name, trusted_status(instance).node_name or None
        if name in is_refused_by_vm:
            notes = ["waits for quota"] if is_refused_by_vm[name] else []
            yield VmPlan(namespace, name, node, True, True, True, True, (), notes)
            continue
        # Of the other VMs only those that have an entry matter: each look costs what is looked at.
        hypothetical = with_migrations(_only(snapshot, is_refused_by_vm.keys() | with_leftovers | {name}), [instance])
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


def _only(snapshot: Snapshot, names: Collection[str]) -> Snapshot:
    pods = [p for p in snapshot.pods if (owner := vm_of(p)) in names or not owner]
    return replace(snapshot, instances=[v for v in snapshot.instances if v.name in names], pods=pods)


def _together(
    snapshot: Snapshot, namespace: str, instances: Sequence[VirtualMachineInstance], ratio: str | None
) -> list[Fit]:
    migrating = {m.spec.vmi_name for m in snapshot.migrations if not is_finished(m)}
    idle = [instance for instance in instances if instance.name not in migrating]
    hypothetical = with_migrations(snapshot, idle)
    rendering = snapshot.rendering(namespace, ratio)
    return fits(hypothetical, namespace, [vmi.name for vmi in idle], rendering, would=True)
