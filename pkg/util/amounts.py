"""Quantities in sentences and tables for people. Pure."""

from collections.abc import Mapping

from kubeloop.api.quantity import Quantity


def format_amount(amount: Quantity | None, resource: str) -> str:
    """Returns a quantity for people: memory and storage in binary units, all else as it is spelled."""
    if amount is None:
        return "-"
    if not any(word in resource for word in ("memory", "storage", "hugepages")):
        return str(amount)
    number = amount.value()
    for unit, size in (("Ti", 1024**4), ("Gi", 1024**3), ("Mi", 1024**2)):
        if abs(number) >= size:
            return f"{number / size:.1f}{unit}"
    return str(amount)


def format_written(text: str, resource: str) -> str:
    """Returns a quantity as people wrote it; plain bytes in binary units, like the quantities next to it."""
    return format_amount(Quantity.parse(text), resource) if text.isdecimal() else text


def format_distinctly(resource: str, *amounts: Quantity) -> list[str]:
    """Returns quantities to compare, all in units or, if two would look the same, all to the byte."""
    texts = [format_amount(amount, resource) for amount in amounts]
    return texts if len(set(texts)) == len(set(amounts)) else [str(amount) for amount in amounts]


def format_amounts(amounts: Mapping[str, Quantity]) -> str:
    """Returns several resources as one cell of a table."""
    return ", ".join(f"{name} {format_amount(amount, name)}" for name, amount in sorted(amounts.items())) or "-"
