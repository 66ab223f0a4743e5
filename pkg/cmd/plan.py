"""`headroom plan`: which VMs could migrate, at another overhead ratio or all of a node, without touching anything."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from pkg.cmd import reports
from pkg.cmd.options import Kubeconfig, WrongCall
from pkg.cmd.reports import NamespaceOption, Output, OutputOption

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pkg.client.client import Client
    from pkg.util.resourcequota.report_fit import Fit
    from pkg.util.resourcequota.report_plan import MigrationPlan, VmPlan


_NODE = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?")


def plan(
    namespace: NamespaceOption = None,
    overhead_ratio: Annotated[
        str | None,
        typer.Option(
            envvar="HEADROOM_OVERHEAD_RATIO",
            help="additional-guest-memory-overhead-ratio to try, 1.0 to 10.0. Default: as it is configured.",
            show_default=False,
        ),
    ] = None,
    evacuate: Annotated[
        str | None,
        typer.Option(
            envvar="HEADROOM_EVACUATE",
            metavar="NODE",
            help="All VMs of this node, each and together; of every namespace unless one is given.",
            show_default=False,
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show which VMs could migrate now or at another overhead ratio, and what headroom would add. Writes nothing."""
    where = reports.check_namespace(namespace)
    _check(namespace, overhead_ratio, evacuate)

    async def look(client: Client) -> MigrationPlan:
        from pkg.api.registry import NODES
        from pkg.cmd.snapshots import require, take
        from pkg.util.resourcequota.report_plan import plan_migrations

        snapshot = await take(client, where)
        if evacuate:
            await require(client, NODES, evacuate)
        return plan_migrations(snapshot, overhead_ratio, evacuate or "")

    found = reports.ask(kubeconfig, look)
    if output is Output.JSON:
        reports.print_json(found.document())
    else:
        reports.print_all(*_parts(found))


def _check(namespace: str | None, ratio: str | None, node: str | None) -> None:
    from pkg.util.memory_overhead import parse_ratio

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
    parts: list[RenderableType] = [reports.table(title, columns, map(_row, found.vms))]
    if found.together:
        parts.append(
            reports.table(
                "all of them at once",
                ["quota", "with headroom", "headroom adds", "why"],
                [
                    [f"{namespace}/{fit.quota}", _yes(fit.fits_then), reports.listed(fit.raised), _why([fit])]
                    for namespace, fit in found.together
                ],
            )
        )
    return parts


def _row(vm: VmPlan) -> list[str]:
    name = f"{vm.namespace}/{vm.vm}"
    if vm.migrates:
        return [name, vm.node or "-", "migrates already", "", "", "", ""]
    adds = "; ".join(f"{fit.quota}: {reports.listed(fit.raised)}" for fit in vm.fits if fit.raised)
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
