"""The entry point `headroom`: mounts the subcommands and turns every error into one line and an exit code."""

from __future__ import annotations

import os
import sys

import click
import typer

from pkg.cmd import controller, delta, quantity, release, testcluster, webhook

USAGE = 2
FAILURE = 1

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
    except click.exceptions.NoArgsIsHelpError as exc:
        exc.show()
        return USAGE
    except click.UsageError as exc:
        return _say(exc.format_message(), USAGE)
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (closed at exit: nothing is left to flush)
        return FAILURE
    except SystemExit as exc:
        return _code(exc.code)
    except Exception as exc:
        if os.environ.get("HEADROOM_TRACEBACK"):
            raise
        return _say(_line(exc), _exit_code(exc))


def _code(result: object) -> int:
    return result if isinstance(result, int) else 0


def _exit_code(exc: Exception) -> int:
    """Errors that name themselves a wrong configuration end with 2."""
    from pkg.client.errors import ConfigError
    from pkg.generic.errors import BindError

    return USAGE if isinstance(exc, ConfigError | BindError) else FAILURE


def _line(exc: Exception) -> str:
    """The error in one line; a bug's class is named, so that a report says more than its text."""
    from pkg.client.errors import ApiError, ConfigError
    from pkg.generic.errors import BindError

    text = " ".join(str(exc).split())
    return (
        text
        if isinstance(exc, ApiError | ConfigError | BindError | OSError)
        else f"{type(exc).__name__}: {text}"
    )


def _say(message: str, code: int) -> int:
    print(f"headroom: {message}", file=sys.stderr)
    return code
