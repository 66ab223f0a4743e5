"""What each VM of a namespace claims of one ResourceQuota beyond the base. Pure.

The base is for one side of a VM: a launcher pod and its attachment pod. The claim is for the other one:

    what old sides still use + the target: min(the source as KubeVirt would render it today, the target)

so the same sum holds the headroom before the target exists, while both run, and until the source is gone. What a VM has
grown by, the base pays. `pkg.util.kubevirt.evidence` says which pods are sides, `target` what they are worth at most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, partial
from typing import TypeVar

from kubeloop.api.core import Pod, ResourceQuotaSpec
from kubeloop.api.meta import RawResourceList
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.amounts import shown
from pkg.util.constants import LIMITS_CPU, LIMITS_MEMORY
from pkg.util.kubevirt.evidence import (
    ControlledPods,
    Sides,
    charged_until,
    ended_launchers,
    sides_of,
)
from pkg.util.kubevirt.migration import Demand, Stage, demands, is_finished, may_attach
from pkg.util.kubevirt.observed_overhead import is_resized
from pkg.util.kubevirt.rendering import Rendering, limited_by
from pkg.util.kubevirt.target import (
    Bound,
    Side,
    attachments_usage,
    bound_of,
    has_hotplugged_volumes,
    shape_of,
    side_as_it_was,
    target_usage,
    within,
)
from pkg.util.quantity import ZERO, Quantity
from pkg.util.resource_list import ResourceList, add, maximum, minimum, smallest, subtract, total
from pkg.util.resourcequota.base import base_of
from pkg.util.resourcequota.errors import NoLimits, NotUnderstood, ResourceQuotaError, SideTooLarge
from pkg.util.resourcequota.facts import Claim, Claims, Facts, OldSide
from pkg.util.resourcequota.policy import EstimateKind, Policy

_BOTH_LIMITS: RawResourceList = {LIMITS_CPU: "1", LIMITS_MEMORY: "1"}
"""Which of them count is asked of the base: spec.hard may have lost one, and gets it back with the same patch."""
_Render = Callable[[VirtualMachineInstance, Side, Rendering, ResourceQuotaSpec], ResourceList]
_T = TypeVar("_T")
_AFTER_GRACE = 0.05
"""Seconds: Kubernetes still charges a pod at the very moment at which its grace ends."""
_LONGEST = 250
"""Characters of what is said about a VM that is not understood."""


def claims(facts: Facts, policy: Policy) -> Claims:
    """The claim of every VM that migrates or has an old side left.

    Whatever goes wrong with one VM is that VM's problem: it claims nothing, and the others go on.
    """
    pods = controlled_pods(facts)
    of_vm = migrations_by_vm(facts)
    rendering = rendering_of(facts, policy)
    asked = demands(facts.migrations, facts.instances)
    found: dict[str, Claim] = {}
    problems: list[ResourceQuotaError] = []
    changes: list[float] = []
    for name in sorted(of_vm):
        demand = asked.get(name) or Demand(name, Stage.FINISHED, facts.instances.get(name))
        try:
            worked_out = _worked_out(facts, rendering, policy, demand, of_vm[name], pods)
        except Exception as exc:  # a tenant's objects, read by formulas that were made for KubeVirt's
            problems.append(NotUnderstood(f"VM {name}: {type(exc).__name__}: {exc}"[:_LONGEST], vm=name))
        else:
            found[name] = worked_out.claim
            problems += worked_out.problems
            changes += worked_out.changes
    changes_at = min(changes) + _AFTER_GRACE if changes else None
    return Claims(found, tuple(problems), changes_at)


@dataclass(frozen=True, slots=True)
class _WorkedOut:
    """One VM's claim, what is to be said about it, and when Kubernetes will cease to charge pods of it."""

    claim: Claim
    problems: Sequence[ResourceQuotaError]
    changes: Sequence[float]


def _worked_out(
    facts: Facts,
    rendering: Rendering,
    policy: Policy,
    demand: Demand,
    migrations: Sequence[VirtualMachineInstanceMigration],
    pods: ControlledPods,
) -> _WorkedOut:
    """Worked out once as long as its objects are the same: of a namespace's VMs few change from one decision to the
    next."""
    vmi = demand.vmi
    own = pods.concerning(vmi, migrations)
    key: Hashable = (vmi.namespace, demand.vm_name, policy, rendering.quota_limits) if vmi else None
    if _is_scoped(facts.quota.spec) or any(pod.deleting for pod in own):
        key = None  # the time, or what else the quota asks of a pod, decides as well

    def work_out() -> _WorkedOut:
        sides = sides_of(vmi, migrations, pods)
        ended = len(ended_launchers(vmi, migrations, pods)) if vmi else 0
        vm = _Vm(facts, rendering, policy, demand, migrations, sides, ended)
        claim = vm.claim()
        return _WorkedOut(claim, vm.problems, charged_until((*sides.home, *sides.target, *sides.old)))

    return facts.cache.made(key, (vmi, facts.rendering, *migrations, *own), work_out)


def controlled_pods(facts: Facts) -> ControlledPods:
    """Sorted out once as long as the namespace has the same pods, none of which ends by itself as time goes by."""
    pods = tuple(facts.pods)
    key: Hashable = None if any(pod.deleting for pod in pods) else ("pods", facts.quota.namespace)
    return facts.cache.made(key, pods, lambda: ControlledPods(pods, facts.now))


def _is_scoped(spec: ResourceQuotaSpec) -> bool:
    return bool(spec.scopes or spec.scope_selector)


def rendering_of(facts: Facts, policy: Policy) -> Rendering:
    """With the limits that this quota asks for, also where spec.hard has lost one: it gets it back with the same
    patch."""
    names = {*facts.quota.hard, *(base_of(facts, policy).limits or {})}
    limits = facts.rendering.quota_limits | limited_by(names)
    return replace(facts.rendering, quota_limits=limits)


def migrations_by_vm(facts: Facts) -> Mapping[str, Sequence[VirtualMachineInstanceMigration]]:
    """The migrations of each VM; none of one whose VMI still names the pods of a migration that was deleted."""
    of_vm: dict[str, list[VirtualMachineInstanceMigration]] = defaultdict(list)
    for migration in facts.migrations:
        of_vm[migration.spec.vmi_name].append(migration)
    for name, vmi in facts.instances.items():
        if vmi.status.migration_state is not None:
            of_vm.setdefault(name, [])
    return of_vm


class _Vm:
    """One VM at one moment."""

    def __init__(
        self,
        facts: Facts,
        rendering: Rendering,
        policy: Policy,
        demand: Demand,
        migrations: Sequence[VirtualMachineInstanceMigration],
        sides: Sides,
        ended: int,
    ) -> None:
        self.facts = facts
        self.rendering = rendering
        self.ended = ended
        self.policy = policy
        self.demand = demand
        self.vmi = demand.vmi
        self.migrations = migrations
        self.active = [m for m in migrations if not is_finished(m)]
        self.sides = sides
        self.problems: list[ResourceQuotaError] = []

    def claim(self) -> Claim:
        stage = self._stage()
        moving = stage >= Stage.ANNOUNCED and bool(self.sides.home) and self._may_go_on()
        target = self._worth(self.sides.target)
        room, to_come = self._room() if moving else ({}, {})
        return Claim(
            vm_name=self.demand.vm_name,
            vmi_uid=self.demand.vmi_uid,
            stage=stage,
            migrates=bool(self.migrations),
            since=min((m.metadata.creation_timestamp or "" for m in self.active), default=""),
            old=tuple(self._old(side) for side in self.sides.old),
            target=target if moving else {},
            room=room,
            to_come=to_come,
            formula=self._formula(stage),
            ended=Quantity.of(self.ended) if moving else ZERO,
        )

    def _stage(self) -> Stage:
        if self.sides.arrived and self.active:
            return Stage.ARRIVED
        exact = self.policy.estimate is EstimateKind.EXACT
        if self.demand.stage < (Stage.CREATED if exact else Stage.WANTED):
            return min(self.demand.stage, Stage.ANNOUNCED)
        ready = self._may_go_on() and (bool(self.sides.home) or not exact)
        return max(self.demand.stage, Stage.WANTED) if ready else Stage.ANNOUNCED

    def _may_go_on(self) -> bool:
        """KubeVirt creates a target only of a VMI that runs. One without any status is upstream's case."""
        if self.vmi is None or self.vmi.deleting:
            return False
        phases = (
            (constants.PHASE_RUNNING,)
            if self.policy.estimate is EstimateKind.EXACT
            else (None, "", constants.PHASE_RUNNING)
        )
        return self.vmi.status.phase in phases

    def _room(self) -> tuple[ResourceList, ResourceList]:
        """(what the target may have, what quota will count of its pods that are still to come).

        The source as KubeVirt would render it today has the growth of the overhead in it, and whatever else operators
        have changed since; what was plugged into the VM is only in the target. A target that exists may be older than
        that: it counts as far as the source that runs.
        """
        assert self.vmi is not None
        coming = self._today("target", target_usage)
        today = self._today("source", side_as_it_was) if is_resized(self.vmi) else coming
        source = maximum(self.home, today)
        if not self.sides.target:
            return minimum(source, coming), coming
        attachment = self._attachment_to_come()
        there = self._worth(self.sides.target)
        return minimum(source, add(there, attachment)), attachment

    def _today(self, what: str, render: _Render) -> ResourceList:
        """A side as it would be rendered today, from each that qualifies as the source: the smallest."""
        vmi, spec = self.vmi, self.facts.quota.spec
        assert vmi is not None
        found = []
        for side in map(self._believed, self.sides.home):
            work_out = partial(render, vmi, side, self.rendering, spec)
            found.append(self._rendered(what, side.pods, work_out))
        most = add(self.bound.launcher, self.bound.attachment)
        return smallest(within(usage, most, vmi) for usage in found)

    def _rendered(self, what: str, pods: Sequence[Pod], work_out: Callable[[], _T]) -> _T:
        return self.facts.cache.made(self._key(what, *pods), (self.facts.rendering,), work_out)

    def _key(self, what: str, *pods: Pod) -> Hashable:
        """What a rendering is made of; None where the quota has scopes, which ask for more."""
        if self.vmi is None or _is_scoped(self.facts.quota.spec):
            return None
        return (what, shape_of(self.vmi, pods), self.rendering.quota_limits)

    def _attachment_to_come(self) -> ResourceList:
        vmi = self.vmi
        assert vmi is not None
        attaching = any(map(may_attach, self.active))
        if not attaching or not has_hotplugged_volumes(vmi) or any(s.attachments for s in self.sides.target):
            return {}
        source = self._believed(self.sides.home[0])
        return attachments_usage(vmi, source, self.rendering, self.facts.quota.spec)

    def _formula(self, stage: Stage) -> ResourceList | None:
        harvester = self.policy.estimate is EstimateKind.HARVESTER
        if not harvester or stage < Stage.ANNOUNCED or self.vmi is None or not self._may_go_on():
            return None
        formula = self.facts.estimate(self.vmi, _BOTH_LIMITS)
        if formula is None and stage >= Stage.WANTED:
            self._say(NoLimits, "has neither a cpu nor a memory limit")
        return dict(formula) if formula is not None else None

    def _old(self, side: Side) -> OldSide:
        """What is left over is beyond the base as far as it is not larger than the side that the VM lives in."""
        usage = self._worth((side,))
        if self.home:
            usage = minimum(usage, self.home)
        return OldSide(side.launcher.uid, usage, self._ended(side))

    def _ended(self, side: Side) -> float | None:
        """When the migration that left a side behind ended, as far as KubeVirt says so. Too early a time only shortens
        the hold."""
        name = side.launcher.name
        ordered = sorted(self.migrations, key=lambda m: m.metadata.creation_timestamp or "")
        states = [m.status.migration_state for m in ordered if m.status.migration_state]
        left = [state for state in states if state.source_pod == name]
        last = (left or [state for state in states if state.target_pod == name])[-1:]
        with suppress(ValueError, OverflowError):
            return max(
                (datetime.fromisoformat(s.end_timestamp or "").timestamp() for s in last), default=None
            )
        return None

    def _worth(self, sides: Sequence[Side]) -> ResourceList:
        """What is counted of a side; the smallest of several."""
        usage, limited = smallest(map(self._usage, sides)), smallest(map(self._limited_usage, sides))
        if limited != usage:
            more = subtract(usage, limited)
            what = ", ".join(f"{name} by {shown(q, name)}" for name, q in sorted(more.items()) if q > ZERO)
            name = sides[0].launcher.name
            self._say(SideTooLarge, f"pod {name} exceeds what the VM's spec renders to: {what}")
        return limited

    def _usage(self, side: Side) -> ResourceList:
        return self._usage_of(side.pods)

    def _limited_usage(self, side: Side) -> ResourceList:
        """As far as the VM's spec goes: the launcher and the attachment pod each by itself."""
        if self.vmi is None:
            return self._usage(side)
        launcher, attachment = self._usage_of([side.launcher]), self._usage_of(side.attachments)
        return add(self._limited(launcher), minimum(attachment, self.bound.attachment))

    def _usage_of(self, pods: Sequence[Pod]) -> ResourceList:
        facts = self.facts
        return facts.cache.usage(pods, facts.quota.spec, facts.now, facts.rendering.kubernetes)

    def _limited(self, launcher: Mapping[str, Quantity]) -> ResourceList:
        return dict(launcher) if self.vmi is None else within(launcher, self.bound.launcher, self.vmi)

    def _believed(self, side: Side) -> Side:
        """The side as a pattern for the next one: without an attachment pod that KubeVirt would not make so large."""
        there = self._usage_of(side.attachments)
        return side if minimum(there, self.bound.attachment) == there else replace(side, attachments=())

    @cached_property
    def home(self) -> ResourceList:
        """What is counted of the side in which the VM lives."""
        return self._worth(self.sides.home)

    @cached_property
    def bound(self) -> Bound:
        """The most that a side is worth."""
        if self.vmi is None or not self.sides.home:
            return Bound({}, {})
        rendering = _with_runtime_class(self.rendering, self.sides.home[0].launcher)
        work_out = partial(bound_of, self.vmi, rendering, self.facts.quota.spec)
        return self._rendered("bound", (self.sides.home[0].launcher,), work_out)

    def _say(self, kind: type[ResourceQuotaError], what: str) -> None:
        self.problems.append(kind(f"VM {self.demand.vm_name} {what}", vm=self.demand.vm_name))


# ---- what the claims add up to -------------------------------------------------------------------------------


def taken_by_migrations(facts: Facts, policy: Policy) -> ResourceList:
    """What the pods of migrations use of what is granted to them: targets, and what is left over of sources."""
    return total(claim.granted for claim in claims(facts, policy).by_vm.values())


def _with_runtime_class(rendering: Rendering, launcher: Pod) -> Rendering:
    """With the pod overhead of the RuntimeClass that the KubeVirt CR names for launchers. The API server sets it from
    the RuntimeClass, a cluster object, and admits no pod that says otherwise (its RuntimeClass admission plugin)."""
    named = rendering.kubevirt.default_runtime_class
    if not named or launcher.spec.runtime_class_name != named or not launcher.spec.overhead:
        return rendering
    return replace(rendering, pod_overhead=launcher.spec.overhead)
