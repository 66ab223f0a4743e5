"""A cluster, or one namespace of it, as a few lists show it at one moment: what the reports look at. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pkg.api.admissionregistration import ValidatingWebhookConfiguration
from pkg.api.core import LimitRange, Namespace, Pod, ResourceQuota
from pkg.api.harvesterhci import Setting
from pkg.api.kubevirt import KubeVirt, VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.api.meta import Object, RawResourceList
from pkg.api.mtq import VirtualMachineMigrationResourceQuota
from pkg.util import constants
from pkg.util.memory_overhead import harvester_delta
from pkg.util.quantity import Quantity
from pkg.util.resourcequota.installation import harvester_ratio, rendering
from pkg.util.resourcequota.model import Estimate, EstimateKind, Mode, Observed, Policy, Rendering

T = TypeVar("T", bound=Object)

REPORTED = Policy(Mode.TAKEOVER, EstimateKind.EXACT, settle=0.0)
"""Reports say what headroom does by default, with nothing left to wait for."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The lists. `now` is in seconds since the epoch."""

    now: float
    namespaces: Sequence[Namespace] = ()
    quotas: Sequence[ResourceQuota] = ()
    migrations: Sequence[VirtualMachineInstanceMigration] = ()
    instances: Sequence[VirtualMachineInstance] = ()
    pods: Sequence[Pod] = ()
    limit_ranges: Sequence[LimitRange] = ()
    kubevirts: Sequence[KubeVirt] = ()
    settings: Sequence[Setting] = ()
    budgets: Sequence[VirtualMachineMigrationResourceQuota] = ()
    locks: Sequence[ValidatingWebhookConfiguration] = ()
    """Of namespaces that managed tenant quota has locked."""

    def instance(self, namespace: str, name: str) -> VirtualMachineInstance | None:
        return next((vmi for vmi in self.instances if (vmi.namespace, vmi.name) == (namespace, name)), None)

    def migrations_of(self, namespace: str, vm: str) -> list[VirtualMachineInstanceMigration]:
        """All migrations of a VM, finished or not."""
        return [m for m in self.migrations if (m.namespace, m.spec.vmi_name) == (namespace, vm)]

    def quotas_of(self, namespace: str) -> list[ResourceQuota]:
        """By name."""
        return sorted(_within(self.quotas, namespace), key=lambda quota: quota.name)

    def rendering(self, namespace: str, ratio: str | None = None) -> Rendering:
        """How launcher pods are rendered there, now or with another overhead ratio."""
        setting = next((s for s in self.settings if s.name == constants.SETTING_OVERHEAD_RATIO), None)
        limit_ranges = tuple(_within(self.limit_ranges, namespace))
        found = rendering(self.kubevirts, setting, limit_ranges, None, self._namespace(namespace).labels)
        return found if ratio is None else replace(found, ratio=ratio)

    def observe(self, quota: ResourceQuota, as_rendered: Rendering | None = None) -> Observed:
        """What a decision about the quota looks at."""
        namespace = quota.namespace
        annotations = self._namespace(namespace).annotations
        setting = next((s for s in self.settings if s.name == constants.SETTING_OVERHEAD_RATIO), None)
        return Observed(
            quota=quota,
            limits=annotations.get(constants.ANNOTATION_RANCHER_RESOURCE_QUOTA, ""),
            migrations=tuple(_within(self.migrations, namespace)),
            instances={vmi.name: vmi for vmi in _within(self.instances, namespace)},
            estimate=_harvester_estimate(harvester_ratio(setting)),
            now=self.now,
            pods=tuple(_within(self.pods, namespace)),
            rendering=as_rendered or self.rendering(namespace),
            max_extra=annotations.get(constants.ANNOTATION_MAX_EXTRA, ""),
            mtq=any(True for _ in _within(self.budgets, namespace)),
        )

    def _namespace(self, name: str) -> Namespace:
        return next((n for n in self.namespaces if n.name == name), Namespace())


def _within(objects: Sequence[T], namespace: str) -> Iterator[T]:
    return (obj for obj in objects if obj.namespace == namespace)


def _harvester_estimate(ratio: str) -> Estimate:
    def estimate(vmi: VirtualMachineInstance, hard: RawResourceList) -> Mapping[str, Quantity] | None:
        return harvester_delta(vmi.spec, hard, ratio=ratio, arch=vmi.spec.architecture or "amd64")

    return estimate
