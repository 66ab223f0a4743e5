"""Shares what the reading commands have in common: their flags, one call to the API server, and how a table or JSON
comes out."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, Generic, TypeVar

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from kubeloop.client.client import Client
from kubeloop.client.errors import ApiError
from kubeloop.client.loading import load_config
from kubeloop.text import printable
from pkg.cmd.flags import option, optional
from pkg.cmd.options import Output, OutputOptions, WrongCall
from pkg.report.page import page
from pkg.report.reader import Assumptions
from pkg.report.snapshot import Document, Snapshot
from pkg.report.status import QuotaStatus, headline
from pkg.util.constants import USER_AGENT
from pkg.util.resourcequota.policy import EstimateKind, Mode

T = TypeVar("T")
R = TypeVar("R", bound=Document)
_NAMESPACE = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
NAME = re.compile(r"[a-z0-9](?:[-.a-z0-9]{0,251}[a-z0-9])?")
"""Matches the name of a VM or a node."""
_COLUMNS = 120
"""Width of a table in a pipe, unless $COLUMNS says otherwise; cells are folded, nothing is cut."""
_GAP = 3
"""Columns between two of a table's."""
_PERIOD = 1.0
"""Seconds between two looks of --watch, and at least as long as a look takes: lists of a large cluster cost its API
server."""


class Tone(StrEnum):
    """The meaning of a line, as its colour on a terminal."""

    PLAIN = ""
    GOOD = "green"
    RAISED = "yellow"
    WRONG = "red"


@dataclass(frozen=True)
class ReportOptions(OutputOptions):
    """The assumptions about the controller."""

    mode: Mode | None = optional("Report for this mode. Default: the running controller's, else takeover.")
    estimate: EstimateKind | None = optional("Report for this estimate. Default: the running controller's, else exact.")
    headroom_namespace: str | None = optional(
        "Namespace of headroom itself. Default: it is looked for in the kubeconfig context's, headroom-system, "
        "harvester-system and default.",
        metavar="NAMESPACE",
        envvar="HEADROOM_NAMESPACE",
    )

    def assumptions(self) -> Assumptions:
        return Assumptions(self.mode, self.estimate, self.headroom_namespace)


@dataclass(frozen=True)
class WatchOptions:
    """The flags for watching."""

    watch: bool = option(
        False, "Go on until Ctrl-C: on a terminal in place, else with a line for each change.", "--watch", "-w"
    )

    def check(self, output: Output) -> None:
        """Raises WrongCall."""
        if self.watch and output is Output.JSON:
            raise WrongCall("--watch prints a table or lines: leave -o json out")


@dataclass(frozen=True)
class NamespaceOptions:
    """The flag for one namespace."""

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
class Answer(ABC):
    """The answer at one moment."""

    snapshot: Snapshot

    @abstractmethod
    def document(self) -> dict[str, Any]:
        """Returns the JSON, with `circumstances`."""

    @abstractmethod
    def parts(self) -> Sequence[RenderableType]:
        """Returns the text to read."""

    @property
    def namespace(self) -> str:
        """The namespace that the question was about, "" for all."""
        return ""

    def lines(self) -> Mapping[str, str]:
        """Returns what is known, by its object: --watch prints what differs."""
        return {}

    def print(self, output: Output) -> None:
        """Prints JSON, or text to read."""
        if output is Output.JSON:
            sys.stdout.write(json.dumps(self.document(), indent=2) + "\n")
        else:
            print_all(*self.framed())

    def circumstances(self) -> dict[str, Any]:
        """Returns what every JSON document says of its circumstances."""
        return {"basis": self.snapshot.basis.document(), "headroom": self.snapshot.installed.document()}

    def framed(self) -> list[RenderableType]:
        """Returns a report between what is wrong with headroom itself, which would else be read as if it ran, and what
        it assumes."""
        return [
            *(line(alarm, Tone.WRONG) for alarm in self.snapshot.installed.alarms(self.namespace)),
            *self.parts(),
            *map(line, self.snapshot.basis.remarks),
        ]


@dataclass(frozen=True)
class ReportAnswer(Answer, Generic[R]):
    """The answer that one report is."""

    report: R

    def document(self) -> dict[str, Any]:
        return {**self.report.document(), **self.circumstances()}


Question = Callable[[Client], Awaitable[Answer]]


def follow(kubeconfig: str | None, question: Question) -> None:
    """Prints the answers one after the other, until a signal.

    Raises ConfigError, and what the first question raises; later an API server that does not answer is reported
    once."""

    async def answer_until_signal(client: Client) -> None:
        if not sys.stdout.isatty():
            await _ask_again(client, question, _Printer().show)
            return
        with Live(console=_console(), auto_refresh=False) as live:

            def update(answer: Answer) -> None:
                live.update(Screenful(answer.framed(), f"at {time.strftime('%H:%M:%S')}; Ctrl-C ends"), refresh=True)

            await _ask_again(client, question, update)

    ask(kubeconfig, answer_until_signal)


@dataclass(frozen=True)
class Screenful:
    """A report cut to the terminal, with how much that leaves out, and a last line."""

    parts: Sequence[RenderableType]
    last_line: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Renders it; called by rich."""
        rows = console.render_lines(Group(*self.parts), options.reset_height(), pad=False)
        height = max(console.height - 2, 1)  # the last line, and the cursor's
        if len(rows) > height:
            left_out = len(rows) - height + 1
            rows = rows[: height - 1]
            rows.append(console.render_lines(line(f"… {left_out} more lines: -n NAMESPACE shows less"), options)[0])
        for row in rows:
            yield from row
            yield Segment.line()
        yield line(self.last_line)


async def _ask_again(client: Client, question: Question, show: Callable[[Answer], None]) -> None:
    answer, failed = await question(client), ""
    while True:
        show(answer)
        began = time.monotonic()
        try:
            answer, failed = await question(client), ""
        except ApiError as exc:
            if failed != str(exc):
                print(f"headroom: {printable(str(exc))}, trying again", file=sys.stderr, flush=True)
            failed = str(exc)
        await asyncio.sleep(max(_PERIOD, time.monotonic() - began))


class _Printer:
    """Prints the lines that differ from the answer before."""

    def __init__(self) -> None:
        self._last_lines: Mapping[str, str] = {}

    def show(self, answer: Answer) -> None:
        last_lines, lines = self._last_lines, {"headroom": answer.snapshot.installed.summary, **answer.lines()}
        changes = [f"{key} {text}" for key, text in lines.items() if last_lines.get(key) != text]
        for change in [*changes, *(f"{key} is gone" for key in last_lines if key not in lines)]:
            print(f"{time.strftime('%H:%M:%S')} {printable(change)}", flush=True)
        self._last_lines = lines


def write_page(target: Path, snapshot: Snapshot, quotas: Sequence[QuotaStatus], *, prints_name: bool = True) -> None:
    """Writes the page to a file, which may exist, and prints its name if `prints_name`. Raises OSError, WrongCall for a
    folder."""
    if target.is_dir():
        raise WrongCall(f"{target} is a folder: name a file")
    target.write_text(page(snapshot, quotas, headline(snapshot, quotas)), "utf-8")
    if prints_name:
        print(target)


def print_all(*parts: RenderableType) -> None:
    """Prints tables and lines, none of them cut; in colours only on a terminal."""
    console = _console()
    console.width = sys.maxsize
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text))  # a line is one line, for grep


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[RenderableType]:
    """Returns a line and a table whose cells are lines; columns whose name ends in a number sign are numbers. Cells
    are folded between words, as far as the output's width requires it."""
    rich_table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    cells = [[printable(cell) for cell in row] for row in rows]
    names = [column.removesuffix("#") for column in columns]
    widths = _widths([[name.replace(" ", "_"), *(row[i] for row in cells)] for i, name in enumerate(names)])
    for column, name, column_width in zip(columns, names, widths, strict=True):
        rich_table.add_column(name, justify="left" if name == column else "right", width=column_width)
    for row in cells:
        rich_table.add_row(*map(Text, row))
    return [line(title), rich_table]


def _widths(columns: Sequence[Sequence[str]]) -> list[int]:
    """Returns the columns' widths: where all of them have no room, the widest is narrowed, but never to less than a
    word."""
    widths = [max(map(cell_len, cells)) for cells in columns]
    least = [max(cell_len(word) for cell in cells for word in cell.split(" ")) for cells in columns]
    excess = sum(widths) + _GAP * (len(widths) - 1) - width()
    while excess > 0 and widths != least:
        widest = max(range(len(widths)), key=lambda index: (widths[index] > least[index], widths[index]))
        widths[widest] -= 1
        excess -= 1
    return widths


def line(text: str, tone: Tone = Tone.PLAIN) -> RenderableType:
    """Returns plain words, whatever brackets and control characters they hold."""
    return Text(printable(text), style=tone.value)


def problem(text: str, indent: str = "") -> RenderableType:
    """Returns a line about what is wrong with the object above it."""
    return line(f"{indent}! {text}", Tone.WRONG)


def width() -> int:
    """Returns how many columns the output has."""
    return _console().width


def _console() -> Console:
    if sys.stdout.isatty():
        return Console()
    return Console(width=get_terminal_size((_COLUMNS, 24)).columns, no_color=True, highlight=False)
