"""`make bench`: one embedded cluster, every measurement, the programs beside headroom in turn.

`python -m tests.bench [--full] [--write docs/benchmarks.md] [NAME …]`: `--full` is `make bench-full`, five
rounds and up to 20,000 objects; `--write` puts what was measured into the document, and its plot beside it.
"""

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
from tests.bench.document import Comparison, Result, Row, combined, tables, write
from tests.bench.frameworks import frameworks, watch
from tests.bench.migrations import beside_vms, burst, one_after_another, through_rancher
from tests.bench.peers.programs import MeasuredPrograms, prepare, say
from tests.bench.sync import cycles, many, sync
from tests.bench.webhook import webhook
from tests.bench.work import burst_of_twenty, by_budget, one_migration

Measurement = Callable[[Path], Coroutine[Any, Any, list[Any]]]
OwnMeasurement = Callable[[Path], Coroutine[Any, Any, list[Row]]]


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of a run. Queue and first sync take `rounds`, what takes longest takes `half`."""

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


def measurements(extent: Extent, programs: MeasuredPrograms) -> dict[str, Measurement]:
    """Returns the measurements by name, in the order in which they are made."""
    peers: dict[str, Measurement] = {
        "queue": partial(cycles, programs=programs, rounds=extent.rounds),
        "sync": partial(sync, programs=programs, sizes=extent.sizes, rounds=extent.rounds),
        "watch": partial(watch, programs=programs, rounds=extent.half, seconds=extent.watch_seconds),
    }
    peers["frameworks"] = partial(frameworks, programs=programs, seconds=extent.watch_seconds)
    peers["sequence-beside"] = partial(beside_vms, vms=extent.beside, rounds=extent.half)
    own_measurements: dict[str, OwnMeasurement] = {
        "sequence": one_after_another,
        "burst-10x50": partial(burst, namespaces=10, migrations=50),
        "burst-1x300": partial(burst, namespaces=1, migrations=300),
        "burst-100x10": partial(burst, namespaces=100, migrations=10),
        "rancher": through_rancher,
        "webhook": webhook,
        "migration": one_migration,
        "burst-20": burst_of_twenty,
        "budget": by_budget,
    }
    peers |= {
        name: partial(_again_and_again, measurement, extent.half) for name, measurement in own_measurements.items()
    }
    return peers | {"many": partial(many, programs=programs, rounds=extent.half)}


async def _again_and_again(measurement: OwnMeasurement, rounds: int, kubeconfig: Path) -> list[Row]:
    return combined([await measurement(kubeconfig) for _ in range(rounds)])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], metavar="N,N")
    parser.add_argument("--beside", type=int, metavar="N", help="VMs in the caches")
    parser.add_argument("--write", type=Path, metavar="FILE.md")
    names = measurements(SHORT, MeasuredPrograms(None, (), {}, ())).keys()
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(names))
    options = parser.parse_args()
    if unknown := set(options.names) - names:
        parser.error(f"no measurement {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if options.write is not None and options.names:
        parser.error("--write replaces the whole table: it takes no NAME")
    return options


def main() -> int:
    """0 when every target was reached."""
    arguments = _options()
    extent = FULL if arguments.full else SHORT
    extent = Extent(
        arguments.rounds or extent.rounds,
        arguments.sizes or extent.sizes,
        extent.watch_seconds,
        arguments.beside or extent.beside,
    )
    programs = prepare()
    console, results = Console(width=130), list[Result]()
    failures: list[str] = []
    available = measurements(extent, programs)
    options = Options(kubevirt=False, rancher=False, kwok=False)
    with EmbeddedCluster(options=options) as cluster:
        for name in arguments.names or (
            measurement for measurement in available if arguments.full or measurement != "many"
        ):
            say(f"{name} …")
            try:
                measured: list[Result] = asyncio.run(available[name](cluster.kubeconfig))
            except Exception as exc:  # the other measurements, which took minutes, are not lost
                failures.append(f"{name}: not measured ({type(exc).__name__}: {exc})")
                say(failures[-1])
                continue
            results += measured
            console.print(
                Markdown(tables([measurement for measurement in measured if isinstance(measurement, Comparison)]))
            )
    servers = {"Kubernetes": cluster.versions["kubernetes"], "etcd": cluster.versions["etcd"]}
    programs = replace(programs, notes=(*programs.notes, *failures), versions={**servers, **programs.versions})
    console.print(
        Markdown(
            "\n\n".join(
                [tables([measurement for measurement in results if isinstance(measurement, Row)]), *programs.notes]
            )
        )
    )
    if arguments.write is not None:
        write(arguments.write, results, programs, extent.rounds)
    # A target that is missed is a result, on a slower machine an expected one.
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
