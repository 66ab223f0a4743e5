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
from pkg.cmd.flags import option, optional
from pkg.cmd.options import ClusterOptions, WrongCall
from pkg.cmd.reports import NamespaceOptions, ReportOptions, Tone, WatchOptions
from pkg.report.budget import BudgetReport
from pkg.report.budget import report_namespaces as budgets
from pkg.report.installation import Installed, duration_text
from pkg.report.reader import read_nodes, read_snapshot
from pkg.report.snapshot import Snapshot
from pkg.report.status import QuotaStatus, Totals, headline, totals
from pkg.report.status import status as statuses
from pkg.util.amounts import format_amount, format_amounts


class CheckedPart(StrEnum):
    """The parts of an installation."""

    CONTROLLER = "controller"
    WEBHOOKS = "webhooks"


@dataclass(frozen=True)
class StatusOptions(NamespaceOptions):
    """The flags of what is shown or checked, and where."""

    check: list[CheckedPart] | None = optional(
        "Print only what is wrong with headroom itself, and exit with 1 where anything is, or where this part is not "
        "known to work: controller or webhooks; may be repeated."
    )
    all: bool = option(
        False, "Quotas that are not raised and have no problem, too; so it is with --namespace.", "--all"
    )
    cluster: bool = option(
        False, "Bases, added and used of all quotas together, against what the nodes offer.", "--cluster"
    )
    html: str | None = optional("Write a page of its own to this file, instead.", metavar="FILE")


@dataclass(frozen=True)
class StatusAnswer(reports.Answer):
    """The answer about quotas. `scope`: the namespace that was asked about, "" for all; `whole`: quiet quotas are
    shown, too."""

    scope: str
    quotas: list[QuotaStatus]
    budgets: list[BudgetReport]
    whole: bool = True
    totals: Totals | None = None

    @property
    def namespace(self) -> str:
        return self.scope

    def document(self) -> dict[str, Any]:
        return {
            **self.circumstances(),
            "rancherQuotas": self.snapshot.basis.rancher_quotas.value,
            "quotas": [quota.document() for quota in self.quotas],
            "budgets": [report.document() for report in self.budgets],
            **({"cluster": self.totals.document()} if self.totals else {}),
        }

    def parts(self) -> list[RenderableType]:
        installed = self.snapshot.installed
        headline_text = headline(self.snapshot, self.quotas)
        parts = [reports.line(headline_text, Tone.GOOD if headline_text.startswith("headroom works") else Tone.WRONG)]
        if self.totals:
            parts += _total_parts(self.totals)
        elif self.whole:
            parts += [part for quota in self.quotas for part in _quota_parts(quota, installed)]
        else:
            parts += [
                part for quota in self.quotas if not quota.is_quiet for part in _raised_lines(quota, self.snapshot)
            ]
        parts += [part for report in self.budgets if self.whole or report.raised for part in _budget_parts(report)]
        if not (self.quotas or self.budgets):
            parts.append(reports.line(f"no managed quota in {self.scope or 'any namespace'}"))
        remarks = self.snapshot.basis.rancher_remark, installed.registration
        return [*parts, *(reports.line(remark) for remark in remarks if remark)]

    def lines(self) -> dict[str, str]:
        """Returns the lines without how much is used, which changes with every pod."""
        lines = {f"{quota.namespace}/{quota.name}": "; ".join(_summary_of_quota(quota)) for quota in self.quotas}
        return lines | {report.namespace: "; ".join(_summary_of_budget(report)) for report in self.budgets}


def status(options: StatusOptions, watching: WatchOptions, report: ReportOptions, cluster: ClusterOptions) -> int:
    """Show whether headroom works, and the quotas that are raised or have a problem: the base, what is added, for which
    VMs and since when. Writes nothing to the cluster."""

    scope = reports.check_namespace(options.namespace)
    watching.check(report.output)
    if watching.watch and options.check:
        raise WrongCall("--check and --watch exclude each other")
    if options.html and (watching.watch or options.check):
        raise WrongCall("--html goes without --check and --watch")

    async def read(client: Client) -> StatusAnswer:
        snapshot = await read_snapshot(client, report.assumptions(), scope, events="" if options.html else None)
        sums = totals(snapshot, await read_nodes(client)) if options.cluster else None
        return StatusAnswer(snapshot, scope, statuses(snapshot), budgets(snapshot), bool(options.all or scope), sums)

    if watching.watch:
        reports.follow(cluster.kubeconfig, read)
        return 0
    answer = reports.ask(cluster.kubeconfig, read)
    if options.check:
        return _check(answer.snapshot, options.check)
    if options.html:
        reports.write_page(Path(options.html), answer.snapshot, answer.quotas)
    else:
        answer.print(report.output)
    return 0


def _raised_lines(quota: QuotaStatus, snapshot: Snapshot) -> Iterator[RenderableType]:
    """Yields the line of a quota that is raised or has a problem, its entries and its problems."""
    amounts = (f"{name} {row.sentence(name)}" for name, row in quota.resources.items() if row.added)
    yield reports.line("   ".join([f"{quota.namespace}/{quota.name}", *amounts]), Tone.RAISED)
    for entry in quota.additions:
        since = f" for {duration_text(snapshot.now - from_rfc3339(entry.since))}" if entry.since else ""
        leftovers = ""
        if entry.left:
            until = from_rfc3339(entry.since) + snapshot.basis.policy.hold_limit if entry.since else None
            latest = f", until {time.strftime('%H:%M:%S', time.gmtime(until))} UTC at the latest" if until else ""
            leftovers = f": {', '.join(entry.left)} still counts{latest}"
        yield reports.line(f"  {entry.vm}   {entry.state}{since}{leftovers}")
    if quota.compensation:
        yield reports.line(f"  refused pods   compensation {format_amounts(quota.compensation)}")
    yield from (reports.problem(problem, "  ") for problem in quota.problems)


def _total_parts(sums: Totals) -> list[RenderableType]:
    rows = []
    for name, row in sums.resources.items():
        amounts = row.bases, row.added, row.hard, row.used, row.allocatable
        rows.append([name, *("-" if amount is None else format_amount(amount, name) for amount in amounts)])
    columns = ["resource", "bases#", "added#", "hard#", "used#", "nodes offer#"]
    title = f"all quotas: {sums.quotas}, of namespaces: {sums.namespaces}"
    return [*reports.table(title, columns, rows), *(reports.line(text) for text in sums.verdicts)]


def _summary_of_quota(quota: QuotaStatus) -> Iterator[str]:
    yield ", ".join(
        f"{name} {format_amount(row.hard, name)}" + (f" ({format_amount(row.added, name)} added)" if row.added else "")
        for name, row in quota.resources.items()
    )
    yield from (f"{entry.vm} {entry.state}" for entry in quota.additions)
    if quota.compensation:
        yield f"compensation {format_amounts(quota.compensation)}"
    yield from (f"! {problem}" for problem in quota.problems)


def _summary_of_budget(report: BudgetReport) -> Iterator[str]:
    lock = report.lock
    yield f"locked by {lock.holder or '-'} for {lock.reason or '-'}" if lock else "not locked"
    yield from (f"{raised.quota} raised for {', '.join(raised.migrations)}" for raised in report.raised)
    yield from (f"! {problem}" for problem in report.problems)


def _check(snapshot: Snapshot, parts: list[CheckedPart]) -> int:
    missing = snapshot.installed.missing(
        controller=CheckedPart.CONTROLLER in parts, webhooks=CheckedPart.WEBHOOKS in parts
    )
    faults = [*snapshot.installed.alarms(), *missing]
    tone = Tone.WRONG if faults else Tone.GOOD
    reports.print_all(*(reports.line(text, tone) for text in faults or ["headroom works"]))
    return 1 if faults else 0


def _quota_parts(quota: QuotaStatus, installed: Installed) -> list[RenderableType]:
    parts = reports.table(
        f"{quota.namespace}/{quota.name}   {installed.keeper_title(quota.kept_by)}",
        ["resource", "base#", "added#", "hard#", "used#"],
        [
            [name, *(format_amount(q, name) for q in (row.base, row.added, row.hard, row.used))]
            for name, row in quota.resources.items()
        ],
    )
    entries = [
        [entry.vm, entry.state, entry.since or "-", format_amounts(entry.resources)] for entry in quota.additions
    ]
    if quota.compensation:
        entries.append(["(refused pods)", "compensation", "-", format_amounts(quota.compensation)])
    if entries:
        parts += reports.table("added", ["VM", "state", "since", "resources"], entries)
    return [*parts, *(reports.problem(problem) for problem in quota.problems)]


def _budget_parts(report: BudgetReport) -> list[RenderableType]:
    """Returns the lines about a namespace that managed tenant quota looks after."""
    names = ", ".join(report.budgets) or "no budget"
    adds = ", ".join(f"{name} {amount}" for name, amount in sorted(report.additional.items())) or "nothing"
    parts: list[RenderableType] = [reports.line(f"{report.namespace}   managed tenant quota ({names}): may add {adds}")]
    if report.lock is not None:
        parts.append(
            reports.line(f"locked by {report.lock.holder or 'an unknown holder'} for {report.lock.reason or '-'}")
        )
    rows = [
        [raised.quota, name, str(limit), str(raised.hard.get(name, "-")), ", ".join(raised.migrations)]
        for raised in report.raised
        for name, limit in sorted(raised.original.items())
    ]
    if rows:
        columns = ["quota", "resource", "original#", "hard#", "for"]
        parts += reports.table("raised while the namespace is locked", columns, rows)
    return [*parts, *(reports.problem(problem) for problem in report.problems)]
