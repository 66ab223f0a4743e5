"""`headroom quantity`: Kubernetes quantities from stdin, read, spelled canonically and computed with."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kubeloop.api.quantity import Quantity, QuantityError
from pkg.cmd.flags import option
from pkg.cmd.options import WrongCall

_OPERATIONS: dict[str, Callable[[Quantity, Quantity], str | int]] = {
    "add": lambda a, b: str(a + b),
    "sub": lambda a, b: str(a - b),
    "cmp": lambda a, b: (a > b) - (a < b),
}


@dataclass(frozen=True)
class QuantityOptions:
    add: bool = option(False, "Lines A<TAB>B: A + B.", "--add")
    sub: bool = option(False, "Lines A<TAB>B: A - B.", "--sub")
    cmp: bool = option(False, "Lines A<TAB>B: -1, 0 or 1.", "--cmp")


def quantity(options: QuantityOptions) -> None:
    """Read quantities, one a line, from stdin; print a JSON line each.

    A line that is not a quantity comes out with "error" and the others go on."""
    operations = [name for name in _OPERATIONS if getattr(options, name)]
    if len(operations) > 1:
        raise WrongCall(f"--{operations[0]} and --{operations[1]} exclude each other")
    for line in sys.stdin.buffer:
        text = line.removesuffix(b"\n").removesuffix(b"\r").decode(errors="replace")
        sys.stdout.write(json.dumps(describe(text, next(iter(operations), None))) + "\n")
    sys.stdout.flush()


def describe(text: str, operation: str | None) -> dict[str, Any]:
    """Returns what is printed for one line: A, or A<TAB>B with the operation "add", "sub" or "cmp"."""
    first_text, tab, second_text = text.partition("\t") if operation else (text, "", "")
    try:
        if operation and not tab:
            raise QuantityError(f"--{operation} needs two quantities with a tab between them")
        quantity = Quantity.parse(first_text)
        line = {"in": text, "canonical": str(quantity), "value": quantity.value()}
        if operation:
            line["result"] = _OPERATIONS[operation](quantity, Quantity.parse(second_text))
        return line
    except QuantityError as error:
        return {"in": text, "error": str(error)}
