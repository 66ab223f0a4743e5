"""This project's informers and queue, as one of the measured programs (see peers/protocol.py).

`python -m tests.bench.ours cache KUBECONFIG vmis|pods WATCHES` or `python -m tests.bench.ours queue KIND KEYS`.
"""

import asyncio
import base64
import json
import sys
import time
from pathlib import Path
from typing import Any

from kubeloop.api import registry
from kubeloop.cache.informer import SharedIndexInformer, wait_for_cache_sync
from kubeloop.client.client import Client
from kubeloop.client.config import ClientConfig
from kubeloop.client.tls import TLSSettings
from kubeloop.workqueue.queue import LOW_PRIORITY
from kubeloop.workqueue.rate_limiting_queue import DelayingQueue
from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCES
from tests.bench.peers.protocol import Measured, arguments

CYCLES = 300_000
LONGEST = 3.0


class _Counting:
    """Counts updates."""

    def __init__(self, measured: Measured) -> None:
        self._measured = measured

    def on_add(self, obj: Any, is_in_initial_list: bool) -> None:
        pass

    def on_update(self, old: Any, new: Any) -> None:
        self._measured.events += 1

    def on_delete(self, obj: Any, final_state_unknown: bool) -> None:
        pass


async def cache() -> None:
    """Informers of a kind, until standard input ends."""
    kubeconfig, kind, watches = arguments()
    resource: Any = {"vmis": VIRTUAL_MACHINE_INSTANCES, "pods": registry.PODS}[kind]
    async with Client(as_in_a_pod(Path(kubeconfig))) as client:
        await client.transport.request("GET", "/version")  # the connection is not what is measured
        informers: list[SharedIndexInformer[Any]] = [
            SharedIndexInformer(client.resource(resource)) for _ in range(watches)
        ]
        measured = Measured()
        for informer in informers:
            informer.add_event_handler(_Counting(measured))
            informer.start()
        await wait_for_cache_sync(*informers, timeout=120)
        measured.synced(lambda: len(informers[0].indexer.list_keys()))
        await asyncio.Event().wait()


def as_in_a_pod(kubeconfig: Path) -> ClientConfig:
    """Without the package that reads kubeconfig files: it takes 20 MB, and a pod does not load it.

    The embedded cluster's file is JSON and holds the certificates themselves.
    """
    content = json.loads(kubeconfig.read_text())
    cluster, user = content["clusters"][0]["cluster"], content["users"][0]["user"]
    authority, certificate, key = (
        base64.b64decode(text).decode()
        for text in (cluster["certificate-authority-data"], user["client-certificate-data"], user["client-key-data"])
    )
    return ClientConfig(cluster["server"], tls=TLSSettings(authority, certificate, key))


async def queue(kind: str, keys: int) -> None:
    """All keys in, all keys out, again and again."""
    names = [f"namespace-{number % 20}/name-{number}" for number in range(keys)]
    queue: DelayingQueue[str] = DelayingQueue()
    add, get, finish = queue.add, queue.get, queue.done
    count, began = 0, time.perf_counter()
    while count < CYCLES and time.perf_counter() - began < LONGEST:
        if kind == "plain":
            for name in names:
                add(name)
        elif kind == "delayed":
            for name in names:
                queue.add_after(name, 0.001)
        else:
            for number, name in enumerate(names):
                add(name, LOW_PRIORITY if number % 2 else 0)
        for _ in names:
            finish(await get())
        count += keys
    print(json.dumps({"cycles": count / (time.perf_counter() - began)}))


if __name__ == "__main__":
    asyncio.run(cache() if sys.argv[1] == "cache" else queue(sys.argv[2], int(sys.argv[3])))
