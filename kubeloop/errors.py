"""The base of errors that a person at the command line reads."""

import contextlib
from collections.abc import Iterator
from typing import ClassVar


class ReportedError(Exception):
    """Its text is one line that names what is wrong and what to do; a command prints it and ends with `exit_code`. Any
    other exception that reaches the command line is a bug: its class is printed, too."""

    exit_code: ClassVar[int] = 1
    """1: a failure at work. 2: a wrong call or configuration."""


@contextlib.contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Wraps imports of what an extra of kubeloop installs. Raises ImportError that names the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = f"{error.name} is not installed, it comes with an extra: pip install 'kubeloop[{extra}]'"
        raise ImportError(missing, name=error.name) from error


def one_line(error: object) -> str:
    """A text for a log line or a message, without its line breaks."""
    return " ".join(str(error).split())
