"""Runs one plan: sets up, evacuates, measures, reports, removes."""

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple

from rich.console import Console

from kubeloop.api import registry
from kubeloop.api.resource_list import format_resource_list
from kubeloop.client.client import Client
from kubeloop.client.loading import load_config
from kubeloop.testing.cluster.cluster import ending_on_sigterm
from kubeloop.testing.cluster.reporting import ClusterError, Lines, StartError
from lab import nodes
from lab.headroom import Headroom, growth, process_cpu, process_memory, requests_of_client, requests_of_server
from lab.kubevirt.options import SCALE_NAMESPACES
from lab.scale import report as reports
from lab.scale.measurements import Measurements
from lab.scale.plan import Plan, Settings
from lab.scale.removal import Removal
from lab.scale.report import Costs, Moment
from lab.scale.site import Site, Usage, embedded_site, given_site, usage
from lab.scale.workload import Workload
from lab.watching import Watching
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINE_INSTANCES

_POLL = 0.1
_SAMPLE = 1.0
_STALL = 120.0
"""Seconds in which nothing more happens, after which a stage of the setup has failed."""
_STUCK = 45.0
"""The same for migrations: what has not ended by then is reported as it is. Longer than a retry of virt-controller."""
_IDLE = 3.0
_KINDS = (
    registry.RESOURCE_QUOTAS,
    VIRTUAL_MACHINE_INSTANCE_MIGRATIONS,
    VIRTUAL_MACHINE_INSTANCES,
    registry.PODS,
    registry.EVENTS,
)


class Display:
    """Shows one stage at a time. A closed pipe does not end the run: there is something to clean up."""

    def __init__(self) -> None:
        self._progress = Lines(interval=5.0)
        self._stage, self._began = "", 0.0

    def stage(self, text: str) -> None:
        self._stage, self._began = f"scale: {text}", time.monotonic()
        with contextlib.suppress(BrokenPipeError):
            self._progress.step(self._stage)

    def show_progress(self, count: int, total: int) -> None:
        """Shows how many of the stage's steps are done."""
        time_left = f", {(time.monotonic() - self._began) / count * (total - count):.0f} s left" if count else ""
        with contextlib.suppress(BrokenPipeError):
            self._progress.tick(f"{self._stage}: {count} of {total}{time_left}")


class Counters(NamedTuple):
    """The API server's and headroom's metrics, and what both processes have used."""

    server_metrics: str
    headroom_metrics: str
    api: Usage
    headroom: Usage


def run_scale(settings: Settings) -> int:
    """The exit code: 0 when every migration succeeded and every quota is as it was, 1 otherwise, 130 after Ctrl-C.

    However it ends, by an error or a signal, what was made is removed and what was started has ended. Raises
    ReportedError (ClusterError, WrongCluster, ApiError, ConfigError), OSError when the report cannot be written.
    """
    kubeconfig = settings.kubeconfig
    with ending_on_sigterm(), embedded_site() if kubeconfig is None else given_site(kubeconfig) as site:
        try:
            return asyncio.run(_until_signal(site, settings))
        finally:
            _ignore_signals()


def clean(kubeconfig: Path) -> int:
    """Removes what runs have left on a cluster; 0. Raises ClusterError, ApiError, ConfigError."""
    display = Display()

    async def remove() -> None:
        async with _client(kubeconfig) as client:
            display.stage("removing what runs have left")
            await Removal(client).remove(display.show_progress)

    asyncio.run(remove())
    display.stage("ends")
    return 0


def _client(kubeconfig: Path) -> Client:
    return Client(load_config(str(kubeconfig)), user_agent="headroom-scale")


def _ignore_signals() -> None:
    """Ignores further signals: what still runs is ended, and then the program."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


async def _until_signal(site: Site, settings: Settings) -> int:
    """The first signal ends the run, which then cleans up; during the clean-up a signal changes the exit code alone."""
    run = _Run(site, settings)
    running = asyncio.ensure_future(run.execute())
    signals: list[signal.Signals] = []

    def receive(number: signal.Signals) -> None:
        if not signals and not run.cleaning_up:
            running.cancel()
        signals.append(number)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, receive, number)
    try:
        code = await running
    except asyncio.CancelledError:
        code = 1
    return 128 + signals[0] if signals else code


class _Run:
    """A run on one cluster."""

    def __init__(self, site: Site, settings: Settings) -> None:
        self._site = site
        self._settings = settings
        self._plan = Plan(settings, f"{SCALE_NAMESPACES}{token_hex(3)}")
        self._measurements = Measurements(self._plan.namespaces)
        self._costs = Costs()
        self._moments: list[Moment] = []
        self._headroom: Headroom | None = None
        self._display = Display()
        self.cleaning_up = False

    async def execute(self) -> int:
        async with _client(self._site.kubeconfig) as client:
            workload = Workload(client, self._plan)
            await workload.refuse_real_nodes()
            await workload.refuse_beside_another()
            try:
                report = await self._measure(client, workload)
            finally:
                self.cleaning_up = True
                await self._clean_up(client)
                self._display.stage("ends")
        self._write(report)
        return 0 if report["succeeded"] == report["migrations"] and report["restored"] else 1

    async def _measure(self, client: Client, workload: Workload) -> dict[str, object]:
        self._display.stage(f"setting up {self._settings.nodes} nodes")
        await workload.install()
        self._site.start_kwok(self._plan)
        self._site.start_kubevirt(self._plan, await workload.virt_controller())
        async with Watching(client, self._measurements.records, *_KINDS):
            await self._fill(workload)
            await self._start_headroom()
            return await self._evacuate(client, workload)

    async def _fill(self, workload: Workload) -> None:
        """Creates the VMs, and quotas that allow their usage and nothing more."""
        vms = self._settings.vms
        self._display.stage("creating VMs")
        await workload.fill(lambda count: self._display.show_progress(count, vms))
        self._display.stage("starting VMs")
        await self._progress(lambda: len(self._measurements.nodes()), vms, _STALL)
        if (running_count := len(self._measurements.nodes())) < vms:
            message = await workload.refusal() or "nothing was said of their pods"
            raise ClusterError(f"only {running_count} of {vms} VMs run: {message}")
        self._display.stage("setting quotas")
        hard = {name: format_resource_list(amounts) for name, amounts in self._measurements.usage().items()}
        await workload.tighten(hard)
        deadline = time.monotonic() + _STALL
        while not await workload.counts(hard):
            if time.monotonic() > deadline:
                raise ClusterError("the cluster does not count its quotas: is its controller manager running?")
            await asyncio.sleep(_POLL)

    async def _start_headroom(self) -> None:
        """Starts headroom and measures it idle. Raises StartError."""
        if self._settings.external:
            return
        self._display.stage("starting headroom")
        began = time.monotonic()
        self._headroom = self._site.headroom(self._plan)
        await self._headroom.started()
        self._costs.headroom["ready_seconds"] = round(time.monotonic() - began, 2)
        await asyncio.sleep(_IDLE)
        start_cpu = self._usage().cpu
        await asyncio.sleep(_IDLE)
        self._costs.headroom["idle_cpu_percent"] = round(100 * (self._usage().cpu - start_cpu) / _IDLE, 2)

    def _usage(self) -> Usage:
        """Returns headroom's usage; zeros where none was started."""
        return usage(self._headroom.pid) if self._headroom else Usage(0.0, 0, 0)

    async def _evacuate(self, client: Client, workload: Workload) -> dict[str, object]:
        """Migrates every VM on the first nodes, at the rate; returns the report when all migrations have ended."""
        drained_nodes = self._plan.nodes[: self._settings.evacuate]
        vms = sorted(key for key, node in self._measurements.nodes().items() if node in drained_nodes)
        await nodes.cordon(client, drained_nodes)
        counters = await self._counters(client)
        began = time.monotonic()
        self._measurements.begin(began)
        self._display.stage("migrating")
        sampler = asyncio.create_task(self._sample())
        creator = asyncio.create_task(self._create(workload, vms, began))
        try:
            await self._progress(self._finished_count, len(vms), _STUCK, creator)
            await self._progress(lambda: int(self._measurements.is_settled()), 1, _STUCK)
        finally:
            for task in (creator, sampler):
                task.cancel()
            await asyncio.gather(creator, sampler, return_exceptions=True)
        restored, end = self._measurements.is_settled(), time.monotonic()
        self._measurements.end(end)
        self._charge(counters, await self._counters(client))
        return reports.build(self._settings, self._measurements, self._costs, wall=end - began, restored=restored)

    async def _create(self, workload: Workload, vms: list[str], began: float) -> None:
        async with asyncio.TaskGroup() as group:
            for number, key in enumerate(vms):
                await asyncio.sleep(max(0.0, began + number / self._settings.per_second - time.monotonic()))
                group.create_task(workload.migrate(key))

    def _finished_count(self) -> int:
        return sum(track.ended is not None for track in self._measurements.tracks)

    async def _progress(
        self, count: Callable[[], int], total: int, patience: float, creator: asyncio.Task[None] | None = None
    ) -> None:
        """Waits until the count is reached, or did not grow for `patience` seconds. Raises the error of `creator`."""
        last_count, since = -1, time.monotonic()
        while (current_count := count()) < total and time.monotonic() - since < patience:
            self._site.check("kwok", "kubevirt")
            if creator is not None and creator.done():
                creator.result()
            if self._headroom is not None:
                self._headroom.check()
            if current_count > last_count or (creator is not None and not creator.done()):
                last_count, since = current_count, time.monotonic()
            self._display.show_progress(current_count, total)
            await asyncio.sleep(_POLL)

    async def _sample(self) -> None:
        while True:
            own_usage, succeeded = self._usage(), sum(track.phase == "Succeeded" for track in self._measurements.tracks)
            figures = (succeeded, self._measurements.pending_count(), *self._measurements.memory())
            self._moments.append(Moment(time.monotonic(), *figures, own_usage.cpu, own_usage.resident))
            await asyncio.sleep(_SAMPLE)

    async def _counters(self, client: Client) -> Counters:
        server_text = (await client.transport.request("GET", "/metrics", accept="text/plain")).decode()
        own_text = (await asyncio.to_thread(self._headroom.get, "/metrics"))[1] if self._headroom else ""
        memory = process_memory(server_text)
        # An API server elsewhere reports its present memory alone.
        elsewhere = Usage(process_cpu(server_text), memory, memory)
        return Counters(
            server_text, own_text, usage(self._site.api_server) if self._site.embedded else elsewhere, self._usage()
        )

    def _charge(self, start: Counters, end: Counters) -> None:
        costs = self._costs
        costs.api_requests = growth(requests_of_server(start.server_metrics), requests_of_server(end.server_metrics))
        costs.api_cpu = end.api.cpu - start.api.cpu
        costs.api_peak = end.api.peak
        if self._headroom is not None:
            costs.requests = growth(
                requests_of_client(start.headroom_metrics), requests_of_client(end.headroom_metrics)
            )
            costs.headroom["cpu_seconds"] = round(end.headroom.cpu - start.headroom.cpu, 2)
            costs.headroom["rss_peak_bytes"] = end.headroom.peak

    async def _clean_up(self, client: Client) -> None:
        """Stops headroom first, so that it writes nothing any more; an embedded cluster goes as a whole."""
        if self._headroom is not None:
            with contextlib.suppress(StartError):  # it is killed then
                await asyncio.to_thread(self._headroom.stop)
        if not self._site.embedded:
            self._display.stage("removing what was made")
            await Removal(client, self._plan.run).remove(self._display.show_progress)

    def _write(self, report: dict[str, object]) -> None:
        """The files and the table. Raises OSError."""
        folder = self._settings.out or Path()
        (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n", "utf-8")
        (folder / "report.html").write_text(reports.page(report, self._moments, self._measurements.waits()), "utf-8")
        Console(file=sys.stdout).print(reports.table(report))
        print(f"report: {folder / 'report.json'}, {folder / 'report.html'}")
