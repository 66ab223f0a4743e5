"""50,000 VMIs of 4 kB in one informer: its memory, and its first sync beside the time that the API server takes to send
them to a client that throws them away."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from statistics import median

import aiohttp

from kubeloop.client.client import Client
from kubeloop.client.config import ClientConfig
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCES
from tests.bench.objects import SIZE, in_parallel, vmi
from tests.bench.ours import as_in_a_pod
from tests.bench.peers.programs import Programs, running, say
from tests.bench.row import Row

OBJECTS = 50_000
NAMESPACE = "default"
END = b'"k8s.io/initial-events-end":"true"'
"""In the bookmark with which a WatchList says that every object was sent."""


async def many(kubeconfig: Path, programs: Programs, rounds: int) -> list[Row]:
    """The objects stay: this is measured last. Sending and syncing alternate."""
    ours = next(program for program in programs.found if program.ours and not program.pods)
    config = as_in_a_pod(kubeconfig)
    async with Client(config) as client:
        vmis = client.resource(VIRTUAL_MACHINE_INSTANCES)
        names = [f"many-{number:05}" for number in range(OBJECTS)]
        say(f"creating {OBJECTS:,} VMIs")
        await in_parallel(partial(vmis.create, vmi(NAMESPACE, n, SIZE), namespace=NAMESPACE) for n in names)
    sent, synced, peaks = [], [], []
    for number in range(rounds):
        say(f"{OBJECTS:,} VMIs, round {number + 1}")
        sent.append(await _sent(config))
        async with running(ours, kubeconfig) as it:
            if it.objects != OBJECTS:
                raise RuntimeError(f"it holds {it.objects} of {OBJECTS}")
            synced.append(it.seconds)
            peaks.append(it.peak)
    ratios = [ours / server for ours, server in zip(synced, sent, strict=True)]
    what = f"{OBJECTS:,} VMIs of 4 kB"
    return [
        Row(f"{what}: sent by the API server", median(sent), "s", values=tuple(sent)),
        Row("… first sync", median(synced), "s", values=tuple(synced)),
        Row("… first sync ÷ sent", median(ratios), "×", 1.5, values=tuple(ratios)),
        Row("… peak memory", median(peaks), "MB", 500, values=tuple(peaks)),
    ]


async def _sent(config: ClientConfig) -> float:
    """Seconds until the last of a WatchList has come, of which nothing is read but the end."""
    params = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    url = f"{config.host}{VIRTUAL_MACHINE_INSTANCES.path()}?{params}"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=config.tls.context())) as session:
        began, last = time.perf_counter(), b""
        async with session.get(url, timeout=aiohttp.ClientTimeout(None)) as answer:
            answer.raise_for_status()
            async for chunk in answer.content.iter_any():
                if END in last + chunk:
                    return time.perf_counter() - began
                last = chunk[-len(END) :]
    raise RuntimeError("the server ended its WatchList early")
