"""Shares the flags of the reading commands, their call to the API server, and how a table or JSON comes out."""

import asyncio
import json
import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, TypeVar

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kubeloop.api.quantity import Quantity
from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError
from kubeloop.client.loading import load_config
from kubeloop.logs import printable
from pkg.cmd.flags import option, optional
from pkg.cmd.options import Output, OutputOptions, WrongCall, remark
from pkg.report.page import page
from pkg.report.reader import read_snapshot
from pkg.report.snapshot import Snapshot
from pkg.util.amounts import format_amount
from pkg.util.constants import USER_AGENT
from pkg.util.resourcequota.policy import EstimateKind, Mode

T = TypeVar("T")
_NAMESPACE = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
NAME = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?")
"""Matches the name of a VM or a node."""

GOOD, RAISED, WRONG = "green", "yellow", "red"


@dataclass(frozen=True)
class ReportOptions(OutputOptions):
    mode: Mode | None = optional("Report for this mode. Default: the running controller's, else takeover.")
    estimate: EstimateKind | None = optional("Report for this estimate. Default: the running controller's, else exact.")
    headroom_namespace: str | None = optional(
        "Namespace of headroom itself. Default: it is looked for in the kubeconfig context's, headroom-system, "
        "harvester-system and default.",
        metavar="NAMESPACE",
        envvar="HEADROOM_NAMESPACE",
    )

    async def read(self, client: Client, namespace: str, *, events: str | None = None) -> Snapshot:
        """Reads what is reported on, by these flags. Raises what `read_snapshot` does."""
        names = [namespace] if namespace else ()
        return self.assumed_for(await read_snapshot(client, names, self.headroom_namespace, events=events))

    def assumed_for(self, snapshot: Snapshot) -> Snapshot:
        """Returns the snapshot with the mode and the estimate of the flags."""
        return replace(snapshot, basis=snapshot.basis.with_flags(self.mode, self.estimate))


@dataclass(frozen=True)
class WatchOptions:
    watch: bool = option(False, "Go on until Ctrl-C: on a terminal in place, else a line a change.", "--watch", "-w")


@dataclass(frozen=True)
class NamespaceOptions:
    # In headroom's own pods HEADROOM_NAMESPACE is the namespace of headroom itself.
    namespace: str | None = optional("Only this namespace.", "--namespace", "-n", metavar="NAMESPACE", envvar=None)


def check_namespace(name: str | None) -> str:
    """Returns the namespace, "" for all. Raises WrongCall for what is not a namespace's name."""
    if name is not None and _NAMESPACE.fullmatch(name) is None:
        raise WrongCall(f"a namespace's name is lower case letters, digits and hyphens, not {name!r}")
    return name or ""


def ask(kubeconfig: str | None, question: Callable[[Client], Awaitable[T]]) -> T:
    """Returns the answer of one short connection. Raises ConfigError, ApiError."""
    config = load_config(kubeconfig)

    async def answer() -> T:
        async with Client(config, user_agent=USER_AGENT) as client:
            return await question(client)

    return asyncio.run(answer())


@dataclass(frozen=True)
class Answer:
    """A report about one moment: as JSON, as text to read, and as the lines of --watch in a pipe, by object."""

    snapshot: Snapshot
    document: Mapping[str, Any]
    parts: Iterable[RenderableType]
    lines: Mapping[str, str] = field(default_factory=dict)
    namespace: str = ""
    """The namespace whose alarms come first."""
    exit_code: int = 0

    def print(self, output: Output) -> None:
        """Prints JSON, with the circumstances of the report, or text to read."""
        if output == "json":
            basis, installed = self.snapshot.basis.document(), self.snapshot.installed.document()
            print(json.dumps({**self.document, "basis": basis, "headroom": installed}, indent=2))
        else:
            print_all(*self.framed())

    def framed(self) -> list[RenderableType]:
        """Returns the text between what is wrong with headroom itself and what it assumes."""
        alarms = self.snapshot.installed.alarms(self.namespace)
        return [*(line(alarm, WRONG) for alarm in alarms), *self.parts, *map(line, self.snapshot.basis.remarks())]


def follow(kubeconfig: str | None, question: Callable[[Client], Awaitable[Answer]], output: Output) -> None:
    """Shows the answers one after the other, until a signal: in place on a terminal, else the lines that differ.
    Raises WrongCall, ConfigError, and what the first question raises; later an API server without an answer is
    reported once."""
    if output == "json":
        raise WrongCall("--watch prints a table or lines: leave -o json out")

    async def watch(client: Client) -> None:
        last_lines: Mapping[str, str] = {}
        answer, failure = await question(client), ""
        with Live(console=console(), auto_refresh=False) if sys.stdout.isatty() else nullcontext() as live:
            while True:
                clock = time.strftime("%H:%M:%S")
                lines = {"headroom": answer.snapshot.installed.summary, **answer.lines}
                if live:
                    live.update(Group(line(f"{clock}; Ctrl-C ends"), *answer.framed()), refresh=True)
                else:
                    changes = [f"{key} {text}" for key, text in lines.items() if last_lines.get(key) != text]
                    for change in [*changes, *(f"{key} is gone" for key in last_lines if key not in lines)]:
                        print(f"{clock} {printable(change)}", flush=True)
                last_lines, began = lines, time.monotonic()
                try:
                    answer, failure = await question(client), ""
                except ApiError as exc:
                    if failure != str(exc):
                        remark(f"{exc}, trying again")
                    failure = str(exc)
                # At least as long as a look takes: lists cost a large cluster's API server.
                await asyncio.sleep(max(1.0, time.monotonic() - began))

    ask(kubeconfig, watch)


def write_page(target: Path, snapshot: Snapshot) -> None:
    """Writes the page to a file, which may exist. Raises OSError, WrongCall for a folder."""
    if target.is_dir():
        raise WrongCall(f"{target} is a folder: name a file")
    target.write_text(page(snapshot), "utf-8")


def print_all(*parts: RenderableType) -> None:
    """Prints tables and lines, none of them cut; in colours only on a terminal."""
    output = console()
    for part in parts:
        output.print(part, soft_wrap=isinstance(part, Text), crop=False)  # a line is one line, for grep


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[RenderableType]:
    """Returns a line and a table whose cells are lines; columns whose name ends in a number sign are numbers. Cells
    are folded between words, as far as the output's width requires it; headings are not."""
    rich_table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    cells = [[printable(cell) for cell in row] for row in rows]
    for index, column in enumerate(columns):
        name = column.removesuffix("#")
        least = max(map(cell_len, [name, *(word for row in cells for word in row[index].split(" "))]))
        rich_table.add_column(name, justify="left" if name == column else "right", min_width=least)
    for row in cells:
        rich_table.add_row(*map(Text, row))
    return [line(title), rich_table]


def amounts_row(resource: str, *amounts: Quantity | None) -> list[str]:
    """Returns the cells of a resource and amounts of it."""
    return [resource, *(format_amount(amount, resource) for amount in amounts)]


def line(text: str, style: str = "") -> RenderableType:
    """Returns plain words, whatever brackets and control characters they hold."""
    return Text(printable(text), style)


def problem(text: str, indent: str = "") -> RenderableType:
    """Returns a line about what is wrong with the object above it."""
    return line(f"{indent}! {text}", WRONG)


def console() -> Console:
    """Returns the console of the output, as wide as a terminal or $COLUMNS, in a pipe 120 columns."""
    if sys.stdout.isatty():
        return Console()
    return Console(width=get_terminal_size((120, 24)).columns, no_color=True, highlight=False)
