"""A cluster, or one namespace, as a few lists show it at one moment: the input of the reports. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Final, cast, get_args, get_origin, get_type_hints

import msgspec

from kubeloop.api.admissionregistration import ValidatingWebhookConfiguration
from kubeloop.api.core import Event, LimitRange, Namespace, PersistentVolumeClaim, Pod, ResourceQuota
from kubeloop.api.meta import Object
from kubeloop.api.resource_list import ResourceList, parse_resource_list
from pkg.api.harvesterhci import Setting
from pkg.api.kubevirt import KubeVirt, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.api.mtq import VirtualMachineMigrationResourceQuota
from pkg.api.rancher import Project
from pkg.report.installation import Installed
from pkg.util.constants import CONFIG_MAP, EVENT_FAILED_CREATE
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.kubevirt.sides import ControlledPods
from pkg.util.quotacount.releases import NEWEST, Releases, doubt, releases_of
from pkg.util.resourcequota.base import base_of
from pkg.util.resourcequota.errors import EVENT_PROJECT_FULL
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.managed import is_default, is_served
from pkg.util.resourcequota.observe import Listed, Observer, Source
from pkg.util.resourcequota.policy import EXACT, Policy, RancherQuotas
from pkg.util.resourcequota.rancher import project_of

OF_FAILURES: Final = (EVENT_FAILED_CREATE, EVENT_PROJECT_FULL)
"""The reasons of events that say why a target pod does not come to be."""


class Document(msgspec.Struct, frozen=True, rename="camel"):
    """What a report says; its fields are the keys of the JSON."""

    def document(self) -> dict[str, Any]:
        """For JSON: quantities in canonical spelling, sorted by their names."""
        found: dict[str, Any] = msgspec.to_builtins(self, enc_hook=str, order="deterministic")
        return found


@dataclass(frozen=True, slots=True)
class Basis:
    """What a report assumes: the controller's mode and estimate, their source ("" without one), the versions of the API
    servers by which pods count (none: that of the newest), whether deploy/policy.yaml is in force, and how quotas with
    Rancher's label are raised, and why so."""

    policy: Policy = EXACT
    source: str = ""
    kubernetes: Sequence[str] = ()
    policy_in_force: bool = False
    rancher_quotas: RancherQuotas = RancherQuotas.DIRECT
    rancher_reason: str = ""

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "mode": self.policy.mode.value,
            "estimate": self.policy.estimate.value,
            "source": self.source or None,
            "kubernetes": list(self.kubernetes),
        }

    @property
    def of_rancher(self) -> str:
        """How quotas with Rancher's label are raised, as a line; "" where headroom writes them as any other."""
        if self.rancher_quotas is RancherQuotas.DIRECT:
            return ""
        return f"quotas of Rancher are raised by {self.rancher_quotas}: {self.rancher_reason}"

    def releases(self) -> Releases:
        return releases_of(self.kubernetes) if self.kubernetes else NEWEST

    @property
    def remarks(self) -> list[str]:
        """A sentence where no controller was found, and one where more is counted than in one release."""
        chosen = f"mode {self.policy.mode.value} and estimate {self.policy.estimate.value}"
        assumed = f"{chosen} are assumed: no ConfigMap {CONFIG_MAP} of a running controller was found"
        doubts = doubt(self.kubernetes) if self.kubernetes else ""
        return [remark for remark in ("" if self.source else assumed, doubts) if remark]


@dataclass(frozen=True)
class Snapshot:
    """The lists. `now` is in seconds since the epoch."""

    now: float
    namespaces: Sequence[Namespace] = ()
    quotas: Sequence[ResourceQuota] = ()
    migrations: Sequence[VirtualMachineInstanceMigration] = ()
    instances: Sequence[VirtualMachineInstance] = ()
    pods: Sequence[Pod] = ()
    claims: Sequence[PersistentVolumeClaim] = ()
    machines: Sequence[VirtualMachine] = ()
    limit_ranges: Sequence[LimitRange] = ()
    kubevirts: Sequence[KubeVirt] = ()
    settings: Sequence[Setting] = ()
    budgets: Sequence[VirtualMachineMigrationResourceQuota] = ()
    projects: Sequence[Project] = ()
    """Rancher's, where it is asked for the quotas of this cluster and they may be read."""
    basis: Basis = field(default_factory=Basis)
    locks: Sequence[ValidatingWebhookConfiguration] = ()
    """Of namespaces that managed tenant quota has locked."""
    installed: Installed = field(default_factory=Installed)
    failures: Sequence[Event] = ()
    """About pods that could not be created, and headroom's about projects of Rancher without room."""

    def migrations_of(self, namespace: str, vm: str) -> list[VirtualMachineInstanceMigration]:
        """All migrations of a VM, finished or not."""
        return [m for m in self.source.migrations.list(namespace) if m.spec.vmi_name == vm]

    def quotas_of(self, namespace: str) -> list[ResourceQuota]:
        """The namespace's quotas, sorted by name."""
        return sorted(self.source.quotas.list(namespace), key=lambda quota: quota.name)

    def project_of(self, namespace: Namespace) -> Project | None:
        """The namespace's Rancher project; None where it is not known."""
        return next((project for project in self.projects if project.id == project_of(namespace)), None)

    def rendering(self, namespace: str, ratio: str | None = None) -> Rendering:
        """How launcher pods are rendered there, now or with another overhead ratio."""
        found = self.source.rendering(namespace)
        return found if ratio is None else replace(found, ratio=ratio, harvester_ratio=ratio)

    def observe(self, quota: ResourceQuota, as_rendered: Rendering | None = None) -> Facts:
        """What a decision about the quota looks at."""
        found = self.observer.observe(quota, self.now)
        return found if as_rendered is None else replace(found, rendering=as_rendered)

    def controlled(self, namespace: str) -> ControlledPods:
        """Returns the namespace's pods by the VMIs that control them."""
        return self._controlled.get(namespace) or ControlledPods((), self.now)

    @cached_property
    def _controlled(self) -> dict[str, ControlledPods]:
        pods: dict[str, list[Pod]] = defaultdict(list)
        for pod in self.pods:
            pods[pod.namespace].append(pod)
        return {namespace: ControlledPods(found, self.now) for namespace, found in pods.items()}

    def base(self, quota: ResourceQuota) -> ResourceList:
        """Returns the quota's limits without what headroom has added."""
        observed, hard = self.observe(quota), parse_resource_list(quota.hard)
        if not is_served(quota):
            return hard
        base = base_of(quota, observed.limits, EXACT, observed.rancher.granted).limits or {}
        return hard | {name: limit for name, limit in base.items() if name in hard}

    @property
    def source(self) -> Source:
        return self.observer.source

    @cached_property
    def observer(self) -> Observer:
        lists = {each.name: Listed(getattr(self, each.name)) for each in fields(Source) if each.name in LISTS}
        basis = self.basis
        source = Source(
            **cast("dict[str, Any]", lists), kubernetes=basis.releases, policy_in_force=lambda: basis.policy_in_force
        )
        asks = is_default if basis.rancher_quotas is RancherQuotas.ANNOTATION else None
        return Observer(source, asks=asks)


LISTS: Final[Mapping[str, type[Object]]] = {
    name: get_args(hint)[0] for name, hint in get_type_hints(Snapshot).items() if get_origin(hint) is Sequence
}
"""The kind of each list of a snapshot."""
