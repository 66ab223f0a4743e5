"""`headroom explain NS/VM`: why a migration waits, or whether one would."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from pkg.cmd import reports
from pkg.cmd.options import Kubeconfig, WrongCall
from pkg.cmd.reports import Output, OutputOption

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pkg.client.client import Client
    from pkg.util.resourcequota.report_explain import Explanation
    from pkg.util.resourcequota.report_fit import Fit


_VM = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?")


def explain(
    vm: Annotated[str, typer.Argument(metavar="NS/VM", envvar="HEADROOM_VM", show_default=False)],
    output: OutputOption = Output.TABLE,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Explain why the VM's migration waits: which quota, which resource, and what headroom does about it.

    Of a VM that does not migrate: whether it could. Writes nothing.
    """
    namespace, name = _names(vm)
    found = reports.ask(kubeconfig, lambda client: _look(client, namespace, name))
    if output is Output.JSON:
        reports.print_json(found.document())
        return
    heading = f"{namespace}/{name} {found.verdict}: {found.summary}"
    reports.print_all(reports.line(heading), *(part for fit in found.fits for part in _parts(fit)))


def _names(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not slash or _VM.fullmatch(name) is None:
        raise WrongCall(f"a VM is named NAMESPACE/NAME, not {text!r}")
    return reports.check_namespace(namespace), name


async def _look(client: Client, namespace: str, name: str) -> Explanation:
    from pkg.api.registry import VIRTUAL_MACHINES
    from pkg.cmd.snapshots import require, take
    from pkg.util.managedtenantquota.snapshot import managed
    from pkg.util.resourcequota.report_explain import explain, not_running

    snapshot = await take(client, namespace)
    instance = snapshot.instance(namespace, name)
    if instance is not None:
        return managed(snapshot, instance, explain(snapshot, instance))
    await require(client, VIRTUAL_MACHINES, name, namespace)
    return not_running(namespace, name)


def _parts(fit: Fit) -> list[RenderableType]:
    rows = [
        [
            need.resource,
            *(
                reports.shown(q, need.resource)
                for q in (need.requested, need.used, need.limited, need.missing)
            ),
        ]
        for need in fit.needs
    ]
    title = f"quota {fit.quota}   kept by {fit.kept_by}"
    columns = ["resource", "requested#", "used#", "limited#", "missing#"]
    return [reports.table(title, columns, rows), reports.line(f"headroom: {fit.action}")]
