"""`make bench`: one embedded cluster, every measurement, the programs beside headroom in turn.

`python -m tests.bench [--full] [--write docs/benchmarks.md] [NAME …]`: `--full` is `make bench-full`, five
rounds and up to 20,000 objects; `--write` puts what was measured into the document, and its plot beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown

from lab.cluster import EmbeddedCluster, Options
from tests.bench.cycles import cycles
from tests.bench.document import tables, write
from tests.bench.frameworks import frameworks
from tests.bench.many import many
from tests.bench.migrations import beside_vms, burst, one_after_another, through_rancher
from tests.bench.peers.programs import Programs, prepare, say
from tests.bench.row import Comparison, Result, Row, combined
from tests.bench.sync import sync
from tests.bench.watch import watch
from tests.bench.webhook import webhook
from tests.bench.work import burst_of_twenty, by_budget, one_migration

Measurement = Callable[[Path], Coroutine[Any, Any, list[Any]]]
OwnMeasurement = Callable[[Path], Coroutine[Any, Any, list[Row]]]


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is measured. Queue and first sync take `rounds`, what takes longest takes `half`."""

    rounds: int
    sizes: list[int]
    watch_seconds: float
    beside: int
    """VMs in the caches while migrations are measured."""

    @property
    def half(self) -> int:
        return (self.rounds + 1) // 2


SHORT = Extent(3, [1000, 5000], 3.0, 1000)
FULL = Extent(5, [1000, 5000, 20000], 8.0, 10000)


def measurements(extent: Extent, programs: Programs) -> dict[str, Measurement]:
    """By name, in the order in which they are made."""
    found: dict[str, Measurement] = {
        "queue": partial(cycles, programs=programs, rounds=extent.rounds),
        "sync": partial(sync, programs=programs, sizes=extent.sizes, rounds=extent.rounds),
        "watch": partial(watch, programs=programs, rounds=extent.half, seconds=extent.watch_seconds),
    }
    found["frameworks"] = partial(frameworks, programs=programs, seconds=extent.watch_seconds)
    found["sequence-beside"] = partial(beside_vms, vms=extent.beside, rounds=extent.half)
    own: dict[str, OwnMeasurement] = {
        "sequence": one_after_another,
        "burst-10x50": partial(burst, namespaces=10, each=50),
        "burst-1x300": partial(burst, namespaces=1, each=300),
        "burst-100x10": partial(burst, namespaces=100, each=10),
        "rancher": through_rancher,
        "webhook": webhook,
        "migration": one_migration,
        "burst-20": burst_of_twenty,
        "budget": by_budget,
    }
    found |= {name: partial(_again_and_again, one, extent.half) for name, one in own.items()}
    return found | {"many": partial(many, programs=programs, rounds=extent.half)}


async def _again_and_again(measurement: OwnMeasurement, rounds: int, kubeconfig: Path) -> list[Row]:
    return combined([await measurement(kubeconfig) for _ in range(rounds)])


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], metavar="N,N")
    parser.add_argument("--beside", type=int, metavar="N", help="VMs in the caches")
    parser.add_argument("--write", type=Path, metavar="FILE.md")
    names = measurements(SHORT, Programs(None, (), {}, ())).keys()
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    asked = parser.parse_args()
    if unknown := set(asked.names) - names:
        parser.error(f"no measurement {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if asked.write is not None and asked.names:
        parser.error("--write replaces the whole table: it takes no NAME")
    return asked


def main() -> int:
    """0 when every target was reached."""
    asked = _asked()
    extent = FULL if asked.full else SHORT
    extent = Extent(
        asked.rounds or extent.rounds, asked.sizes or extent.sizes, extent.watch_seconds, asked.beside or extent.beside
    )
    programs = prepare()
    console, results = Console(width=130), list[Result]()
    failures: list[str] = []
    chosen = measurements(extent, programs)
    options = Options(kubevirt=False, rancher=False, kwok=False)
    with EmbeddedCluster(options=options) as cluster:
        for name in asked.names or (each for each in chosen if asked.full or each != "many"):
            say(f"{name} …")
            try:
                found: list[Result] = asyncio.run(chosen[name](cluster.kubeconfig))
            except Exception as exc:  # the other measurements, which took minutes, are not lost
                failures.append(f"{name}: not measured ({type(exc).__name__}: {exc})")
                say(failures[-1])
                continue
            results += found
            console.print(Markdown(tables([each for each in found if isinstance(each, Comparison)])))
    servers = {"Kubernetes": cluster.versions["kubernetes"], "etcd": cluster.versions["etcd"]}
    programs = replace(programs, notes=(*programs.notes, *failures), versions={**servers, **programs.versions})
    console.print(Markdown("\n\n".join([tables([each for each in results if isinstance(each, Row)]), *programs.notes])))
    if asked.write is not None:
        write(asked.write, results, programs, extent.rounds)
    # A target that is missed is a result, on a slower machine an expected one.
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
