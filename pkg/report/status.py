"""Reports what is added to each quota, for which VM, and since when; and what migration budgets add. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import field

from kubeloop.api.core import Node, ResourceQuota
from kubeloop.api.meta import rfc3339
from kubeloop.api.quantity import ZERO, Quantity
from kubeloop.api.registry import RESOURCE_QUOTAS
from kubeloop.api.resource_list import ResourceList, parse_resource_list, total
from pkg.report.installation import duration_text
from pkg.report.snapshot import Document, Snapshot, usages_of
from pkg.util.amounts import format_amount, format_distinctly
from pkg.util.kubevirt.migration import Stage, is_finished, seconds_of
from pkg.util.managedtenantquota.model import Observed, WindowPolicy
from pkg.util.managedtenantquota.sequence import Window
from pkg.util.resourcequota.base import base_of, is_scaled
from pkg.util.resourcequota.entries import has_migrating_vm, read, vm_in_key
from pkg.util.resourcequota.facts import Facts
from pkg.util.resourcequota.managed import QuotaManagement, is_default, is_managed, is_ours, management_of, unenforced
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.policy import Mode
from pkg.util.resourcequota.rancher_request import not_granted
from pkg.util.resourcequota.vm import VmUsage


class Addition(Document, frozen=True):
    """An entry on a quota. `state` is the migration's phase ("not begun" while it has none), "volumes move", "held"
    while what it left behind still counts, or "unexplained"; `since` (RFC 3339, None if unknown) is the migration's
    creation, or its end for a hold; `left` are the pods, with their nodes, and claims that a hold is for."""

    vm: str
    key: str = field(name="annotation")
    state: str
    since: str | None
    resources: ResourceList
    left: Sequence[str] = ()

    def sentence(self, now: float, hold_limit: float) -> str:
        """Returns the state, how long it has lasted, and what a hold is for, until when at the latest."""
        began, end = seconds_of(self.since or ""), ""
        sentence = self.state if began is None else f"{self.state} for {duration_text(max(0.0, now - began))}"
        if began is not None and hold_limit < 86400.0:  # a time of day does not name a later day
            end = f", until {rfc3339(began + hold_limit)[11:19]} UTC at the latest"
        return f"{sentence}: {', '.join(self.left)} still counts{end}" if self.left else sentence


class Amounts(Document, frozen=True):
    """The amounts of one resource of a quota. `base` is None if it is not known, or headroom adds nothing to it."""

    base: Quantity | None
    added: Quantity
    hard: Quantity
    used: Quantity

    @property
    def base_or_rest(self) -> Quantity:
        """The base; what is left of spec.hard without what is added, if the base is not known."""
        return self.hard - self.added if self.base is None else self.base

    def sentence(self, name: str) -> str:
        """Returns how much is used of what, in the units of the resource `name`."""
        parts = " (base {} + {})".format(*format_distinctly(name, self.base_or_rest, self.added)) if self.added else ""
        return "{} of {}".format(*format_distinctly(name, self.used, self.hard)) + parts


class QuotaStatus(Document, frozen=True):
    """The status of one quota. `kept_by` says who scales it: headroom, harvester, "harvester and headroom" (mode
    assist), managed-tenant-quota, or why none of them does."""

    namespace: str
    name: str
    kept_by: str
    resources: Mapping[str, Amounts]
    additions: Sequence[Addition]
    compensation: Mapping[str, Quantity]
    problems: Sequence[str]

    @property
    def added(self) -> ResourceList:
        return {name: row.added for name, row in self.resources.items() if row.added}

    @property
    def is_quiet(self) -> bool:
        return not (self.added or self.additions or self.compensation or self.problems)


def status(snapshot: Snapshot) -> list[QuotaStatus]:
    """Returns every quota that is managed, or that something was added to, by namespace and name."""
    quotas = (quota for quota in snapshot.quotas if is_managed(quota) or has_migrating_vm(quota.annotations))
    return [_status(snapshot, snapshot.observe(quota)) for quota in sorted(quotas, key=lambda quota: quota.key)]


def headline(snapshot: Snapshot, quotas: Sequence[QuotaStatus]) -> str:
    """Returns a line about whether headroom works, who leads, and how much is raised."""
    installed, raised = snapshot.installed, [quota for quota in quotas if quota.added]
    is_known = not any(installed.missing(controller=True, webhooks=False))
    state = "does not work" if installed.alarms() else "works" if is_known else "is not known to work"
    added = sorted(total(quota.added for quota in raised).items())
    amounts = ", ".join(f"+{format_amount(amount, name)} {name}" for name, amount in added)
    counts = f"{len(raised)} raised{f' ({amounts})' if amounts else ''}, {len(snapshot.waiting)} waiting"
    quota_count = f"{len(quotas)} quota{'s' * (len(quotas) != 1)}"
    parts = [f"headroom {state}", installed.leader, installed.webhooks_summary, f"{quota_count}, {counts}"]
    return " · ".join(filter(None, parts))


def keeper_of(snapshot: Snapshot, observed: Facts) -> str:
    quota, management = observed.quota, management_of(observed.quota, namespace_off=observed.namespace_off)
    if reason := snapshot.installed.unserved_reason(quota.namespace):
        return f"none: {reason}"
    if observed.mtq:
        return "managed-tenant-quota"
    if management in (QuotaManagement.OFF, QuotaManagement.SKIPPED):
        return "none: it is switched off"
    if management is QuotaManagement.NONE:
        return "none: it is not managed"
    if snapshot.basis.mode is Mode.ASSIST and is_default(quota):
        return "harvester and headroom"
    if is_ours(quota) or not is_default(quota):
        return "headroom"
    return "harvester" if observed.limits else "none: its namespace has no quota annotation"


def _status(snapshot: Snapshot, observed: Facts) -> QuotaStatus:
    quota, policy = observed.quota, snapshot.basis.policy
    # Of what the running mode adds to: beside Harvester that is what Harvester adds to.
    base = base_of(quota, observed.limits, policy, observed.rancher.granted)
    added, limits, used = read(quota.annotations), base.limits or {}, parse_resource_list(quota.used)
    rows = {
        name: Amounts(limits.get(name), added.total.get(name, ZERO), limit, used.get(name, ZERO))
        for name, limit in sorted(parse_resource_list(quota.hard).items())
        if is_scaled(name)
    }
    keeper = keeper_of(snapshot, observed)
    texts = [
        snapshot.installed.refusal(RESOURCE_QUOTAS.kind, quota.key),
        *map(str, base.problems),
        *map(str, added.invalid.values()),
        *_contradictions(rows),
        unenforced_limits(quota),
        *(map(str, plan(observed, policy).problems) if "headroom" in keeper else ()),
        str(not_granted(observed) or ""),
    ]
    problems = list(filter(None, dict.fromkeys(texts)))
    vms = {key: vm for vm in usages_of(observed) for key in vm.keys}
    nodes = {f"pod {pod.name}": f" on {pod.spec.node_name}" for pod in observed.pods if pod.spec.node_name}
    additions = [_addition(key, entry, vms.get(key), nodes) for key, entry in added.by_key.items()]
    return QuotaStatus(quota.namespace, quota.name, keeper, rows, additions, added.compensation, problems)


def unenforced_limits(quota: ResourceQuota) -> str:
    """Returns by which limits quota admission still goes, and why; "" if it goes by spec.hard, or by nothing yet."""
    enforced, limits = parse_resource_list(quota.status.hard or {}), parse_resource_list(quota.hard)
    lagging = [name for name in unenforced(quota) if name in limits and name in enforced]
    amounts = ("{} {} of {}".format(name, *format_distinctly(name, enforced[name], limits[name])) for name in lagging)
    if not lagging:
        return ""
    return (
        f"quota admission goes by status.hard, which is not spec.hard: {', '.join(amounts)}: kube-controller-manager "
        "has not copied it: see whether it runs, and whether something refuses its writes of resourcequotas/status"
    )


def _contradictions(rows: Mapping[str, Amounts]) -> Iterator[str]:
    for name, row in rows.items():
        if (expected := row.base_or_rest + row.added) != row.hard:
            yield "{} is {}, base and additions give {}".format(name, *format_distinctly(name, row.hard, expected))
        if row.used > row.hard:
            yield "{}: {} is used, more than hard {}".format(name, *format_distinctly(name, row.used, row.hard))


def _addition(key: str, entry: ResourceList, vm: VmUsage | None, nodes: Mapping[str, str]) -> Addition:
    """Returns the addition of the VM whose entry it is; `nodes`: where its pods are, in words."""
    state, since, left = "unexplained", "", list[str]()
    if vm is not None and vm.stage >= Stage.WITHOUT_TARGET:
        active = (migration for migration in vm.migrations if not is_finished(migration))
        state = min(active, key=lambda m: m.metadata.creation_timestamp or "").phase or "not begun"
        since = vm.since
    elif vm is not None and vm.volumes:
        state = "volumes move"
    elif vm is not None and (vm.stage is not Stage.FINISHED or any(leftover.usage for leftover in vm.leftovers)):
        ends = [m.status.migration_state.end_timestamp or "" for m in vm.migrations if m.status.migration_state]
        state, since = "held", max(ends, default="")
        left = [leftover.name + nodes.get(leftover.name, "") for leftover in vm.leftovers]
    return Addition(vm.name if vm else vm_in_key(key), key, state, since or None, entry, left)


_OF_NODES: Final = ("limits.cpu", "limits.memory", "requests.cpu", "requests.memory", "pods")


class Total(Document, frozen=True):
    """One resource of all quotas. `unused` is what of the bases is not used yet, `allocatable` what the nodes offer, if
    they may be read. Of several quotas of a namespace the smallest base counts."""

    bases: Quantity
    added: Quantity
    hard: Quantity
    used: Quantity
    unused: Quantity
    allocatable: Quantity | None


class Totals(Document, frozen=True):
    """The sums of the whole cluster; `verdicts` say what was granted beyond what there is."""

    namespaces: int
    quotas: int
    resources: Mapping[str, Total]
    verdicts: Sequence[str]


def totals(snapshot: Snapshot, nodes: Sequence[Node] | None) -> Totals:
    by_resource: dict[str, dict[str, ResourceList]] = {name: {} for name in _OF_NODES}
    for quota in snapshot.quotas:
        limits, used, base = parse_resource_list(quota.hard), parse_resource_list(quota.used), snapshot.base(quota)
        for name in limits.keys() & by_resource.keys():
            row = {"bases": base[name], "added": limits[name] - base[name], "hard": limits[name]}
            row |= {"used": used.get(name, ZERO), "unused": max(ZERO, base[name] - used.get(name, ZERO))}
            rows = by_resource[name]
            rows[quota.namespace] = min(row, rows.get(quota.namespace, row), key=lambda amounts: amounts["bases"])
    open_nodes = [node for node in nodes or () if not node.spec.unschedulable]
    allocatable = total(parse_resource_list(node.status.allocatable or {}) for node in open_nodes)
    offered = {name: None if nodes is None else allocatable.get(name.rpartition(".")[2], ZERO) for name in _OF_NODES}
    resources = {
        name: Total(**total(rows.values()), allocatable=offered[name]) for name, rows in by_resource.items() if rows
    }
    namespaces = {namespace for rows in by_resource.values() for namespace in rows}
    return Totals(len(namespaces), len(snapshot.quotas), resources, list(_verdicts(resources)))


def _verdicts(totals_by_name: Mapping[str, Total]) -> Iterator[str]:
    """Yields verdicts: who is not full yet finds nothing if others, or headroom, have used what was planned for."""
    for name, row in totals_by_name.items():
        if row.allocatable is None:
            continue
        free = max(ZERO, row.allocatable - row.used)
        if row.bases > row.allocatable:
            excess = format_amount(row.bases - row.allocatable, name)
            yield f"{name}: the bases grant {excess} more than the nodes offer, before anything is added for migrations"
        elif row.unused > free:
            unused_text, free_text = format_distinctly(name, row.unused, free)
            yield f"{name}: {unused_text} of the bases are not used yet, and the nodes have only {free_text} left"


AT_ONCE = WindowPolicy(cache_delay=0.0, crowding=0.0)
"""A report shows a shortage without waiting whether it lasts."""


class Raised(Document, frozen=True):
    quota: str
    hard: dict[str, Any]
    original: dict[str, Any]
    migrations: Sequence[str]


class Locked(Document, frozen=True):
    name: str
    since: str  # RFC 3339
    holder: str
    reason: str = field(name="for")


class BudgetReport(Document, frozen=True):
    """A namespace with a budget: `additional` may be added; `raised` are the quotas that are raised, or shall be."""

    namespace: str
    budgets: Sequence[str]
    additional: dict[str, Any]
    lock: Locked | None
    raised: Sequence[Raised]
    problems: Sequence[str]


def report_namespaces(snapshot: Snapshot) -> list[BudgetReport]:
    """Returns the report of every namespace that has a budget, or is locked, by name."""
    names = snapshot.lock_by_namespace.keys() | {budget.namespace for budget in snapshot.budgets}
    names &= {namespace.name for namespace in snapshot.namespaces}
    return [report_namespace(snapshot.observe_window(name)) for name in sorted(names)]


def report_namespace(observed: Observed) -> BudgetReport:
    window, lock = Window(observed, AT_ONCE), observed.lock
    since = rfc3339(lock.since, "microseconds") if lock else ""
    locked = Locked(lock.configuration.name, since, lock.owner, lock.reason) if lock else None
    hards = {quota.name: quota.hard for quota in observed.quotas}
    released = window.released_migrations.items()
    raised = [
        Raised(name, hards.get(name, {}), dict(record.hard), sorted(vm for vm, names in released if name in names))
        for name, record in (window.status_records | window.records).items()
    ]
    budgets, problems = sorted(budget.name for budget in observed.budgets), [p.message for p in window.problems]
    additional = dict(observed.budgets[0].additional) if observed.budgets else {}
    return BudgetReport(observed.namespace, budgets, additional, locked, raised, problems)
