"""The VMs of a namespace that may have something of a ResourceQuota beyond the base. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from pkg.api.kubevirt import VirtualMachineInstanceMigration
from pkg.util.kubevirt.claims import Move, labelled_claims, moves_of, state_claims_concerning
from pkg.util.kubevirt.evidence import trusted_status
from pkg.util.kubevirt.rendering import Rendering, limited_resources
from pkg.util.kubevirt.sides import ControlledPods
from pkg.util.problems import Problem
from pkg.util.quotacount.usage import has_scopes, is_live
from pkg.util.resourcequota.base import Base
from pkg.util.resourcequota.errors import not_understood
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.policy import Policy
from pkg.util.resourcequota.vm import NamespaceFacts, VmUsage, assess


def vms_of(facts: Facts, policy: Policy, base: Base) -> tuple[list[VmUsage], list[Problem]]:
    """Returns every VM that migrates or has a leftover side, by name, and the problems of all of them.

    Whatever goes wrong with one VM is that VM's problem: nothing is added for it, and the others go on."""
    vms: list[VmUsage] = []
    problems: list[Problem] = []
    for vm in vms_one_by_one(facts, policy, base):
        if isinstance(vm, Problem):
            problems.append(vm)
        else:
            vms.append(vm)
            problems += vm.problems
    return vms, problems


def vms_one_by_one(facts: Facts, policy: Policy, base: Base) -> Iterator[VmUsage | Problem]:
    """Yields what `vms_of` returns. Each is assessed once as long as its objects are the same: of a namespace's VMs few
    change from one decision to the next, which finds the others in the facts' cache."""
    quota, instances = facts.quota, facts.instances if facts.claims is not None else {}
    labelled = labelled_claims(facts.claims) if facts.claims else {}
    namespace = NamespaceFacts(facts, rendering_of(facts, base), controlled_pods(facts), labelled, policy.estimate)
    moves_by_vm = {name: moves_of(vmi, facts.machines.get(name)) for name, vmi in instances.items()}
    scopes = (quota.name, quota.spec.scopes, quota.spec.scope_selector) if has_scopes(quota.spec) else ("",)
    for name, migrations in sorted(_migrations_by_vm(facts, moves_by_vm).items()):
        vmi, vm_moves = facts.instances.get(name), moves_by_vm.get(name, ())
        pods = namespace.pods.pods_concerning(vmi, migrations)
        claims: list[object] = [None]
        if facts.claims is not None:
            moved_claims = [facts.claims.get(claim) for move in vm_moves for claim in (move.source, move.destination)]
            of_state = state_claims_concerning(vmi, migrations, facts.claims, labelled)
            claims = [*of_state, facts.storage_migration, *vm_moves, *moved_claims]
        inputs = (
            vmi,
            facts.rendering,
            *scopes,
            *migrations,
            *pods,
            *(is_live(pod, facts.now) for pod in pods if pod.deleting),
            *claims,
        )
        limits = namespace.rendering.quota_limits
        key: Hashable = ("vm", vmi.namespace, name, policy.estimate, limits, scopes[0]) if vmi else None
        try:
            yield facts.cache.get_or_compute(key, inputs, partial(assess, namespace, name, migrations, vm_moves))
        except Exception as exc:
            yield not_understood(name, exc)


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
    if limits == facts.rendering.quota_limits:
        return facts.rendering
    return replace(facts.rendering, quota_limits=limits)


def _migrations_by_vm(
    facts: Facts, moves_by_vm: Mapping[str, Sequence[Move]]
) -> Mapping[str, Sequence[VirtualMachineInstanceMigration]]:
    """Returns the migrations of each VM; an empty list for one whose VMI still names the pods of a migration that was
    deleted, or whose volumes move before there is one."""
    by_vm: dict[str, list[VirtualMachineInstanceMigration]] = defaultdict(list)
    for migration in facts.migrations:
        by_vm[migration.spec.vmi_name].append(migration)
    for name, vmi in facts.instances.items():
        if name not in by_vm and (trusted_status(vmi).migration_state is not None or moves_by_vm.get(name)):
            by_vm[name] = []
    return by_vm
