"""The usage of one VM's sides, and of the side that KubeVirt would render next. Pure.

A pod counts as far as the VM's spec goes: a tenant may have written it, unless deploy/policy.yaml is in force.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import starmap
from typing import NamedTuple, TypeVar

from kubeloop.api.core import Pod, ResourceQuotaSpec
from kubeloop.api.quantity import ZERO
from kubeloop.api.resource_list import ResourceList, add, maximum, minimum, positive, smallest, subtract, total
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util.amounts import format_amount
from pkg.util.kubevirt.launcher import RenderedFrom, rendered_from, rendered_pod
from pkg.util.kubevirt.migration import Leftover, may_attach, migration_ended_at
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
from pkg.util.quotacount.usage import charged_until, has_scopes
from pkg.util.resourcequota.facts import Facts

_Render = Callable[[VirtualMachineInstance, Side, Rendering, ResourceQuotaSpec], ResourceList]
_T = TypeVar("_T")


class PodsUsage(NamedTuple):
    """The usage of one VM's pods; `target`, `target_limit` and what is pending are VmUsage's without claims."""

    target: ResourceList
    target_limit: ResourceList
    pending_launcher: ResourceList
    pending_attachment: ResourceList
    leftovers: Sequence[Leftover]
    charged_until: Sequence[float]
    younger_limits: frozenset[str]
    too_large: Sequence[str]
    """For people: which pods exceed the VM's spec, and by how much."""


def pods_usage(
    facts: Facts,
    rendering: Rendering,
    vmi: VirtualMachineInstance | None,
    sides: Sides,
    migrations: Sequence[VirtualMachineInstanceMigration],
    active: Sequence[VirtualMachineInstanceMigration],
) -> PodsUsage:
    """Returns the usage of these sides; `migrations` are all of the VM's, `active` those that may go on. `rendering`
    has the limits that the facts' quota asks for. Without a VMI nothing bounds what a pod counts."""
    pods = [
        pod for side in (*sides.source, *sides.target, *sides.leftovers) for pod in (side.launcher, *side.attachments)
    ]
    ends = [end for end in map(charged_until, pods) if end is not None]
    if not (active or sides.leftovers):
        return PodsUsage({}, {}, {}, {}, (), ends, frozenset(), ())
    is_bounded = vmi is not None and not rendering.policy_in_force
    usage = _SideUsage(facts, rendering, vmi or VirtualMachineInstance(), sides, is_bounded)
    source, target = usage.usage_of(sides.source), usage.usage_of(sides.target) if active else {}
    old_usages = [(side.launcher, usage.usage_of((side,))) for side in sides.leftovers]
    leftovers = [
        # It is beyond the base as far as it is not larger than the side in which the VM runs.
        Leftover(
            pod.uid,
            f"pod {pod.name}",
            minimum(old, source) if source else old,
            migration_ended_at(pod.name, migrations),
            keeps_target_away=not pod.terminal,
        )
        for pod, old in old_usages
    ]
    pending = usage.pending(active) if active else ({}, {})
    target_limit = usage.target_limit(source, target, pending) if active else {}
    counted = [
        (sides.source, source),
        *(((side,), old) for side, (_, old) in zip(sides.leftovers, old_usages, strict=True)),
    ]
    counted += [(sides.target, target)] if active else []
    too_large = [text for text in starmap(usage.excess, counted) if text] if is_bounded else []
    return PodsUsage(target, target_limit, *pending, leftovers, ends, usage.younger_limits, too_large)


@dataclass(frozen=True)
class _SideUsage:
    """The usage of one VM's sides; what is costly is computed when it is first read."""

    facts: Facts
    rendering: Rendering
    vmi: VirtualMachineInstance
    sides: Sides
    is_bounded: bool
    """Whether a side counts as far as the VM's spec goes: not under deploy/policy.yaml, nor where no VMI is known."""

    def usage_of(self, sides: Sequence[Side]) -> ResourceList:
        """Returns what counts of a side, launcher and attachment pod each by itself; of several that qualify for the
        same side the smallest."""
        usages = list[ResourceList]()
        for launcher, attachment in (self._counted[side.launcher.uid] for side in sides):
            usage = self._launcher_within(launcher)
            usages.append(add(usage, self._attachment_within(attachment)) if attachment else usage)
        return smallest(usages)

    def excess(self, sides: Sequence[Side], usage: ResourceList) -> str:
        """Returns for people what quota counts of a side beyond `usage`, which is within the VM's spec; "": nothing."""
        counted = smallest(add(*self._counted[side.launcher.uid]) for side in sides)
        excess = sorted(positive(subtract(counted, usage)).items()) if counted != usage else []
        amounts = ", ".join(f"{name} by {format_amount(amount, name)}" for name, amount in excess)
        return amounts and f"pod {sides[0].launcher.name} exceeds what the VM's spec renders to: {amounts}"

    def pending(self, active: Iterable[VirtualMachineInstanceMigration]) -> tuple[ResourceList, ResourceList]:
        """Returns what quota will count of the target's launcher and attachment pod, each as far as it is to come."""
        if self.sides.target:
            is_there = any(side.attachments for side in self.sides.target)
            attaches = not is_there and self._inputs.hotplugged and any(map(may_attach, active))
            return {}, self._attachment if attaches else {}
        both = smallest(self._rendered_today(target_usage))
        return positive(subtract(both, self._attachment)) if self._attachment else both, self._attachment

    def target_limit(
        self, source: ResourceList, target: ResourceList, pending: tuple[ResourceList, ResourceList]
    ) -> ResourceList:
        """Returns what the target may have, min(source, target).

        The source as KubeVirt would render it today has the growth of the overhead in it, and whatever else operators
        have changed since; what was plugged into the VM is only in the target. A target that exists may be older than
        that: it counts as far as the source that runs.
        """
        has_changed = self.rendering.limit_ranges or self.younger_limits or self._inputs.resized
        today = self._rendered_today(source_usage_today if has_changed else target_usage)
        limit = maximum(source, smallest(map(self._side_within, today)))
        if not self.sides.target:
            return minimum(limit, smallest(map(self._side_within, self._rendered_today(target_usage))))
        return minimum(limit, add(target, pending[1]))

    @cached_property
    def younger_limits(self) -> frozenset[str]:
        """The quota's limits that are younger than the source."""
        names = (younger_limits(side.launcher, self.rendering) for side in self.sides.source)
        return frozenset(f"limits.{name}" for name in frozenset[str]().union(*names))

    # ---- how it is computed ----------------------------------------------------------------------------------

    @cached_property
    def _counted(self) -> Mapping[str, tuple[ResourceList, ResourceList]]:
        """The usage of each side's launcher and attachment pod, by the launcher's uid."""
        return {
            s.launcher.uid: (self._charge(s.launcher), total(map(self._charge, s.attachments)))
            for s in (*self.sides.source, *self.sides.target, *self.sides.leftovers)
        }

    @cached_property
    def _attachment(self) -> ResourceList:
        """The usage of an attachment pod like the source's."""
        if not self._inputs.hotplugged:
            return {}
        source = self._as_pattern(self.sides.source[0])
        return attachments_usage(self.vmi, source, self.rendering, self.facts.quota.spec)

    def _charge(self, pod: Pod) -> ResourceList:
        return self.facts.charge(pod, self.facts.now)

    def _launcher_within(self, usage: ResourceList) -> ResourceList:
        if not self.is_bounded or all(amount <= self._plain.get(name, ZERO) for name, amount in usage.items()):
            return usage
        return bounded_usage(usage, self._bound.launcher, self.vmi)

    def _attachment_within(self, usage: ResourceList) -> ResourceList:
        return minimum(usage, self._bound.attachment) if usage and self.is_bounded else usage

    def _side_within(self, usage: ResourceList) -> ResourceList:
        if not self.is_bounded or usage == self._plain:
            return usage
        return bounded_usage(usage, add(self._bound.launcher, self._bound.attachment), self.vmi)

    def _rendered_today(self, render: _Render) -> Iterator[ResourceList]:
        """Renders a side from each that qualifies as the source."""
        inputs = self._inputs
        changed = self.rendering.limit_ranges or self.younger_limits or inputs.resized or inputs.hotplugged
        for number, side in enumerate(self.sides.source):
            if not changed and self._counted[side.launcher.uid] == (self._plain, {}):
                yield self._plain  # as most are: nothing has changed since
                continue
            pattern = self._as_pattern(side)
            rendered = partial(render, self.vmi, pattern, self.rendering, self.facts.quota.spec)
            yield self._rendered((render.__name__, number), pattern.pods, rendered)

    def _as_pattern(self, side: Side) -> Side:
        """Returns the side as a pattern for the next one: without an attachment pod that is larger than KubeVirt's."""
        attachment = self._counted[side.launcher.uid][1]
        return side if self._attachment_within(attachment) == attachment else replace(side, attachments=())

    @cached_property
    def _plain(self) -> ResourceList:
        """The usage of a launcher that the installed release renders from the VM's spec, without what a LimitRange,
        perhaps a tenant's, or another's webhook would add. A pod that counts no more is trusted without its bound."""
        plain = replace(self.rendering, limit_ranges=()) if self.rendering.limit_ranges else self.rendering
        return self._rendered("plain", (), lambda: self._charge(rendered_pod(self.vmi, plain)))

    @cached_property
    def _bound(self) -> UsageBound:
        """The most that a side counts."""
        launcher = self.sides.source[0].launcher
        bound = partial(bound_of, self.vmi, self.rendering, self.facts.quota.spec, launcher)
        return self._rendered("bound", [launcher], bound)

    @cached_property
    def _inputs(self) -> RenderedFrom:
        return rendered_from(self.vmi)

    def _rendered(self, rendering_of: Hashable, pods: Sequence[Pod], render: Callable[[], _T]) -> _T:
        """Renders once as long as all that it is made of is equal: most changes of a VMI are of its state."""
        quota, vmi = self.facts.quota, self.vmi
        scopes = (quota.name, quota.spec.scopes, quota.spec.scope_selector) if has_scopes(quota.spec) else ("",)
        key = rendering_of, vmi.namespace, vmi.name, scopes[0]
        return self.facts.cache.get_or_compute(key, (self.rendering, self._inputs, *scopes[1:], *pods), render)
