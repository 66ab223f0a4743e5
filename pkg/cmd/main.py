"""The entry point `headroom`: mounts the subcommands and turns every error into one line and an exit code.

A subcommand's module is imported when it is asked for: each imports what it needs at its top, and the offline ones
start fast."""

import importlib
import os
import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Final

import typer

from kubeloop.errors import ReportedError, one_line
from pkg.cmd.flags import add_command
from pkg.cmd.options import WrongCall, remark

USAGE = 2
FAILURE = 1
INTERRUPTED = 130

OWN: Final = (
    "controller", "webhook", "release", "status", "explain", "plan", "collect", "delta", "usage", "quantity", "version",
)  # fmt: skip
"""Each is the function of that name in the module of that name. The lab, whose commands come from another distribution,
is looked for only where something else is asked for."""
LAB_COMMANDS = ("testcluster", "demo", "scale")
"""The commands of the lab, a distribution that the image lacks."""

_UsageError: type[Exception] = typer.BadParameter.mro()[1]
# typer carries its own copy of click and exports only some of its errors; this one is for every wrong call.


def application(names: Iterable[str] = OWN) -> typer.Typer:
    """Returns the application with these of the product's commands."""
    app = typer.Typer(
        name="headroom",
        help="Keeps a namespace's ResourceQuota from blocking live migration of VMs.",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(lambda: None)
    for name in names:
        add_command(app, getattr(importlib.import_module(f"pkg.cmd.{name}"), name))
    return app


def main() -> None:
    """Runs the command line; exits 0, 2 for a wrong call or configuration, 1 for a failure at work."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Returns the exit code of one call. An error is one line on stderr, never a traceback."""
    if arguments[:1] == ["--version"]:
        arguments = ["version", *arguments[1:]]
    own_commands = [name for name in OWN if name in arguments[:1]]
    try:
        app = application(own_commands or OWN)
        if not own_commands:
            add_lab(app, *arguments[:1])
        code = app(args=arguments, prog_name="headroom", standalone_mode=False)
    except SystemExit as exc:
        code = exc.code
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except _UsageError as exc:
        message: str = exc.format_message()  # type: ignore[attr-defined]
        if "\n" in message:  # the help, where the command itself is missing
            print(message, file=sys.stderr)
        else:
            remark(message)
        return USAGE
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (closed at exit: nothing is left to flush)
        return FAILURE
    except (ReportedError, OSError) as exc:
        text = f"{exc.filename}: {exc.strerror}" if isinstance(exc, OSError) and exc.filename else str(exc)
        remark(one_line(text))
        return getattr(exc, "exit_code", FAILURE)
    except Exception as exc:
        if os.environ.get("HEADROOM_TRACEBACK"):
            raise
        remark(one_line(f"{type(exc).__name__}: {exc}"))
        return FAILURE
    return code if isinstance(code, int) else 0


def add_lab(app: typer.Typer, command: str = "") -> None:
    """Mounts the lab's commands. Raises WrongCall where the command is one of them and the lab is not installed."""
    entries = entry_points(group="headroom.commands")  # of lab/setup.cfg
    for entry in entries:
        entry.load()(app)
    if not entries and command in LAB_COMMANDS:
        raise WrongCall(
            f"{', '.join(LAB_COMMANDS)} are part of the lab, which is not installed: run `make install` in a clone of "
            "headroom, or `pip install ./lab` there"
        )
