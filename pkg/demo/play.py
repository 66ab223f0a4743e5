"""Plays the scenario on a cluster of its own."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from pkg.client.client import Client
from pkg.client.config import load_config
from pkg.client.errors import ApiError
from pkg.demo import headroom, seed
from pkg.demo.audience import Audience
from pkg.demo.checks import Check, Report
from pkg.demo.chronicle import Chronicle
from pkg.demo.picture import record
from pkg.demo.scenario import SCENARIO, Act
from pkg.demo.stage import Stage, Stopped
from pkg.demo.watching import Watching
from pkg.testcluster.cluster import Cluster, EmbeddedCluster
from pkg.testcluster.errors import ClusterError
from pkg.testcluster.progress import Lines


@dataclass(frozen=True, slots=True)
class Wishes:
    """How to play: `speed` divides every pause, `record` is the file for the picture."""

    speed: float = 1.0
    record: Path | None = None
    acts: Sequence[Act] = SCENARIO


def play(wishes: Wishes) -> int:
    """Play everything and show it on standard output; the exit code.

    However it ends, by an error or a signal, the cluster and headroom end too. Raises ClusterError when no cluster
    comes up, BrokenPipeError when nobody reads the output, OSError when the picture cannot be written.
    """
    with _ending_on_sigterm(), EmbeddedCluster(progress=Lines()) as cluster:
        return asyncio.run(_play(cluster, wishes))


async def _play(cluster: Cluster, wishes: Wishes) -> int:
    began = time.monotonic()
    chronicle, report = Chronicle(clock=lambda: time.monotonic() - began), Report()
    audience = Audience(sys.stdout, chronicle, report)
    audience.say(f"namespace {seed.NAMESPACE}; every number is what the API server at {cluster.url} shows")
    async with (
        Client(load_config(str(cluster.kubeconfig)), user_agent="headroom-demo") as client,
        Watching(client, seed.NAMESPACE, chronicle) as watching,
        audience.watching(),
    ):
        stage = Stage(
            cluster,
            client,
            chronicle,
            watching,
            report,
            speed=wishes.speed,
            deserted=lambda: audience.gone,
        )
        await perform(stage, wishes.acts)
    if audience.gone:
        raise BrokenPipeError
    if wishes.record is not None:
        record(wishes.record, chronicle, report, chronicle.clock())
        audience.say(f"picture: {wishes.record}")
    if report.failed:
        _show_log(cluster.directory)
    audience.sum_up()
    return report.exit_code


async def perform(stage: Stage, acts: Sequence[Act]) -> None:
    """Play the acts; one that cannot go on ends the play, and that counts as failed."""
    for act in acts:
        stage.begin(act.letter, act.title)
        try:
            await act.play(stage)
        except (Stopped, ApiError, ClusterError) as error:
            reason = " ".join(str(error).split())
            stage.report.add(Check(act.letter, "the play", "goes on", f"stopped: {reason}"))
            return


def _show_log(directory: Path) -> None:
    for line in headroom.log_tail(directory):
        print(f"headroom's log: {line}", file=sys.stderr)


@contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """SIGTERM ends the play as Ctrl-C does: through every `finally`."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
