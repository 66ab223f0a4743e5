"""How long an informer takes to hold 5,000 VMIs, in a process of its own: `python -m tests.bench.sync KUBECONFIG`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from functools import partial
from pathlib import Path

from pkg.api.kubevirt import VIRTUAL_MACHINE_INSTANCES
from pkg.cache import SharedIndexInformer
from pkg.client.client import Client
from pkg.client.config import load_config
from tests.bench.objects import in_parallel, vmi
from tests.bench.row import Row, percentile

VMIS = 5000
SIZE = 4000
RUNS = 3


async def sync(kubeconfig: Path) -> list[Row]:
    """The median of three processes; the objects are made first and removed afterwards."""
    async with Client(load_config(str(kubeconfig))) as client:
        vmis = client.resource(VIRTUAL_MACHINE_INSTANCES)
        bodies = [vmi("default", f"bench-{number:05}", SIZE) for number in range(VMIS)]
        await in_parallel(partial(vmis.create, body, namespace="default") for body in bodies)
        runs = [await _in_a_process(kubeconfig) for _ in range(RUNS)]
        await in_parallel(
            partial(vmis.delete, name=body["metadata"]["name"], namespace="default") for body in bodies
        )

    def median(key: str) -> float:
        return percentile([run[key] for run in runs], 0.5)

    return [
        Row("5,000 VMIs of 4 kB synced", median("seconds"), "s", 1.5, "1.9–2.4 s"),
        Row("… CPU", median("cpu"), "s", None, "1.2 s"),
        Row("… resident, whole process", median("resident"), "MB", 120, "160–190 MB"),
    ]


async def _in_a_process(kubeconfig: Path) -> dict[str, float]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.sync", str(kubeconfig), stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    measured: dict[str, float] = json.loads(out)
    return measured


async def _measure(kubeconfig: str) -> dict[str, float]:
    async with Client(load_config(kubeconfig)) as client:
        await client.transport.request("GET", "/version")  # the connection is not what is measured
        informer = SharedIndexInformer(client.resource(VIRTUAL_MACHINE_INSTANCES))
        seconds, cpu = time.perf_counter(), time.process_time()
        informer.start()
        await informer.wait_for_sync(60)
        seconds, cpu = time.perf_counter() - seconds, time.process_time() - cpu
        held = len(informer.indexer.list())
        assert held == VMIS, f"the informer holds {held} of {VMIS}"
        await informer.stop()
    return {
        "seconds": seconds,
        "cpu": cpu,
        "resident": _peak_resident(),
    }


def _peak_resident() -> float:
    """MB. Not getrusage's figure, which a process inherits from the one that started it."""
    status = Path("/proc/self/status").read_text()
    kilobytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))
    return int(kilobytes) * 1024 / 1e6


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_measure(sys.argv[1]))))
