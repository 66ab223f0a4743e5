"""`make bench`: one embedded cluster, one table."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from pkg.testcluster.cluster import EmbeddedCluster, Options
from tests.bench.migrations import burst, one_after_another
from tests.bench.row import Row
from tests.bench.sync import sync
from tests.bench.webhook import webhook

Measurement = Callable[[Path], Coroutine[Any, Any, list[Row]]]
MEASUREMENTS: dict[str, Measurement] = {
    "sync": sync,
    "sequence": one_after_another,
    "burst-10x50": partial(burst, namespaces=10, each=50),
    "burst-1x300": partial(burst, namespaces=1, each=300),
    "webhook": webhook,
}


def main(names: list[str]) -> int:
    """Measure what is named, everything by default; 2 for a name that is none."""
    unknown = set(names) - MEASUREMENTS.keys()
    if unknown:
        print(f"bench: no measurement {', '.join(sorted(unknown))}; there are {', '.join(MEASUREMENTS)}")
        return 2
    rows: list[Row] = []
    with EmbeddedCluster(options=Options(kubevirt=False, rancher=False, kwok=False)) as cluster:
        for name in names or MEASUREMENTS:
            print(f"bench: {name} …", file=sys.stderr, flush=True)
            rows += asyncio.run(MEASUREMENTS[name](cluster.kubeconfig))
    _print(rows)
    return 0 if all(row.reached for row in rows) else 1


def _print(rows: list[Row]) -> None:
    table = Table(title="headroom on the embedded cluster")
    for column in ("what", "measured", "to reach", "upstream (Go)", ""):
        table.add_column(column, justify="right" if column in ("measured", "to reach") else "left")
    for row in rows:
        table.add_row(row.what, row.measured, row.to_reach, row.upstream, "ok" if row.reached else "MISSED")
    Console(width=110).print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
