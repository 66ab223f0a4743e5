"""What `headroom` loads by the entry point group `headroom.commands`."""

from __future__ import annotations

import typer

from lab.cmd import demo, scale, testcluster
from pkg.cmd.flags import add_command


def add_to(app: typer.Typer) -> None:
    """Mount the lab's commands."""
    app.add_typer(testcluster.app, name="testcluster", short_help="Run an embedded cluster on this machine.")
    add_command(app, demo.demo)
    add_command(app, scale.scale)
