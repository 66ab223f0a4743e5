"""A refused migration: is it one, what is missing of its target, and what will a quota count of that? Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

from kubeloop.api.core import LimitRange, LimitRangeItem, LimitRangeSpec, Pod
from kubeloop.api.meta import RawResourceList
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.kubevirt.claims import state_claims
from pkg.util.kubevirt.evidence import ControlledPods, sides_of
from pkg.util.kubevirt.migration import abort_requested, is_finished, is_refused, migration_of
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.kubevirt.target import Side, attachments_usage, has_hotplugged_volumes, launcher_usage
from pkg.util.quotacount.usage import has_scopes
from pkg.util.resource_list import ResourceList, add, format_resource_list, maximum, parse_resource_list
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.observe import Source

_CONTAINER = "Container"
_RUNNING = "Running"
_WAITING = (constants.PHASE_UNSET, constants.PHASE_PENDING)


class Need(NamedTuple):
    """What a quota will count of the pod that is created next, with the claim before it, and of all that the target
    still lacks."""

    next: ResourceList
    all: ResourceList


@dataclass(frozen=True, slots=True)
class Missing:
    """A migration whose target's pods quota refuses. `launcher` False: only the attachment pods are missing."""

    migration: VirtualMachineInstanceMigration
    vmi: VirtualMachineInstance
    source: Side | None
    launcher: bool

    def need(self, facts: Facts) -> Need:
        """Of the facts' quota. Raises QuantityError when a quantity of the VMI is none."""
        rendering, spec = facts.rendering, facts.quota.spec
        attachments = attachments_usage(self.vmi, self.source, rendering, spec)
        if not self.launcher:
            return Need(attachments, attachments)
        launcher = launcher_usage(self.vmi, self.source, rendering, spec)
        if facts.claims is not None and not has_scopes(spec):
            claim = state_claims(self.vmi, [self.migration], facts.claims, rendering, moving=True).to_come
            launcher = add(launcher, claim)
        return Need(launcher, add(launcher, attachments))


def missing_targets(facts: Facts) -> list[Missing]:
    """The refused migrations that wait for a pod of their target, oldest first."""
    pods = ControlledPods(facts.pods)
    found = []
    for migration in sorted(facts.migrations, key=_age):
        vmi = facts.instances.get(migration.spec.vmi_name)
        if vmi is None or migration.phase != constants.PHASE_PENDING or migration.deleting:
            continue
        source = next(iter(sides_of(vmi, [migration], pods).home), None)
        targets = target_pods(migration, vmi, facts.pods)
        if targets:
            is_missing = not abort_requested(migration) and _lacks_attachment(vmi, targets, pods)
        else:
            # KubeVirt starts no target while a pod of an earlier migration runs (its VMIActivePodsCount;
            # status.activePods lists ended pods too).
            is_missing = is_refused(migration) and len(pods.live(vmi.uid)) <= 1
        if is_missing:
            found.append(Missing(migration, vmi, source, launcher=not targets))
    return found


def target_pods(
    migration: VirtualMachineInstanceMigration, vmi: VirtualMachineInstance, pods: Iterable[Pod]
) -> list[Pod]:
    """The migration's target launcher, if it was created, whatever became of it."""
    labels = {constants.LABEL_APP: constants.APP_VIRT_LAUNCHER, constants.LABEL_CREATED_BY: vmi.uid}
    return [pod for pod in pods if migration_of(pod) == migration.uid and labels.items() <= pod.labels.items()]


def with_largest_defaults(rendering: Rendering) -> Rendering:
    """Which of several LimitRanges the API server asks first is not defined: the largest default is reckoned with
    (upstream)."""
    if len(rendering.limit_ranges) < 2:
        return rendering
    items = [item for lr in rendering.limit_ranges for item in lr.spec.limits if item.type == _CONTAINER]
    item = LimitRangeItem(
        type=_CONTAINER,
        default=_largest(item.default for item in items),
        default_request=_largest(item.default_request for item in items),
    )
    return replace(rendering, limit_ranges=(LimitRange(spec=LimitRangeSpec(limits=[item])),))


def with_running(facts: Facts, source: Source) -> Facts:
    """With the source node of every migration of the cluster that runs, or is about to: its target pod is there. Not
    looked at where none waits."""
    if all(migration.phase != constants.PHASE_PENDING for migration in facts.migrations):
        return facts
    migrations = [migration for migration in source.migrations.list() if not is_finished(migration)]
    waiting = {each.uid: each.namespace for each in migrations if each.phase in _WAITING}
    started = {migration_of(pod) for namespace in {*waiting.values()} for pod in source.pods.list(namespace)}
    running = (each for each in migrations if each.uid not in waiting or each.uid in started)
    vmis = (source.instances.get(namespace=each.namespace, name=each.spec.vmi_name) for each in running)
    return replace(facts, running=list(map(_nodes, vmis)))


def _nodes(vmi: VirtualMachineInstance | None) -> frozenset[str]:
    """Where the migration comes from: nodeName moves on before the migration has ended."""
    if vmi is None:
        return frozenset()
    state = vmi.status.migration_state
    return frozenset(filter(None, (vmi.status.node_name, state.source_node if state else None)))


def _lacks_attachment(vmi: VirtualMachineInstance, targets: Sequence[Pod], pods: ControlledPods) -> bool:
    """KubeVirt creates it once the target runs; no condition says that quota refused it."""
    running = {pod.uid for pod in targets if pod.status.phase == _RUNNING}
    sides = [side for side in pods.of(vmi.uid) if side.launcher.uid in running]
    return bool(sides) and has_hotplugged_volumes(vmi) and not any(side.attachments for side in sides)


def _largest(lists: Iterable[RawResourceList | None]) -> RawResourceList:
    return dict(format_resource_list(reduce(maximum, map(parse_resource_list, lists), {})))


def _age(migration: VirtualMachineInstanceMigration) -> tuple[str, str]:
    return migration.metadata.creation_timestamp or "", migration.name
