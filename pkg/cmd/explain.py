"""`headroom explain NS/VM`: why a migration waits, or whether one would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import typer
from rich.console import RenderableType

from kubeloop.client.client import Client
from pkg.api.kubevirt import VIRTUAL_MACHINES
from pkg.cmd import reports
from pkg.cmd.collect import load
from pkg.cmd.flags import option
from pkg.cmd.options import ClusterOptions, WrongCall
from pkg.cmd.reports import ReportOptions, WatchOptions
from pkg.report.budget import explained
from pkg.report.explain import Explanation, not_running
from pkg.report.fit import Fit
from pkg.report.installation import Installed
from pkg.report.reader import FAILURES, Absent, require, take
from pkg.report.snapshot import Snapshot
from pkg.util.amounts import shown

Answer = tuple[Snapshot, Explanation]


@dataclass(frozen=True)
class CollectedOptions:
    """Instead of a cluster."""

    title: ClassVar = "Options"

    folder: str | None = option(
        None, "Folder that `headroom collect` wrote, instead of a cluster.", "--from", metavar="DIR"
    )


def explain(
    vm: Annotated[str, typer.Argument(metavar="NS/VM", envvar="HEADROOM_VM", help="Namespace and name of the VM.")],
    report: ReportOptions,
    watching: WatchOptions,
    collected: CollectedOptions,
    cluster: ClusterOptions,
) -> None:
    """Explain why the VM's migration waits: which quota, which resource, and what headroom does about it.

    Of a VM that does not migrate: whether it could. Writes nothing.
    """
    namespace, name = _names(vm)
    watching.check(report.output)
    if watching.watch and collected.folder:
        raise WrongCall("--from and --watch exclude each other")

    async def look(client: Client) -> Answer:
        return await _look(client, report, namespace, name)

    if watching.watch:
        reports.follow(cluster.kubeconfig, look, _shown, _lines)
        return
    answer = _read(collected.folder, namespace, name) if collected.folder else reports.ask(cluster.kubeconfig, look)
    reports.print_answer(report.output, answer, reports.about_one, _shown)


def _shown(answer: Answer) -> list[RenderableType]:
    snapshot, found = answer
    parts = [reports.line(f"{found.namespace}/{found.vm} {found.verdict}: {found.summary}")]
    parts += [part for fit in found.fits for part in _parts(fit, snapshot.installed)]
    if found.verdict == "waits for KubeVirt":
        parts.append(reports.line("what headroom does not cover, and what to do instead: docs/limits.md"))
    return reports.framed(snapshot, parts)


def _lines(answer: Answer) -> dict[str, str]:
    snapshot, found = answer
    said = [f"{found.verdict}: {found.summary}", *(f"{fit.quota}: {fit.action}" for fit in found.fits)]
    return {"headroom": snapshot.installed.in_short, f"{found.namespace}/{found.vm}": "; ".join(said)}


def _read(folder: str, namespace: str, name: str) -> Answer:
    snapshot = load(folder)
    instance = snapshot.instance(namespace, name)
    if instance is None:
        raise Absent(f"{folder} has no running VM {namespace}/{name}")
    return snapshot, explained(snapshot, instance)


def _names(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not slash or reports.NAME.fullmatch(name) is None:
        raise WrongCall(f"a VM is named NAMESPACE/NAME, not {text!r}")
    return reports.check_namespace(namespace), name


async def _look(client: Client, report: ReportOptions, namespace: str, name: str) -> Answer:
    snapshot = await take(client, report.assumed(), namespace, events=FAILURES)
    instance = snapshot.instance(namespace, name)
    if instance is not None:
        return snapshot, explained(snapshot, instance)
    machine = await require(client, VIRTUAL_MACHINES, name, namespace)
    return snapshot, not_running(namespace, name, machine.status.printable_status or "")


def _parts(fit: Fit, installed: Installed) -> list[RenderableType]:
    rows = [
        [name, *(shown(q, name) for q in (need.requested, need.used, need.limited, need.missing))]
        for name, need in fit.needs.items()
    ]
    title = f"quota {fit.quota}   {installed.keeps(fit.kept_by)}"
    columns = ["resource", "requested#", "used#", "limited#", "missing#"]
    return [*reports.table(title, columns, rows), reports.line(f"headroom: {fit.action}")]
