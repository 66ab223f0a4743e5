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
    """Every VM that migrates or has an old side left, by name, and what is to be said about them.

    Whatever goes wrong with one VM is that VM's problem: nothing is added for it, and the others go on.
    """
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
    moved = {name: moves_of(vmi, facts.machines.get(name)) for name, vmi in instances.items()}
    scopes = (quota.name, quota.spec.scopes, quota.spec.scope_selector) if has_scopes(quota.spec) else ("",)
    for name, migrations in sorted(_migrations_by_vm(facts, moved).items()):
        vmi, moving = facts.instances.get(name), moved.get(name, ())
        own = namespace.pods.concerning(vmi, migrations)
        claims: list[object] = [None]
        if facts.claims is not None:
            named = [facts.claims.get(claim) for each in moving for claim in (each.source, each.destination)]
            of_state = state_claims_concerning(vmi, migrations, facts.claims, labelled)
            claims = [*of_state, facts.storage_migration, *moving, *named]
        of = (
            vmi,
            facts.rendering,
            *scopes,
            *migrations,
            *own,
            *(is_live(pod, facts.now) for pod in own if pod.deleting),
            *claims,
        )
        limits = namespace.rendering.quota_limits
        key: Hashable = ("vm", vmi.namespace, name, policy.estimate, limits, scopes[0]) if vmi else None
        try:
            yield facts.cache.made(key, of, partial(assess, namespace, name, migrations, moving))
        except Exception as exc:
            yield not_understood(name, exc)


def controlled_pods(facts: Facts) -> ControlledPods:
    """Sorted out once as long as the namespace has the same pods, and as many of those that end still count."""
    pods = tuple(facts.pods)
    of = (*pods, *(is_live(pod, facts.now) for pod in pods if pod.deleting))
    return facts.cache.made(("pods", facts.quota.namespace), of, lambda: ControlledPods(pods, facts.now))


def rendering_of(facts: Facts, base: Base) -> Rendering:
    """Returns the rendering with the limits that this quota asks for, also where spec.hard lost one: it gets it back
    with the same patch."""
    limits = facts.rendering.quota_limits | limited_resources({*facts.quota.hard, *(base.limits or {})})
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
