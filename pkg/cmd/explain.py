"""`headroom explain NS/VM`: why a migration waits, or whether one would."""

from dataclasses import dataclass
from typing import Annotated

import typer
from msgspec import structs

from kubeloop.client.client import Client
from pkg.api.kubevirt import VIRTUAL_MACHINES
from pkg.cmd import reports
from pkg.cmd.collect import load_collected
from pkg.cmd.flags import optional
from pkg.cmd.options import ClusterOptions, WrongCall
from pkg.cmd.reports import Answer, ReportOptions, WatchOptions
from pkg.report.explain import Explanation, Verdict, halted_reason, not_running
from pkg.report.explain import explain as explain_instance
from pkg.report.reader import Absent, require
from pkg.report.snapshot import Snapshot
from pkg.util.constants import EVENT_FAILED_CREATE


@dataclass(frozen=True)
class CollectedOptions:
    folder: str | None = optional("Folder of `headroom collect`, instead of a cluster.", "--from", metavar="DIR")


def explain(
    vm: Annotated[str, typer.Argument(metavar="NS/VM", envvar="HEADROOM_VM", help="Namespace and name of the VM.")],
    report: ReportOptions,
    watching: WatchOptions,
    collected: CollectedOptions,
    cluster: ClusterOptions,
) -> None:
    """Explain why the VM's migration waits: which quota, which resource, and what headroom does about it.

    Of a VM that does not migrate: whether it could. Writes nothing."""
    namespace, slash, name = vm.partition("/")
    if not slash or reports.NAME.fullmatch(name) is None:
        raise WrongCall(f"a VM is named NAMESPACE/NAME, not {vm!r}")
    reports.check_namespace(namespace)
    if watching.watch and collected.folder:
        raise WrongCall("--from and --watch exclude each other")

    async def look(client: Client) -> Answer:
        snapshot = await report.read(client, namespace, events=f"reason={EVENT_FAILED_CREATE}")
        if instance := snapshot.source.instances.get(namespace=namespace, name=name):
            return _answer(snapshot, explain_instance(snapshot, instance))
        vm_object = await require(client, VIRTUAL_MACHINES, name, namespace)
        return _answer(snapshot, not_running(namespace, name, halted_reason(vm_object)))

    if watching.watch:
        reports.follow(cluster.kubeconfig, look, report.output)
    elif not collected.folder:
        reports.ask(cluster.kubeconfig, look).print(report.output)
    else:
        snapshot = report.assumed_for(load_collected(collected.folder))
        instance = snapshot.source.instances.get(namespace=namespace, name=name)
        if instance is None:
            raise Absent(f"{collected.folder} has no running VM {namespace}/{name}")
        _answer(snapshot, explain_instance(snapshot, instance)).print(report.output)


def _answer(snapshot: Snapshot, explanation: Explanation) -> Answer:
    vm, sentence = f"{explanation.namespace}/{explanation.vm}", f"{explanation.verdict}: {explanation.summary}"

    parts, columns = [reports.line(f"{vm} {sentence}")], ["resource", "requested#", "used#", "limited#", "missing#"]
    for fit in explanation.fits:
        title = f"quota {fit.quota}   {snapshot.installed.keeper_title(fit.kept_by)}"
        rows = [reports.amounts_row(name, *structs.astuple(need)) for name, need in fit.needs.items()]
        parts += [*reports.table(title, columns, rows), reports.line(f"headroom: {fit.action}")]
    if explanation.verdict is Verdict.WAITS_FOR_KUBEVIRT:
        parts.append(reports.line("what headroom does not cover, and what to do instead: docs/limits.md"))
    lines = {vm: "; ".join([sentence, *(f"{fit.quota}: {fit.action}" for fit in explanation.fits)])}
    return Answer(snapshot, explanation.document(), parts, lines, explanation.namespace)
