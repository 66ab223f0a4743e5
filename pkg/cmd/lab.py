"""The commands testcluster, demo and scale: of the lab, a distribution of its own that the image does not have."""

from __future__ import annotations

import functools
from importlib.metadata import entry_points
from typing import Annotated, NoReturn

import typer

from kubeloop.errors import ReportedError

GROUP = "headroom.commands"
"""The entry point group of the function that mounts them on the Typer app that it is given."""
COMMANDS = ("testcluster", "demo", "scale")


class NotInstalled(ReportedError):
    """A command of a distribution that is not there."""

    exit_code = 2


@functools.cache
def add_lab(app: typer.Typer) -> None:
    """Mount the lab's commands, once; without the lab, commands that say what to install."""
    for entry in entry_points(group=GROUP):
        entry.load()(app)
        return
    settings = {"ignore_unknown_options": True, "help_option_names": []}
    for name in COMMANDS:
        app.command(name, help="Part of the lab, which is not installed.", context_settings=settings)(
            _missing
        )


def _missing(_: Annotated[list[str] | None, typer.Argument(hidden=True)] = None) -> NoReturn:
    raise NotInstalled(
        f"{', '.join(COMMANDS)} are part of the lab, which is not installed: run `make install` in a clone of "
        "headroom, or `pip install ./lab` there"
    )
