"""`headroom plan`: which VMs could migrate, at another ratio or all of a node, and how large a quota must be."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from msgspec import structs
from rich.console import RenderableType

from kubeloop.api.quantity import ZERO, Quantity, QuantityError
from kubeloop.api.registry import NODES
from kubeloop.api.resource_list import ResourceList, total
from kubeloop.client.client import Client
from kubeloop.client.errors import Forbidden
from pkg.cmd import reports
from pkg.cmd.flags import option, optional
from pkg.cmd.options import ClusterOptions, WrongCall, check_ratio
from pkg.cmd.reports import Answer, NamespaceOptions, ReportOptions
from pkg.report.fit import Fit
from pkg.report.plan import Evacuation, MigrationPlan, VmPlan, evacuations, plan_evacuations, plan_migrations
from pkg.report.reader import read_capacity, read_vms, require
from pkg.report.size import Sizes, sizes
from pkg.util.amounts import format_amounts

_ANSWERS = {True: "yes", False: "no"}


@dataclass(frozen=True)
class PlanOptions(NamespaceOptions):
    overhead_ratio: str | None = optional(
        "additional-guest-memory-overhead-ratio to try, 1.0 to 10.0. Default: the configured one.", metavar="RATIO"
    )
    evacuate: str | None = optional(
        "All VMs of this node, each and together, and those that would stay; of every namespace unless one is given. "
        "`all`: each node in turn, and exit 1 where a VM would stay.",
        metavar="NODE|all",
    )
    size: bool = option(
        False,
        "How large the namespace's quotas must be: for all its VMs to run, for the largest to migrate, for several.",
        "--size",
    )
    at_once: int | None = optional("With --size: so many VMs migrate at once. Default: 2.", metavar="NUMBER", min=1)
    grow: str | None = optional("With --size: other limits of a VM, as VM:cpu=4,memory=8Gi.", metavar="VM:LIMITS")


def plan(options: PlanOptions, report: ReportOptions, cluster: ClusterOptions) -> int:
    """Show which VMs could migrate now or at another overhead ratio, and what headroom would add; with --evacuate which
    would not leave a node; with --size how large a namespace's quotas must be. Writes nothing."""
    namespace = reports.check_namespace(options.namespace)
    _check(options)
    growth = _growth(options.grow)

    async def look(client: Client) -> Answer:
        snapshot = replace(await report.read(client, namespace), ratio=options.overhead_ratio)
        node = options.evacuate
        if options.size:
            vms, at_once = await read_vms(client, namespace), options.at_once or 2
            needs = sizes(snapshot, namespace, vms, at_once, growth)
            return Answer(snapshot, needs.document(), _size_parts(needs))
        if node == "all":
            every_node = evacuations(snapshot, await read_capacity(client))
            stays = any(plan.violations for plan in every_node.nodes)
            return Answer(snapshot, every_node.document(), _evacuation_parts(every_node), exit_code=int(stays))
        if node:
            with suppress(Forbidden):  # who may not read nodes gets the plan of the VMs that say they are there
                await require(client, NODES, node)
            (migrations,) = plan_evacuations(snapshot, [node], await read_capacity(client))
        else:
            migrations = plan_migrations(snapshot)
        return Answer(snapshot, migrations.document(), _plan_parts(migrations))

    answer = reports.ask(cluster.kubeconfig, look)
    answer.print(report.output)
    return answer.exit_code


def _growth(text: str | None) -> dict[str, ResourceList]:
    """Returns the limits of the VM that `--grow` names. Raises WrongCall."""
    if text is None:
        return {}
    vm, _, limits = text.partition(":")
    size_by_name = dict(part.partition("=")[::2] for part in limits.split(","))
    if not vm or not size_by_name.keys() <= {"cpu", "memory"}:
        raise WrongCall(f"--grow must be VM:cpu=4,memory=8Gi, not {text!r}")
    try:
        limits_of = {name: Quantity.parse(size) for name, size in size_by_name.items()}
    except QuantityError as exc:
        raise WrongCall(f"--grow: {exc}") from exc
    if min(limits_of.values()) <= ZERO:
        raise WrongCall(f"--grow must be more than nothing, not {text!r}")
    return {vm: limits_of}


def _size_parts(sizes: Sizes) -> Iterator[RenderableType]:
    if not sizes.quotas:
        yield reports.line(f"no quota of namespace {sizes.namespace} counts what VMs use")
    at_once = f"{sizes.at_once} at once#"
    for quota in sizes.quotas:
        columns = ["resource", "base#", "used#", "others#", "all run#", "one migrates#", at_once]
        rows = [reports.amounts_row(name, *structs.astuple(need)) for name, need in quota.needs.items()]
        yield from reports.table(f"quota {quota.name}   {len(sizes.vms)} VMs", columns, rows)
        yield from map(reports.line, quota.verdicts)
        if quota.ratios:
            columns = ["overhead ratio", "all run#", "one migrates#", at_once]
            rows = [
                [at.ratio, *reports.amounts_row("limits.memory", at.run, at.largest, at.at_once)[1:]]
                for at in quota.ratios
            ]
            yield from reports.table("limits.memory at other ratios", columns, rows)


def _check(options: PlanOptions) -> None:
    namespace, node = options.namespace, options.evacuate
    if options.size and (node or not namespace):
        raise WrongCall("--size needs --namespace, and goes without --evacuate")
    if not options.size and (options.at_once is not None or options.grow is not None):
        raise WrongCall("--at-once and --grow need --size")
    if not namespace and not node:
        raise WrongCall("plan needs --namespace or --evacuate")
    if node is not None and reports.NAME.fullmatch(node) is None:
        raise WrongCall(f"--evacuate must be a node's name, not {node!r}")
    check_ratio(options.overhead_ratio)


def _evacuation_parts(every_node: Evacuation) -> Iterator[RenderableType]:
    """Yields the text about every node in turn."""
    nodes = every_node.nodes
    if not nodes:
        yield reports.line("no VM runs on any node")
        return
    rows = []
    for node in nodes:
        raised_text = format_amounts(total(fit.raised for fit in node.together))
        rows.append([node.node or "", str(len(node.vms)), str(len(node.violations)), raised_text])
    yield from reports.table("evacuation", ["node", "VMs#", "would stay#", "headroom adds at once"], rows)
    yield from (line for node in nodes for line in _stay_lines(node))
    worst = next(node for node in nodes if node.node == every_node.worst)
    if worst.violations:
        yield reports.line(f"worst: {worst.node}, {len(worst.violations)} of {len(worst.vms)} VMs would stay")
    else:
        yield reports.line("every node can be evacuated", reports.GOOD)
    yield from map(reports.line, every_node.remarks)


def _stay_lines(plan: MigrationPlan) -> Iterator[RenderableType]:
    for violation in plan.violations:
        yield reports.problem(f"{violation.namespace}/{violation.vm} would stay on {plan.node}: {violation.why}")


def _plan_parts(plan: MigrationPlan) -> Iterator[RenderableType]:
    if not plan.vms:
        yield reports.line("no VM runs there")
        return
    title = f"VMs of node {plan.node}" if plan.node else "VMs"
    at_ratio = f"fits at ratio {plan.ratio or '1.0'}"
    columns = ["VM", "node", "fits now", at_ratio, "with headroom", "headroom adds", "why"]
    yield from _with_reasons(title, columns, list(map(_row, plan.vms)))
    if plan.together:
        rows = [
            [f"{fit.namespace}/{fit.quota}", _ANSWERS[fit.fits_then], format_amounts(fit.raised), _reasons([fit])]
            for fit in plan.together
        ]
        yield from _with_reasons("all of them at once", ["quota", "with headroom", "headroom adds", "why"], rows)
    yield from _stay_lines(plan)


def _with_reasons(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[RenderableType]:
    """Returns a table whose last columns, what is added and why, are lines below it on a narrow terminal."""
    if reports.console().width >= 96:
        return reports.table(title, columns, rows)
    lines = []
    for name, *_, raised_amounts, reason in rows:
        adds = [f"headroom adds {raised_amounts}"] if raised_amounts not in ("", "-") else []
        lines.append(f"{name}: {'; '.join(adds + [reason] * (reason not in ('', '-'))) or 'nothing is added'}")
    return [*reports.table(title, columns[:-2], [row[:-2] for row in rows]), *map(reports.line, lines)]


def _row(vm: VmPlan) -> list[str]:
    name = f"{vm.namespace}/{vm.vm}"
    if vm.migrates:
        return [name, vm.node or "-", "migrates already", "", "", "", "; ".join(vm.notes)]
    adds = "; ".join(f"{fit.quota}: {format_amounts(fit.raised)}" for fit in vm.fits if fit.raised)
    answers = [_ANSWERS[fits] for fits in (vm.fits_now, vm.fits_at_ratio, vm.fits_with_headroom)]
    return [name, vm.node or "-", *answers, adds or "-", _reasons(vm.fits, vm.notes)]


def _reasons(fits: Sequence[Fit], notes: Sequence[str] = ()) -> str:
    """Returns what stands in the way of the quotas that do not fit with headroom either, and what else is known."""
    return "; ".join([*(f"{fit.quota}: {fit.action}" for fit in fits if not fit.fits_then), *notes]) or "-"
