"""`headroom status`: what is added to each quota, for which VM, and since when."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from rich.console import RenderableType

from kubeloop.api.registry import NODES
from kubeloop.client.client import Client
from pkg.cmd import reports
from pkg.cmd.flags import option, optional
from pkg.cmd.options import ClusterOptions, WrongCall
from pkg.cmd.reports import Answer, NamespaceOptions, ReportOptions, WatchOptions
from pkg.report.installation import Installed
from pkg.report.reader import list_or_none
from pkg.report.snapshot import Snapshot
from pkg.report.status import BudgetReport, QuotaStatus, Totals, headline, report_namespaces, totals
from pkg.report.status import status as statuses
from pkg.util.amounts import format_amount, format_amounts


class CheckedPart(StrEnum):
    CONTROLLER = "controller"
    WEBHOOKS = "webhooks"


@dataclass(frozen=True)
class StatusOptions(NamespaceOptions):
    check: list[CheckedPart] | None = optional(
        "Print only what is wrong with headroom itself, and exit with 1 where anything is, or where this part is not "
        "known to work: controller or webhooks; may be repeated."
    )
    all: bool = option(False, "Quotas that are not raised and have no problem, too, as with --namespace.", "--all")
    cluster: bool = option(False, "Bases, added and used of all quotas, against what the nodes offer.", "--cluster")
    html: Path | None = optional("Write a page of its own to this file, instead.")


def status(options: StatusOptions, watching: WatchOptions, report: ReportOptions, cluster: ClusterOptions) -> int:
    """Show whether headroom works, and the quotas that are raised or have a problem: the base, what is added, for which
    VMs and since when. Writes nothing to the cluster."""
    scope = reports.check_namespace(options.namespace)
    if sum(map(bool, (options.check, options.html, watching.watch))) > 1:
        raise WrongCall("--check, --html and --watch exclude each other")
    if options.cluster and scope:
        raise WrongCall("--cluster goes without --namespace: the nodes are all namespaces'")

    async def read(client: Client) -> Answer:
        snapshot = await report.read(client, scope, events="" if options.html else None)
        sums = totals(snapshot, await list_or_none(client, NODES)) if options.cluster else None
        return answer_of(snapshot, scope, whole=bool(options.all or scope), sums=sums)

    if watching.watch:
        reports.follow(cluster.kubeconfig, read, report.output)
        return 0
    answer = reports.ask(cluster.kubeconfig, read)
    if parts := options.check:
        installed = answer.snapshot.installed
        missing = installed.missing(controller="controller" in parts, webhooks="webhooks" in parts)
        faults = [*installed.alarms(), *missing]
        tone = reports.WRONG if faults else reports.GOOD
        reports.print_all(*(reports.line(text, tone) for text in faults or ["headroom works"]))
        return 1 if faults else 0
    if options.html:
        reports.write_page(options.html, answer.snapshot)
        print(options.html)
    else:
        answer.print(report.output)
    return 0


def answer_of(snapshot: Snapshot, scope: str = "", *, whole: bool = False, sums: Totals | None = None) -> Answer:
    """Returns the answer about the quotas of a namespace, "" for all; `whole`: quiet ones are shown, too."""
    quotas, budgets = statuses(snapshot), report_namespaces(snapshot)

    document = {
        "rancherQuotas": snapshot.basis.rancher_quotas.value,
        "quotas": [quota.document() for quota in quotas],
        "budgets": [report.document() for report in budgets],
        **({"cluster": sums.document()} if sums else {}),
    }
    head = headline(snapshot, quotas)
    parts = [reports.line(head, reports.GOOD if head.startswith("headroom works") else reports.WRONG)]
    if sums:
        parts += _total_parts(sums)
    for quota in () if sums else quotas:
        if whole:
            parts += _quota_parts(quota, snapshot.installed)
        elif not quota.is_quiet:
            parts += _raised_lines(quota, snapshot)
    for report in budgets:
        if whole or report.raised:
            parts += _budget_parts(report)
    if not (quotas or budgets):
        parts.append(reports.line(f"no managed quota in {scope or 'any namespace'}"))
    if registration := snapshot.installed.registration:
        parts.append(reports.line(registration))
    lines = {f"{quota.namespace}/{quota.name}": "; ".join(_summary_of_quota(quota)) for quota in quotas}
    lines |= {report.namespace: "; ".join(_summary_of_budget(report)) for report in budgets}
    return Answer(snapshot, document, parts, lines, scope)


def _raised_lines(quota: QuotaStatus, snapshot: Snapshot) -> Iterator[RenderableType]:
    """Yields the line of a quota that is raised or has a problem, its entries and its problems."""
    amounts = (f"{name} {row.sentence(name)}" for name, row in quota.resources.items() if row.added)
    yield reports.line("   ".join([f"{quota.namespace}/{quota.name}", *amounts]), reports.RAISED)
    for entry in quota.additions:
        yield reports.line(f"  {entry.vm}   {entry.sentence(snapshot.now, snapshot.basis.hold_limit)}")
    if quota.compensation:
        yield reports.line(f"  refused pods   compensation {format_amounts(quota.compensation)}")
    yield from (reports.problem(problem, "  ") for problem in quota.problems)


def _total_parts(sums: Totals) -> list[RenderableType]:
    rows = [
        reports.amounts_row(name, row.bases, row.added, row.hard, row.used, row.allocatable)
        for name, row in sums.resources.items()
    ]
    columns = ["resource", "bases#", "added#", "hard#", "used#", "nodes offer#"]
    title = f"all quotas: {sums.quotas}, of namespaces: {sums.namespaces}"
    return [*reports.table(title, columns, rows), *(reports.line(text) for text in sums.verdicts)]


def _summary_of_quota(quota: QuotaStatus) -> Iterator[str]:
    """Yields what a line of --watch has: not how much is used, which changes with every pod."""
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


def _quota_parts(quota: QuotaStatus, installed: Installed) -> Iterator[RenderableType]:
    resources = quota.resources.items()
    rows = [reports.amounts_row(name, row.base, row.added, row.hard, row.used) for name, row in resources]
    title = f"{quota.namespace}/{quota.name}   {installed.keeper_title(quota.kept_by)}"
    yield from reports.table(title, ["resource", "base#", "added#", "hard#", "used#"], rows)
    entries = [[e.vm, e.state, e.since or "-", format_amounts(e.resources)] for e in quota.additions]
    if quota.compensation:
        entries.append(["(refused pods)", "compensation", "-", format_amounts(quota.compensation)])
    if entries:
        yield from reports.table("added", ["VM", "state", "since", "resources"], entries)
    yield from map(reports.problem, quota.problems)


def _budget_parts(report: BudgetReport) -> Iterator[RenderableType]:
    """Yields the lines about a namespace that managed tenant quota looks after."""
    names = ", ".join(report.budgets) or "no budget"
    adds = ", ".join(f"{name} {amount}" for name, amount in sorted(report.additional.items())) or "nothing"
    yield reports.line(f"{report.namespace}   managed tenant quota ({names}): may add {adds}")
    if lock := report.lock:
        yield reports.line(f"locked by {lock.holder or 'an unknown holder'} for {lock.reason or '-'}")
    rows = [
        [raised.quota, name, str(limit), str(raised.hard.get(name, "-")), ", ".join(raised.migrations)]
        for raised in report.raised
        for name, limit in sorted(raised.original.items())
    ]
    if rows:
        columns = ["quota", "resource", "original#", "hard#", "for"]
        yield from reports.table("raised while the namespace is locked", columns, rows)
    yield from map(reports.problem, report.problems)
