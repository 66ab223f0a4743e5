"""Holds a cluster, or one namespace, as a few lists show it at one moment: the input of the reports. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec
from msgspec import structs

from kubeloop.api import core
from kubeloop.api.meta import Object
from kubeloop.api.registry import kind_of
from kubeloop.api.resource_list import ResourceList, parse_resource_list
from kubeloop.logs import quoted
from pkg.api.harvesterhci import Setting
from pkg.api.kubevirt import KubeVirt, Move, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.api.mtq import VirtualMachineMigrationResourceQuota
from pkg.report.installation import Installed
from pkg.util import constants
from pkg.util.kubevirt.claims import moves_of
from pkg.util.kubevirt.migration import is_refused
from pkg.util.kubevirt.sides import ControlledPods, sides_of
from pkg.util.kubevirt.target import Side
from pkg.util.managedtenantquota.lock import Lock, recognise
from pkg.util.managedtenantquota.model import Observed
from pkg.util.managedtenantquota.model import observe as observe_namespace
from pkg.util.quotacount.releases import NEWEST, Releases, doubt, releases_of
from pkg.util.resourcequota.base import Base, base_of
from pkg.util.resourcequota.facts import Cache, Facts
from pkg.util.resourcequota.managed import is_default, is_served
from pkg.util.resourcequota.observe import Listed, Source
from pkg.util.resourcequota.policy import EXACT, EstimateKind, Mode, Policy, RancherQuotas
from pkg.util.resourcequota.vm import VmUsage, vms_of


def event_text(event: core.Event) -> str:
    """Quotes an event: every user who may create events can have written it."""
    return f"event of {event.involved_object.name} at {event.last_timestamp}: {quoted(event.message)}"


class Document(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a report; its fields are the keys of the JSON."""

    def document(self) -> dict[str, Any]:
        """Returns the JSON: quantities in canonical spelling, sorted by their names."""
        return dict(msgspec.to_builtins(self, enc_hook=str, order="deterministic"))


class Basis(Document, frozen=True):
    """The assumptions of a report, of which `source` is None where no controller published them; `kubernetes` are the
    versions of the API servers by which pods count: if there are none, the newest."""

    mode: Mode = EXACT.mode
    estimate: EstimateKind = EXACT.estimate
    source: str | None = None
    kubernetes: Sequence[str] = ()
    policy_in_force: bool = False
    """Of deploy/policy.yaml."""
    rancher_quotas: RancherQuotas = RancherQuotas.DIRECT
    rancher_reason: str = ""
    hold_limit: float = EXACT.hold_limit

    def document(self) -> dict[str, Any]:
        """Returns what changes a report's amounts."""
        builtins = msgspec.to_builtins(self)
        return {name: builtins[name] for name in ("mode", "estimate", "source", "kubernetes")}

    def with_flags(self, mode: Mode | None, estimate: EstimateKind | None) -> "Basis":
        """Returns the basis by flags, of which None leaves what was found; the estimate that was is of that mode."""
        if not (mode or estimate):
            return self
        found = self.estimate if mode in (None, self.mode) else EXACT.estimate
        return structs.replace(self, mode=mode or self.mode, estimate=estimate or found, source="flags")

    @property
    def policy(self) -> Policy:
        return Policy(self.mode, self.estimate, hold_limit=self.hold_limit)

    def releases(self) -> Releases:
        return releases_of(self.kubernetes) if self.kubernetes else NEWEST

    def remarks(self) -> Iterator[str]:
        """Yields how Rancher's quotas are raised; that no controller is there to go by; that several releases count."""
        if self.rancher_quotas is not RancherQuotas.DIRECT:
            yield f"quotas of Rancher are raised by {self.rancher_quotas}: {self.rancher_reason}"
        if not self.source:
            choice = f"mode {self.mode.value} and estimate {self.estimate.value}"
            yield f"{choice} are assumed: no ConfigMap {constants.CONFIG_MAP} of a running controller was found"
        if self.kubernetes and (doubts := doubt(self.kubernetes)):
            yield doubts


@dataclass(frozen=True)
class Snapshot:
    now: float
    """Seconds since the epoch."""
    namespaces: Sequence[core.Namespace] = ()
    quotas: Sequence[core.ResourceQuota] = ()
    migrations: Sequence[VirtualMachineInstanceMigration] = ()
    instances: Sequence[VirtualMachineInstance] = ()
    pods: Sequence[core.Pod] = ()
    claims: Sequence[core.PersistentVolumeClaim] = ()
    machines: Sequence[VirtualMachine] = ()
    limit_ranges: Sequence[core.LimitRange] = ()
    kubevirts: Sequence[KubeVirt] = ()
    settings: Sequence[Setting] = ()
    budgets: Sequence[VirtualMachineMigrationResourceQuota] = ()
    basis: Basis = field(default_factory=Basis)
    locks: Sequence[core.ValidatingWebhookConfiguration] = ()
    """All configurations; those of managed tenant quota's locks are among them."""
    installed: Installed = field(default_factory=Installed)
    failures: Sequence[core.Event] = ()
    """The events that were asked for: all, or those of pods that could not be created and of projects without room."""
    ratio: str | None = None
    """The overhead ratio that is tried; None: the configured one."""
    cache: Cache = field(default_factory=Cache, repr=False, compare=False)
    """What depends on objects alone: shared with the snapshots that are made of this one."""

    def migrations_of(self, vmi: VirtualMachineInstance) -> list[VirtualMachineInstanceMigration]:
        return [m for m in self.source.migrations.list(vmi.namespace) if m.spec.vmi_name == vmi.name]

    @cached_property
    def waiting(self) -> list[VirtualMachineInstanceMigration]:
        """The migrations that quota refuses, of the namespaces that were read: other lists have no more."""
        names = {namespace.name for namespace in self.namespaces}
        return [m for m in self.migrations if m.namespace in names and is_refused(m)]

    def source_side(self, vmi: VirtualMachineInstance) -> Side | None:
        """Returns the pods of the side on which a VM lives, or None if it does not run."""
        pods = tuple(self.source.pods.list(vmi.namespace))
        key = ("controlled pods", vmi.namespace)
        controlled_pods = self.cache.get_or_compute(key, pods, lambda: ControlledPods(pods, self.now))
        return next(iter(sides_of(vmi, self.migrations_of(vmi), controlled_pods).source), None)

    def moves_of(self, vmi: VirtualMachineInstance) -> Sequence[Move]:
        return moves_of(vmi, self.source.machines.get(namespace=vmi.namespace, name=vmi.name))

    def quotas_of(self, namespace: str) -> list[core.ResourceQuota]:
        return sorted(self.source.list_quotas(namespace), key=lambda quota: quota.name)

    def failures_of(self, reason: str, obj: Object, since: str | None) -> list[core.Event]:
        """Returns the events of a reason about an object since an RFC 3339 time; the latest is the last."""
        key = (kind_of(obj)[1], obj.namespace, obj.name)
        about = ((event, event.involved_object) for event in self.failures if event.reason == reason)
        events = [event for event, target in about if (target.kind, target.namespace, target.name) == key]
        recent = [event for event in events if event.last_timestamp and event.last_timestamp >= (since or "")]
        return sorted(recent, key=lambda event: event.last_timestamp or "")

    @cached_property
    def ratio_in_use(self) -> str | None:
        return self.source.rendering("").ratio or None

    def observe(self, quota: core.ResourceQuota) -> Facts:
        return self.source.observe(quota, self.now)

    def base(self, quota: core.ResourceQuota) -> ResourceList:
        """Returns the quota's limits without what headroom has added."""
        hard = parse_resource_list(quota.hard)
        base = _exact_base(self.observe(quota)).limits if is_served(quota) else None
        return hard | {name: limit for name, limit in (base or {}).items() if name in hard}

    def observe_window(self, namespace: str) -> Observed:
        """Returns the input of a decision about a namespace with a budget, except whether it can be locked."""
        return observe_namespace(self.source, self.lock_by_namespace.get(namespace), namespace, self.now)

    @cached_property
    def lock_by_namespace(self) -> Mapping[str, Lock]:
        return {lock.namespace: lock for lock in map(recognise, self.locks) if lock is not None}

    @cached_property
    def source(self) -> Source:
        basis, names = self.basis, LISTS.keys() - {"locks", "failures"}
        lists: dict[str, Any] = {name: Listed(getattr(self, name)) for name in names}
        return Source(
            **lists,
            kubernetes=basis.releases,
            policy_in_force=lambda: basis.policy_in_force,
            ratio=self.ratio,
            asks=is_default if basis.rancher_quotas is RancherQuotas.ANNOTATION else None,
            cache=self.cache,
        )


def usages_of(observed: Facts) -> list[VmUsage]:
    """Returns the VMs that may have something of the quota beyond its base, by what quota will count."""
    return vms_of(observed, EXACT, _exact_base(observed))[0]


def _exact_base(observed: Facts) -> Base:
    return base_of(observed.quota, observed.limits, EXACT, observed.rancher.granted)


LISTS: Final[Mapping[str, type[Object]]] = {
    name: get_args(hint)[0] for name, hint in get_type_hints(Snapshot).items() if get_origin(hint) is Sequence
}
