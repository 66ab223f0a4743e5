"""`headroom status`: what is added to each quota, for which VM, and since when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pkg.cmd import reports
from pkg.cmd.options import Kubeconfig
from pkg.cmd.reports import NamespaceOption, Output, OutputOption

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pkg.client.client import Client
    from pkg.util.resourcequota.report_status import QuotaStatus


def status(
    namespace: NamespaceOption = None, output: OutputOption = Output.TABLE, kubeconfig: Kubeconfig = None
) -> None:
    """Show the quotas that take part: base, what is added to it, for which VMs and since when. Writes nothing."""

    where = reports.check_namespace(namespace)

    async def look(client: Client) -> list[QuotaStatus]:
        from pkg.cmd.snapshots import take
        from pkg.util.resourcequota.report_status import status as of

        snapshot = await take(client, where)
        return of(snapshot)

    quotas = reports.ask(kubeconfig, look)
    if output is Output.JSON:
        reports.print_json({"quotas": [quota.document() for quota in quotas]})
    elif quotas:
        reports.print_all(*(part for quota in quotas for part in _parts(quota)))
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
