"""The commands testcluster, demo and scale: `headroom` loads them by the entry point group `headroom.commands`."""

import os
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from lab.cmd import testcluster
from lab.scale.plan import Settings
from pkg.cmd.flags import add_command, option
from pkg.cmd.options import WrongCall


def add_to(app: typer.Typer) -> None:
    app.add_typer(testcluster.app, name="testcluster", short_help="Run an embedded cluster on this machine.")
    add_command(app, demo)
    add_command(app, scale)


_SLOWEST, _FASTEST = 0.1, 10.0


@dataclass(frozen=True)
class DemoOptions:
    """The flags of `headroom demo`."""

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


def scale(options: Settings) -> int:
    """Evacuate nodes on a cluster of stand-in nodes and VMs, and report what it took.

    Everything that is made on the cluster is removed at the end, also after Ctrl-C. The exit status is 0 when every
    migration succeeded and every quota is as it was.
    """
    if options.evacuate >= options.nodes:
        raise WrongCall(f"--evacuate {options.evacuate} leaves none of --nodes {options.nodes} to migrate to")
    if options.namespaces > options.vms:
        raise WrongCall(f"--namespaces {options.namespaces} is more than --vms {options.vms}")
    if options.kubeconfig is not None and not options.kubeconfig.is_file():
        raise WrongCall(f"--kubeconfig {options.kubeconfig}: there is no such file")
    from lab.scale import run

    if options.clean:
        if options.kubeconfig is None:
            raise WrongCall("--clean needs --kubeconfig: an embedded cluster goes with its run")
        return run.clean(options.kubeconfig)
    if not options.per_second:
        raise WrongCall(f"--rate must be a number a second, like 5/s, not {options.rate!r}")
    folder = options.out or Path(f"headroom-scale-{time.strftime('%Y%m%d-%H%M%S')}")
    try:  # before anything starts
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise WrongCall(f"--out {folder}: it cannot be written to: {error.strerror}") from error
    return run.run_scale(replace(options, out=folder))
