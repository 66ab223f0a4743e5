"""`headroom status`: what is added to each quota, for which VM, and since when."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from pkg.cmd import reports
from pkg.cmd.flags import option
from pkg.cmd.options import ClusterOptions, Output
from pkg.cmd.reports import NamespaceOptions, ReportOptions
from pkg.util.amounts import listed, shown

if TYPE_CHECKING:
    from rich.console import RenderableType

    from kubeloop.client.client import Client
    from pkg.report.budget import Report
    from pkg.report.snapshot import Snapshot
    from pkg.report.status import QuotaStatus


class Part(StrEnum):
    """What an installation is made of."""

    CONTROLLER = "controller"
    WEBHOOKS = "webhooks"


@dataclass(frozen=True)
class CheckOptions:
    """Whether headroom itself works."""

    title: ClassVar = "Options"

    check: list[Part] | None = option(
        None,
        "Print only what is wrong with headroom itself, and exit with 1 where this part is not known to work: "
        "controller or webhooks; may be repeated.",
    )


def status(
    chosen: NamespaceOptions, checking: CheckOptions, report: ReportOptions, cluster: ClusterOptions
) -> int:
    """Show each managed quota: its base, what is added to it, for which VMs and since when. Writes nothing."""

    where = reports.check_namespace(chosen.namespace)

    async def read(client: Client) -> tuple[Snapshot, list[QuotaStatus], list[Report]]:
        from pkg.report.budget import reports as with_budgets
        from pkg.report.reader import take
        from pkg.report.status import status as of

        snapshot = await take(client, report.assumed(), where)
        return snapshot, of(snapshot), with_budgets(snapshot)

    snapshot, quotas, budgets = reports.ask(cluster.kubeconfig, read)
    if checking.check:
        return _check(snapshot, checking.check)
    if report.output is Output.JSON:
        documents = [found.document() for found in budgets]
        found = [quota.document() for quota in quotas]
        about = {"basis": snapshot.basis.document(), "headroom": snapshot.installed.document()}
        reports.print_json({**about, "quotas": found, "budgets": documents})
        return 0
    reports.print_alarms(snapshot.installed)
    if quotas or budgets:
        reports.print_all(*(part for quota in quotas for part in _parts(quota)))
        reports.print_all(*(part for found in budgets for part in _budget_parts(found)))
    else:
        reports.print_all(reports.line(f"no managed quota in {where or 'any namespace'}"))
    reports.print_remarks(snapshot.basis)
    return 0


def _check(snapshot: Snapshot, parts: list[Part]) -> int:
    missing = snapshot.installed.missing(controller=Part.CONTROLLER in parts, webhooks=Part.WEBHOOKS in parts)
    faults = [*snapshot.installed.alarms(), *missing]
    reports.print_all(*map(reports.line, faults or ["headroom works"]))
    return 1 if faults else 0


def _parts(quota: QuotaStatus) -> list[RenderableType]:
    parts: list[RenderableType] = [
        reports.table(
            f"{quota.namespace}/{quota.name}   kept by {quota.kept_by}",
            ["resource", "base#", "added#", "hard#", "used#"],
            [
                [row.name, *(shown(q, row.name) for q in (row.base, row.added, row.hard, row.used))]
                for row in quota.resources
            ],
        )
    ]
    added = [[each.vm, each.state, each.since or "-", listed(each.resources)] for each in quota.additions]
    if quota.compensation:
        added.append(["(refused pods)", "compensation", "-", listed(quota.compensation)])
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
            reports.line(
                f"locked by {found.lock.holder or 'an unknown holder'} for {found.lock.reason or '-'}"
            )
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
