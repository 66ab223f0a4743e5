"""`headroom quantity`: Kubernetes quantities from stdin, read, spelled canonically and computed with."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from pkg.util.quantity import Quantity, QuantityError

_Operation = Callable[[Quantity, Quantity], "str | int"]


def _compare(a: Quantity, b: Quantity) -> int:
    return (a > b) - (a < b)


_OPERATIONS: dict[str, _Operation] = {
    "add": lambda a, b: str(a + b),
    "sub": lambda a, b: str(a - b),
    "cmp": _compare,
}


def quantity(
    add: Annotated[bool, typer.Option("--add", envvar="HEADROOM_ADD", help="Lines A<TAB>B: A + B.")] = False,
    sub: Annotated[bool, typer.Option("--sub", envvar="HEADROOM_SUB", help="Lines A<TAB>B: A - B.")] = False,
    cmp: Annotated[
        bool, typer.Option("--cmp", envvar="HEADROOM_CMP", help="Lines A<TAB>B: -1, 0 or 1.")
    ] = False,
) -> int:
    """Read quantities, one a line, from stdin; print a JSON line each.

    A line that is no quantity comes out with "error" and the others go on.
    """
    chosen = [name for name, wanted in (("add", add), ("sub", sub), ("cmp", cmp)) if wanted]
    if len(chosen) > 1:
        print(f"headroom: --{chosen[0]} and --{chosen[1]} exclude each other", file=sys.stderr)
        return 2
    operation = chosen[0] if chosen else None
    for line in sys.stdin.buffer:
        text = line.removesuffix(b"\n").removesuffix(b"\r").decode(errors="replace")
        sys.stdout.write(json.dumps(describe(text, operation)) + "\n")
    sys.stdout.flush()
    return 0


def describe(text: str, operation: str | None) -> dict[str, Any]:
    """What is printed for one line: A, or A<TAB>B with the operation "add", "sub" or "cmp"."""
    try:
        return {"in": text} | _evaluate(text, operation)
    except QuantityError as error:
        return {"in": text, "error": str(error)}


def _evaluate(text: str, operation: str | None) -> dict[str, Any]:
    if operation is None:
        return _canonical(Quantity.parse(text))
    left, tab, right = text.partition("\t")
    if not tab:
        raise QuantityError(f"--{operation} needs two quantities with a tab between them")
    a, b = Quantity.parse(left), Quantity.parse(right)
    return _canonical(a) | {"result": _OPERATIONS[operation](a, b)}


def _canonical(quantity: Quantity) -> dict[str, Any]:
    return {"canonical": str(quantity), "value": quantity.value()}
