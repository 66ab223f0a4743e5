"""What the reading commands share: their flags, one call to the API server, and how a table or JSON comes out."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pkg.cmd.flags import option
from pkg.cmd.options import Output, WrongCall
from pkg.util.constants import USER_AGENT
from pkg.util.resourcequota.policy import EstimateKind, Mode

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from kubeloop.client.client import Client
    from pkg.report.installation import Installed
    from pkg.report.reader import Assumed
    from pkg.report.snapshot import Basis

T = TypeVar("T")
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_COLUMNS = 120
"""Width of a table in a pipe, unless $COLUMNS says otherwise; cells are folded, nothing is cut."""


@dataclass(frozen=True)
class OutputOptions:
    """How something is printed."""

    title: ClassVar = "Options"

    output: Output = option(Output.TABLE, "A table to read or JSON for programs.", "--output", "-o")


@dataclass(frozen=True)
class ReportOptions(OutputOptions):
    """What a report assumes of the controller."""

    mode: Mode | None = option(
        None, "Report for this mode. Default: the running controller's, else takeover."
    )
    estimate: EstimateKind | None = option(
        None, "Report for this estimate. Default: the running controller's, else exact."
    )
    headroom_namespace: str | None = option(
        None,
        "Namespace of headroom itself. Default: it is looked for in the kubeconfig context's, headroom-system, "
        "harvester-system and default.",
        metavar="NAMESPACE",
        envvar="HEADROOM_NAMESPACE",
    )

    def assumed(self) -> Assumed:
        from pkg.report.reader import Assumed

        return Assumed(self.mode, self.estimate, self.headroom_namespace)


@dataclass(frozen=True)
class NamespaceOptions:
    """Which namespace."""

    title: ClassVar = "Options"

    # In headroom's own pods HEADROOM_NAMESPACE is the namespace of headroom itself.
    namespace: str | None = option(
        None, "Only this namespace.", "--namespace", "-n", metavar="NAMESPACE", envvar=None
    )


def check_namespace(name: str | None) -> str:
    """The namespace, "" for all. Raises WrongCall for what is not a namespace's name."""
    if name is not None and _NAME.fullmatch(name) is None:
        raise WrongCall(f"a namespace's name is lower case letters, digits and hyphens, not {name!r}")
    return name or ""


def ask(kubeconfig: str | None, question: Callable[[Client], Awaitable[T]]) -> T:
    """The answer of one short connection. Raises ConfigError, ApiError."""
    from kubeloop.client.client import Client
    from kubeloop.client.loading import load_config

    config = load_config(kubeconfig)

    async def answer() -> T:
        async with Client(config, user_agent=USER_AGENT) as client:
            return await question(client)

    return asyncio.run(answer())


def print_json(document: Any) -> None:
    """One document."""
    json.dump(document, sys.stdout, indent=2)
    sys.stdout.write("\n")


def print_all(*parts: RenderableType) -> None:
    """Tables and lines; in colours only on a terminal."""
    from rich.text import Text

    console = _console()
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text))  # a line is one line, for grep


def print_alarms(installed: Installed) -> None:
    """What is wrong with headroom itself: before what would be read as if it ran."""
    print_all(*map(line, installed.alarms()))


def print_remarks(basis: Basis) -> None:
    """What the report assumes."""
    print_all(*map(line, basis.remarks))


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table whose title and cells are taken as they are; columns whose name ends in a number sign are numbers."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(
        title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False
    )
    for column in columns:
        made.add_column(column.removesuffix("#"), justify="right" if column.endswith("#") else "left")
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def line(text: str) -> RenderableType:
    """Plain words, whatever brackets they hold."""
    from rich.text import Text

    return Text(text)


def _console() -> Console:
    from rich.console import Console

    if sys.stdout.isatty():
        return Console()
    return Console(width=get_terminal_size((_COLUMNS, 24)).columns, no_color=True, highlight=False)
