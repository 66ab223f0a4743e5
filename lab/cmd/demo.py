"""`headroom demo`: the main job on an embedded control plane, shown and checked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pkg.cmd.flags import option
from pkg.cmd.options import WrongCall

_SLOWEST, _FASTEST = 0.1, 10.0


@dataclass(frozen=True)
class DemoOptions:
    """How the demo runs."""

    record: Path | None = option(None, "Write a picture of the run.", metavar="FILE.svg")
    speed: float = option(
        1.0, f"Speed of the demo, {_SLOWEST:g} to {_FASTEST:g}; 2 is twice as fast.", metavar="FACTOR"
    )


def demo(options: DemoOptions) -> int:
    """Show a migration that a quota refuses, and the same migration with headroom, on a cluster of its own.

    Takes about a minute, and about ten more the first time: the cluster's binaries are built then. The last line
    counts the checks; the exit status is 0 only if all of them passed.
    """
    if not _SLOWEST <= options.speed <= _FASTEST:
        raise WrongCall(f"--speed {options.speed:g} is not between {_SLOWEST:g} and {_FASTEST:g}")
    if (record := options.record) is not None:  # checked before anything starts
        if not record.parent.is_dir():
            raise WrongCall(f"--record {record}: no such folder {record.parent}")
        if record.is_dir():
            raise WrongCall(f"--record {record}: this is a folder")
        if not os.access(record if record.exists() else record.parent, os.W_OK):
            raise WrongCall(f"--record {record}: it cannot be written")
    from lab.demo.run import run_demo

    return run_demo(options.speed, record)
