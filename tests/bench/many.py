"""50,000 VMIs of 4 kB in one informer: its memory, and its first sync beside the time that the API server takes to send
them to a client that throws them away."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from statistics import median

import aiohttp

from kubeloop.client.config import ClientConfig
from kubeloop.client.tls import TLSSettings
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCES
from tests.bench.document import Row
from tests.bench.objects import SIZE, api_server, vmi
from tests.bench.ours import as_in_a_pod
from tests.bench.peers.programs import MeasuredPrograms, running, say

OBJECTS = 50_000
NAMESPACE = "default"
KIND = VIRTUAL_MACHINE_INSTANCES
AT_ONCE = 100
"""In one of etcd's transactions, which take 128."""
END = b'"k8s.io/initial-events-end":"true"'
"""In the bookmark with which a WatchList says that every object was sent."""


async def many(kubeconfig: Path, programs: MeasuredPrograms, rounds: int) -> list[Row]:
    """The objects stay: this is measured last. Sending and syncing alternate."""
    headroom = next(program for program in programs.programs if program.is_headroom and not program.pods)
    config = as_in_a_pod(kubeconfig)
    say(f"storing {OBJECTS:,} VMIs")
    await _store(kubeconfig.parent)
    await _sent(config)  # until the API server's cache has them
    sent, synced, peaks = [], [], []
    for number in range(rounds):
        say(f"{OBJECTS:,} VMIs, round {number + 1}")
        sent.append(await _sent(config))
        async with running(headroom, kubeconfig) as handle:
            if handle.objects != OBJECTS:
                raise RuntimeError(f"it holds {handle.objects} of {OBJECTS}")
            synced.append(handle.seconds)
            peaks.append(handle.peak)
    ratios = [headroom / server for headroom, server in zip(synced, sent, strict=True)]
    title = f"{OBJECTS:,} VMIs of 4 kB"
    return [
        Row(f"{title}: sent by the API server", median(sent), "s", values=tuple(sent)),
        Row("… first sync", median(synced), "s", values=tuple(synced)),
        Row("… first sync ÷ sent", median(ratios), "×", 1.5, values=tuple(ratios)),
        Row("… peak memory", median(peaks), "MB", 500, values=tuple(peaks)),
    ]


async def _store(directory: Path) -> None:
    """Into etcd, as the API server stores custom resources: through it that would take minutes."""
    _, flags = api_server(directory)
    ca, certificate, key = (Path(flags[f"--etcd-{name}file"]) for name in ("ca", "cert", "key"))
    tls = aiohttp.TCPConnector(ssl=TLSSettings(ca, certificate, key).context())
    async with aiohttp.ClientSession(flags["--etcd-servers"], connector=tls, raise_for_status=True) as etcd:
        for start in range(0, OBJECTS, AT_ONCE):
            puts = [{"requestPut": _stored(number)} for number in range(start, start + AT_ONCE)]
            async with etcd.post("/v3/kv/txn", json={"success": puts}) as answer:
                await answer.read()


def _stored(number: int) -> dict[str, str]:
    name = f"many-{number:05}"
    body = {"apiVersion": KIND.api_version, "kind": KIND.kind, **vmi(NAMESPACE, name, SIZE)}
    uid = f"00000000-0000-4000-8000-{number:012}"
    body["metadata"] |= {"uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1}
    key = f"/registry/{KIND.group}/{KIND.plural}/{NAMESPACE}/{name}"
    return {"key": _base64(key), "value": _base64(json.dumps(body, separators=(",", ":")))}


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


async def _sent(config: ClientConfig) -> float:
    """Seconds until the last of a WatchList has come, of which nothing is read but the end."""
    params = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    url = f"{config.host}{KIND.path()}?{params}"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=config.tls.context())) as session:
        began, tail = time.perf_counter(), b""
        async with session.get(url, timeout=aiohttp.ClientTimeout(None)) as answer:
            answer.raise_for_status()
            async for chunk in answer.content.iter_any():
                if END in tail + chunk:
                    return time.perf_counter() - began
                tail = chunk[-len(END) :]
    raise RuntimeError("the server ended its WatchList early")
