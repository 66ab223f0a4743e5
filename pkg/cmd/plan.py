"""`headroom plan`: which VMs could migrate, at another overhead ratio or all of a node, without touching anything."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pkg.cmd import reports
from pkg.cmd.flags import option
from pkg.cmd.options import ClusterOptions, Output, WrongCall
from pkg.cmd.reports import NamespaceOptions, ReportOptions
from pkg.util.amounts import listed

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kubeloop.client.client import Client
    from pkg.report.fit import Fit
    from pkg.report.plan import MigrationPlan, VmPlan
    from pkg.report.snapshot import Snapshot


_NODE = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?")


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
        "All VMs of this node, each and together; of every namespace unless one is given.",
        metavar="NODE",
    )


def plan(chosen: PlanOptions, report: ReportOptions, cluster: ClusterOptions) -> None:
    """Show which VMs could migrate now or at another overhead ratio, and what headroom would add. Writes nothing."""
    where = reports.check_namespace(chosen.namespace)
    _check(chosen.namespace, chosen.overhead_ratio, chosen.evacuate)

    async def read(client: Client) -> tuple[Snapshot, MigrationPlan]:
        from kubeloop.api.registry import NODES
        from pkg.report.plan import plan_migrations
        from pkg.report.reader import require, take

        snapshot = await take(client, report.assumed(), where)
        if chosen.evacuate:
            await require(client, NODES, chosen.evacuate)
        return snapshot, plan_migrations(snapshot, chosen.overhead_ratio, chosen.evacuate or "")

    snapshot, found = reports.ask(cluster.kubeconfig, read)
    if report.output is Output.JSON:
        about = {"basis": snapshot.basis.document(), "headroom": snapshot.installed.document()}
        reports.print_json({**found.document(), **about})
        return
    reports.print_all(*reports.framed(snapshot, _parts(found)))


def _check(namespace: str | None, ratio: str | None, node: str | None) -> None:
    from pkg.util.kubevirt.overhead import parse_ratio

    if not namespace and not node:
        raise WrongCall("plan needs --namespace or --evacuate")
    if node is not None and _NODE.fullmatch(node) is None:
        raise WrongCall(f"--evacuate must be a node's name, not {node!r}")
    if ratio is not None and parse_ratio(ratio) is None:
        raise WrongCall(f"--overhead-ratio must be a number from 1.0 to 10.0, not {ratio!r}")


def _parts(found: MigrationPlan) -> list[RenderableType]:
    if not found.vms:
        return [reports.line("no VM runs there")]
    ratio = found.ratio or "1.0"
    title = f"VMs of node {found.node}" if found.node else "VMs"
    columns = ["VM", "node", "fits now", f"fits at ratio {ratio}", "with headroom", "headroom adds", "why"]
    parts = reports.table(title, columns, map(_row, found.vms))
    if found.together:
        parts += reports.table(
            "all of them at once",
            ["quota", "with headroom", "headroom adds", "why"],
            [
                [f"{namespace}/{fit.quota}", _yes(fit.fits_then), listed(fit.raised), _why([fit])]
                for namespace, fit in found.together
            ],
        )
    return parts


def _row(vm: VmPlan) -> list[str]:
    name = f"{vm.namespace}/{vm.vm}"
    if vm.migrates:
        return [name, vm.node or "-", "migrates already", "", "", "", ""]
    adds = "; ".join(f"{fit.quota}: {listed(fit.raised)}" for fit in vm.fits if fit.raised)
    return [
        name,
        vm.node or "-",
        _yes(vm.fits_now),
        _yes(vm.fits_at_ratio),
        _yes(vm.fits_with_headroom),
        adds or "-",
        _why(vm.fits),
    ]


def _yes(fits: bool) -> str:
    return "yes" if fits else "no"


def _why(fits: Sequence[Fit]) -> str:
    """What stands in the way of those that do not fit with headroom either."""
    return "; ".join(f"{fit.quota}: {fit.action}" for fit in fits if not fit.fits_then) or "-"
