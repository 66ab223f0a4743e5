"""The usage of one VM's sides, and of the side that KubeVirt would render next. Pure.

A pod counts as far as the VM's spec goes: a tenant may have written it, unless deploy/policy.yaml is in force."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeVar

from kubeloop.api.core import Pod, ResourceQuotaSpec
from kubeloop.api.quantity import ZERO
from kubeloop.api.resource_list import ResourceList, add, maximum, minimum, positive, smallest, subtract, total
from pkg.api.kubevirt import VirtualMachineInstance
from pkg.util.amounts import format_amount
from pkg.util.kubevirt.launcher import RenderedFrom, rendered_from, rendered_pod
from pkg.util.kubevirt.migration import Leftover, Migrations, may_attach, migration_ended_at
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.kubevirt.sides import Sides
from pkg.util.kubevirt.target import (
    Side,
    UsageBound,
    attachments_usage,
    bound_of,
    bounded_usage,
    source_usage_today,
    target_usage,
    younger_limits,
)
from pkg.util.resourcequota.facts import Facts

_Render = Callable[[VirtualMachineInstance, Side, Rendering, ResourceQuotaSpec], ResourceList]
_T = TypeVar("_T")


@dataclass(frozen=True)
class SideUsage:
    """The usage of one VM's sides; what is costly is computed when it is first read. Of a VMI that is not known, an
    empty one, nothing bounds what a pod counts, and there is no active migration."""

    facts: Facts
    """Its rendering has the limits that its quota asks for."""
    vmi: VirtualMachineInstance
    sides: Sides
    migrations: Migrations
    active: Migrations

    @cached_property
    def target(self) -> ResourceList:
        return self._usage_of(self.sides.target) if self.active else {}

    @cached_property
    def leftovers(self) -> Sequence[Leftover]:
        """Sides of earlier migrations: beyond the base as far as they are no larger than the side where the VM runs."""
        source = self._usage_of(self.sides.source) if self.sides.leftovers else {}
        return [
            Leftover(
                side.launcher.uid,
                f"pod {side.launcher.name}",
                minimum(usage, source) if source else usage,
                migration_ended_at(side.launcher.name, self.migrations),
                keeps_target_away=not side.launcher.terminal,
            )
            for side, usage in ((side, self._usage_of((side,))) for side in self.sides.leftovers)
        ]

    @cached_property
    def pending(self) -> tuple[ResourceList, ResourceList]:
        """Returns what quota will count of the target's launcher and attachment pod, each as far as it is to come."""
        if not self.active:
            return {}, {}
        if self.sides.target:
            is_there = any(side.attachments for side in self.sides.target)
            attaches = not is_there and self._inputs.hotplugged and any(map(may_attach, self.active))
            return {}, self._attachment if attaches else {}
        both = smallest(self._rendered_today(target_usage))
        return positive(subtract(both, self._attachment)) if self._attachment else both, self._attachment

    @cached_property
    def target_limit(self) -> ResourceList:
        """Returns what the target may have, min(source, target).

        The source as KubeVirt would render it today has the growth of the overhead in it, and whatever else operators
        have changed since; what was plugged into the VM is only in the target. A target that exists may be older than
        that: it counts as far as the source that runs."""
        target, (_, attachment) = self.target, self.pending
        if not self.active:
            return {}
        has_changed = self.facts.rendering.limit_ranges or self.younger_limits or self._inputs.resized
        today = self._rendered_within(source_usage_today if has_changed else target_usage)
        limit = maximum(self._usage_of(self.sides.source), today)
        return minimum(limit, add(target, attachment) if self.sides.target else self._rendered_within(target_usage))

    @cached_property
    def younger_limits(self) -> frozenset[str]:
        names = (younger_limits(side.launcher, self.facts.rendering) for side in self.sides.source)
        return frozenset(f"limits.{name}" for name in frozenset[str]().union(*names))

    def excesses(self) -> Iterator[str]:
        """Yields for people what quota counts of a side beyond the VM's spec."""
        if not (self._is_bounded and (self.leftovers or self.active)):
            return
        target = self.sides.target if self.active else ()
        for sides in (self.sides.source, *((side,) for side in self.sides.leftovers), target):
            counted = smallest(add(*self._counted[side.launcher.uid]) for side in sides)
            if excess := sorted(positive(subtract(counted, self._usage_of(sides))).items()):
                amounts = ", ".join(f"{name} by {format_amount(amount, name)}" for name, amount in excess)
                yield f"pod {sides[0].launcher.name} exceeds what the VM's spec renders to: {amounts}"

    @cached_property
    def _inputs(self) -> RenderedFrom:
        return rendered_from(self.vmi)

    @property
    def _is_bounded(self) -> bool:
        """Whether a side counts as far as the VM's spec goes: not under deploy/policy.yaml."""
        return bool(self.vmi.name) and not self.facts.rendering.policy_in_force

    def _usage_of(self, sides: Iterable[Side]) -> ResourceList:
        """Returns what counts of a side: of several that qualify for it the smallest."""
        return smallest(self._usages[side.launcher.uid] for side in sides)

    @cached_property
    def _usages(self) -> Mapping[str, ResourceList]:
        """The usage of each side as far as it counts, launcher and attachment each by itself, by the launcher's uid."""
        return {
            uid: add(self._within(launcher), self._attachment_within(attachment))
            for uid, (launcher, attachment) in self._counted.items()
        }

    @cached_property
    def _counted(self) -> Mapping[str, tuple[ResourceList, ResourceList]]:
        """The usage of each side's launcher and attachment pod, by the launcher's uid."""
        return {
            s.launcher.uid: (self._pod_usage(s.launcher), total(map(self._pod_usage, s.attachments)))
            for s in (*self.sides.source, *self.sides.target, *self.sides.leftovers)
        }

    @cached_property
    def _attachment(self) -> ResourceList:
        """The usage of an attachment pod like the source's."""
        if not self._inputs.hotplugged:
            return {}
        source = self._as_pattern(self.sides.source[0])
        return attachments_usage(self.vmi, source, self.facts.rendering, self.facts.quota.spec)

    def _pod_usage(self, pod: Pod) -> ResourceList:
        return self.facts.usage(pod, self.facts.now)

    def _within(self, usage: ResourceList, *, with_attachment: bool = False) -> ResourceList:
        """Returns what counts of a launcher, or of a whole side."""
        if not self._is_bounded or all(amount <= self._plain.get(name, ZERO) for name, amount in usage.items()):
            return usage
        bound = add(*self._bound) if with_attachment else self._bound.launcher
        return bounded_usage(usage, bound, self.vmi)

    def _attachment_within(self, usage: ResourceList) -> ResourceList:
        return minimum(usage, self._bound.attachment) if usage and self._is_bounded else usage

    def _rendered_within(self, render: _Render) -> ResourceList:
        return smallest(self._within(usage, with_attachment=True) for usage in self._rendered_today(render))

    def _rendered_today(self, render: _Render) -> Iterator[ResourceList]:
        """Renders a side from each that qualifies as the source."""
        facts, inputs = self.facts, self._inputs
        changed = facts.rendering.limit_ranges or self.younger_limits or inputs.resized or inputs.hotplugged
        for number, side in enumerate(self.sides.source):
            if not changed and self._counted[side.launcher.uid] == (self._plain, {}):
                yield self._plain  # as most are: nothing has changed since
                continue
            pattern = self._as_pattern(side)
            rendered = partial(render, self.vmi, pattern, facts.rendering, facts.quota.spec)
            yield self._rendered((render.__name__, number), pattern.pods, rendered)

    def _as_pattern(self, side: Side) -> Side:
        """Returns the side as a pattern for the next one: without an attachment pod that is larger than KubeVirt's."""
        attachment = self._counted[side.launcher.uid][1]
        return side if self._attachment_within(attachment) == attachment else replace(side, attachments=())

    @cached_property
    def _plain(self) -> ResourceList:
        """The usage of a launcher that the installed release renders from the VM's spec, without what a LimitRange,
        perhaps a tenant's, or another's webhook would add. A pod that counts no more is trusted without its bound."""
        rendering = self.facts.rendering
        plain = replace(rendering, limit_ranges=()) if rendering.limit_ranges else rendering
        return self._rendered("plain", (), lambda: self._pod_usage(rendered_pod(self.vmi, plain)))

    @cached_property
    def _bound(self) -> UsageBound:
        launcher = self.sides.source[0].launcher
        bound = partial(bound_of, self.vmi, self.facts.rendering, self.facts.quota.spec, launcher)
        return self._rendered("bound", [launcher], bound)

    def _rendered(self, rendering_of: Hashable, pods: Sequence[Pod], render: Callable[[], _T]) -> _T:
        """Renders once as long as all that it is made of is equal: most changes of a VMI are of its state."""
        facts, vmi, spec = self.facts, self.vmi, self.facts.quota.spec
        key = rendering_of, vmi.namespace, vmi.name, str((spec.scopes, spec.scope_selector))
        return facts.cache.get_or_compute(key, (facts.rendering, self._inputs, *pods), render)
