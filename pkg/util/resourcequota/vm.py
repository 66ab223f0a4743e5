"""The VMs of a namespace that may have something of a ResourceQuota beyond the base, and what each uses of it. Pure.

The base is for one side of a VM: a launcher pod and its attachment pod. What is added is for the other one, so the same
sum holds the headroom before the target exists, while both run, and until the source is gone. What a VM has grown by,
the base pays. `pkg.util.kubevirt.sides` says which pods are sides, `side_usage` what they count."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from kubeloop.api.quantity import Quantity
from kubeloop.api.resource_list import ResourceList, add, maximum, minimum, total
from pkg.api.kubevirt import Move, VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.util import constants
from pkg.util.kubevirt.claims import ExtraClaims, moves_of, state_claims, state_claims_concerning, volume_overlap
from pkg.util.kubevirt.evidence import trusted_status
from pkg.util.kubevirt.migration import PRIORITIES, Leftover, Migrations, Stage, stage_of
from pkg.util.kubevirt.overhead import harvester_delta
from pkg.util.kubevirt.rendering import Rendering, limited_resources
from pkg.util.kubevirt.sides import ControlledPods, Sides, ended_launchers, sides_of
from pkg.util.problems import EVENT_NOT_SCALED, EVENT_TOO_LARGE, Problem, not_understood
from pkg.util.quotacount.usage import charged_until, has_scopes, is_live
from pkg.util.resourcequota.base import HARVESTERS, Base
from pkg.util.resourcequota.entries import migrating_keys
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.policy import EstimateKind, Policy
from pkg.util.resourcequota.side_usage import SideUsage

# What each amount of a VmUsage is, by its stage. S: the source side, the larger of what quota counts and what KubeVirt
# would render today. T: the target side. A claim of the VM's state is part of T.
#
#   stage            | target            | pending_usage       | target_limit | need                 | wanted entry
#   -----------------+-------------------+---------------------+--------------+----------------------+---------------
#   FINISHED         | nothing           | nothing             | nothing      | nothing              | the leftovers
#   ARRIVED          | nothing           | nothing             | nothing      | nothing              | leftover source
#   WITHOUT_TARGET   | T, if it is there | what of T is not    | min(S, T)    | of the migration     | used_headroom
#   CREATED or later:|                   |                     |              |                      |
#     no target yet  | nothing           | T as rendered today | min(S, T)    | exact: target_limit, | need
#     both run       | T as it is        | its attachment pod  | min(S, T)    | Harvester: formula   | need
#
# A leftover is beside all of these. KubeVirt creates no target while a launcher of an earlier migration runs (its
# VMIActivePodsCount), so that a target takes the place of such sides, and `wanted_entry` and `used_headroom` are the
# larger of both. Claims, and attachment pods that outlive their launcher, come on top.


@dataclass(frozen=True)
class VmUsage:
    """A VM at one moment. Amounts are by every name that quota counts them under."""

    name: str
    vmi: VirtualMachineInstance | None
    migrations: Migrations
    """All of the VM's, finished or not."""
    keys: Sequence[str]
    """All forms of the key of its entry."""
    stage: Stage
    priority: int
    """By what KubeVirt starts its migration before others."""
    since: str
    """The creation time (RFC 3339) of its oldest migration under way: first come, first served."""
    target: ResourceList
    """What an existing target counts as far as its VMI's spec goes: a fact, however little of it was granted."""
    pending_launcher: ResourceList
    """What quota will count of a target's launcher to come, and of its state's claim, however far beyond the spec."""
    pending_attachment: ResourceList
    """What quota will count of a target's attachment pod to come, likewise."""
    target_limit: ResourceList
    """What the target may have while the migration may still go on, with what is still to be created of it."""
    need: ResourceList | None
    """What an entry for its migration says, by the estimate; None: there is no number for it."""
    volumes: ResourceList
    """What its disks count twice while its volumes move, where an administrator lets that be added."""
    pending_volumes: ResourceList
    """What quota will count of the claims that they move to."""
    old_sides: Sequence[Leftover]
    old_claims: Sequence[Leftover]
    ended_pods: Quantity
    """How many pods of earlier migrations are over, while this one needs headroom: as objects they still count."""
    charged_until: Sequence[float]
    """When quota ceases to count its pods that are being deleted (seconds since the epoch)."""
    younger_limits: frozenset[str]
    """The quota's limits that are younger than its source."""
    problems: Sequence[Problem]

    @property
    def pending_usage(self) -> ResourceList:
        """Returns what quota will count of all of a target that does not exist yet."""
        return add(self.pending_launcher, self.pending_attachment)

    @cached_property
    def used_headroom(self) -> ResourceList:
        """Returns the part of the VM's headroom that its pods and PVCs use now."""
        return self._with_leftovers(minimum(self.target, self.target_limit))

    @cached_property
    def wanted_entry(self) -> ResourceList:
        """The wanted entry where there is none yet."""
        if self.stage > Stage.WITHOUT_TARGET:
            return self._with_leftovers(self.need or {})
        return self.used_headroom if self.stage is Stage.WITHOUT_TARGET else self._with_leftovers({})

    def entry(self, present: ResourceList | None) -> ResourceList:
        """Returns the wanted entry. A present one stays as far as the pods that it was granted for use it, or as the
        migration would be granted today if it goes on after all."""
        if not present:
            return self.wanted_entry
        most = self._with_leftovers(maximum(self.target, maximum(self.target_limit, self.need or {})))
        return maximum(self.wanted_entry, minimum(present, most))

    def _with_leftovers(self, target: ResourceList) -> ResourceList:
        if not self.leftovers:
            return target
        instead = total(leftover.usage for leftover in self.leftovers if leftover.keeps_target_away)
        beside = (leftover.usage for leftover in self.leftovers if not leftover.keeps_target_away)
        return total([maximum(instead, target), *beside])

    @property
    def leftovers(self) -> Sequence[Leftover]:
        """All that ended migrations left behind and quota still counts."""
        return (*self.old_sides, *self.old_claims)


def assess(
    facts: Facts, controlled: ControlledPods, name: str, migrations: Migrations, moves: Sequence[Move], is_exact: bool
) -> VmUsage:
    """Returns what a VM uses and may have: one with these migrations, finished or not, whose volumes make `moves`."""
    vmi, active = facts.instances.get(name), [m for m in migrations if m.phase not in constants.FINAL_PHASES]
    sides = sides_of(vmi, migrations, controlled)
    stage, can_migrate = _stage(vmi, active, sides, is_exact=is_exact)
    is_moving = stage >= Stage.WITHOUT_TARGET and can_migrate and bool(sides.source)
    pods = SideUsage(facts, vmi or VirtualMachineInstance(), sides, migrations, active if is_moving else ())
    claims, volumes = _claims(facts, name, migrations, moves, sides, is_moving=is_moving)
    target_limit = total([pods.target_limit, claims.existing, claims.pending])
    need = None
    if vmi and can_migrate and stage >= Stage.WITHOUT_TARGET:  # of both limits: spec.hard may lack one until then
        need = target_limit if is_exact else harvester_delta(vmi.spec, HARVESTERS, facts.rendering.harvester_ratio)
    ended = ended_launchers(vmi, migrations, controlled) if vmi and controlled.ended_launchers else ()
    all_sides = (*sides.source, *sides.target, *sides.leftovers)
    ends = (charged_until(pod) for side in all_sides for pod in (side.launcher, *side.attachments))
    not_scaled = ["has neither a cpu nor a memory limit"] if need is None and stage >= Stage.ACTIVE else []
    problems = {EVENT_TOO_LARGE: [*pods.excesses()], EVENT_NOT_SCALED: not_scaled}
    return VmUsage(
        name=name,
        vmi=vmi,
        migrations=migrations,
        keys=migrating_keys(name, vmi.uid if vmi else ""),
        stage=stage,
        priority=max((PRIORITIES.get(migration.spec.priority or "", 0) for migration in active), default=0),
        since=min((migration.metadata.creation_timestamp or "" for migration in active), default=""),
        target=add(pods.target, claims.existing),
        pending_launcher=add(pods.pending[0], claims.pending),
        pending_attachment=pods.pending[1],
        target_limit=target_limit,
        need=need,
        volumes=volumes.existing if facts.storage_migration else {},
        pending_volumes=volumes.pending,
        old_sides=pods.leftovers,
        old_claims=claims.leftovers,
        ended_pods=Quantity.of(len(ended) if target_limit else 0),
        charged_until=[end for end in ends if end is not None],
        younger_limits=pods.younger_limits,
        problems=[Problem(reason, f"VM {name} {t}", vm=name) for reason, texts in problems.items() for t in texts],
    )


def _stage(
    vmi: VirtualMachineInstance | None, active: Migrations, sides: Sides, *, is_exact: bool
) -> tuple[Stage, bool]:
    """Returns the VM's stage, and whether a migration may go on: KubeVirt creates a target only of a VMI that runs; one
    without any status is upstream's case. By Harvester's estimate there is a need from Pending on; exactly from the
    creation of a migration on, and only beside a source."""
    phases = (constants.PHASE_RUNNING,) if is_exact else (constants.PHASE_RUNNING, None, "")
    can_migrate = vmi is not None and not vmi.deleting and trusted_status(vmi).phase in phases
    stage = max(map(stage_of, active), default=Stage.FINISHED)
    if sides.has_arrived and stage > Stage.FINISHED:
        return Stage.ARRIVED, can_migrate
    if stage < (Stage.CREATED if is_exact else Stage.ACTIVE):
        return min(stage, Stage.WITHOUT_TARGET), can_migrate
    is_ready = can_migrate and (bool(sides.source) or not is_exact)
    return max(stage, Stage.ACTIVE) if is_ready else Stage.WITHOUT_TARGET, can_migrate


def _claims(
    facts: Facts, name: str, migrations: Migrations, moves: Sequence[Move], sides: Sides, *, is_moving: bool
) -> tuple[ExtraClaims, ExtraClaims]:
    """Returns what quota counts of the claims of the VM's state, and of its disks. One with scopes counts none."""
    claims, rendering = facts.claims, facts.rendering
    if claims is None or has_scopes(facts.quota.spec):
        return ExtraClaims(), ExtraClaims()
    vmi, home = facts.instances.get(name), [side.launcher.name for side in sides.source]
    state = state_claims(vmi, migrations, claims, rendering, source_launchers=home, is_moving=is_moving)
    return state, volume_overlap(moves, claims, rendering.kubernetes)


def vms_of(facts: Facts, policy: Policy, base: Base) -> tuple[list[VmUsage], list[Problem]]:
    """Returns every VM that migrates or has a leftover side, by name, and the problems of all of them.

    Whatever goes wrong with one VM is that VM's problem: nothing is added for it, and the others go on."""
    assessed = [*vms_one_by_one(facts, policy, base)]
    problems = [problem for vm in assessed for problem in ([vm] if isinstance(vm, Problem) else vm.problems)]
    return [vm for vm in assessed if isinstance(vm, VmUsage)], problems


def vms_one_by_one(facts: Facts, policy: Policy, base: Base) -> Iterator[VmUsage | Problem]:
    """Yields what `vms_of` returns. Each is assessed once as long as its objects are the same: of a namespace's VMs few
    change from one decision to the next, which finds the others in the facts' cache."""
    claims, scopes = facts.claims, str((facts.quota.spec.scopes, facts.quota.spec.scope_selector))
    facts = replace(facts, rendering=rendering_of(facts, base))
    controlled = controlled_pods(facts)
    instances = facts.instances if claims is not None else {}
    moves_by_vm = {name: moves_of(vmi, facts.machines.get(name)) for name, vmi in instances.items()}
    by_vm: dict[str, list[VirtualMachineInstanceMigration]] = defaultdict(list)
    for migration in facts.migrations:
        by_vm[migration.spec.vmi_name].append(migration)
    for name, instance in facts.instances.items():
        # Also one that still names the pods of a migration that was deleted, or whose volumes move before there is one.
        if name not in by_vm and (trusted_status(instance).migration_state or moves_by_vm.get(name)):
            by_vm[name] = []
    for name, migrations in sorted(by_vm.items()):
        vmi, moves = facts.instances.get(name), moves_by_vm.get(name, ())
        pods = controlled.pods_concerning(vmi, migrations)
        live = [is_live(pod, facts.now) for pod in pods if pod.deleting]
        inputs: list[object] = [vmi, facts.rendering, *migrations, *pods, *live, claims is None]
        if claims is not None:
            inputs += [*state_claims_concerning(vmi, migrations, claims), facts.storage_migration, *moves]
            inputs += [claims.get(claim) for move in moves for claim in move.claims]
        key = "vm", facts.quota.namespace, name, policy.estimate, facts.rendering.quota_limits, scopes
        work_out = partial(assess, facts, controlled, name, migrations, moves, policy.estimate is EstimateKind.EXACT)
        yield facts.cache.get_or_compute(key, tuple(inputs), partial(_assessed, name, work_out))


def _assessed(name: str, work_out: Callable[[], VmUsage]) -> VmUsage | Problem:
    try:
        return work_out()
    except Exception as exc:
        return not_understood(name, exc)


def controlled_pods(facts: Facts) -> ControlledPods:
    """Returns the namespace's pods by what controls them, sorted out once as long as it has the same pods, and as many
    of those that end still count."""
    pods = tuple(facts.pods)
    inputs = (*pods, *(is_live(pod, facts.now) for pod in pods if pod.deleting))
    return facts.cache.get_or_compute(("pods", facts.quota.namespace), inputs, lambda: ControlledPods(pods, facts.now))


def rendering_of(facts: Facts, base: Base) -> Rendering:
    """Returns the rendering with the limits that this quota asks for, also where spec.hard lost one: it gets it back
    with the same patch."""
    limits = facts.rendering.quota_limits | limited_resources({*facts.quota.hard, *(base.limits or {})})
    return facts.rendering if limits == facts.rendering.quota_limits else replace(facts.rendering, quota_limits=limits)
