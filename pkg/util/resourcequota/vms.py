"""The VMs of a namespace that may have something of a ResourceQuota beyond the base. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.util.kubevirt.claims import Labelled, Move, labelled_claims, moves, state_claims_concerning
from pkg.util.kubevirt.evidence import trusted_status
from pkg.util.kubevirt.rendering import Rendering, limited_by
from pkg.util.kubevirt.sides import ControlledPods
from pkg.util.quotacount.usage import has_scopes
from pkg.util.resourcequota.base import Base
from pkg.util.resourcequota.errors import ResourceQuotaError, not_understood
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.policy import EstimateKind, Policy
from pkg.util.resourcequota.vm import Vm


def vms_of(facts: Facts, policy: Policy, base: Base) -> tuple[list[Vm], list[ResourceQuotaError]]:
    """Every VM that migrates or has an old side left, by name, and what is to be said about them.

    Whatever goes wrong with one VM is that VM's problem: nothing is added for it, and the others go on.
    """
    pods, rendering, exact = controlled_pods(facts), rendering_of(facts, base), policy.estimate is EstimateKind.EXACT
    found: list[Vm] = []
    problems: list[ResourceQuotaError] = []
    instances = facts.instances if facts.claims is not None else {}
    labelled = labelled_claims(facts.claims) if facts.claims else {}
    moved = {name: moves(vmi, facts.machines.get(name)) for name, vmi in instances.items()}
    for name, migrations in sorted(_migrations_by_vm(facts, moved).items()):
        try:
            vm = _vm(name, facts, rendering, migrations, pods, moved.get(name, ()), labelled, exact=exact)
        except Exception as exc:
            problems.append(not_understood(name, exc))
        else:
            found.append(vm)
            problems += vm.problems
    return found, problems


def _vm(
    name: str,
    facts: Facts,
    rendering: Rendering,
    migrations: Sequence[VirtualMachineInstanceMigration],
    pods: ControlledPods,
    moved: Sequence[Move],
    labelled: Labelled,
    *,
    exact: bool,
) -> Vm:
    """Worked out once as long as its objects are the same: of a namespace's VMs few change from one decision to the
    next."""
    vmi = facts.instances.get(name)
    own = pods.concerning(vmi, migrations)
    key: Hashable = ("vm", vmi.namespace, name, exact, rendering.quota_limits) if vmi else None
    if has_scopes(facts.quota.spec) or any(pod.deleting for pod in own):
        key = None  # the time, or what else the quota asks of a pod, decides as well
    claims: list[object] = [None]
    if facts.claims is not None:
        named = [facts.claims.get(claim) for each in moved for claim in (each.source, each.destination)]
        claims = [
            *state_claims_concerning(vmi, migrations, facts.claims, labelled),
            facts.storage_migration,
            *moved,
            *named,
        ]
    made = partial(Vm, name, facts, rendering, migrations, pods, moved, labelled, exact=exact)
    return facts.cache.made(key, (vmi, facts.rendering, *migrations, *own, *claims), made)


def controlled_pods(facts: Facts) -> ControlledPods:
    """Sorted out once as long as the namespace has the same pods, none of which ends by itself as time goes by."""
    pods = tuple(facts.pods)
    key: Hashable = None if any(pod.deleting for pod in pods) else ("pods", facts.quota.namespace)
    return facts.cache.made(key, pods, lambda: ControlledPods(pods, facts.now))


def rendering_of(facts: Facts, base: Base) -> Rendering:
    """With the limits that this quota asks for, also where spec.hard has lost one: it gets it back with the same
    patch."""
    limits = facts.rendering.quota_limits | limited_by({*facts.quota.hard, *(base.limits or {})})
    if limits == facts.rendering.quota_limits:
        return facts.rendering
    return replace(facts.rendering, quota_limits=limits)


def _migrations_by_vm(
    facts: Facts, moved: Mapping[str, Sequence[Move]]
) -> Mapping[str, Sequence[VirtualMachineInstanceMigration]]:
    """The migrations of each VM; none of one whose VMI still names the pods of a migration that was deleted, or whose
    volumes move before there is one."""
    of_vm: dict[str, list[VirtualMachineInstanceMigration]] = defaultdict(list)
    for migration in facts.migrations:
        of_vm[migration.spec.vmi_name].append(migration)
    for name, vmi in facts.instances.items():
        if trusted_status(vmi).migration_state is not None or moved.get(name):
            of_vm.setdefault(name, [])
    return of_vm
