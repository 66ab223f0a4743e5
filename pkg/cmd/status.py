"""`headroom status`: what is added to each quota, for which VM, and since when."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from rich.console import RenderableType

from kubeloop.api.meta import from_rfc3339
from kubeloop.client.client import Client
from pkg.cmd import reports
from pkg.cmd.flags import option
from pkg.cmd.html import write_page
from pkg.cmd.options import ClusterOptions, WrongCall
from pkg.cmd.reports import NamespaceOptions, ReportOptions, Tone, WatchOptions
from pkg.report.budget import BudgetReport
from pkg.report.budget import report_namespaces as budget_reports
from pkg.report.installation import Installed, duration_text
from pkg.report.reader import read_nodes, read_snapshot
from pkg.report.snapshot import Snapshot
from pkg.report.status import QuotaStatus, headline
from pkg.report.status import status as quota_statuses
from pkg.report.totals import Totals, totals
from pkg.util.amounts import listed, shown


class Part(StrEnum):
    """What an installation is made of."""

    CONTROLLER = "controller"
    WEBHOOKS = "webhooks"


@dataclass(frozen=True)
class CheckOptions:
    """Whether headroom itself works."""

    check: list[Part] | None = option(
        None,
        "Print only what is wrong with headroom itself, and exit with 1 where this part is not known to work: "
        "controller or webhooks; may be repeated.",
    )


@dataclass(frozen=True)
class ShownOptions:
    """What is shown, and where."""

    all: bool = option(
        False, "Quotas that are not raised and have no problem, too; so it is with --namespace.", "--all"
    )
    cluster: bool = option(
        False, "Bases, added and used of all quotas together, against what the nodes offer.", "--cluster"
    )
    html: str | None = option(None, "Write a page of its own to this file, instead.", metavar="FILE")


@dataclass(frozen=True)
class Answer(reports.Answer):
    """`where`: the namespace that was asked about, "" for all; `whole`: quiet quotas are shown, too."""

    where: str
    quotas: list[QuotaStatus]
    budgets: list[BudgetReport]
    whole: bool = True
    totals: Totals | None = None

    @property
    def namespace(self) -> str:
        return self.where

    def document(self) -> dict[str, Any]:
        return {
            **self.about(),
            "rancherQuotas": self.snapshot.basis.rancher_quotas.value,
            "quotas": [quota.document() for quota in self.quotas],
            "budgets": [found.document() for found in self.budgets],
            **({"cluster": self.totals.document()} if self.totals else {}),
        }

    def parts(self) -> list[RenderableType]:
        installed = self.snapshot.installed
        first = headline(self.snapshot, self.quotas)
        parts = [reports.line(first, Tone.GOOD if first.startswith("headroom works") else Tone.WRONG)]
        if self.totals:
            parts += _total_parts(self.totals)
        elif self.whole:
            parts += [part for quota in self.quotas for part in _parts(quota, installed)]
        else:
            parts += [part for quota in self.quotas if not quota.is_quiet for part in _short(quota, self.snapshot)]
        parts += [part for found in self.budgets if self.whole or found.raised for part in _budget_parts(found)]
        if not (self.quotas or self.budgets):
            parts.append(reports.line(f"no managed quota in {self.where or 'any namespace'}"))
        remarks = self.snapshot.basis.rancher_remark, installed.registration
        return [*parts, *(reports.line(remark) for remark in remarks if remark)]

    def lines(self) -> dict[str, str]:
        """Not how much is used, which changes with every pod."""
        lines = {f"{quota.namespace}/{quota.name}": "; ".join(_said(quota)) for quota in self.quotas}
        return lines | {found.namespace: "; ".join(_budget_said(found)) for found in self.budgets}


def status(
    chosen: NamespaceOptions,
    checking: CheckOptions,
    showing: ShownOptions,
    watching: WatchOptions,
    report: ReportOptions,
    cluster: ClusterOptions,
) -> int:
    """Show whether headroom works, and the quotas that are raised or have a problem: the base, what is added, for which
    VMs and since when. Writes nothing to the cluster."""

    where = reports.check_namespace(chosen.namespace)
    watching.check(report.output)
    if watching.watch and checking.check:
        raise WrongCall("--check and --watch exclude each other")
    if showing.html and (watching.watch or checking.check):
        raise WrongCall("--html goes without --check and --watch")

    async def read(client: Client) -> Answer:
        snapshot = await read_snapshot(client, report.assumptions(), where, events="" if showing.html else None)
        summed = totals(snapshot, await read_nodes(client)) if showing.cluster else None
        return Answer(
            snapshot, where, quota_statuses(snapshot), budget_reports(snapshot), bool(showing.all or where), summed
        )

    if watching.watch:
        reports.follow(cluster.kubeconfig, read)
        return 0
    answer = reports.ask(cluster.kubeconfig, read)
    if checking.check:
        return _check(answer.snapshot, checking.check)
    if showing.html:
        write_page(Path(showing.html), answer.snapshot, answer.quotas)
    else:
        answer.print(report.output)
    return 0


def _short(quota: QuotaStatus, snapshot: Snapshot) -> Iterator[RenderableType]:
    """A quota that is raised or has a problem, in a line, its entries and its problems."""
    amounts = (f"{name} {row.sentence(name)}" for name, row in quota.resources.items() if row.added)
    yield reports.line("   ".join([f"{quota.namespace}/{quota.name}", *amounts]), Tone.RAISED)
    for entry in quota.additions:
        since = f" for {duration_text(snapshot.now - from_rfc3339(entry.since))}" if entry.since else ""
        left = ""
        if entry.left:
            until = from_rfc3339(entry.since) + snapshot.basis.policy.hold_limit if entry.since else None
            latest = f", until {time.strftime('%H:%M:%S', time.gmtime(until))} UTC at the latest" if until else ""
            left = f": {', '.join(entry.left)} still counts{latest}"
        yield reports.line(f"  {entry.vm}   {entry.state}{since}{left}")
    if quota.compensation:
        yield reports.line(f"  refused pods   compensation {listed(quota.compensation)}")
    yield from (reports.problem(problem, "  ") for problem in quota.problems)


def _total_parts(found: Totals) -> list[RenderableType]:
    rows = []
    for name, row in found.resources.items():
        amounts = row.bases, row.added, row.hard, row.used, row.allocatable
        rows.append([name, *("-" if amount is None else shown(amount, name) for amount in amounts)])
    columns = ["resource", "bases#", "added#", "hard#", "used#", "nodes offer#"]
    title = f"all quotas: {found.quotas}, of namespaces: {found.namespaces}"
    return [*reports.table(title, columns, rows), *(reports.line(text) for text in found.verdicts)]


def _said(quota: QuotaStatus) -> Iterator[str]:
    yield ", ".join(
        f"{name} {shown(row.hard, name)}" + (f" ({shown(row.added, name)} added)" if row.added else "")
        for name, row in quota.resources.items()
    )
    yield from (f"{each.vm} {each.state}" for each in quota.additions)
    if quota.compensation:
        yield f"compensation {listed(quota.compensation)}"
    yield from (f"! {problem}" for problem in quota.problems)


def _budget_said(found: BudgetReport) -> Iterator[str]:
    lock = found.lock
    yield f"locked by {lock.holder or '-'} for {lock.reason or '-'}" if lock else "not locked"
    yield from (f"{raised.quota} raised for {', '.join(raised.migrations)}" for raised in found.raised)
    yield from (f"! {problem}" for problem in found.problems)


def _check(snapshot: Snapshot, parts: list[Part]) -> int:
    missing = snapshot.installed.missing(controller=Part.CONTROLLER in parts, webhooks=Part.WEBHOOKS in parts)
    faults = [*snapshot.installed.alarms(), *missing]
    tone = Tone.WRONG if faults else Tone.GOOD
    reports.print_all(*(reports.line(text, tone) for text in faults or ["headroom works"]))
    return 1 if faults else 0


def _parts(quota: QuotaStatus, installed: Installed) -> list[RenderableType]:
    parts = reports.table(
        f"{quota.namespace}/{quota.name}   {installed.keeper_title(quota.kept_by)}",
        ["resource", "base#", "added#", "hard#", "used#"],
        [
            [name, *(shown(q, name) for q in (row.base, row.added, row.hard, row.used))]
            for name, row in quota.resources.items()
        ],
    )
    added = [[each.vm, each.state, each.since or "-", listed(each.resources)] for each in quota.additions]
    if quota.compensation:
        added.append(["(refused pods)", "compensation", "-", listed(quota.compensation)])
    if added:
        parts += reports.table("added", ["VM", "state", "since", "resources"], added)
    return [*parts, *(reports.problem(problem) for problem in quota.problems)]


def _budget_parts(found: BudgetReport) -> list[RenderableType]:
    """A namespace that managed tenant quota looks after."""
    names = ", ".join(found.budgets) or "no budget"
    adds = ", ".join(f"{name} {amount}" for name, amount in sorted(found.additional.items())) or "nothing"
    parts: list[RenderableType] = [reports.line(f"{found.namespace}   managed tenant quota ({names}): may add {adds}")]
    if found.lock is not None:
        parts.append(
            reports.line(f"locked by {found.lock.holder or 'an unknown holder'} for {found.lock.reason or '-'}")
        )
    rows = [
        [raised.quota, name, str(limit), str(raised.hard.get(name, "-")), ", ".join(raised.migrations)]
        for raised in found.raised
        for name, limit in sorted(raised.original.items())
    ]
    if rows:
        columns = ["quota", "resource", "original#", "hard#", "for"]
        parts += reports.table("raised while the namespace is locked", columns, rows)
    return [*parts, *(reports.problem(problem) for problem in found.problems)]
