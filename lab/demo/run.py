"""Runs the scenario on a cluster of its own."""

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from kubeloop.api import registry
from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError
from kubeloop.client.loading import load_config
from kubeloop.errors import one_line
from kubeloop.testing.cluster import processes
from kubeloop.testing.cluster.cluster import Cluster, ending_on_sigterm
from kubeloop.testing.cluster.reporting import ClusterError
from kubeloop.testing.cluster.reporting import Lines as Progress
from lab.cluster import EmbeddedCluster
from lab.demo import seed
from lab.demo.driver import Driver, Stopped
from lab.demo.lines import Check, Lines, Report, is_terminal
from lab.demo.picture import show, write
from lab.demo.scenario import SCENARIO, Step
from lab.questions import refused_after_raise
from lab.record import Record
from lab.watching import Watching
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCE_MIGRATIONS, VIRTUAL_MACHINES

_TAIL = 15
"""Lines of headroom's log that are shown when a check has failed."""
_KINDS = (
    registry.RESOURCE_QUOTAS,
    VIRTUAL_MACHINE_INSTANCE_MIGRATIONS,
    VIRTUAL_MACHINES,
    registry.PODS,
    registry.EVENTS,
)


def run_demo(speed: float, record: Path | None) -> int:
    """Runs everything and shows it on standard output; returns the exit code. `speed` divides every pause, `record` is
    the file for the picture.

    However it ends, by an error or a signal, the cluster and headroom end too. Raises ClusterError when no cluster
    comes up, BrokenPipeError when the output's reader has closed it, OSError when the picture cannot be written.
    """
    with ending_on_sigterm(), EmbeddedCluster(progress=Progress()) as cluster:
        return asyncio.run(_run(cluster, speed, record))


async def _run(cluster: Cluster, speed: float, picture_path: Path | None) -> int:
    began = time.monotonic()
    record, report = Record(lambda: time.monotonic() - began), Report()
    lines = Lines(sys.stdout)
    lines.follow(record, report)
    lines.say(f"namespace {seed.NAMESPACE}; every number is what the API server at {cluster.url} shows")
    async with (
        Client(load_config(str(cluster.kubeconfig)), user_agent="headroom-demo") as client,
        Watching(client, {seed.NAMESPACE: record}, *_KINDS) as watching,
    ):
        await run_steps(Driver(cluster, client, record, watching, report, speed, lambda: lines.is_broken), SCENARIO)
    if lines.is_broken:
        raise BrokenPipeError
    if is_terminal(sys.stdout):
        show(sys.stdout, record, report, record.clock())
    if picture_path is not None:
        write(picture_path, record, report, record.clock())
        lines.say(f"picture: {picture_path}")
    if report.failed_count:
        log = processes.find(cluster.directory, "headroom").log
        for line in log.read_text("utf-8", "replace").splitlines()[-_TAIL:] if log.exists() else ():
            print(f"headroom's log: {line}", file=sys.stderr)
    lines.say(f"refused after the raise: {refused_after_raise(record)}")
    lines.say(report.last_line)
    return report.exit_code


async def run_steps(driver: Driver, steps: Sequence[Step]) -> None:
    """Runs the steps; one that cannot go on ends the demo, and that counts as failed."""
    for step in steps:
        driver.begin(step.letter, step.title)
        try:
            await step.run(driver)
        except (Stopped, ApiError, ClusterError) as error:
            driver.report.add(Check(step.letter, "the demo", "goes on", f"stopped: {one_line(error)}"))
            return
