"""ResourceLists: resource name to quantity, key-wise arithmetic and the JSON of annotations. A name that is missing is
absent, not zero: adding keeps both sides' names, and nothing here invents one."""

import functools
from collections.abc import Iterable, Mapping

import msgspec

from kubeloop.api.meta import RawQuantity
from kubeloop.api.quantity import Quantity, QuantityError, parse_wire

ResourceList = dict[str, Quantity]


def parse_resource_list(raw: Mapping[str, RawQuantity] | None) -> ResourceList:
    """The list with its quantities parsed. QuantityError names the resource whose quantity is none."""
    parsed: ResourceList = {}
    for name, value in (raw or {}).items():
        try:
            parsed[name] = parse_wire(value)
        except QuantityError as error:
            raise QuantityError(f"{name}: {error}") from error
    return parsed


def format_resource_list(resources: Mapping[str, Quantity]) -> dict[str, str]:
    """The list as it goes into an object: canonical spelling, names sorted."""
    return {name: str(resources[name]) for name in sorted(resources)}


def marshal(resources: Mapping[str, Quantity]) -> str:
    """Returns compact JSON with sorted keys, as Go marshals a ResourceList."""
    return msgspec.json.encode(format_resource_list(resources)).decode()


def unmarshal(text: str) -> ResourceList:
    """The list that an annotation holds; a null is zero, as for Go. Raises ValueError, QuantityError."""
    try:
        decoded = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise ValueError(f"not JSON: {error}") from error
    if decoded is None:
        return {}
    if not isinstance(decoded, dict):
        raise ValueError("not a JSON object")
    return parse_resource_list({name: "0" if value is None else value for name, value in decoded.items()})


def add(a: Mapping[str, Quantity], b: Mapping[str, Quantity]) -> ResourceList:
    """Returns a + b; a name of one side only keeps that side's quantity."""
    return total((a, b))


def subtract(a: Mapping[str, Quantity], b: Mapping[str, Quantity]) -> ResourceList:
    """Returns a − b; a name of `b` only comes out negative (Kubernetes' quota.Subtract)."""
    return add(a, {name: -quantity for name, quantity in b.items()})


def maximum(a: Mapping[str, Quantity], b: Mapping[str, Quantity]) -> ResourceList:
    return {**a, **b, **{name: max(a[name], b[name]) for name in a.keys() & b.keys()}}


def smallest(usages: Iterable[Mapping[str, Quantity]]) -> ResourceList:
    """The smallest amount of each resource that all of them have."""
    lists = [dict(usage) for usage in usages]
    return functools.reduce(minimum, lists) if lists else {}


def minimum(a: Mapping[str, Quantity], b: Mapping[str, Quantity]) -> ResourceList:
    return {name: min(amount, b[name]) for name, amount in a.items() if name in b}


def positive(resources: Mapping[str, Quantity]) -> ResourceList:
    return {name: amount for name, amount in resources.items() if amount.nanos > 0}


def total(lists: Iterable[Mapping[str, Quantity]]) -> ResourceList:
    result: ResourceList = {}
    for resources in lists:
        add_to(result, resources)
    return result


def add_to(result: ResourceList, addend: Mapping[str, Quantity]) -> None:
    """Adds `addend` to `result`, at the cost of `addend` alone."""
    for name, quantity in addend.items():
        result[name] = result[name] + quantity if name in result else quantity
