"""What a migration costs headroom, and how soon the migrations of a burst get their headroom: as users run it, with the
webhook, beside KubeVirt's stand-in."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kubeloop.api.registry import RESOURCE_QUOTAS
from lab.cluster import EmbeddedCluster
from lab.headroom import WEBHOOK, Headroom, counts, in_cluster, process_cpu
from lab.namespace import Namespace
from lab.questions import first_version, has_entry
from lab.record import Record, Track
from lab.scale.measurements import percentile
from lab.watching import Watching
from pkg.api.kubevirt import KUBEVIRTS, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
from tests.bench.document import Row
from tests.e2e.admin import Admin, admin_of
from tests.e2e.mtq_namespace import make_budgeted, watched

VMS = [f"vm{number}" for number in range(20)]
HARD = {"limits.cpu": f"{515 * len(VMS)}m", "limits.memory": "20Gi"}
"""The VMs use it up."""
ROUNDS = 5
SETTLED = 5.0
"""Seconds after which nothing of a migration is left."""
HANDLERS = ("resourceQuotaController", "virtualMachineInstanceController")
"""Called for what a migration changes; the others hardly are."""


async def one_migration(_kubeconfig: Path) -> list[Row]:
    """Twenty, one after another."""
    async with _running() as (program, namespace, record):
        metrics_at_start = program.get("/metrics")[1]
        for vm in VMS:
            await namespace.succeed(await _migrate(namespace, vm))
        await asyncio.sleep(SETTLED)
        return _costs(
            "one migration, with the webhook", metrics_at_start, program.get("/metrics")[1], len(record.migrations)
        )


async def burst_of_twenty(_kubeconfig: Path) -> list[Row]:
    """Twenty VMs of a namespace migrate at once, a few times."""
    async with _running() as (program, namespace, record):
        metrics_at_start = program.get("/metrics")[1]
        for _ in range(ROUNDS):
            await namespace.succeed(*await asyncio.gather(*(_migrate(namespace, vm) for vm in VMS)), seconds=120.0)
            await asyncio.sleep(SETTLED)
        metrics_at_end = program.get("/metrics")[1]
        waits = _waits(record)
        refused = sum(track.refused is not None for track in record.migrations.values())
    title = f"{len(VMS)} migrations at once, with the webhook"
    return [
        Row(f"{title}: created → raised, median", 1000 * percentile(waits, 0.5), "ms", 15),
        Row("… 90th percentile", 1000 * percentile(waits, 0.9), "ms", 35),
        Row("… 99th percentile", 1000 * percentile(waits, 0.99), "ms", 80),
        Row("… whose first try quota refused", 100 * refused / len(waits), "%"),
        *_costs("one of them", metrics_at_start, metrics_at_end, len(waits)),
    ]


def _waits(record: Record) -> list[float]:
    """Seconds from each migration to the first version of the quota that has its entry, by our watches."""
    rows = []
    for track in record.migrations.values():
        version = first_version(record, track.began.at, lambda version, track=track: has_entry(record, version, track))  # type: ignore[misc]
        assert version is not None, track
        rows.append(version.at - track.began.at)
    return rows


def _costs(title: str, metrics_at_start: str, metrics_at_end: str, migrations: int) -> list[Row]:
    """Reads the costs from headroom's own metrics."""

    def figure(metric: str, label: str, *values: str) -> float:
        start, end = (
            counts(text, metric, lambda labels: labels.get(label, "")) for text in (metrics_at_start, metrics_at_end)
        )
        return sum(end.get(value, 0.0) - start.get(value, 0.0) for value in values or end) / migrations

    calls = figure("controller_runtime_reconcile_total", "controller")
    requests = figure("rest_client_requests_total", "method")
    return [
        Row(f"{title}: calls of handlers", calls, "", 25),
        Row(
            "… of those about quotas and VMIs",
            figure("controller_runtime_reconcile_total", "controller", *HANDLERS),
            "",
        ),
        Row(
            "… patches: quotas, VMIs, VMs, events again",
            figure("rest_client_requests_total", "method", "PATCH"),
            "",
            4.5,
        ),
        Row("… requests", requests, ""),
        Row("… CPU", 1000 * (process_cpu(metrics_at_end) - process_cpu(metrics_at_start)) / migrations, "ms", 20),
    ]


async def by_budget(_kubeconfig: Path) -> list[Row]:
    """Thirty migrations of a namespace at once, whose budget has room for six."""
    async with _cluster() as (program, admin):
        namespace = await make_budgeted(admin)
        await namespace.make_quota("quota", {"limits.cpu": "30", "pods": "60"})
        names = [f"vm{number}" for number in range(30)]
        await asyncio.gather(*(namespace.machine(vm) for vm in names))
        full = await namespace.fill()
        await namespace.budget({"limits.cpu": f"{515 * 6}m", "pods": "6"})
        record = Record(time.perf_counter)
        kinds = RESOURCE_QUOTAS, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS
        async with watched(namespace) as records, Watching(admin.client, {namespace.name: record}, *kinds):
            metrics_at_start = program.get("/metrics")[1]
            await namespace.succeed(*await asyncio.gather(*map(namespace.migrate, names)), seconds=180.0)
            await namespace.at_rest(full)
        metrics_at_end = program.get("/metrics")[1]
    waits = [_got_on(track) - track.began.at for track in record.migrations.values()]
    methods = [
        counts(text, "rest_client_requests_total", lambda labels: labels["method"])
        for text in (metrics_at_start, metrics_at_end)
    ]
    sent = {method: (count - methods[0].get(method, 0.0)) / len(waits) for method, count in methods[1].items()}
    locks = [end - begin for begin, end in records.locked]
    return [
        Row("30 migrations by a budget for six: created → target, median", percentile(waits, 0.5), "s"),
        Row("… 99th percentile", percentile(waits, 0.99), "s", 10),
        Row("… a lock, median", percentile(locks, 0.5), "s", 0.7),
        Row("… locks", len(locks), ""),
        Row("… writes of each, with events", sum(sent.values()) - sent.get("GET", 0.0), "", 8),
        Row("… requests that read, of each", sent.get("GET", 0.0), ""),
    ]


def _got_on(track: Track) -> float:
    return next(phase.at for phase in track.phases if phase.phase not in ("", "Pending"))


async def _migrate(namespace: Namespace, vm: str) -> str:
    return await namespace.migrate(vm, phase=0.3, running=1.0, linger=0.5)


@asynccontextmanager
async def _running() -> AsyncIterator[tuple[Headroom, Namespace, Record]]:
    """headroom, and a namespace in which all VMs run; its record is empty of what was before."""
    async with _cluster() as (program, admin):
        namespace = await admin.namespace(HARD)
        await asyncio.gather(*(namespace.machine(vm, cpu="500m", memory="64Mi") for vm in VMS))
        record = Record(time.perf_counter)
        kinds = RESOURCE_QUOTAS, VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES
        async with Watching(admin.client, {namespace.name: record}, *kinds):
            await asyncio.sleep(SETTLED)
            yield program, namespace, record


@asynccontextmanager
async def _cluster() -> AsyncIterator[tuple[Headroom, Admin]]:
    """A cluster of its own, in which KubeVirt holds up no migration, and headroom."""
    with EmbeddedCluster() as cluster:
        program = in_cluster(cluster.directory, cluster.kubeconfig, (WEBHOOK, "--estimate", "exact"))
        async with admin_of(cluster, clear=False) as admin:
            limits = {"parallelMigrationsPerCluster": 50, "parallelOutboundMigrationsPerNode": 50}
            body = {"metadata": {"name": "kubevirt"}, "spec": {"configuration": {"migrations": limits}}}
            await admin.client.resource(KUBEVIRTS).create(body, namespace="default")
            await asyncio.to_thread(program.start)
            yield program, admin
        await asyncio.to_thread(program.stop)
