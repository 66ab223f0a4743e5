"""What one VM may have of a ResourceQuota beyond the base. Pure.

The base is for one side of a VM: a launcher pod and its attachment pod. What is added is for the other one:

    the larger of (what old sides still use, the target: min(the source as KubeVirt would render it today, the target))

so the same sum holds the headroom before the target exists, while both run, and until the source is gone. What a VM has
grown by, the base pays. `pkg.util.kubevirt.sides` says which pods are sides, `target` what they are worth at most.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TypeVar

from kubeloop.api.core import Pod, ResourceQuotaSpec
from kubeloop.api.meta import RawResourceList
from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.resource_list import ResourceList, add, maximum, minimum, smallest, subtract, total
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.amounts import shown
from pkg.util.constants import LIMITS_CPU, LIMITS_MEMORY
from pkg.util.kubevirt.claims import NOTHING, Labelled, Move, doubled, state_claims
from pkg.util.kubevirt.evidence import trusted_status
from pkg.util.kubevirt.launcher import rendered_from, rendered_pod
from pkg.util.kubevirt.migration import PRIORITIES, Leftover, Stage, left_at, may_attach, stage_of
from pkg.util.kubevirt.overhead import harvester_delta
from pkg.util.kubevirt.rendering import Rendering
from pkg.util.kubevirt.sides import ControlledPods, ended_launchers, sides_of
from pkg.util.kubevirt.target import (
    Bound,
    Side,
    attachments_usage,
    bound_of,
    limits_since,
    side_as_it_was,
    target_usage,
    within,
)
from pkg.util.quotacount.usage import charged_until, has_scopes
from pkg.util.resourcequota.entries import migrating_keys
from pkg.util.resourcequota.errors import EVENT_NOT_SCALED, EVENT_TOO_LARGE, ResourceQuotaError
from pkg.util.resourcequota.facts import Facts

_BOTH_LIMITS: RawResourceList = {LIMITS_CPU: "1", LIMITS_MEMORY: "1"}
"""Which of them count is asked of the base: spec.hard may have lost one, and gets it back with the same patch."""
_Render = Callable[[VirtualMachineInstance, Side, Rendering, ResourceQuotaSpec], ResourceList]
_T = TypeVar("_T")


class Vm:
    """One VM at one moment. Resources are by every name that quota counts them under."""

    def __init__(
        self,
        name: str,
        facts: Facts,
        rendering: Rendering,
        migrations: Sequence[VirtualMachineInstanceMigration],
        pods: ControlledPods,
        moved: Sequence[Move],
        labelled: Labelled,
        *,
        exact: bool,
    ) -> None:
        """`migrations` are all of the VM's, `pods` and `labelled` the namespace's, `moved` its volumes that move;
        `exact`: by what quota will count, not by Harvester's formula."""
        self.name, self.vmi, self.migrations = name, facts.instances.get(name), migrations
        self.uid = self.vmi.uid if self.vmi else ""
        self.keys = migrating_keys(name, self.uid)
        """All that its entries may have."""
        self.problems: list[ResourceQuotaError] = []
        self._rendering, self._spec, self._cache, self._exact = rendering, facts.quota.spec, facts.cache, exact
        self._scoped = facts.quota.name if has_scopes(self._spec) else ""
        self._sides = sides = sides_of(self.vmi, migrations, pods)
        stages = [stage_of(each) for each in migrations]
        self._active = [each for each, stage in zip(migrations, stages, strict=True) if stage > Stage.FINISHED]
        self.priority = max((PRIORITIES.get(each.spec.priority or "", 0) for each in self._active), default=0)
        """By what KubeVirt starts it before others."""
        self.since = min((each.metadata.creation_timestamp or "" for each in self._active), default="")
        """The creation time (RFC 3339) of its oldest migration under way: first come, first served."""
        # KubeVirt creates a target only of a VMI that runs. One without any status is upstream's case.
        phases = (constants.PHASE_RUNNING,) if exact else (constants.PHASE_RUNNING, None, "")
        self._may_go_on = self.vmi is not None and not self.vmi.deleting and trusted_status(self.vmi).phase in phases
        self.stage = self._stage(max(stages, default=Stage.FINISHED))
        of_sides = [p for side in (*sides.home, *sides.target, *sides.old) for p in (side.launcher, *side.attachments)]
        self.charged_until = [at for at in map(charged_until, of_sides) if at is not None]
        self._work_out(
            facts, moved, labelled, moving=self.stage >= Stage.ANNOUNCED and bool(sides.home) and self._may_go_on
        )
        ended = ended_launchers(self.vmi, migrations, pods) if self.vmi and self.allowed and pods.ended else ()
        self.ended = Quantity.of(len(ended))
        """How many pods of earlier migrations are over and still there, while this one needs headroom: as objects they
        count."""

    def _work_out(self, facts: Facts, moved: Sequence[Move], labelled: Labelled, *, moving: bool) -> None:
        sides, counts = self._sides, self._rendering.kubernetes
        usage = self._charged = partial(facts.cache.usage, spec=self._spec, now=facts.now, releases=counts)
        self._usages = {
            side.launcher.uid: (usage(side.launcher), total(map(usage, side.attachments)))
            for side in ((*sides.home, *sides.target, *sides.old) if moving or sides.old else ())
        }
        self._made_of = rendered_from(self.vmi) if self.vmi and self._usages else None
        self._has_hotplugged = self._made_of is not None and self._made_of.hotplugged
        self.limits_since = {
            f"limits.{name}"
            for side in (sides.home if self._usages else ())
            for name in limits_since(side.launcher, self._rendering)
        }
        """What the quota limits only since the side was created in which the VM lives."""
        is_resized = self._made_of is not None and self._made_of.resized
        self._has_changed = bool(self._rendering.limit_ranges or self.limits_since) or is_resized
        self._plain = self._plain_launcher() if self._usages else {}
        home = self._worth(sides.home)
        storage, volumes = NOTHING, NOTHING
        if facts.claims is not None and not has_scopes(self._spec):  # one with scopes counts no claims
            lives_in = [side.launcher.name for side in sides.home]
            storage = state_claims(
                self.vmi,
                self.migrations,
                facts.claims,
                self._rendering,
                labelled=labelled,
                home=lives_in,
                moving=moving,
            )
            volumes = doubled(moved, facts.claims, counts)
        self.doubled = volumes.there if facts.storage_migration else {}
        """What its disks count twice while its volumes move, where an administrator lets that be added."""
        self.volumes_to_come = volumes.to_come
        """What quota will count of the claims that they move to."""
        # What is left over is beyond the base as far as it is not larger than the side that the VM lives in.
        left = [(side.launcher, self._worth((side,))) for side in sides.old]
        self.old_sides: Sequence[Leftover] = [
            Leftover(
                pod.uid, f"pod {pod.name}", minimum(usage, home) if home else usage, left_at(pod.name, self.migrations)
            )
            for pod, usage in left
        ]
        self.old_claims = storage.leftovers
        target = self._worth(sides.target) if moving else {}
        allowed, to_come = self._allowed(home, target) if moving else ({}, {})
        self.target = add(target, storage.there)
        """What an existing target uses, as far as its VMI's spec goes: a fact, however little of it was granted."""
        self.to_come = add(to_come, storage.to_come)
        """What quota will count of those that do not exist yet."""
        self.allowed = total([allowed, storage.there, storage.to_come])
        """What the target may have while the migration may still go on: its pods and its claim, with those still to be
        created."""
        self.need = self.allowed if self._exact else self._formula()
        """What an entry for its migration says; None: Harvester's formula has no number for it."""
        self._sum_up()

    # ---- what it comes to ------------------------------------------------------------------------------------

    def _sum_up(self) -> None:
        self.leftovers = [*self.old_sides, *self.old_claims]
        self.left_over = self._beside_home({})
        self.granted = self._beside_home(minimum(self.target, self.allowed))
        """What its pods use of what is granted to them."""
        self.wanted = self.left_over if self.stage < Stage.ANNOUNCED else self.granted
        """The wanted entry, whatever the present one is."""
        if self.stage > Stage.ANNOUNCED:
            self.wanted = self._beside_home(self.need or {})
        self.upper_bound = self._beside_home(maximum(self.target, maximum(self.allowed, self.need or {})))
        """The most that is kept of an existing entry: what the pods that it was granted for use, and what the
        migration would be granted today if it goes on after all."""

    def _beside_home(self, target: ResourceList) -> ResourceList:
        """What the VM has beside the side that it lives in: KubeVirt creates no target while a pod of an earlier
        migration runs (its VMIActivePodsCount), so that the target takes an old side's place."""
        old_sides = total(side.usage for side in self.old_sides)
        return total([maximum(old_sides, target), *(claim.usage for claim in self.old_claims)])

    def without(self, over: Sequence[Leftover]) -> Vm:
        """The same VM without these leftovers."""
        other = copy(self)
        other.old_sides = [side for side in self.old_sides if side not in over]
        other.old_claims = [claim for claim in self.old_claims if claim not in over]
        other._sum_up()
        return other

    # ---- how it is worked out --------------------------------------------------------------------------------

    def _stage(self, asked: Stage) -> Stage:
        if self._sides.arrived and self._active:
            return Stage.ARRIVED
        if asked < (Stage.CREATED if self._exact else Stage.WANTED):
            return min(asked, Stage.ANNOUNCED)
        ready = self._may_go_on and (bool(self._sides.home) or not self._exact)
        return max(asked, Stage.WANTED) if ready else Stage.ANNOUNCED

    def _allowed(self, home: ResourceList, target: ResourceList) -> tuple[ResourceList, ResourceList]:
        """(what the target's pods may have, what quota will count of those that are still to come).

        The source as KubeVirt would render it today has the growth of the overhead in it, and whatever else operators
        have changed since; what was plugged into the VM is only in the target. A target that exists may be older than
        that: it counts as far as the source that runs.
        """
        coming = self._today(target_usage)
        today = self._today(side_as_it_was) if self._has_changed else coming
        source = maximum(home, today)
        if not self._sides.target:
            return minimum(source, coming), coming
        attachment = self._attachment_to_come()
        return minimum(source, add(target, attachment)), attachment

    def _today(self, render: _Render) -> ResourceList:
        """A side as it would be rendered today, from each that qualifies as the source: the smallest."""
        assert self.vmi is not None
        changed, found = self._has_changed or self._has_hotplugged, list[ResourceList]()
        for number, side in enumerate(self._sides.home):
            if not changed and self._usages[side.launcher.uid] == (self._plain, {}):
                found.append(self._plain)  # as most are: nothing has changed since
                continue
            side = self._believed(side)
            rendered = partial(render, self.vmi, side, self._rendering, self._spec)
            usage = self._rendered((render.__name__, number), side.pods, rendered)
            if not self._rendering.policy_in_force:
                usage = within(usage, add(self._bound().launcher, self._bound().attachment), self.vmi)
            found.append(usage)
        return smallest(found)

    def _attachment_to_come(self) -> ResourceList:
        assert self.vmi is not None
        attaching = any(map(may_attach, self._active))
        attached = any(side.attachments for side in self._sides.target)
        if not attaching or not self._has_hotplugged or attached:
            return {}
        return attachments_usage(self.vmi, self._believed(self._sides.home[0]), self._rendering, self._spec)

    def _formula(self) -> ResourceList | None:
        if self.stage < Stage.ANNOUNCED or self.vmi is None or not self._may_go_on:
            return None
        formula = harvester_delta(self.vmi.spec, _BOTH_LIMITS, self._rendering.harvester_ratio)
        if formula is None and self.stage >= Stage.WANTED:
            self._say(EVENT_NOT_SCALED, "has neither a cpu nor a memory limit")
        return formula

    # ---- what a side is worth --------------------------------------------------------------------------------

    def _worth(self, sides: Sequence[Side]) -> ResourceList:
        """What is counted of a side, the launcher and the attachment pod each as far as the VM's spec goes; the
        smallest of several."""
        counted = [self._usages[side.launcher.uid] for side in sides if self._usages]
        usage = smallest(add(*both) for both in counted)
        if self.vmi is None or self._rendering.policy_in_force:
            return usage
        within_spec: list[ResourceList] = []
        for launcher, attached in counted:
            if any(amount > self._plain.get(name, ZERO) for name, amount in launcher.items()):
                launcher = within(launcher, self._bound().launcher, self.vmi)
            within_spec.append(add(launcher, minimum(attached, self._bound().attachment)) if attached else launcher)
        limited = smallest(within_spec)
        if limited != usage:
            more = subtract(usage, limited)
            what = ", ".join(f"{name} by {shown(q, name)}" for name, q in sorted(more.items()) if q > ZERO)
            name = sides[0].launcher.name
            self._say(EVENT_TOO_LARGE, f"pod {name} exceeds what the VM's spec renders to: {what}")
        return limited

    def _believed(self, side: Side) -> Side:
        """The side as a pattern for the next one: without an attachment pod that KubeVirt would not make so large."""
        there = self._usages[side.launcher.uid][1]
        if not there or self._rendering.policy_in_force or minimum(there, self._bound().attachment) == there:
            return side
        return replace(side, attachments=())

    def _plain_launcher(self) -> ResourceList:
        """What the installed release renders the VM's spec to, without what a LimitRange, perhaps a tenant's, or
        another's webhook would add. So much is believed of a pod without asking what it may be at most."""
        vmi = self.vmi
        if vmi is None or not self._sides.home:
            return {}
        plain = replace(self._rendering, limit_ranges=()) if self._rendering.limit_ranges else self._rendering
        return self._rendered("plain", (), lambda: self._charged(rendered_pod(vmi, plain)))

    def _bound(self) -> Bound:
        """The most that a side is worth."""
        vmi = self.vmi
        if vmi is None or not self._sides.home:
            return Bound({}, {})
        launcher = self._sides.home[0].launcher
        return self._rendered("bound", [launcher], partial(bound_of, vmi, self._rendering, self._spec, launcher))

    def _rendered(self, what: Hashable, pods: Sequence[Pod], render: Callable[[], _T]) -> _T:
        """Rendered once as long as all that it is made of is equal: most changes of a VMI are of its state."""
        assert self.vmi is not None
        key = what, self.vmi.namespace, self.name, self._scoped
        scopes = (self._spec.scopes, self._spec.scope_selector) if self._scoped else ()
        return self._cache.made(key, (self._rendering, self._made_of, *scopes, *pods), render)

    def _say(self, reason: str, what: str) -> None:
        self.problems.append(ResourceQuotaError(f"VM {self.name} {what}", reason, vm=self.name))
