"""Which VMs could migrate, at today's overhead ratio or another one, and what would be added for them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pkg.api.kubevirt import VirtualMachineInstance
from pkg.report.causes import of_instance
from pkg.report.fit import Fit, fits, with_migrations
from pkg.report.snapshot import Snapshot
from pkg.util.kubevirt.evidence import vm_of
from pkg.util.kubevirt.migration import is_finished, is_refused


@dataclass(frozen=True, slots=True)
class VmPlan:
    """One VM by itself. `fits_now` is with today's ratio and the quotas as they are; `fits` are at the ratio that
    was asked about. One that migrates already is not planned."""

    namespace: str
    vm: str
    node: str
    migrates: bool
    fits_now: bool
    fits: Sequence[Fit]
    notes: Sequence[str] = ()
    """What else is known of it: KubeVirt does not migrate it, its volumes move."""

    @property
    def fits_at_ratio(self) -> bool:
        """At the ratio that was asked about, the quotas as they are."""
        return all(fit.fits for fit in self.fits)

    @property
    def fits_with_headroom(self) -> bool:
        """Once headroom has done what it does."""
        return all(fit.fits_then for fit in self.fits)

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "namespace": self.namespace,
            "vm": self.vm,
            "node": self.node or None,
            "migrates": self.migrates,
            "fitsNow": self.fits_now,
            "fitsAtRatio": self.fits_at_ratio,
            "fitsWithHeadroom": self.fits_with_headroom,
            "quotas": [fit.document() for fit in self.fits],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """`together` has the namespaces' quotas when all the VMs of an evacuated node migrate at once."""

    ratio: str
    node: str
    vms: Sequence[VmPlan]
    together: Sequence[tuple[str, Fit]]

    def document(self) -> dict[str, Any]:
        """For JSON."""
        document: dict[str, Any] = {
            "overheadRatio": self.ratio or None,
            "evacuate": self.node or None,
            "vms": [vm.document() for vm in self.vms],
        }
        if self.node:
            document["together"] = [{"namespace": name, **fit.document()} for name, fit in self.together]
        return document


def plan_migrations(snapshot: Snapshot, ratio: str | None = None, node: str = "") -> MigrationPlan:
    """Every running VM of the snapshot, or of one node. `ratio` None: as it is configured."""
    instances = sorted(
        (vmi for vmi in snapshot.instances if not node or vmi.status.node_name == node),
        key=lambda vmi: vmi.key,
    )
    namespaces = sorted({vmi.namespace for vmi in instances})
    vms: list[VmPlan] = []
    together: list[tuple[str, Fit]] = []
    asked = ratio
    for namespace in namespaces:
        here = [vmi for vmi in instances if vmi.namespace == namespace]
        vms += _vms(_of_namespace(snapshot, namespace), namespace, here, ratio)
        asked = snapshot.rendering(namespace, ratio).ratio
        if node:
            together += [(namespace, fit) for fit in _together(snapshot, namespace, here, ratio)]
    return MigrationPlan(asked or "", node, vms, together)


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
        name, node = instance.name, instance.status.node_name or ""
        if name in busy:
            waits = ["waits for quota"] if busy[name] else []
            yield VmPlan(namespace, name, node, True, True, (), waits)
            continue
        # Of the other VMs only those that have an entry matter: each look costs what is looked at.
        asked = with_migrations(_only(snapshot, busy.keys() | held | {name}), [instance])
        at_ratio = fits(asked, namespace, [name], then, would=True)
        now = at_ratio if ratio is None else fits(asked, namespace, [name], today, would=True)
        notes = of_instance(snapshot, instance)
        yield VmPlan(namespace, name, node, False, all(fit.fits for fit in now), at_ratio, notes)


def _only(snapshot: Snapshot, names: Collection[str]) -> Snapshot:
    pods = [p for p in snapshot.pods if (owner := vm_of(p)) in names or not owner]
    return replace(snapshot, instances=[v for v in snapshot.instances if v.name in names], pods=pods)


def _together(
    snapshot: Snapshot, namespace: str, instances: Sequence[VirtualMachineInstance], ratio: str | None
) -> list[Fit]:
    here = _of_namespace(snapshot, namespace)
    busy = {m.spec.vmi_name for m in here.migrations if not is_finished(m)}
    idle = [instance for instance in instances if instance.name not in busy]
    asked = with_migrations(here, idle)
    rendering = snapshot.rendering(namespace, ratio)
    return fits(asked, namespace, [vmi.name for vmi in idle], rendering, would=True)
