"""What each VM of a namespace claims of one ResourceQuota, in takeover mode. Pure.

The base is for one side of a VM: a launcher pod and its attachment pods. Everything beyond is the claim:

    entry = pods left over + the target's pods + the target's pods that are still to be created

so the same sum holds the room before the target exists, while both run, and until the source is gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from cachetools import LRUCache

from pkg.api.core import ResourceQuotaSpec
from pkg.api.kubevirt import VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.api.meta import RawResourceList
from pkg.util.constants import (
    LABEL_MIGRATION_JOB_UID,
    LIMITS_CPU,
    LIMITS_MEMORY,
    PHASE_PENDING,
    PHASE_SCHEDULED,
    PHASE_SCHEDULING,
)
from pkg.util.quantity import QuantityError
from pkg.util.resource_list import ResourceList, total
from pkg.util.resourcequota.demand import Demand, Standing, demands, is_finished
from pkg.util.resourcequota.errors import NoLimits, ResourceQuotaError
from pkg.util.resourcequota.exact import attachments_usage, has_hotplugged_volumes, target_usage, usage_of
from pkg.util.resourcequota.model import EstimateKind, Observed, Policy, Rendering
from pkg.util.resourcequota.sides import Side, Sides, age, assign, sides_by_vm

_ATTACHING = (PHASE_PENDING, PHASE_SCHEDULING, PHASE_SCHEDULED)
"""Phases in which KubeVirt may still create the target's attachment pods."""
_BOTH_LIMITS: RawResourceList = {LIMITS_CPU: "1", LIMITS_MEMORY: "1"}
"""Which of them count is asked of the base: spec.hard may have lost one, and gets it back with the same patch."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One VM's claim. Resources are by every name that quota counts them under.

    `since` is the creation time (RFC 3339) of its oldest migration under way: who came first is served first.
    """

    vm_name: str
    vmi_uid: str
    left_over: ResourceList
    """Pods of an old side; a fact."""
    target: ResourceList
    """The pods of a target that exists beside the side that the VM lives in; a fact."""
    future: ResourceList
    """What is still to be created for a migration under way."""
    formula: ResourceList | None
    """Harvester's number for the same migration, under `--estimate harvester`."""
    migrates: bool
    """The VM has migrations, finished or not."""
    under_way: bool
    wanted: bool
    refused: bool
    since: str = ""
    ended: float | None = None
    """When its last migration ended, in seconds since the epoch."""

    @property
    def held(self) -> bool:
        """The migration is over and a pod of the old side still counts."""
        return not self.under_way and bool(self.left_over)

    @property
    def exact(self) -> ResourceList:
        """What quota counts, and will count, of the VM beyond one side."""
        return total([self.left_over, self.target, self.future])


@dataclass(frozen=True, slots=True)
class Claims:
    """All claims by VM name, and what could not be worked out."""

    by_vm: Mapping[str, Claim]
    problems: tuple[ResourceQuotaError, ...]


def claims(observed: Observed, policy: Policy) -> Claims:
    """The claims of every VM that migrates or has pods of an old side left, by VM name."""
    of_vm: dict[str, list[VirtualMachineInstanceMigration]] = defaultdict(list)
    for migration in observed.migrations:
        of_vm[migration.spec.vmi_name].append(migration)
    asked = demands(observed.migrations, observed.instances)
    sides = sides_by_vm(observed.pods)
    found: dict[str, Claim] = {}
    problems: list[ResourceQuotaError] = []
    for name in sorted(asked.keys() | sides.keys()):
        demand = asked.get(name) or Demand(name, Standing.FINISHED, False, observed.instances.get(name))
        active = [m for m in of_vm[name] if not is_finished(m)]
        ended = [m for m in of_vm[name] if is_finished(m)]
        placed = assign(sides.get(name, ()), demand.vmi, {m.uid for m in active})
        try:
            claim = _claim(observed, policy, demand, active, ended, placed)
        except QuantityError as exc:
            problems.append(NoLimits(f"VM {name}: {exc}"))
            continue
        if (
            claim.wanted
            and policy.estimate is EstimateKind.HARVESTER
            and claim.formula is None
            and demand.vmi
        ):
            problems.append(NoLimits(f"VM {name} has neither a cpu nor a memory limit"))
        found[name] = claim
    return Claims(found, tuple(problems))


def _claim(
    observed: Observed,
    policy: Policy,
    demand: Demand,
    active: list[VirtualMachineInstanceMigration],
    ended: list[VirtualMachineInstanceMigration],
    placed: Sides,
) -> Claim:
    spec = observed.quota.spec
    wanted = demand.standing is Standing.WANTED and demand.vmi is not None
    exact = policy.estimate is EstimateKind.EXACT or demand.refused  # a compensation is always exact
    formula = None
    if wanted and demand.vmi is not None and policy.estimate is EstimateKind.HARVESTER:
        # Once the VM lives in its target, the pod that it left is all that is there beyond one side.
        formula = {} if _is_target(placed.main, active) else observed.estimate(demand.vmi, _BOTH_LIMITS)
    return Claim(
        vm_name=demand.vm_name,
        vmi_uid=demand.vmi_uid,
        left_over=usage_of((pod for side in placed.old for pod in side.pods), spec),
        target=usage_of(placed.target.pods, spec) if placed.target else {},
        future=_future(observed, demand.vmi, active, placed) if demand.vmi and wanted and exact else {},
        formula=dict(formula) if formula is not None else None,
        migrates=bool(active or ended),
        under_way=bool(active),
        wanted=wanted,
        refused=demand.refused,
        since=min((m.metadata.creation_timestamp or "" for m in active), default=""),
        ended=_ended(ended, placed),
    )


def _future(
    observed: Observed,
    vmi: VirtualMachineInstance,
    active: list[VirtualMachineInstanceMigration],
    placed: Sides,
) -> ResourceList:
    """The target's pods that do not exist yet."""
    spec, rendering = observed.quota.spec, observed.rendering
    target = placed.target or (placed.main if _is_target(placed.main, active) else None)
    if target is None:
        return _target_usage(vmi, placed.main, rendering, spec)
    attaching = any(m.phase in _ATTACHING for m in active)
    if attaching and has_hotplugged_volumes(vmi) and not target.attachments:
        return attachments_usage(vmi, placed.main, rendering, spec)
    return {}


_TARGETS: LRUCache[tuple[object, ...], tuple[Rendering, ResourceList]] = LRUCache(maxsize=16384)
# What a target will count depends on versions of objects and the rendering; it is worked out once for each.


def _target_usage(
    vmi: VirtualMachineInstance, source: Side | None, rendering: Rendering, spec: ResourceQuotaSpec
) -> ResourceList:
    version = vmi.metadata.resource_version
    if not version or spec.scopes or spec.scope_selector:
        return target_usage(vmi, source, rendering, spec)
    pods = tuple((pod.uid, pod.metadata.resource_version) for pod in source.pods) if source else ()
    limited = tuple(name in (spec.hard or {}) for name in (LIMITS_CPU, LIMITS_MEMORY))
    key = (vmi.uid, version, pods, limited)
    cached = _TARGETS.get(key)
    if cached is None or cached[0] is not rendering:
        cached = _TARGETS[key] = (rendering, target_usage(vmi, source, rendering, spec))
    return cached[1]


def _is_target(side: Side | None, active: list[VirtualMachineInstanceMigration]) -> bool:
    """The VM has moved into its target before its migration says so: there is nothing left to create."""
    return side is not None and side.launcher.labels.get(LABEL_MIGRATION_JOB_UID) in {m.uid for m in active}


def _ended(migrations: list[VirtualMachineInstanceMigration], placed: Sides) -> float | None:
    """When the migration that made the VM's newest pod ended, as far as KubeVirt says so.

    It may have been deleted, or have failed without a word: when earlier ones ended does not matter then.
    """
    times = {}
    for migration in migrations:
        state = migration.status.migration_state
        with suppress(ValueError):
            if state is not None and state.end_timestamp:
                times[migration.uid] = datetime.fromisoformat(state.end_timestamp).timestamp()
    sides = [side.launcher for side in (placed.main, placed.target, *placed.old) if side is not None]
    newest = max(sides, key=age, default=None)
    job = newest.labels.get(LABEL_MIGRATION_JOB_UID) if newest else None
    return times.get(job) if job else max(times.values(), default=None)


def entry_of(claim: Claim, policy: Policy) -> ResourceList:
    """The value of the claim's entry: exactly what quota counts, or Harvester's number while it migrates."""
    if policy.estimate is EstimateKind.HARVESTER and claim.wanted:
        return total([claim.left_over, claim.formula or {}])
    return claim.exact
