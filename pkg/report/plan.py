"""Plans which VMs could migrate, at today's overhead ratio or another one, and what would be added for them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

from msgspec import field, structs

from kubeloop.api.core import Pod
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.report.causes import vm_notes
from pkg.report.fit import Fit, fits
from pkg.report.snapshot import Document, Snapshot
from pkg.util.kubevirt.evidence import is_running, trusted_status, vm_of
from pkg.util.kubevirt.migration import is_finished, is_refused

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
    vms = [vm for _, vm_plans in _by_namespace(snapshot, snapshot.instances, ratio) for vm in vm_plans]
    return MigrationPlan(_effective_ratio(snapshot, vms, ratio), None, vms)


def plan_evacuations(snapshot: Snapshot, nodes: Collection[str], ratio: str | None = None) -> list[MigrationPlan]:
    """Plans the VMs of each of these nodes, by themselves and all at once while the other nodes stay."""
    vms: dict[str, list[VmPlan]] = {node: [] for node in sorted(nodes)}
    together: dict[str, list[NamespaceFit]] = defaultdict(list)
    instances = [vmi for vmi in snapshot.instances if trusted_status(vmi).node_name in vms]
    for in_namespace, vm_plans in _by_namespace(snapshot, instances, ratio):
        for node in sorted({vm.node or "" for vm in vm_plans}):
            leaving = [vm for vm in vm_plans if vm.node == node]
            vms[node] += leaving
            together[node] += _together(in_namespace, leaving, ratio)
    return [
        MigrationPlan(_effective_ratio(snapshot, vm_plans, ratio), node, vm_plans, together[node])
        for node, vm_plans in vms.items()
    ]


def _effective_ratio(snapshot: Snapshot, vms: Sequence[VmPlan], ratio: str | None) -> str | None:
    """Returns the ratio by which the VMs are planned."""
    return (snapshot.rendering(vms[-1].namespace, ratio).ratio if vms else ratio) or None


def _by_namespace(
    snapshot: Snapshot, instances: Sequence[VirtualMachineInstance], ratio: str | None
) -> Iterator[tuple[Snapshot, list[VmPlan]]]:
    """Yields each namespace of these VMs with the plans of them, as far as they run."""
    source = snapshot.source
    instances = sorted((vmi for vmi in instances if is_running(vmi) and not vmi.deleting), key=lambda vmi: vmi.key)
    for namespace, vmis in groupby(instances, lambda vmi: vmi.namespace):
        in_namespace = replace(
            snapshot,
            migrations=source.migrations.list(namespace),
            instances=source.instances.list(namespace),
            pods=source.pods.list(namespace),
        )
        yield in_namespace, list(_vms(in_namespace, list(vmis), ratio))


def _vms(snapshot: Snapshot, instances: Sequence[VirtualMachineInstance], ratio: str | None) -> Iterator[VmPlan]:
    active = {m.spec.vmi_name: m for m in snapshot.migrations if not is_finished(m)}
    pods_by_vm: dict[str, list[Pod]] = defaultdict(list)
    for pod in snapshot.pods:
        pods_by_vm[vm_of(pod)].append(pod)
    with_leftovers = {name for name, pods in pods_by_vm.items() if sum(not pod.terminal for pod in pods) > 1}
    for instance in instances:
        namespace, name, node = instance.namespace, instance.name, trusted_status(instance).node_name or None
        if migration := active.get(name):
            note = "waits for quota" if is_refused(migration) else f"phase {migration.phase or 'unset'}"
            yield VmPlan(namespace, name, node, True, True, True, True, (), [note])
            continue
        # Of the other VMs only those that have an entry matter: each look costs what is looked at.
        names = {"", name, *active, *with_leftovers}
        alone = replace(
            snapshot,
            instances=[vmi for vmi in snapshot.instances if vmi.name in names],
            pods=[pod for vm in sorted(names) for pod in pods_by_vm.get(vm, ())],
        )
        ratio_fits = fits(alone, namespace, [instance], ratio, would=True)
        now_fits = ratio_fits if ratio is None else fits(alone, namespace, [instance], would=True)
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


def _together(snapshot: Snapshot, vms: Sequence[VmPlan], ratio: str | None) -> list[NamespaceFit]:
    """Returns the fits of all these VMs at once, without those that migrate already."""
    namespace, idle = vms[0].namespace, {vm.vm for vm in vms if not vm.migrates}
    instances = [vmi for vmi in snapshot.instances if vmi.name in idle]
    quota_fits = fits(snapshot, namespace, instances, ratio, would=True)
    if snapshot.source.budgets.list(namespace):
        all_fit = all(vm.fits_with_headroom for vm in vms)  # a window at a time: none has to fit beside another
        quota_fits = [structs.replace(fit, fits_then=all_fit, action=_WINDOWS) for fit in quota_fits]
    return [NamespaceFit(namespace=namespace, **structs.asdict(fit)) for fit in quota_fits]
