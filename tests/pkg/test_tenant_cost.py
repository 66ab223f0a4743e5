"""Costs of one tenant's objects for others: of every field that a tenant may write 256 KiB, from the watch's line to
the decision and the reserve's answer. The fields are those of the structs: a new one needs a row in
docs/security.md."""

import gc
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

import msgspec
import pytest

from kubeloop.api.core import Container, LimitRange, PersistentVolumeClaim, Pod
from kubeloop.api.meta import Object, Struct
from kubeloop.api.objects import edit
from kubeloop.client.decode import decoder_for
from pkg.api.kubevirt import VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration
from pkg.config.slim import LARGEST, CacheTransforms
from pkg.util import constants
from pkg.util.kubevirt.launcher import rendered_from
from pkg.util.kubevirt.migration import annotations_for
from pkg.util.resourcequota.observe import Listed, Source
from pkg.util.resourcequota.planner import plan
from pkg.util.resourcequota.room import Pods, QuotaRoom
from pkg.webhook.resources import virtualmachine
from tests.decisions import EXACT
from tests.objects import annotated_namespace, launcher, limits_text, quota, running_vmi, vm, vmim
from tests.program import ROOT

SIZES: Final = (256 * 1024, LARGEST - 8 * 1024)
"""Bytes: as much as an object may have of annotations (of labels and spec it may have 1.5 MiB), and of a VM the most
that is looked at."""
MOST: Final = 0.05
"""Seconds for which one change of one object may hold the event loop."""
HEADING: Final = "## What a tenant's objects cost others"

VMI = running_vmi(uid="uid-vm1")
MOVE = vmim("Pending")
OBJECTS: Mapping[type[Object], Object] = {
    Pod: launcher(VMI),
    VirtualMachineInstance: VMI,
    VirtualMachineInstanceMigration: MOVE,
    VirtualMachine: vm(),
    PersistentVolumeClaim: msgspec.convert(
        {"metadata": {"name": "c", "namespace": "ns1"}, "spec": {"resources": {"requests": {"storage": "1Gi"}}}},
        PersistentVolumeClaim,
    ),
    LimitRange: msgspec.convert({"metadata": {"name": "l", "namespace": "ns1"}}, LimitRange),
}
"""What a tenant may write, and one of each: a running VM with a migration that is about to be tried."""
VMS: Final = (VirtualMachineInstance, VirtualMachineInstanceMigration, VirtualMachine)
CONTAINER = {
    "name": "c",
    "image": "i",
    "resources": {},
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "imagePullPolicy": "Always",
}
"""The least that the API server makes of one."""


# ---- the fields ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Field:
    """A field by its path on the wire; [] stands for an element of a list, {} for a value of a map."""

    kind: type[Object]
    path: tuple[str, ...]
    type: Any

    def __str__(self) -> str:
        return f"{self.kind.__name__} {self.name}"

    @property
    def name(self) -> str:
        return ".".join(part for part in self.path if part not in ("[]", "{}"))


def fields_of(kind: type[Object]) -> list[Field]:
    return list(_fields(kind, (), kind))


def _fields(kind: type[Object], path: tuple[str, ...], declared: Any) -> Iterator[Field]:
    for alternative in _alternatives(declared):
        if isinstance(alternative, type) and issubclass(alternative, Struct):
            for field in msgspec.structs.fields(alternative):
                yield from _fields(kind, (*path, field.encode_name), field.type)
        elif get_origin(alternative) is list:
            yield Field(kind, path, alternative)
            yield from _fields(kind, (*path, "[]"), get_args(alternative)[0])
        elif get_origin(alternative) in (dict, Mapping) or alternative in (dict, Mapping):
            yield Field(kind, path, alternative)
            yield from _fields(kind, (*path, "{}"), get_args(alternative)[1])
        elif alternative in (str, int):
            yield Field(kind, path, alternative)


def _alternatives(declared: Any) -> Sequence[Any]:
    while get_origin(declared) is not None and hasattr(declared, "__metadata__"):
        declared = get_args(declared)[0]
    if get_origin(declared) in (Union, UnionType):
        return [alternative for alternative in get_args(declared) if alternative is not NoneType]
    if getattr(get_origin(declared), "__name__", "") == "Mapping":
        return [dict[get_args(declared)]]  # type: ignore[misc]
    return [declared]


def values_of(field: Field, size: int) -> Iterator[tuple[str, Any]]:
    """Values of the field that take so many bytes."""
    if field.type is str:
        yield "a long text", "x" * size
        yield "many digits", "9" * size
    elif field.type is int:
        yield "many digits", _Digits("9" * size)
    elif get_origin(field.type) is list:
        element = _alternatives(get_args(field.type)[0])[0]
        element_value: Any = {} if isinstance(element, type) and issubclass(element, Struct) else "x"
        element_value = CONTAINER if element is Container else element_value
        yield "many elements", [element_value] * (size // (len(json.dumps(element_value)) + 2))
    else:
        yield "many keys", {f"k{number}.example.com/n": "1" for number in range(size // 28)}


class _Digits(str):
    """A number of so many digits."""


def body(field: Field, value: Any) -> bytes:
    """The object with this value, as JSON."""
    whole: dict[str, Any] = msgspec.to_builtins(OBJECTS[field.kind])
    place: Any = whole
    for part, following in zip(field.path, (*field.path[1:], ""), strict=True):
        key: Any = 0 if part == "[]" else "hooks.kubevirt.io/hookSidecars" if part == "{}" else part
        if not following:
            place[key] = value
        elif not (place[key] if isinstance(place, list) and place else isinstance(place, dict) and place.get(key)):
            fresh: Any = [{}] if following == "[]" else {}
            place[key] = fresh
        place = place[key] if following else place
    text = json.dumps(whole)
    return (text.replace(f'"{value}"', value) if isinstance(value, _Digits) else text).encode()


EVERY = [
    (field, shape, value)
    for kind in OBJECTS
    for field in fields_of(kind)
    for size in SIZES
    for shape, value in values_of(field, size)
]


# ---- what it costs -------------------------------------------------------------------------------------------


def transform_of(slim: CacheTransforms) -> Mapping[type[Object], Callable[[Any], Any]]:
    return {
        Pod: slim.pod,
        VirtualMachineInstance: slim.instance,
        VirtualMachineInstanceMigration: slim.plain,
        VirtualMachine: slim.machine,
        PersistentVolumeClaim: slim.claim,
        LimitRange: slim.plain,
    }


def as_cached(kind: type[Object], line: bytes, slim: CacheTransforms) -> Object | None:
    """Returns the object as a cache holds it after a watch's line; None if it is as it was before."""
    obj: Any = decoder_for(kind).watch_event(line).object
    return obj and transform_of(slim)[kind](obj)


def decide_about(objects: Mapping[type[Object], Object]) -> None:
    """About the tenant's quota, of every object anew, and what its VMI shows."""
    counts = quota({"limits.cpu": "3", "limits.memory": "5000Mi", "requests.storage": "9Gi"})
    listed: dict[Any, Any] = {kind: Listed([obj]) for kind, obj in objects.items()}
    source: Any = Source(
        namespaces=Listed([annotated_namespace()]),
        quotas=Listed([counts]),
        pods=listed[Pod],
        instances=listed[VirtualMachineInstance],
        migrations=listed[VirtualMachineInstanceMigration],
        machines=listed[VirtualMachine],
        claims=listed[PersistentVolumeClaim],
        limit_ranges=listed[LimitRange],
    )
    observed = source.observe(counts, 0.0)
    plan(observed, EXACT)
    QuotaRoom.from_facts(observed, EXACT, Pods(source.pods.list()))
    vmi: Any = objects[VirtualMachineInstance]
    annotations_for(vmi, source.migrations.list())
    assert rendered_from(vmi) == rendered_from(vmi)


def review(machine: VirtualMachine) -> None:
    """Reviews the object by the webhook, which reads the one of the request."""
    text = {**machine.annotations, constants.ANNOTATION_VOLUME_CLAIM_TEMPLATES: "[" + "{}," * (SIZES[0] // 3) + "{}]"}
    annotated = edit(machine, metadata={"annotations": text})
    virtualmachine.decide(annotated, machine, limits_text(requestsStorage="9Gi"), [quota()])


def machine_seconds() -> float:
    """Seconds of CPU that this machine takes now for what takes 10 ms on an idle one."""
    began = time.process_time()
    sum(len(str(number)) for number in range(100_000))
    return time.process_time() - began


def cost(kind: type[Object], line: bytes) -> tuple[float, int]:
    """Seconds of CPU of an idle machine, and bytes of the object that stay."""
    slowness = max(1.0, machine_seconds() / 0.01)
    began = time.process_time()
    slim = CacheTransforms()
    obj = as_cached(kind, line, slim)
    decide_about({**OBJECTS, kind: obj or OBJECTS[kind]})
    if isinstance(obj, VirtualMachine):
        review(obj)
    return (time.process_time() - began) / slowness, len(msgspec.json.encode(obj)) if obj else 0


# ---- the table -----------------------------------------------------------------------------------------------

KINDS: Final = {kind.__name__: kind for kind in OBJECTS}
EVERY_OBJECT: Final = "every object"
NOT_A_TENANTS: Final = "not a tenant's"
WHOLE: Final = ("spec", "status", "metadata", "spec.domain", "spec.domain.devices", "spec.template.spec")
"""No row is about all of these: a new field is to be thought about."""


@dataclass(frozen=True)
class CostRow:
    kinds: Sequence[type[Object]]
    names: Sequence[str]
    """Of fields, with all that is below them."""
    text: str

    def is_about(self, field: Field) -> bool:
        below = (name for name in self.names if f"{field.name}.".startswith(f"{name}."))
        return field.kind in self.kinds and any(below)


def rows() -> list[CostRow]:
    text = (ROOT / "docs" / "security.md").read_text("utf-8")
    section = text.split(f"{HEADING}\n")[1].split("\n## ")[0]
    table = []
    for line in section.splitlines():
        if line.startswith(("| `", f"| {EVERY_OBJECT}")):
            kinds, names, *cells = line.strip("| ").split(" | ")
            row_kinds = list(OBJECTS) if kinds == EVERY_OBJECT else [KINDS[kind_name] for kind_name in _code(kinds)]
            table.append(CostRow(row_kinds, _code(names), " | ".join(cells)))
    return table


def _code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize("kind", OBJECTS, ids=lambda kind: kind.__name__)
def test_every_field_that_a_tenant_may_write_has_one_row(kind: type[Object]) -> None:
    table = rows()
    for field in fields_of(kind):
        rows_about = [row for row in table if row.is_about(field)]
        assert len(rows_about) == 1, f"{len(rows_about)} rows of docs/security.md, {HEADING!r}, are about {field}"


def test_no_row_is_about_what_is_not_there_or_about_everything() -> None:
    for row in rows():
        for kind in row.kinds:
            for name in row.names:
                matches = [f for f in fields_of(kind) if f"{f.name}.".startswith(f"{name}.")]
                assert matches, f"{kind.__name__} has no {name}"
                assert name not in WHOLE


@pytest.fixture(autouse=True)
def without_garbage_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("kind", OBJECTS, ids=lambda kind: kind.__name__)
def test_256_kib_of_a_field_hold_nobody_up(kind: type[Object]) -> None:
    """Once more where it took long: the machine may be busy."""
    table, problems = rows(), list[str]()
    for field, shape, value in filter(lambda example: example[0].kind is kind, EVERY):
        (row,) = (row for row in table if row.is_about(field))
        if NOT_A_TENANTS in row.text:
            continue
        line = b'{"type":"MODIFIED","object":' + body(field, value) + b"}"
        seconds, kept_bytes = cost(kind, line)
        if seconds > MOST:
            seconds = min(cost(kind, line)[0] for _ in range(8))
        most = LARGEST if kind in VMS else len(line)
        if seconds > MOST or kept_bytes > most:
            problems.append(f"{field}, {shape}: {seconds * 1000:.0f} ms, {kept_bytes} bytes stay")
    assert not problems, "\n".join(problems)
