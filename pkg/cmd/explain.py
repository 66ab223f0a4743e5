"""`headroom explain NS/VM`: why a migration waits, or whether one would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import RenderableType

from kubeloop.client.client import Client
from pkg.api.kubevirt import VIRTUAL_MACHINES
from pkg.cmd import reports
from pkg.cmd.collect import load_collected
from pkg.cmd.flags import optional
from pkg.cmd.options import ClusterOptions, WrongCall
from pkg.cmd.reports import ReportOptions, WatchOptions
from pkg.report.budget import explain_with_budget
from pkg.report.causes import halted_reason
from pkg.report.explain import Explanation, Verdict, not_running
from pkg.report.fit import Fit
from pkg.report.installation import Installed
from pkg.report.reader import FAILURE_SELECTOR, Absent, read_snapshot, require
from pkg.report.snapshot import Snapshot
from pkg.util.amounts import format_amount


@dataclass(frozen=True)
class CollectedOptions:
    """The folder that is read instead of a cluster."""

    folder: str | None = optional(
        "Folder that `headroom collect` wrote, instead of a cluster.", "--from", metavar="DIR"
    )


class ExplainAnswer(reports.ReportAnswer[Explanation]):
    """The answer about one VM."""

    @property
    def namespace(self) -> str:
        return self.report.namespace

    def parts(self) -> list[RenderableType]:
        explanation = self.report
        parts = [reports.line(f"{explanation.namespace}/{explanation.vm} {explanation.verdict}: {explanation.summary}")]
        parts += [part for fit in explanation.fits for part in _parts(fit, self.snapshot.installed)]
        if explanation.verdict is Verdict.WAITS_FOR_KUBEVIRT:
            parts.append(reports.line("what headroom does not cover, and what to do instead: docs/limits.md"))
        return parts

    def lines(self) -> dict[str, str]:
        explanation = self.report
        sentences = [
            f"{explanation.verdict}: {explanation.summary}",
            *(f"{fit.quota}: {fit.action}" for fit in explanation.fits),
        ]
        return {f"{explanation.namespace}/{explanation.vm}": "; ".join(sentences)}


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
    namespace, name = _split_name(vm)
    watching.check(report.output)
    if watching.watch and collected.folder:
        raise WrongCall("--from and --watch exclude each other")

    async def look(client: Client) -> ExplainAnswer:
        snapshot = await read_snapshot(client, report.assumptions(), namespace, events=FAILURE_SELECTOR)
        if (answer := _explain_running(snapshot, namespace, name)) is not None:
            return answer
        vm_object = await require(client, VIRTUAL_MACHINES, name, namespace)
        return ExplainAnswer(snapshot, not_running(namespace, name, halted_reason(vm_object)))

    if watching.watch:
        reports.follow(cluster.kubeconfig, look)
    elif not collected.folder:
        reports.ask(cluster.kubeconfig, look).print(report.output)
    elif (answer := _explain_running(load_collected(collected.folder), namespace, name)) is not None:
        answer.print(report.output)
    else:
        raise Absent(f"{collected.folder} has no running VM {namespace}/{name}")


def _explain_running(snapshot: Snapshot, namespace: str, name: str) -> ExplainAnswer | None:
    """Returns the answer about a VM, or None if it does not run."""
    instance = snapshot.source.instances.get(namespace=namespace, name=name)
    return ExplainAnswer(snapshot, explain_with_budget(snapshot, instance)) if instance is not None else None


def _split_name(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not slash or reports.NAME.fullmatch(name) is None:
        raise WrongCall(f"a VM is named NAMESPACE/NAME, not {text!r}")
    return reports.check_namespace(namespace), name


def _parts(fit: Fit, installed: Installed) -> list[RenderableType]:
    rows = [
        [name, *(format_amount(q, name) for q in (need.requested, need.used, need.limited, need.missing))]
        for name, need in fit.needs.items()
    ]
    title = f"quota {fit.quota}   {installed.keeper_title(fit.kept_by)}"
    columns = ["resource", "requested#", "used#", "limited#", "missing#"]
    return [*reports.table(title, columns, rows), reports.line(f"headroom: {fit.action}")]
