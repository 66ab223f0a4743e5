"""`headroom demo`: the main job on an embedded control plane, shown and checked."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

_SLOWEST, _FASTEST = 0.1, 10.0


def demo(
    record: Annotated[
        Path | None,
        typer.Option(
            "--record",
            envvar="HEADROOM_RECORD",
            metavar="FILE.svg",
            help="Write the whole play as a picture.",
        ),
    ] = None,
    speed: Annotated[
        float,
        typer.Option(
            "--speed", envvar="HEADROOM_SPEED", help=f"How fast to play, {_SLOWEST:g} to {_FASTEST:g}."
        ),
    ] = 1.0,
) -> int:
    """Play a migration that a quota refuses, and the same migration with headroom, on a cluster of its own.

    Takes about a minute, and about ten more the first time: the cluster's binaries are built then. The last line
    counts the checks; the exit status is 0 only if all of them passed.
    """
    if not _SLOWEST <= speed <= _FASTEST:
        raise typer.BadParameter(f"--speed {speed:g} is not between {_SLOWEST:g} and {_FASTEST:g}")
    if record is not None:
        _check_writable(record)
    from pkg.demo.play import Wishes, play
    from pkg.testcluster.errors import ClusterError

    try:
        return play(Wishes(speed, record))
    except ClusterError as error:
        typer.echo(f"headroom: {error}", err=True)
        raise typer.Exit(1) from error


def _check_writable(record: Path) -> None:
    """Found out before anything starts. Raises typer.BadParameter."""
    if not record.parent.is_dir():
        raise typer.BadParameter(f"--record {record}: there is no folder {record.parent}")
    if record.is_dir():
        raise typer.BadParameter(f"--record {record}: this is a folder")
    if not os.access(record if record.exists() else record.parent, os.W_OK):
        raise typer.BadParameter(f"--record {record}: it cannot be written")
