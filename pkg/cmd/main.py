"""The entry point `headroom`: mounts the subcommands and turns every error into one line and an exit code."""

from __future__ import annotations

import os
import sys

import typer

from pkg.cmd import controller, delta, demo, explain, plan, quantity, release, status, testcluster, webhook
from pkg.cmd.options import Absent, WrongCall

USAGE = 2
FAILURE = 1
INTERRUPTED = 130

_UsageError: type[Exception] = typer.BadParameter.mro()[1]
# typer carries its own copy of click and exports only some of its errors; this one is for every wrong call.

app = typer.Typer(
    name="headroom",
    help="Keeps a namespace's ResourceQuota from blocking live migration of VMs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("controller")(controller.controller)
app.command("webhook")(webhook.webhook)
app.command("release")(release.release)
app.command("status")(status.status)
app.command("explain")(explain.explain)
app.command("plan")(plan.plan)
app.command("demo")(demo.demo)
app.command("delta")(delta.delta)
app.command("quantity")(quantity.quantity)
app.add_typer(testcluster.app, name="testcluster")


def main() -> None:
    """Run the command line; exits 0, 2 for a wrong call or configuration, 1 for a failure at work."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """The exit code of one call. What goes wrong is one line on stderr, never a traceback."""
    try:
        return _code(app(args=arguments, prog_name="headroom", standalone_mode=False))
    except typer.Exit as exc:
        return exc.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except _UsageError as exc:
        return _say_usage(exc)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (closed at exit: nothing is left to flush)
        return FAILURE
    except SystemExit as exc:
        return _code(exc.code)
    except Exception as exc:
        if os.environ.get("HEADROOM_TRACEBACK"):
            raise
        return _say(_line(exc), _exit_code(exc))


def _say_usage(exc: Exception) -> int:
    """A wrong call in one line; where the command itself is missing, its help."""
    message: str = exc.format_message()  # type: ignore[attr-defined]
    if "\n" in message:
        print(message, file=sys.stderr)
        return USAGE
    return _say(message, USAGE)


def _code(result: object) -> int:
    return result if isinstance(result, int) else 0


def _exit_code(exc: Exception) -> int:
    """Errors that name themselves a wrong configuration end with 2."""
    from pkg.client.errors import ConfigError
    from pkg.generic.errors import BindError

    return USAGE if isinstance(exc, ConfigError | BindError | WrongCall) else FAILURE


def _line(exc: Exception) -> str:
    """The error in one line; a bug's class is named, so that a report says more than its text."""
    from pkg.client.errors import ApiError, ConfigError
    from pkg.generic.errors import BindError

    text = " ".join(str(exc).split())
    expected = isinstance(exc, ApiError | ConfigError | BindError | OSError | WrongCall | Absent)
    return text if expected else f"{type(exc).__name__}: {text}"


def _say(message: str, code: int) -> int:
    print(f"headroom: {message}", file=sys.stderr)
    return code
