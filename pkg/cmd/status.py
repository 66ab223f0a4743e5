"""`headroom status`: what is added to each quota, for which VM, and since when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkg.cmd import reports
from pkg.cmd.options import Kubeconfig
from pkg.cmd.reports import NamespaceOption, Output, OutputOption

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pkg.client.client import Client
    from pkg.util.managedtenantquota.report import Report
    from pkg.util.resourcequota.report_status import QuotaStatus


def status(
    namespace: NamespaceOption = None, output: OutputOption = Output.TABLE, kubeconfig: Kubeconfig = None
) -> None:
    """Show the quotas that take part: base, what is added to it, for which VMs and since when. Writes nothing."""

    where = reports.check_namespace(namespace)

    async def look(client: Client) -> tuple[list[QuotaStatus], list[Report]]:
        from pkg.cmd.snapshots import take
        from pkg.util.managedtenantquota.snapshot import reports as with_budgets
        from pkg.util.resourcequota.report_status import status as of

        snapshot = await take(client, where)
        return of(snapshot), with_budgets(snapshot)

    quotas, budgets = reports.ask(kubeconfig, look)
    if output is Output.JSON:
        documents = [found.document() for found in budgets]
        reports.print_json({"quotas": [quota.document() for quota in quotas], "budgets": documents})
    elif quotas or budgets:
        reports.print_all(*(part for quota in quotas for part in _parts(quota)))
        reports.print_all(*(part for found in budgets for part in _budget_parts(found)))
    else:
        reports.print_all(reports.line(f"no quota takes part in {where or 'any namespace'}"))


def _parts(quota: QuotaStatus) -> list[RenderableType]:
    parts: list[RenderableType] = [
        reports.table(
            f"{quota.namespace}/{quota.name}   kept by {quota.kept_by}",
            ["resource", "base#", "added#", "hard#", "used#"],
            [
                [row.name, *(reports.shown(q, row.name) for q in (row.base, row.added, row.hard, row.used))]
                for row in quota.resources
            ],
        )
    ]
    added = [
        [each.vm, each.state, each.since or "-", reports.listed(each.resources)] for each in quota.additions
    ]
    if quota.compensation:
        added.append(["(refused pods)", "compensation", "-", reports.listed(quota.compensation)])
    if added:
        parts.append(reports.table("added", ["VM", "state", "since", "resources"], added))
    return [*parts, *(reports.line(f"! {problem}") for problem in quota.problems)]


def _budget_parts(found: Report) -> list[RenderableType]:
    """A namespace that managed tenant quota looks after."""
    names = ", ".join(found.budgets) or "no budget"
    adds = ", ".join(f"{name} {amount}" for name, amount in sorted(found.additional.items())) or "nothing"
    parts: list[RenderableType] = [
        reports.line(f"{found.namespace}   managed tenant quota ({names}): may add {adds}")
    ]
    if found.lock is not None:
        parts.append(
            reports.line(f"locked by {found.lock.holder or 'somebody'} for {found.lock.reason or '-'}")
        )
    rows = [
        [raised.quota, name, str(limit), str(raised.hard.get(name, "-")), ", ".join(raised.migrations)]
        for raised in found.raised
        for name, limit in sorted(raised.original.items())
    ]
    if rows:
        columns = ["quota", "resource", "original#", "hard#", "for"]
        parts.append(reports.table("raised while the namespace is locked", columns, rows))
    return [*parts, *(reports.line(f"! {problem}") for problem in found.problems)]
