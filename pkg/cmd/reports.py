"""What the reading commands share: their flags, one call to the API server, and how a table or JSON comes out."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from pkg.cmd.options import WrongCall
from pkg.util.quantity import Quantity

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from pkg.client.client import Client

T = TypeVar("T")
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_WIDE = 200
"""Columns where nobody looks: nothing is cut."""
_UNITS = (("Ti", 1024**4), ("Gi", 1024**3), ("Mi", 1024**2))


class Output(StrEnum):
    """How a report comes out."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[
    Output, typer.Option("--output", "-o", envvar="HEADROOM_OUTPUT", help="For people or for programs.")
]
NamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace", "-n", envvar="HEADROOM_NAMESPACE", help="Only this namespace.", show_default=False
    ),
]


def check_namespace(name: str | None) -> str:
    """The namespace, "" for all. Raises WrongCall for what is no namespace's name."""
    if name is not None and _NAME.fullmatch(name) is None:
        raise WrongCall(f"a namespace's name is lower case letters, digits and hyphens, not {name!r}")
    return name or ""


def ask(kubeconfig: str | None, question: Callable[[Client], Awaitable[T]]) -> T:
    """The answer of one short connection. Raises ConfigError, ApiError."""
    from pkg.client.client import Client
    from pkg.client.config import load_config

    config = load_config(kubeconfig)

    async def answer() -> T:
        async with Client(config) as client:
            return await question(client)

    return asyncio.run(answer())


def print_json(document: Any) -> None:
    """One document."""
    json.dump(document, sys.stdout, indent=2)
    sys.stdout.write("\n")


def print_all(*parts: RenderableType) -> None:
    """Tables and lines; in colours only where somebody looks."""
    console = _console()
    for part in parts:
        console.print(part)


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


def shown(amount: Quantity | None, resource: str) -> str:
    """A quantity for people: memory and storage in binary units, all else as it is spelled."""
    if amount is None:
        return "-"
    if not any(word in resource for word in ("memory", "storage", "hugepages")):
        return str(amount)
    number = amount.value()
    for unit, size in _UNITS:
        if abs(number) >= size:
            return f"{number / size:.1f}{unit}"
    return str(amount)


def listed(amounts: Mapping[str, Quantity]) -> str:
    """Several resources in one cell."""
    return ", ".join(f"{name} {shown(amount, name)}" for name, amount in sorted(amounts.items())) or "-"


def _console() -> Console:
    from rich.console import Console

    if sys.stdout.isatty():
        return Console()
    return Console(width=_WIDE, no_color=True, highlight=False)
