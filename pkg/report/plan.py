"""Which VMs could migrate, at today's overhead ratio or another one, and what would be added for them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from msgspec import field, structs

from kubeloop.api.quantity import ZERO
from kubeloop.api.resource_list import ResourceList, parse_resource_list
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.report.causes import of_instance
from pkg.report.fit import Fit, fits, with_migrations
from pkg.report.snapshot import Document, Snapshot
from pkg.util.amounts import listed
from pkg.util.kubevirt.evidence import trusted_status, vm_of
from pkg.util.kubevirt.migration import is_finished, is_refused
from pkg.util.managedtenantquota.record import readable

_WINDOWS: Final = "one VM after another, under a lock each"


class VmPlan(Document, frozen=True):
    """One VM by itself: whether its target fits with today's ratio and the quotas as they are, at the ratio that was
    asked about, and there once headroom has done what it does; `fits` are at that ratio. One that migrates already is
    not planned. `notes`: what else is known of it, such as that KubeVirt does not migrate it."""

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
    """`together` has the namespaces' quotas when all the VMs of an evacuated node migrate at once."""

    ratio: str | None = field(name="overheadRatio")
    node: str | None = field(name="evacuate")
    vms: Sequence[VmPlan]
    together: Sequence[tuple[str, Fit]]

    def document(self) -> dict[str, Any]:
        document = super().document()
        together = [{"namespace": name, **fit} for name, fit in document.pop("together")]
        return document | ({"together": together} if self.node else {})


def plan_migrations(snapshot: Snapshot, ratio: str | None = None, node: str = "") -> MigrationPlan:
    """Every running VM of the snapshot, or of one node. `ratio` None: as it is configured."""
    instances = sorted(
        (vmi for vmi in snapshot.instances if not node or trusted_status(vmi).node_name == node),
        key=lambda vmi: vmi.key,
    )
    namespaces = sorted({vmi.namespace for vmi in instances})
    vms: list[VmPlan] = []
    together: list[tuple[str, Fit]] = []
    asked = ratio
    for namespace in namespaces:
        here = [vmi for vmi in instances if vmi.namespace == namespace]
        there = _of_namespace(snapshot, namespace)
        planned = list(_vms(there, namespace, here, ratio))
        vms += planned
        asked = snapshot.rendering(namespace, ratio).ratio
        if node:
            found = _together(there, namespace, here, ratio)
            if snapshot.source.budgets.list(namespace):  # a window at a time: none has to fit beside another
                served = all(vm.fits_with_headroom for vm in planned)
                found = [structs.replace(fit, fits_then=served, action=_WINDOWS) for fit in found]
            together += [(namespace, fit) for fit in found]
    return MigrationPlan(asked or None, node or None, vms, together)


def by_budget(snapshot: Snapshot, namespace: str, found: Sequence[Fit]) -> list[Fit]:
    """The same in a namespace that managed tenant quota looks after: what its budget may add to a quota under a lock.
    Two budgets in one namespace add nothing."""
    budgets = snapshot.source.budgets.list(namespace)
    if not budgets:
        return list(found)
    if len(budgets) > 1:
        names = ", ".join(sorted(budget.name for budget in budgets))
        action = f"nothing: the namespace has more than one VirtualMachineMigrationResourceQuota ({names})"
        return [fit if fit.fits_then else structs.replace(fit, action=action) for fit in found]
    most = parse_resource_list(readable(budgets[0].additional)[0])
    return [fit if fit.fits_then else _added_by(fit, budgets[0].name, most) for fit in found]


def _added_by(fit: Fit, budget: str, most: ResourceList) -> Fit:
    missing = {name: need.missing for name, need in fit.needs.items() if need.missing}
    lacking = {name: amount for name, amount in missing.items() if amount > most.get(name, ZERO)}
    if lacking:
        action = f"nothing: {budget} may add {listed(most) or 'nothing'}, {listed(missing)} are missing"
        return structs.replace(fit, action=action)
    action = f"{budget} would add {listed(missing)} under a lock"
    return structs.replace(fit, fits_then=True, raised=missing, action=action)


def _of_namespace(snapshot: Snapshot, namespace: str) -> Snapshot:
    return replace(
        snapshot,
        migrations=[m for m in snapshot.migrations if m.namespace == namespace],
        instances=[vmi for vmi in snapshot.instances if vmi.namespace == namespace],
        pods=[pod for pod in snapshot.pods if pod.namespace == namespace],
    )


def _vms(
    snapshot: Snapshot, namespace: str, instances: Sequence[VirtualMachineInstance], ratio: str | None
) -> Iterable[VmPlan]:
    today = snapshot.rendering(namespace)
    then = snapshot.rendering(namespace, ratio)
    busy = {m.spec.vmi_name: is_refused(m) for m in snapshot.migrations if not is_finished(m)}
    launchers = Counter(vm_of(pod) for pod in snapshot.pods if not pod.terminal)
    held = {name for name, count in launchers.items() if count > 1}
    for instance in instances:
        name, node = instance.name, trusted_status(instance).node_name or None
        if name in busy:
            waits = ["waits for quota"] if busy[name] else []
            yield VmPlan(namespace, name, node, True, True, True, True, (), waits)
            continue
        # Of the other VMs only those that have an entry matter: each look costs what is looked at.
        asked = with_migrations(_only(snapshot, busy.keys() | held | {name}), [instance])
        at_ratio = by_budget(snapshot, namespace, fits(asked, namespace, [name], then, would=True))
        now = at_ratio if ratio is None else fits(asked, namespace, [name], today, would=True)
        yield VmPlan(
            namespace,
            name,
            node,
            migrates=False,
            fits_now=all(fit.fits for fit in now),
            fits_at_ratio=all(fit.fits for fit in at_ratio),
            fits_with_headroom=all(fit.fits_then for fit in at_ratio),
            fits=at_ratio,
            notes=of_instance(snapshot, instance),
        )


def _only(snapshot: Snapshot, names: Collection[str]) -> Snapshot:
    pods = [p for p in snapshot.pods if (owner := vm_of(p)) in names or not owner]
    return replace(snapshot, instances=[v for v in snapshot.instances if v.name in names], pods=pods)


def _together(
    snapshot: Snapshot, namespace: str, instances: Sequence[VirtualMachineInstance], ratio: str | None
) -> list[Fit]:
    busy = {m.spec.vmi_name for m in snapshot.migrations if not is_finished(m)}
    idle = [instance for instance in instances if instance.name not in busy]
    asked = with_migrations(snapshot, idle)
    rendering = snapshot.rendering(namespace, ratio)
    return fits(asked, namespace, [vmi.name for vmi in idle], rendering, would=True)
