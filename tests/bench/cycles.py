"""Measures how many keys a second go through a work queue: add, get, done."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from statistics import median

from tests.bench.peers.programs import ROOT, MeasuredPrograms
from tests.bench.row import Comparison, Result, Row, spread

KINDS = {"plain": "add, get, done", "delayed": "add after 1 ms", "priority": "two priorities"}
KEYS = (1, 10_000, 100_000)
TO_REACH = 400_000


async def cycles(kubeconfig: Path, programs: MeasuredPrograms, rounds: int) -> list[Result]:
    """Ours and client-go's (for priorities controller-runtime's) in turn, round after round."""
    measured: dict[tuple[str, str, int], list[float]] = {}
    argvs: dict[str, tuple[str, ...]] = {"headroom": (sys.executable, "-m", "tests.bench.ours")}
    if programs.go is not None:
        argvs["client-go"] = (str(programs.go),)
    for _ in range(rounds):
        for kind in KINDS:
            for keys in KEYS:
                for name, argv in argvs.items():
                    cycles_a_second = await _in_a_process(argv, kind, keys)
                    measured.setdefault((kind, name, keys), []).append(cycles_a_second)
    lines = tuple(
        (KINDS[kind], name, *(spread(measured[kind, name, keys]) for keys in KEYS)) for kind in KINDS for name in argvs
    )
    columns = ("", "", *(f"{keys:,} key{'s' if keys > 1 else ''}" for keys in KEYS))
    note = "Cycles a second: all keys in, all keys out, by one worker. Priorities: controller-runtime's queue."
    plain = [median(measured["plain", "headroom", keys]) for keys in KEYS]
    bars = tuple((name, median(measured["plain", name, 10_000])) for name in argvs)
    return [
        Comparison("Work queue", columns, lines, note, bars, "cycles a second, 10,000 keys"),
        *(
            Row(f"queue cycles, {keys:,} key{'s' if keys > 1 else ''}", rate, "/s", TO_REACH, at_least=True)
            for keys, rate in zip(KEYS, plain, strict=True)
        ),
    ]


async def _in_a_process(argv: tuple[str, ...], kind: str, keys: int) -> float:
    process = await asyncio.create_subprocess_exec(
        *(*argv, "queue", kind, str(keys)), stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    output, _ = await process.communicate()
    cycles_a_second: float = json.loads(output)["cycles"]
    return cycles_a_second
