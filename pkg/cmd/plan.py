"""`headroom plan`: which VMs could migrate, at another overhead ratio or all of a node, and how large a quota must be,
without touching anything."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from msgspec import structs
from rich.console import RenderableType

from kubeloop.api.quantity import ZERO, Quantity, QuantityError
from kubeloop.api.registry import NODES
from kubeloop.api.resource_list import total
from kubeloop.client.client import Client
from kubeloop.client.errors import Forbidden
from kubeloop.client.resource_reader import list_installed
from pkg.api.kubevirt import VIRTUAL_MACHINES
from pkg.cmd import reports
from pkg.cmd.flags import option
from pkg.cmd.options import ClusterOptions, WrongCall, check_ratio
from pkg.cmd.reports import Answer, NamespaceOptions, ReportOptions, Tone
from pkg.report.evacuation import Evacuation, Violation, evacuation, evacuations
from pkg.report.fit import Fit
from pkg.report.plan import MigrationPlan, VmPlan, plan_migrations
from pkg.report.reader import read_capacity, read_snapshot, require
from pkg.report.size import Growth, NotSized, Sizes, sizes
from pkg.report.snapshot import Snapshot
from pkg.util.amounts import listed, shown

EVERY_NODE = "all"
_AT_ONCE = 2
_WIDE = 96
"""Columns of a terminal from which on a table has reasons in a column of its own."""


@dataclass(frozen=True)
class PlanOptions(NamespaceOptions):
    """What is planned for."""

    overhead_ratio: str | None = option(
        None,
        "additional-guest-memory-overhead-ratio to try, 1.0 to 10.0. Default: the configured one.",
        metavar="RATIO",
    )
    evacuate: str | None = option(
        None,
        "All VMs of this node, each and together, and those that would stay; of every namespace unless one is given. "
        "`all`: each node in turn, and exit 1 where a VM would stay.",
        metavar="NODE|all",
    )
    size: bool = option(
        False,
        "How large the namespace's quotas must be: for all its VMs to run, for the largest to migrate, for several.",
        "--size",
    )
    at_once: int | None = option(None, "With --size: so many VMs migrate at once. Default: 2.", metavar="NUMBER", min=1)
    grow: str | None = option(
        None, "With --size: after this VM has other limits, as VM:cpu=4,memory=8Gi.", metavar="VM:LIMITS"
    )


def plan(chosen: PlanOptions, report: ReportOptions, cluster: ClusterOptions) -> int:
    """Show which VMs could migrate now or at another overhead ratio, and what headroom would add; with --evacuate which
    would not leave a node; with --size how large a namespace's quotas must be. Writes nothing.
    """
    where = reports.check_namespace(chosen.namespace)
    _check(chosen)
    growth = _growth(chosen.grow)

    async def look(client: Client) -> Answer:
        snapshot = await read_snapshot(client, report.assumptions(), where)
        if chosen.size:
            return _Sized(snapshot, await _sizes(client, snapshot, chosen, growth))
        if chosen.evacuate == EVERY_NODE:
            return _Evacuated(snapshot, evacuations(snapshot, await read_capacity(client), chosen.overhead_ratio))
        if chosen.evacuate:
            with suppress(Forbidden):  # who may not read nodes gets the plan of the VMs that say they are there
                await require(client, NODES, chosen.evacuate)
            found = evacuation(snapshot, await read_capacity(client), chosen.evacuate, chosen.overhead_ratio)
            return _Planned(snapshot, found.plan, found.violations)
        return _Planned(snapshot, plan_migrations(snapshot, chosen.overhead_ratio))

    answer = reports.ask(cluster.kubeconfig, look)
    answer.print(report.output)
    return 1 if isinstance(answer, _Evacuated) and any(node.violations for node in answer.found.nodes) else 0


async def _sizes(client: Client, snapshot: Snapshot, chosen: PlanOptions, growth: Growth | None) -> Sizes:
    where, several = chosen.namespace or "", chosen.at_once or _AT_ONCE
    machines = await list_installed(client.resource(VIRTUAL_MACHINES), where)
    try:
        return sizes(snapshot, where, machines, ratio=chosen.overhead_ratio, at_once=several, growth=growth)
    except NotSized as exc:
        raise WrongCall(str(exc)) from exc


def _growth(text: str | None) -> Growth | None:
    """What `--grow` says. Raises WrongCall."""
    if text is None:
        return None
    vm, _, limits = text.partition(":")
    named = dict(each.partition("=")[::2] for each in limits.split(","))
    if not vm or not named.keys() <= {"cpu", "memory"}:
        raise WrongCall(f"--grow must be VM:cpu=4,memory=8Gi, not {text!r}")
    try:
        limits_of = {name: Quantity.parse(size) for name, size in named.items()}
    except QuantityError as exc:
        raise WrongCall(f"--grow: {exc}") from exc
    if min(limits_of.values()) <= ZERO:
        raise WrongCall(f"--grow must be more than nothing, not {text!r}")
    return Growth(vm, **limits_of)


@dataclass(frozen=True)
class _Sized(Answer):
    sizes: Sizes

    def document(self) -> dict[str, Any]:
        return {**self.sizes.document(), **self.about()}

    def parts(self) -> list[RenderableType]:
        found = self.sizes
        if not found.quotas:
            return [reports.line(f"no quota of namespace {found.namespace} counts what VMs use")]
        several = f"{found.at_once} at once#"
        columns = ["resource", "base#", "used#", "others#", "all run#", "one migrates#", several]
        parts: list[RenderableType] = []
        for quota in found.quotas:
            rows = [
                [name, *(shown(amount, name) for amount in structs.astuple(need))] for name, need in quota.needs.items()
            ]
            parts += reports.table(f"quota {quota.name}   {len(found.vms)} VMs", columns, rows)
            parts += map(reports.line, quota.verdicts)
            if quota.ratios:
                rows = [
                    [each.ratio, *(shown(amount, "limits.memory") for amount in (each.run, each.largest, each.at_once))]
                    for each in quota.ratios
                ]
                columns_at = ["overhead ratio", "all run#", "one migrates#", several]
                parts += reports.table("limits.memory at other ratios", columns_at, rows)
        return parts


def _check(chosen: PlanOptions) -> None:
    namespace, ratio, node = chosen.namespace, chosen.overhead_ratio, chosen.evacuate
    if chosen.size and (node or not namespace):
        raise WrongCall("--size needs --namespace, and goes without --evacuate")
    if not chosen.size and (chosen.at_once is not None or chosen.grow is not None):
        raise WrongCall("--at-once and --grow need --size")
    if not namespace and not node:
        raise WrongCall("plan needs --namespace or --evacuate")
    if node is not None and reports.NAME.fullmatch(node) is None:
        raise WrongCall(f"--evacuate must be a node's name, not {node!r}")
    check_ratio(ratio)


@dataclass(frozen=True)
class _Evacuated(Answer):
    """Every node in turn."""

    found: Evacuation

    def document(self) -> dict[str, Any]:
        return {**self.found.document(), **self.about()}

    def parts(self) -> list[RenderableType]:
        nodes = self.found.nodes
        if not nodes:
            return [reports.line("no VM runs on any node")]
        rows = []
        for node in nodes:
            added = total(fit.raised for _namespace, fit in node.plan.together)
            rows.append([node.node, str(len(node.plan.vms)), str(len(node.violations)), listed(added) or "-"])
        parts = reports.table("evacuation", ["node", "VMs#", "would stay#", "headroom adds at once"], rows)
        stays = [reports.problem(_stays(node.node, violation)) for node in nodes for violation in node.violations]
        worst = max(nodes, key=lambda node: node.node == self.found.worst)
        last = f"worst: {worst.node}, {len(worst.violations)} of {len(worst.plan.vms)} VMs would stay"
        verdict = reports.line(last) if stays else reports.line("every node can be evacuated", Tone.GOOD)
        return [*parts, *stays, verdict, *map(reports.line, self.found.remarks)]


def _stays(node: str, violation: Violation) -> str:
    return f"{violation.namespace}/{violation.vm} would stay on {node}: {violation.why}"


@dataclass(frozen=True)
class _Planned(Answer):
    plan: MigrationPlan
    violations: Sequence[Violation] = ()

    def document(self) -> dict[str, Any]:
        stays = {"violations": [violation.document() for violation in self.violations]} if self.plan.node else {}
        return {**self.plan.document(), **stays, **self.about()}

    def parts(self) -> list[RenderableType]:
        found = self.plan
        if not found.vms:
            return [reports.line("no VM runs there")]
        ratio = found.ratio or "1.0"
        title = f"VMs of node {found.node}" if found.node else "VMs"
        columns = ["VM", "node", "fits now", f"fits at ratio {ratio}", "with headroom", "headroom adds", "why"]
        parts = _with_reasons(title, columns, [_row(vm) for vm in found.vms])
        if found.together:
            rows = [
                [f"{namespace}/{fit.quota}", _yes(fit.fits_then), listed(fit.raised), _why([fit])]
                for namespace, fit in found.together
            ]
            columns = ["quota", "with headroom", "headroom adds", "why"]
            parts += _with_reasons("all of them at once", columns, rows)
        return [*parts, *(reports.problem(_stays(found.node or "", violation)) for violation in self.violations)]


def _with_reasons(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[RenderableType]:
    """A table whose last columns are what is added and why; these are lines below it where the terminal has no room for
    the columns."""
    if reports.width() >= _WIDE:
        return reports.table(title, columns, rows)
    lines = []
    for name, *_, added, reason in rows:
        adds = [f"headroom adds {added}"] if added not in ("", "-") else []
        lines.append(f"{name}: {'; '.join(adds + [reason] * (reason not in ('', '-'))) or 'nothing is added'}")
    return [*reports.table(title, columns[:-2], [row[:-2] for row in rows]), *map(reports.line, lines)]


def _row(vm: VmPlan) -> list[str]:
    name = f"{vm.namespace}/{vm.vm}"
    if vm.migrates:
        return [name, vm.node or "-", "migrates already", "", "", "", "; ".join(vm.notes)]
    adds = "; ".join(f"{fit.quota}: {listed(fit.raised)}" for fit in vm.fits if fit.raised)
    return [
        name,
        vm.node or "-",
        _yes(vm.fits_now),
        _yes(vm.fits_at_ratio),
        _yes(vm.fits_with_headroom),
        adds or "-",
        _why(vm.fits, vm.notes),
    ]


def _yes(fits: bool) -> str:
    return "yes" if fits else "no"


def _why(fits: Sequence[Fit], notes: Sequence[str] = ()) -> str:
    """What stands in the way of those that do not fit with headroom either, and what else is known."""
    return "; ".join([*(f"{fit.quota}: {fit.action}" for fit in fits if not fit.fits_then), *notes]) or "-"
