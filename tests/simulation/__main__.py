"""`python -m tests.simulation`: see the package."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.server import ApiWrite
    from tests.simulation.story import Outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int, help="tell this one, and shrink it when it breaks a promise")
    parser.add_argument("--seeds", type=int, metavar="N", help="tell so many stories")
    parser.add_argument("--first", type=int, default=0, help="the first of them; default: random")
    parser.add_argument("--hours", type=float, default=1.0, help="without --seeds: for so long")
    parser.add_argument("--writes", action="store_true", help="with --seed: show every write, and do not shrink")
    parser.add_argument("--planted", default="", help="with this rule of headroom's broken (planted.py)")
    parser.add_argument("--without", nargs="*", default=(), metavar="ACTION", help="leave these out")
    parser.add_argument("--digests", action="store_true", help="say what each story came to")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        again = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
        os.execve(sys.executable, again, {**os.environ, "PYTHONHASHSEED": "0"})
    if options.seed is not None:
        return _tell_one(options)
    return _tell_many(options)


def _tell_one(options: argparse.Namespace) -> int:
    _prepare(options.planted)
    from tests.simulation.story import shrunk, story_of, tell

    story = story_of(options.seed, options.without)
    outcome = tell(story, _show if options.writes else None)
    print(f"{story}\n{outcome.broken or 'every promise was kept'}\n{outcome.steps} writes, {outcome.digest[:16]}")
    if outcome.broken is None or options.writes:
        return int(outcome.broken is not None)
    story = shrunk(story, outcome.broken.promise)
    print(f"\nshort:\n{story}\n{tell(story).broken}")
    return 1


def _show(write: ApiWrite) -> None:
    """Prints what a write changes."""
    from tests.simulation.repeatable import monotonic

    old, new = _flat(write.old or {}), _flat(write.new or {})
    changes = {name: new.get(name) for name in {**old, **new} if old.get(name) != new.get(name)}
    if write.plural not in ("leases", "nodes"):
        title = f"{write.operation} {write.plural} {write.namespace}/{write.name}"
        print(f"{monotonic():8.2f} s  {write.user.rpartition(':')[2]} {title} {str(changes)[:400]}")


def _flat(obj: dict[str, Any]) -> dict[str, Any]:
    parts = {part: obj.get(part) or {} for part in ("spec", "status")}
    flat = {f"{part}.{name}": value for part, fields in parts.items() for name, value in fields.items()}
    metadata = obj.get("metadata") or {}
    return flat | {name: metadata.get(name) or {} for name in ("labels", "annotations")}


def _tell_many(options: argparse.Namespace) -> int:
    first_seed = options.first or int.from_bytes(os.urandom(4), "big")
    began, steps, outcomes = time.monotonic(), 0, 0
    until = began + 3600 * options.hours if options.seeds is None else float("inf")
    seeds: Iterator[int] = itertools.count(first_seed)
    if options.seeds is not None:
        seeds = itertools.islice(seeds, options.seeds)
    broken = 0
    with ProcessPoolExecutor(options.processes, initializer=_prepare, initargs=(options.planted,)) as pool:
        running: set[Future[tuple[int, Outcome]]] = set()
        while True:
            while len(running) < 2 * options.processes and time.monotonic() < until:
                if (seed := next(seeds, None)) is None:
                    break
                running.add(pool.submit(_run, seed, options.without))
            if not running:
                break
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                seed, outcome = future.result()
                outcomes, steps = outcomes + 1, steps + outcome.steps
                broken += outcome.broken is not None
                if outcome.broken or options.digests:
                    print(f"seed {seed}: {outcome.broken or outcome.digest}", flush=True)
                if outcome.broken and options.planted:
                    until, seeds = 0.0, iter(())  # found
    print(f"{outcomes} stories, {steps} writes, {broken} broken, {time.monotonic() - began:.0f} s")
    return 1 if broken else 0


def _prepare(planted: str) -> None:
    """Once in each process."""
    import logging

    from tests.simulation import story
    from tests.simulation.repeatable import make_repeatable

    logging.disable(logging.CRITICAL)
    if planted:
        from tests.simulation.planted import FAULTS

        FAULTS[planted]()
    make_repeatable()
    assert story


def _run(seed: int, without: Sequence[str]) -> tuple[int, Outcome]:
    from tests.simulation.story import story_of, tell

    return seed, tell(story_of(seed, without))


if __name__ == "__main__":
    sys.exit(main())
